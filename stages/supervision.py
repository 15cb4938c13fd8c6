"""What the node agent knows of its children and how it decides about them.

The decisions are pure functions; `Child` is the one handle on a process. No loop, no store, no clock here.
"""

from __future__ import annotations

import enum
import math
import os
import secrets
import select
import shutil
import signal
import subprocess
import sys
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from pipeline.embedded.process import die_with_parent
from pipeline.errors import EnvironmentFault

WORKER = "worker"
PYTHON = (sys.executable, "-P", "-m")  # no module of the current folder may shadow ours
INCARNATION_VARIABLE = "CELERIAC_INCARNATION"

REPLACED = 72
"""The exit code of a worker in whose place another process of its name has come."""

HEALTHY_SECONDS = 10.0  # a child that lived longer did not die of its start
CRASH_LOOP_DEATHS = 5
FIRST_DELAY_SECONDS = 0.1
LONGEST_DELAY_SECONDS = 5.0
FRESH_SECONDS = 2.0  # a heartbeat older than this is that of a worker that does not see the store
REJOIN_SECONDS = 2.0  # what a worker gets to come back by itself after an outage of the store
SILENT_SECONDS = 30.0  # far beyond any lease: code that never gives the interpreter back holds even the heartbeat
GRACE_SECONDS = 1.0  # between SIGTERM and SIGKILL of a worker that lost the store

MOST_LOG_BYTES = 64 << 20
"""A log that is larger begins anew; what it held before stays beside it, in the place of what stood there."""

_LOG_TAIL_BYTES = 8192


@dataclass(frozen=True, slots=True)
class ChildSpec:
    """One process to keep. `env` is laid over the agent's own environment.

    `log` takes stdout and stderr; None for where the agent itself writes.
    With `restart` it is started again however it ends; without, only when it ends with another code than 0.
    With `yields` it is not when it was replaced by a process of the same name that this agent has not started.
    `earlier` is how many incarnations there were before this agent: of two with one name the higher number stays.
    `version` is the one of the pipeline that was wanted of it, as `Wanted.encode` says it.
    """

    name: str
    argv: tuple[str, ...]
    env: Mapping[str, str] = field(repr=False)  # may hold passwords
    role: str
    restart: bool
    log: Path | None
    earlier: int = 0
    version: str = ""
    yields: bool = False

    @property
    def module(self) -> str:
        """The module of ours that it runs, or nothing for another program."""
        return self.argv[-1] if self.argv[:-1] == PYTHON else ""


class Process(Protocol):
    """One that was started, alive or not."""

    @property
    def pid(self) -> int:
        """It belongs to nobody else until `wait` has returned."""

    def wait(self) -> int:
        """The exit code of one that has ended; minus the number of the signal that ended it."""


Starter = Callable[[ChildSpec, Mapping[str, str], int], Process]
"""Starts a child with that whole environment, and a descriptor that takes its output. Its life is tied to the agent's.
Raises OSError."""


class AgentStore(Protocol):
    """What the agent needs of the store. Each call returns, or raises StoreUnavailable, within a second."""

    def report_death(self, name: str, incarnation: str) -> None:
        """Tell the leader that this incarnation of the worker is gone."""

    def is_up(self) -> bool:
        """Whether the store answers now, and takes writes. Never raises StoreUnavailable."""

    def heard_from(self, name: str) -> float | None:
        """Seconds since the worker's last heartbeat by the store's clock, or None if there is none."""

    def run_id(self) -> str:
        """Of the server that answers now: another one than before may have lost its last writes."""


@dataclass(frozen=True, slots=True)
class AgentCounts:
    """What one round did: processes started for the first time, seen dead, started again."""

    started: int = 0
    deaths: int = 0
    restarts: int = 0

    def __add__(self, other: AgentCounts) -> AgentCounts:
        return AgentCounts(self.started + other.started, self.deaths + other.deaths, self.restarts + other.restarts)


class ChildState(enum.Enum):
    """WAITING to be started, RUNNING, ENDING (asked to, not yet gone), DONE for good."""

    WAITING = "waiting"
    RUNNING = "running"
    ENDING = "ending"
    DONE = "done"


@dataclass(frozen=True, slots=True)
class ChildStatus:
    """A child as it is now. `pid` is 0 unless a process exists, `exit_code` None before the first death.

    quick_deaths: how many in a row came soon after a start; quick_since: when the first of these was started, in
    monotonic seconds.
    """

    name: str
    role: str
    state: ChildState
    pid: int
    incarnation: str
    deaths: int
    exit_code: int | None
    quick_deaths: int
    quick_since: float
    version: str = ""

    @property
    def is_crash_looping(self) -> bool:
        return self.quick_deaths >= CRASH_LOOP_DEATHS

    @property
    def is_replaced(self) -> bool:
        """Whether it was left to another process of its name."""
        return self.state is ChildState.DONE and self.exit_code == REPLACED


@dataclass(frozen=True, slots=True)
class Done:
    """The child ended as it should and is not started again."""


@dataclass(frozen=True, slots=True)
class Restart:
    """Start it again after a delay. `is_new_crash_loop` holds once for each crash loop."""

    delay_seconds: float
    quick_deaths: int
    is_new_crash_loop: bool


def decide_restart(
    restart: bool, exit_code: int, lived_seconds: float, quick_deaths: int, *, is_store_down: bool = False
) -> Done | Restart:
    """What follows a death. `quick_deaths`: how many just before this one came soon after a start.

    One without a store says nothing about the child.
    """
    if exit_code == 0 and not restart:
        return Done()
    if is_store_down:
        return Restart(0.0, quick_deaths, False)
    if lived_seconds > HEALTHY_SECONDS:
        return Restart(0.0, 0, False)
    count = quick_deaths + 1
    # The power is bounded because the count is not: a crash loop may go on for days.
    delay = min(LONGEST_DELAY_SECONDS, FIRST_DELAY_SECONDS * 2.0 ** min(count - 1, 16))
    return Restart(delay, count, count == CRASH_LOOP_DEATHS)


def is_cut_off(heard_seconds: float | None, started_at: float, back_at: float) -> bool:
    """Whether a worker did not find back to a store that returned at `back_at` and must be replaced.

    One started since then is spared: it connects anew, and its first heartbeat may be still to come.
    """
    return started_at < back_at and (heard_seconds is None or heard_seconds > FRESH_SECONDS)


def is_silent(heard_seconds: float | None, lived_seconds: float) -> bool:
    """Whether a worker, whose store answers, must be ended because it says nothing any more.

    Not one that has said nothing yet since its start: loading a pipeline may take longer than any silence.
    """
    return heard_seconds is not None and SILENT_SECONDS < heard_seconds < lived_seconds


@dataclass(frozen=True, slots=True)
class StoreWatch:
    """The agent's view of the store. `back_at` is set from an outage's end until workers were looked at."""

    is_down: bool = False
    back_at: float | None = None

    def after(self, is_up: bool, now: float) -> StoreWatch:
        if not is_up:
            return StoreWatch(is_down=True)
        return StoreWatch(back_at=now) if self.is_down else self

    def is_due(self, now: float) -> bool:
        """Whether workers have had their time to come back and are to be looked at."""
        return self.back_at is not None and now - self.back_at >= REJOIN_SECONDS


@dataclass(slots=True)
class Child:
    """One supervised process through its incarnations. Touched by the agent's thread only.

    A process, and the descriptor that tells of its death, exist exactly in RUNNING and ENDING.
    """

    spec: ChildSpec
    state: ChildState = ChildState.WAITING
    incarnation: str = ""
    due_at: float = 0.0
    started_at: float = 0.0
    kill_at: float = 0.0
    starts: int = 0
    deaths: int = 0
    quick_deaths: int = 0
    quick_since: float = 0.0
    exit_code: int | None = None
    is_retired: bool = False
    pidfd: int = -1
    _process: Process | None = field(default=None, repr=False)

    @property
    def pid(self) -> int:
        process = self._process  # other threads ask too, and it may be reaped just now
        return process.pid if process else 0

    @property
    def has_process(self) -> bool:
        return self._process is not None

    def spawn(self, now: float, start: Starter) -> None:
        """Start the next incarnation. Raises EnvironmentFault when its program or log cannot be opened."""
        self.starts += 1
        self.incarnation = f"{self.spec.earlier + self.starts}-{secrets.token_hex(4)}"
        environment = {**os.environ, **self.spec.env, INCARNATION_VARIABLE: self.incarnation}
        try:
            with open_log(self.spec.log) as output:
                process = start(self.spec, environment, output)
            self.pidfd = _open_pidfd(process)
        except (OSError, subprocess.SubprocessError) as error:
            log = self.spec.log or "the output of this process"
            raise EnvironmentFault(
                f"{self.spec.role} {self.spec.name} cannot be started: {error}",
                hint=f"check that {self.spec.argv[0]} can be run and {log} can be written",
            ) from error
        self._process = process
        self.started_at = now
        self.state = ChildState.RUNNING

    def has_exited(self) -> bool:
        """Whether the process is dead and waits to be reaped."""
        if self._process is None:
            return False
        poll = select.poll()
        poll.register(self.pidfd, select.POLLIN)
        return bool(poll.poll(0))

    def ask_to_end(self, kill_at: float) -> None:
        """SIGTERM. Never SIGINT or SIGQUIT: at the latter a solo worker fails the task it runs."""
        if self._process is not None:
            with suppress(ProcessLookupError):
                signal.pidfd_send_signal(self.pidfd, signal.SIGTERM)
            self.state = ChildState.ENDING
            self.kill_at = kill_at

    def kill(self) -> None:
        """SIGKILL for the process and whatever it started in its session."""
        if self._process is not None:
            # The nursery may be gone, and all that it has started with it; the number may be another's by now.
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(self._process.pid, signal.SIGKILL)
            self.kill_at = math.inf  # once is enough, even if it takes a while to go

    def reap(self) -> int:
        """Collect the exit code of a process that has exited, after an end of what it left running."""
        assert self._process is not None
        # Before the wait: until then the number of the group cannot belong to anybody else.
        self.kill()
        self.exit_code = self._process.wait()
        os.close(self.pidfd)
        self.pidfd = -1
        self._process = None
        self.deaths += 1
        return self.exit_code

    def status(self) -> ChildStatus:
        return ChildStatus(
            self.spec.name,
            self.spec.role,
            self.state,
            self.pid,
            self.incarnation,
            self.deaths,
            self.exit_code,
            self.quick_deaths,
            self.quick_since,
            self.spec.version,
        )

    def bound_log(self) -> None:
        """Begins the log anew when it is larger than MOST_LOG_BYTES; lines that come just then may be lost.

        The output of the agent itself is for those to keep who started it. Never raises.
        """
        log = self.spec.log
        with suppress(OSError):
            if log is None or log.stat().st_size <= MOST_LOG_BYTES:
                return
            try:
                shutil.copyfile(log, log.with_name(f"{log.name}.1"))
            finally:  # also on a full disk
                os.truncate(log, 0)  # whoever writes appends

    def log_tail(self, lines: int = 20) -> str:
        """The last lines of its log file, for a person to read."""
        if self.spec.log is None:
            return "(see above: it is this one)"
        if not self.spec.log.is_file():
            return "(no log)"
        with open(self.spec.log, "rb") as log:
            log.seek(max(0, log.seek(0, os.SEEK_END) - _LOG_TAIL_BYTES))
            text = log.read().decode(errors="replace")
        return "\n".join(deque(text.splitlines(), maxlen=lines)) or "(the log is empty)"


@contextmanager
def open_log(log: Path | None) -> Iterator[int]:
    """A descriptor of the file, to append to it; with None that of this process's own output, which a path does not
    lead to where it is a socket, as under systemd, and where whoever opens a file anew writes over what others wrote.

    Raises OSError.
    """
    if log is None and sys.__stdout__ is not None:
        yield sys.__stdout__.fileno()
        return
    if log is not None:
        log.parent.mkdir(parents=True, exist_ok=True)
    with open(log or os.devnull, "ab") as file:
        yield file.fileno()


def execute(spec: ChildSpec, environment: Mapping[str, str], log: int) -> Process:
    """The starter that can run any program."""
    return subprocess.Popen(
        spec.argv,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=log,
        stderr=subprocess.STDOUT,
        start_new_session=True,  # a Ctrl-C in the terminal is for the agent to handle
        preexec_fn=die_with_parent(signal.SIGKILL),
    )


def _open_pidfd(process: Process) -> int:
    try:
        return os.pidfd_open(process.pid)
    except OSError:  # no descriptor left: a process that cannot be watched must not run
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
        raise
