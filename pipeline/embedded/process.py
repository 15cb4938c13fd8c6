"""Ties a child process to the life of its parent, puts it first (Linux), and ends it, or this one. Starts nothing."""

from __future__ import annotations

import atexit
import ctypes
import gc
import io
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, Final, NoReturn, Protocol

_PR_SET_PDEATHSIG = 1

_WRITTEN: Final = (io.TextIOWrapper, io.BufferedWriter, io.BufferedRandom)
_settled: Final[list[Any]] = []  # files that were there when the process settled, among which is no looking any more

_FIRST: Final = -5
"""As `nice` counts: three times the share of a process that nobody has set."""


def die_with_parent(death_signal: signal.Signals) -> Callable[[], None]:
    """A `preexec_fn` after which the child gets `death_signal` when its parent is gone, even by SIGKILL.

    Linux counts the *thread* that started the child as its parent: start children from a thread that
    outlives them. The tie survives exec, and is not inherited by the child's own children.
    """
    prctl = ctypes.CDLL(None, use_errno=True).prctl  # resolved before the fork: the child must not load
    parent_pid = os.getpid()

    def arm() -> None:
        if prctl(_PR_SET_PDEATHSIG, int(death_signal), 0, 0, 0) != 0:
            raise OSError(ctypes.get_errno(), "prctl(PR_SET_PDEATHSIG) was refused")
        if os.getppid() != parent_pid:  # it died between fork and prctl, so no signal will come
            os._exit(128 + int(death_signal))

    return arm


def put_first(pid: int) -> None:
    """Gives a process, the leader of its session, the CPU before others; where the system refuses, nothing changes.

    Where sessions are scheduled as groups (`sched_autogroup`), only the group's own number tells among sessions.
    """
    with suppress(OSError):
        os.setpriority(os.PRIO_PROCESS, pid, _FIRST)
    with suppress(OSError):
        Path(f"/proc/{pid}/autogroup").write_text(str(_FIRST))


class Child(Protocol):
    """What is needed of a process that was started from here, by `subprocess.Popen` or by a fork."""

    def terminate(self) -> None: ...

    def kill(self) -> None: ...

    def wait(self, timeout: float | None = None) -> int: ...


def end_process(process: Child, seconds: float) -> None:
    """Asked first, killed after so many seconds; collected when this returns. One that has ended is no fault."""
    process.terminate()
    try:
        process.wait(seconds)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def exit_words(code: int) -> str:
    """`ended with exit code 3`, or `was killed by SIGKILL` for a negative code, as subprocess gives it."""
    if code >= 0:
        return f"ended with exit code {code}"
    try:
        return f"was killed by {signal.Signals(-code).name}"
    except ValueError:
        return f"was killed by signal {-code}"


def run_and_end(main: Callable[[], int]) -> NoReturn:
    """Ends this process, from its main thread, with what `main` returns or raises, as Python ends a program.

    So a forked process never comes to what is behind the fork in the one that it is a copy of.
    """
    code = 1
    try:
        code = main()
    except SystemExit as leaving:
        code = _code_of(leaving)
    except BaseException:
        sys.excepthook(*sys.exc_info())
    end_this_process(code)


def _code_of(leaving: SystemExit) -> int:
    if leaving.code is None or isinstance(leaving.code, int):
        return leaving.code or 0
    print(leaving.code, file=sys.stderr)
    return 1


def end_this_process(code: int) -> NoReturn:
    """Ends this process, from its main thread, as `sys.exit`: behind its threads and what is registered for its end.

    But what was imported is not taken apart, which takes a tenth of a second and more, and copies what a forked process
    shares. `multiprocessing` ends its processes so. What was written into open files is in them, whoever opened them.
    """
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    for output in (sys.stdout, sys.stderr, *_open_files()):
        with suppress(AttributeError, OSError, ValueError):  # it may be None, full, or closed
            output.flush()
    os._exit(code)


def settle() -> None:
    """Tells the garbage collector that all that lives now lives on: it need not look at it again."""
    gc.collect()
    _settled.extend(_living_files())
    gc.freeze()


def _open_files() -> list[Any]:
    """Those of this process, a text before the bytes that it is encoded to."""
    return sorted([*_settled, *_living_files()], key=lambda each: _WRITTEN.index(type(each)))


def _living_files() -> list[Any]:
    return [each for each in gc.get_objects() if type(each) in _WRITTEN]
