"""Starts the Python processes of a node by fork, from a process that has imported what they need: in milliseconds.

An import of Celery and Redis takes a second of a processor, for each process that starts and for each that is started
again. The nursery is forked from the agent before that has a thread, and never has one itself.
"""

from __future__ import annotations

import gc
import logging
import os
import signal
import socket
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from typing import Final

import msgspec

from pipeline.embedded.forks import begin_program, has_one_thread, name_process
from pipeline.embedded.process import die_with_parent, run_and_end
from stages.supervision import ChildSpec, Process, Starter, execute

PRELOADED: Final = (
    "leader.main",
    "stages.main",
    "pipeline.sources.main",
    "celery.apps.beat",
    "celery.apps.worker",
    "celery.concurrency.solo",
    "celery.worker.consumer",
    "celery.worker.strategy",
    "kombu.transport.redis",
)
"""What leaders, workers and feeders import, and what Celery imports late."""

ANSWER_SECONDS: Final = 10.0
"""A nursery that takes longer for a fork is given up."""

_MOST_BYTES: Final = 1 << 20
_SILENT: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
"""A Ctrl-C in the terminal is for the agent to handle."""

_log = logging.getLogger(__name__)


class NurseryGone(Exception):
    """Raised when the nursery does not answer. It was ended then, and its children with it."""


class Birth(msgspec.Struct, frozen=True, tag="start"):
    """module: its `main` is run, which returns the exit code. env: the whole environment."""

    module: str
    title: str
    env: dict[str, str]


class Burial(msgspec.Struct, frozen=True, tag="wait"):
    pid: int


class Answer(msgspec.Struct, frozen=True):
    """number: a pid, or an exit code. error: why there is none."""

    number: int = 0
    error: str = ""


_read_request = msgspec.msgpack.Decoder(Birth | Burial)
_read_answer = msgspec.msgpack.Decoder(Answer)
_write = msgspec.msgpack.Encoder().encode


class Nursery:
    """The agent's hold on it. For one thread, the one that made it; its children die with it, and it with the agent."""

    def __init__(self, link: socket.socket, pid: int) -> None:
        self._link = link
        self._pid = pid
        link.settimeout(ANSWER_SECONDS)

    @classmethod
    def open(cls, modules: Sequence[str] = PRELOADED) -> Nursery:
        """Forks it. To be called before there is any thread. Raises NurseryGone when there is one, OSError.

        In a process that it starts later this call does not return: that ends when the module has ended.
        """
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # whoever started us may have had it ignored: no exit code then
        os.environ.setdefault("NOSETPS", "1")  # Celery would give its processes titles of its own
        gc.disable()  # what is imported stays, and to look for garbage in it takes a tenth of the time
        try:
            ours, theirs, pid = cls._fork(modules)
        finally:
            gc.enable()
        if pid == 0:
            ours.close()
            run_and_end(lambda: import_module(_keep(theirs)).main())
        gc.unfreeze()
        theirs.close()
        return cls(ours, pid)

    @staticmethod
    def _fork(modules: Sequence[str]) -> tuple[socket.socket, socket.socket, int]:
        """The agent's end of their link, the nursery's, and its pid, which is 0 in the nursery itself."""
        for module in modules:
            import_module(module)
        if not has_one_thread():
            raise NurseryGone("a library has started a thread when it was imported, and threads are not forked")
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        for end in (ours, theirs):
            end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _MOST_BYTES)
        gc.freeze()  # else the first collection of each child would copy all that it shares
        tie = die_with_parent(signal.SIGKILL)
        pid = os.fork()
        if pid == 0:
            tie()
        return ours, theirs, pid

    def start(self, module: str, title: str, env: Mapping[str, str], log: int) -> int:
        """The pid of a new process with that environment, in a session of its own; `log` takes stdout and stderr.

        Raises OSError when it cannot be forked, NurseryGone.
        """
        number, error = self._ask(Birth(module, title, dict(env)), [log])
        if error or number < 2:
            raise OSError(error or "the nursery names no process")
        return number

    def wait(self, pid: int) -> int:
        """The exit code of one that has ended, as of `subprocess`; until then its pid belongs to nobody else."""
        number, error = self._ask(Burial(pid), [])
        if error:
            raise NurseryGone(error)
        return number

    def close(self) -> None:
        """Ends the nursery, and with it those of its children that are left. Idempotent."""
        if self._pid:
            self._link.close()
            os.kill(self._pid, signal.SIGKILL)
            os.waitpid(self._pid, 0)
            self._pid = 0

    def _ask(self, request: Birth | Burial, descriptors: list[int]) -> tuple[int, str]:
        try:
            socket.send_fds(self._link, [_write(request)], descriptors)
            data = self._link.recv(_MOST_BYTES)
        except OSError as error:
            self.close()  # its answer may still come, and would be taken for that of the next question
            raise NurseryGone(str(error)) from error
        if not data:
            self.close()
            raise NurseryGone("it has ended")
        answer = _read_answer.decode(data)
        return answer.number, answer.error


@dataclass(frozen=True, slots=True)
class Forked:
    """A process that the nursery has started."""

    pid: int
    nursery: Nursery

    def wait(self) -> int:
        try:
            return self.nursery.wait(self.pid)
        except NurseryGone:
            return -signal.SIGKILL  # which is what ends them all then


@dataclass(frozen=True, slots=True)
class Forking:
    """A starter that forks modules of ours, and executes everything else; also once the nursery is gone."""

    nursery: Nursery

    def __call__(self, spec: ChildSpec, environment: Mapping[str, str], log: int) -> Process:
        if spec.module:
            try:
                return Forked(self.nursery.start(spec.module, _title(spec), environment, log), self.nursery)
            except NurseryGone as error:
                _log.warning("the nursery is gone, processes start more slowly: %s", error)
        return execute(spec, environment, log)


@contextmanager
def forking() -> Iterator[Starter]:
    """A starter with a nursery of its own, which ends with the body; without one where there can be none.

    First of all in a program: its processes begin as this one is now.
    """
    try:
        nursery = Nursery.open()
    except NurseryGone as gone:
        _log.warning("processes start more slowly: %s", gone)
        yield execute
        return
    try:
        yield Forking(nursery)
    finally:
        nursery.close()


def _keep(link: socket.socket) -> str:
    """Serves the agent until that is gone. In a child, which is another process, returns the module to run."""
    for number in _SILENT:
        signal.signal(number, signal.SIG_IGN)
    nowhere = os.open(os.devnull, os.O_RDWR)
    os.dup2(nowhere, 0)  # the agent's own input is for the agent
    name_process("celeriac: nursery")
    tie = die_with_parent(signal.SIGKILL)
    while True:
        data, descriptors, _, _ = socket.recv_fds(link, _MOST_BYTES, 1)
        if not data:
            os._exit(0)
        request: Birth | Burial = _read_request.decode(data)
        if isinstance(request, Burial):
            link.send(_write(_bury(request.pid)))
            continue
        begun, begins = os.pipe()
        try:
            pid = os.fork()
        except OSError as error:
            answer = Answer(error=str(error))
        else:
            if pid == 0:
                tie()
                link.close()
                begin_program(request.module, request.title, request.env, descriptors[0])
                return request.module
            answer = Answer(pid)
        os.close(begins)
        os.read(begun, 1)  # it is a group of its own from here on, which may be killed
        os.close(begun)
        os.close(descriptors[0])
        link.send(_write(answer))


def _bury(pid: int) -> Answer:
    try:
        return Answer(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
    except ChildProcessError as error:
        return Answer(error=str(error))


def _title(spec: ChildSpec) -> str:
    name = spec.name if spec.name.startswith(spec.role) else f"{spec.role} {spec.name}"
    return f"celeriac: {name} of {spec.env.get('CELERIAC_JOB', '?')}"
