"""One running program: bytes in, bytes out, its errors kept, its end told. Knows no records.

Everything is done by the calling thread, which is never blocked for longer than the deadline that it names. It
must outlive the program: Linux ties the program to the thread that started it.
"""

from __future__ import annotations

import os
import resource
import select
import shlex
import signal
import subprocess
from collections.abc import Callable, Sequence
from time import monotonic
from typing import IO, Final

from pipeline.embedded.process import die_with_parent, exit_words
from pipeline.programs.protocols import Answers, Malformed
from pipeline.wording import counted

_CHUNK_BYTES: Final = 256 << 10
_ERROR_BYTES: Final = 2000
"""What is kept of the standard error: its end."""

_ERROR_READS: Final = 64
_GRACE_SECONDS: Final = 0.5
_SECRET_PREFIX: Final = "CELERIAC_"
"""Variables of ours, the address of Redis with its password among them, are not for programs."""

_COMMAND_CHARACTERS: Final = 200


class Ended(Exception):
    """Raised when the program has ended, or has closed its output, while answers were due."""


class Late(Exception):
    """Raised when the deadline has come."""


class Program:
    """A program in a session of its own, which is killed with it. It dies with the thread that made it."""

    def __init__(self, argv: Sequence[str], memory_bytes: int | None) -> None:
        """Starts it. Raises OSError and SubprocessError."""
        self.command = shortened(shlex.join(argv))
        self._process = subprocess.Popen(
            argv,
            env={name: value for name, value in os.environ.items() if not name.startswith(_SECRET_PREFIX)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            bufsize=0,
            start_new_session=True,
            preexec_fn=_prepare(memory_bytes),
        )
        process = self._process
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stderr is not None
        self._input: IO[bytes] = process.stdin
        self._output: IO[bytes] = process.stdout
        self._errors: IO[bytes] = process.stderr
        self.exit_code: int | None = None
        """Of one that has ended by itself, as `end` has found."""
        self._has_errors = True
        self._said = b""
        for pipe in (self._input, self._output, self._errors):
            os.set_blocking(pipe.fileno(), False)

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def has_ended(self) -> bool:
        # Unreaped, so that its process group can still be killed by its number.
        return os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None

    def converse(self, request: bytes, answers: Answers, wanted: int, deadline: float) -> None:
        """Writes the request, and reads until so many records are answered, both at once.

        Raises Late, Ended, Malformed: kill it then. Malformed also for answers to what it was not asked.
        """
        self._refuse_unasked()
        left = self._exchange(request, answers, deadline, lambda: answers.count >= wanted)
        if answers.count > wanted or answers.has_rest or left:
            raise Malformed(f"it answered more than the {counted(wanted, 'record')} that it was asked")
        self._refuse_unasked()

    def run(self, request: bytes, answers: Answers, deadline: float) -> int:
        """Writes the request, closes the program's input, and reads until it has ended. Its exit code.

        The code of one that was killed by a signal is negative. Raises Late, Malformed: kill it then.
        """
        self._exchange(request, answers, deadline, None)
        self._input.close()  # one that has closed its output may still wait for the end of its input
        self._wait(deadline)
        if not self.has_ended:
            raise Late
        self.kill()
        return self._process.returncode

    def kill(self) -> None:
        """Ends it and all that it started in its session, and keeps its last words. It may be called again."""
        if self._process.returncode is not None:
            return
        os.killpg(self.pid, signal.SIGKILL)
        self._process.wait()
        self._read_errors()
        for pipe in (self._input, self._output, self._errors):
            pipe.close()

    def close(self) -> None:
        """Closes its input and gives it half a second to end."""
        self._input.close()
        self._wait(monotonic() + _GRACE_SECONDS)
        self.kill()

    def end(self) -> str:
        """How it ended, as words; it is killed if it still runs. For one that has closed its output."""
        self._wait(monotonic() + _GRACE_SECONDS)
        has_ended = self.has_ended
        self.kill()
        self.exit_code = self._process.returncode if has_ended else None
        return "closed its output" if self.exit_code is None else exit_words(self.exit_code)

    def last_words(self) -> str:
        """The end of its standard error, or nothing."""
        return self._said.decode("utf-8", "replace").strip()

    def _exchange(
        self, request: bytes, answers: Answers, deadline: float, is_done: Callable[[], bool] | None
    ) -> memoryview:
        """Until `is_done`, or, without it, until the program closes its output; its input is then closed at the end.

        What of the request was not written.
        """
        left = memoryview(request)
        into, out, errors = self._input.fileno(), self._output.fileno(), self._errors.fileno()
        poll = select.poll()
        poll.register(into, select.POLLOUT)
        poll.register(out, select.POLLIN)
        if self._has_errors:
            poll.register(errors, select.POLLIN)
        while True:
            seconds = deadline - monotonic()
            if seconds <= 0:
                raise Late
            for ready, _ in poll.poll(seconds * 1000 + 1):
                if ready == into:
                    left = self._write(left)
                    if not left:
                        poll.unregister(into)
                        if is_done is None:
                            self._input.close()
                elif ready == errors:
                    self._read_errors()
                    if not self._has_errors:
                        poll.unregister(errors)
                else:
                    chunk = os.read(out, _CHUNK_BYTES)
                    if chunk:
                        answers.take(chunk)
                        if is_done is not None and is_done():
                            return left
                    elif is_done is None:
                        return left
                    else:
                        raise Ended

    def _write(self, left: memoryview) -> memoryview:
        """What is left to write; nothing for a program that reads no more, whose output then tells."""
        try:
            return left[os.write(self._input.fileno(), left) :]
        except BlockingIOError:
            return left
        except BrokenPipeError:
            return left[len(left) :]

    def _refuse_unasked(self) -> None:
        """What a program writes unasked would be taken for the answer to the next record."""
        poll = select.poll()
        poll.register(self._output.fileno(), select.POLLIN)
        if poll.poll(0):
            chunk = os.read(self._output.fileno(), _ERROR_BYTES)
            if not chunk:
                raise Ended
            raise Malformed(f"it wrote what it was not asked: {chunk[:80]!r}")

    def _read_errors(self) -> None:
        """All that is there now, within reason."""
        for _ in range(_ERROR_READS if self._has_errors else 0):
            try:
                chunk = os.read(self._errors.fileno(), _CHUNK_BYTES)
            except BlockingIOError:
                return
            self._has_errors = bool(chunk)
            if not chunk:
                return
            self._said = (self._said + chunk)[-_ERROR_BYTES:]

    def _wait(self, deadline: float) -> None:
        """Until it has ended, or the deadline; its errors are read meanwhile, as it may wait for that."""
        pidfd = os.pidfd_open(self.pid)
        try:
            poll = select.poll()
            poll.register(pidfd, select.POLLIN)
            if self._has_errors:
                poll.register(self._errors.fileno(), select.POLLIN)
            while (seconds := deadline - monotonic()) > 0:
                ready = [fd for fd, _ in poll.poll(seconds * 1000 + 1)]
                if pidfd in ready:
                    return
                if ready:
                    self._read_errors()
                    if not self._has_errors:
                        poll.unregister(self._errors.fileno())
        finally:
            os.close(pidfd)


def _prepare(memory_bytes: int | None) -> Callable[[], None]:
    """A `preexec_fn`: the tie to this thread, and the limit of memory, last, since it holds from then on."""
    arm = die_with_parent(signal.SIGKILL)
    if memory_bytes is None:
        return arm
    hard = resource.getrlimit(resource.RLIMIT_AS)[1]
    limit = memory_bytes if hard == resource.RLIM_INFINITY else min(memory_bytes, hard)

    def arm_and_limit() -> None:
        arm()
        resource.setrlimit(resource.RLIMIT_AS, (limit, limit))

    return arm_and_limit


def shortened(command: str) -> str:
    """A command line for messages."""
    return command if len(command) <= _COMMAND_CHARACTERS else command[: _COMMAND_CHARACTERS - 1] + "…"
