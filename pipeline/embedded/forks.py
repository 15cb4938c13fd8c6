"""Forks a program of ours from a process that has imported much of what it needs: it begins sooner, and shares that.

What is forked is as if it had been executed. So this is for processes that are ours from their first line on: they have
no thread yet, and nothing registered for their end that a child must not do.
"""

from __future__ import annotations

import gc
import os
import select
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Final, NoReturn, TextIO

from pipeline.embedded.process import die_with_parent, run_and_end

_HEARD: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1)

_is_ours = False


def allow_forks() -> None:
    """Said once by a program whose process is ours; in any other one, as in that of a test, nothing is forked."""
    global _is_ours
    _is_ours = True


def can_fork() -> bool:
    """Whether that was said, and no library has started a thread, which a child would not have."""
    return _is_ours and has_one_thread()


def has_one_thread() -> bool:
    return len(list(Path("/proc/self/task").iterdir())) == 1


class ForkedProgram:
    """A child that was forked, with what is needed of `subprocess.Popen` for one that was executed.

    `stdin`: the pipe to its standard input, in bytes.
    """

    def __init__(self, pid: int, stdin: int) -> None:
        self.pid = pid
        self.stdin = os.fdopen(stdin, "wb")
        self.returncode: int | None = None

    def poll(self) -> int | None:
        """The exit code of one that has ended, minus the number of the signal that ended it; None while it runs."""
        if self.returncode is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                self.returncode = os.waitstatus_to_exitcode(status)
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """The same, once it has ended. timeout: in seconds. Raises subprocess.TimeoutExpired."""
        if self.poll() is None:
            descriptor = os.pidfd_open(self.pid)
            poller = select.poll()  # `select` itself takes no descriptor above 1,023
            poller.register(descriptor, select.POLLIN)
            try:
                has_ended = poller.poll(None if timeout is None else timeout * 1000)
            finally:
                os.close(descriptor)
            if not has_ended:
                raise subprocess.TimeoutExpired("a forked program", timeout or 0.0)
        code = self.poll()
        assert code is not None
        return code

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def send_signal(self, number: signal.Signals) -> None:
        """Does nothing to one that has ended."""
        if self.poll() is None:
            os.kill(self.pid, number)


def fork_program(
    module: str, title: str, environment: Mapping[str, str], log: int, holds: Collection[int] = ()
) -> ForkedProgram:
    """Forks `main` of a module, which the child imports, as `python -P -m module`. To be called where `can_fork`.

    log: a descriptor that takes what it writes. holds: descriptors that it keeps. It gets SIGTERM when the calling
    thread ends. Raises OSError.
    """
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # whoever started us may have had it ignored: no exit code then
    theirs, ours = os.pipe()
    tie = die_with_parent(signal.SIGTERM)
    try:
        pid = os.fork()
        if pid == 0:
            _run(module, theirs, tie, partial(begin_program, module, title, environment, log, holds))
    except OSError:
        os.close(ours)
        raise
    finally:
        os.close(theirs)
    return ForkedProgram(pid, ours)


def _run(module: str, stdin: int, tie: Callable[[], None], begin: Callable[[], None]) -> NoReturn:
    def program() -> int:
        tie()
        os.dup2(stdin, 0)
        begin()
        sys.stdin, sys.stdout, sys.stderr = _streams()
        _find_modules()
        gc.freeze()  # else the first collection would copy all that is shared
        return int(import_module(module).main())

    run_and_end(program)


def begin_program(
    module: str, title: str, environment: Mapping[str, str], log: int, holds: Collection[int] = ()
) -> None:
    """What exec would have done, in a child that was just forked: its standard input stays as it is.

    A session of its own, no handlers of signals but Python's, descriptors 0 to 2 and `holds`, that environment.
    """
    name_process(title)  # before the environment changes, beside which the place of the title is found
    os.setsid()
    for number in _HEARD:
        signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)
    sys.unraisablehook = sys.__unraisablehook__
    os.dup2(log, 1)
    os.dup2(log, 2)
    for path in list(Path("/proc/self/fd").iterdir()):
        if int(path.name) > 2 and int(path.name) not in holds:
            with suppress(OSError):  # that of the listing itself
                os.close(int(path.name))
    os.environ.clear()
    os.environ.update(environment)
    tempfile.tempdir = None  # it is asked for anew
    sys.argv = [module]


def _find_modules() -> None:
    """Where Python would with `-P` and this environment."""
    if not sys.flags.safe_path:
        del sys.path[0]  # the folder of a script, or the current one, whose files are not ours
    named = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    sys.path[:0] = [path for path in named if path and path not in sys.path]


def _streams() -> tuple[TextIO, TextIO, TextIO]:
    """Of the three descriptors. Those of the parent may have been closed before it began."""
    return (
        open(0, encoding="utf-8", closefd=False),
        open(1, "w", encoding="utf-8", buffering=1, closefd=False),
        open(2, "w", encoding="utf-8", errors="backslashreplace", buffering=1, closefd=False),
    )


def name_process(title: str) -> None:
    """What `ps` shows of this process."""
    from setproctitle import setproctitle  # its import looks for the place of argv, which a test's process needs not

    setproctitle(title)
