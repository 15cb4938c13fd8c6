"""The command `celeriac`, also as `python -m celeriac`. It stands outside of the packages, which load slowly."""

from __future__ import annotations

import signal


def main() -> None:
    """Runs the command that the arguments of this process name, and ends the process with its exit code.

    A Ctrl-C before the command can take it ends the process as a signal does, without a traceback.
    """
    is_heard = signal.getsignal(signal.SIGINT) is signal.default_int_handler  # not ignored, as behind `&` in a script
    if is_heard:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    from pipeline.cli.main import main as command

    if is_heard:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    command()


if __name__ == "__main__":
    main()
