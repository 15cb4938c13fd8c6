"""The entry of the command `celeriac`, and the only place that turns errors into exit codes and messages."""

from __future__ import annotations

import errno
import io
import os
import signal
import sys
import traceback
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from pipeline.cli.streams import prepare_streams
from pipeline.embedded.forks import allow_forks
from pipeline.embedded.process import end_this_process
from pipeline.errors import (
    CeleriacError,
    JobRestored,
    JobStateError,
    LetterError,
    PipelineError,
    ProducerError,
    ReadingError,
    SavepointError,
    SavepointLost,
    ShadowLost,
    SinkError,
    StaleReader,
    TailLost,
    UnknownJob,
)

if TYPE_CHECKING:
    import click

    from pipeline.cli.interrupts import Interrupts

_REFUSED_BY_THE_DISK: Final = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO})


def main() -> None:
    """The console script."""
    prepare_streams()
    allow_forks()
    code = run_command(sys.argv[1:])
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # all is cleaned up: a late Ctrl-C would only print a traceback
    end_this_process(code)


def run_command(arguments: Sequence[str]) -> int:
    """Runs one command and returns its exit code; every failure is one message on standard error."""
    try:
        # Not at the top: a Ctrl-C while Redis and rich are being imported must end as quietly as any other.
        from pipeline.cli.interrupts import Interrupts

        with Interrupts() as interrupts, interrupts.immediate():
            code = _invoke(list(arguments), interrupts)
            if sys.stdout is not None:  # it was closed before the program began
                sys.stdout.flush()
            return code
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        _let_go_of_output()
        return 141
    except CeleriacError as error:
        if "--debug" in arguments:
            traceback.print_exception(error)
        _say(str(error), error.hint)
        _give_up_output()
        return _code(error)
    except OSError as error:
        if error.filename is not None or error.errno not in _REFUSED_BY_THE_DISK:
            raise
        # What writes files names them in an error of ours: this is what `echo` or a flush met.
        _say(f"standard output cannot be written: {error.strerror}", "free some space, or write it to another place")
        _let_go_of_output()
        return 2


def _invoke(arguments: list[str], interrupts: Interrupts) -> int:
    """What `click.Group.main` does, without its own idea of exit codes."""
    import click

    from pipeline.cli.commands import celeriac

    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # a record may hold what this terminal cannot show
    try:
        with celeriac.make_context("celeriac", arguments, obj=interrupts) as context:
            answer = celeriac.invoke(context)
            return answer if isinstance(answer, int) else 0
    except click.exceptions.Exit as end:  # --help and --version
        return end.exit_code
    except click.exceptions.NoArgsIsHelpError as error:
        print(error.format_message())
        return 0
    except click.UsageError as error:
        path = error.ctx.command_path if error.ctx else _path(celeriac, arguments)
        _say(error.format_message(), f"see `{path} --help`")
        return error.exit_code


def _path(command: click.Command, arguments: list[str]) -> str:
    """The command that is meant, where click does not say: an option at the end that lacks its argument."""
    import click

    path = "celeriac"
    for word in arguments:
        found = command.commands.get(word) if isinstance(command, click.Group) else None
        if found is None:
            break
        command, path = found, f"{path} {word}"
    return path


def _code(error: CeleriacError) -> int:
    from pipeline.cli.exits import Exit, JobFailed

    match error:
        case JobFailed() | SavepointLost() | ShadowLost() | StaleReader() | TailLost() | JobRestored():
            return Exit.FAILED
        case PipelineError() | ProducerError() | ReadingError() | LetterError() | SavepointError() | SinkError():
            return Exit.USAGE
        case UnknownJob() | JobStateError():
            return Exit.USAGE
        case _:  # the input, what this machine lacks, and what Redis refuses
            return Exit.ENVIRONMENT


def _say(message: str, hint: str) -> None:
    print(f"error: {message}", file=sys.stderr)
    if hint:
        print(f"hint: {hint}", file=sys.stderr)


def _give_up_output() -> None:
    """What a full disk did not take must not be tried again at the end of Python."""
    try:
        if sys.stdout is not None:
            sys.stdout.flush()
    except OSError:
        _let_go_of_output()


def _let_go_of_output() -> None:
    """Python flushes its output once more at its end, and would end with a code of its own."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    for output in (sys.stdout, sys.stderr):
        if output is not None:
            os.dup2(nowhere, output.fileno())
    os.close(nowhere)


if __name__ == "__main__":
    main()
