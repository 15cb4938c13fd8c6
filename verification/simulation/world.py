"""One run in virtual time: the actors of a scenario as processes on the model, and what one seed has befall them."""

from __future__ import annotations

import copy
import hashlib
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, Final

from pipeline.errors import CeleriacError, InboxClosed, StaleSender, StoreUnavailable
from pipeline.lifecycle import JobState
from pipeline.store import keys
from pipeline.store.agents import AgentLink
from pipeline.store.jobs import JobStore
from pipeline.store.patience import Patience
from pipeline.store.scripts import Scripts
from verification.actors import Leader, Producer, Source, Worker
from verification.model.connection import client_over
from verification.model.keyspace import Refusal
from verification.model.server import START, Command, Link, Server, encoded, run_id
from verification.points import Crash, script_names
from verification.simulation.fates import MILLISECOND, REPLACED, SECOND, Fate, Fates
from verification.simulation.oracle import Oracle
from verification.simulation.postman import Postman
from verification.simulation.timeline import Timeline
from verification.simulation.trace import Trace
from verification.world import JOB, Actor, Scenario, Stalled, World

LIMIT: Final = 240 * SECOND
"""A job that has not ended by then stands still. Faults end long before."""

_AFTERWARDS: Final = 8 * SECOND
"""So long whoever was stopped may still go on when all others are through."""

_RESTS: Final[dict[type[Actor], int]] = {Leader: 250 * MILLISECOND, Worker: 100 * MILLISECOND}
_REST: Final = 40 * MILLISECOND
_LASTING: Final = (Worker, Producer, Source)
"""Processes that may be replaced while they are stopped, as by a supervisor that takes them for dead."""

_HEARD: Final = 0.6
"""How often an agent sees the death of its worker; else only its heartbeats fall silent."""


_DECISIVE: Final = frozenset(
    {"acquire", "assign", "adopt", "append", "close", "collect", "collected", "commit", "register", "take"}
)
_WATCHED: Final = frozenset({"commit", "append", "assign", "collect", "collected", "lease", "adopt"})


class Process:
    """One life of an actor, and its wire. A newer one may have taken its place while it goes on."""

    def __init__(self, world: SimulatedWorld, actor: Actor) -> None:
        self._world = world
        self.actor = actor
        self.is_newest = True

    @property
    def name(self) -> str:
        return f"{self.actor.name}.{self.actor.lives}"

    def open(self) -> Link:
        return self._world.server.open()

    def send(self, link: Link, commands: Sequence[Command]) -> list[Any]:
        return self._world.send(self, link, commands)

    def run(self) -> None:
        """Lives until it is done, dies, or is refused for good. Raises Stalled when that is a fault."""
        world, actor = self._world, self.actor
        rest = _RESTS.get(type(actor), _REST)
        try:
            actor.start(world, Scripts(client_over(self)))
            while not actor.is_done:
                with suppress(StoreUnavailable):  # a process that lives tries again
                    actor.step(world)
                if isinstance(actor, Leader) and actor.faults:
                    raise Stalled(f"{self.name}: a duty fails: {actor.faults[0]}")
                if not actor.is_done:
                    world.timeline.sleep(world.fates.rest(rest))
        except Crash:
            world.has_died(self)
        except StaleSender:
            world.befell(self, "ends: a newer process has its name")
            world.has_died(self)
        except CeleriacError as error:
            if self.is_newest and not (isinstance(error, InboxClosed) and actor.lives > 1):
                raise Stalled(f"{self.name} fails: {type(error).__name__}: {error}") from error
            # A life before may have brought the rest of the input, and its end.
            actor.is_done = True
            world.befell(self, f"ends: {type(error).__name__}")
        finally:
            world.notice_end()


class _Window:
    """The world's own connection: it costs no time, and nothing befalls it."""

    def __init__(self, world: SimulatedWorld) -> None:
        self._world = world

    def open(self) -> Link:
        return self._world.server.open()

    def send(self, link: Link, commands: Sequence[Command]) -> list[Any]:
        return self._world.directly(link, commands)


class _Agent:
    """An agent that does not see each death of its worker."""

    def __init__(self, world: SimulatedWorld) -> None:
        self._world = world

    def report_death(self, worker: str, incarnation: str) -> None:
        if self._world.fates.rng.random() < _HEARD:
            AgentLink(self._world.scripts, JOB).report_death(worker, incarnation)


class SimulatedWorld(World):
    """`fates` decides all; without faults it is the run to compare with."""

    def __init__(self, folder: Path, scenario: Scenario, fates: Fates) -> None:
        self.server = Server()
        self.timeline = Timeline()
        self._skew = 0
        super().__init__("redis://model", client_over(_Window(self)), folder, scenario, {})
        self.fates = fates
        self.trace = Trace()
        self.oracle = Oracle()
        self.agent = _Agent(self)  # type: ignore[assignment]
        self.patience = Patience(clock=self.clock, sleep=self._sleep, rng=fates.rng)
        self.full_timeout_seconds = None
        self._down_until = 0
        self._is_over = False
        self._is_through = False
        self._processes: list[Process] = []

    def own_scripts(self) -> Scripts:
        return Scripts(self.client)

    def clock(self) -> float:
        return self.timeline.now / SECOND

    def state(self) -> JobState | None:
        job: Any = self.server.keyspace.keys.get(keys.job(JOB).encode())
        return JobState(job[b"state"].decode()) if job else None

    def may_hold(self, queue: str) -> bool:
        return queue.encode() in self.server.keyspace.keys

    def let_lease_pass(self) -> None:
        """Time passes by itself."""

    def run(self) -> dict[str, Any]:
        """What can be seen at the end. Raises Stalled, Broken, and what is a fault."""
        for actor in self.actors:
            self._start(actor)
        if self.fates.has_postman:
            queues = [keys.queue(JOB, *place) for place in self.plan.partitions()]
            self.timeline.start(Postman(self.client, queues, self.fates, self.timeline, self.trace).run)
        if self.fates.has_restarts:
            self.timeline.after(self.fates.rng.randint(1, 5 * SECOND), self._restart)
        if self.fates.has_clock_steps:
            self.timeline.after(self.fates.rng.randint(1, 5 * SECOND), self._step_clock)
        try:
            self.timeline.run(lambda: not self._is_through, LIMIT)
            if not self._all_done():
                waiting = ", ".join(actor.name for actor in self.actors if not actor.is_done)
                raise Stalled(f"after {LIMIT // SECOND} s these still wait: {waiting}")
            self.timeline.run(lambda: True, self.timeline.now + _AFTERWARDS)
            return self.observe()
        finally:
            self._is_over = True
            self.timeline.end()

    def notice_end(self) -> None:
        """A process has come to its end: perhaps it was the last one."""
        self._is_through = self._all_done()

    def _all_done(self) -> bool:
        return all(actor.is_done for actor in self.actors)

    # processes

    def _start(self, actor: Actor) -> None:
        actor.lives += 1
        actor.is_done = False
        process = Process(self, actor)
        self._processes.append(process)
        self.timeline.start(process.run)

    def has_died(self, process: Process) -> None:
        """Another life takes its place after a while, unless one has already."""
        if not process.is_newest or self._is_over:
            return
        process.actor.is_done = False
        process.actor.after_death(self)
        self.timeline.after(self.fates.start_delay(), partial(self._start, process.actor))

    def _replace(self, process: Process) -> None:
        """Another process takes its name, while it only seems to be dead."""
        process.is_newest = False
        actor = copy.copy(process.actor)
        self.actors[self.actors.index(process.actor)] = actor
        self.timeline.after(self.fates.start_delay(), partial(self._start, actor))

    def befell(self, process: Process, what: str) -> None:
        self.trace.befell(self.timeline.now, process.name, what)

    def _sleep(self, seconds: float) -> None:
        self.timeline.sleep(int(seconds * SECOND))

    # the server

    def _restart(self) -> None:
        self.trace.befell(self.timeline.now, "redis", "is restarted")
        self.server.restart()
        self._down_until = self.timeline.now + self.fates.rng.randint(0, SECOND)
        self.scripts = self.own_scripts()
        self.jobs = JobStore(self.scripts)

    def _step_clock(self) -> None:
        """Somebody sets the clock of the server's machine."""
        self._skew = self.fates.rng.randint(-60 * SECOND, 60 * SECOND)
        self.trace.befell(self.timeline.now, "redis", f"its clock is set by {self._skew / SECOND:+.3f} s")

    def directly(self, link: Link, commands: Sequence[Command]) -> list[Any]:
        self.server.keyspace.now = START + self.timeline.now + self._skew
        return self.server.answer_all(link, commands)

    def apply(self, who: str, link: Link, commands: Sequence[Command]) -> list[Any]:
        """The server runs commands now. Raises Broken."""
        replies = self.directly(link, commands)
        for command, reply in zip(commands, replies, strict=True):
            name = _named([command], self.server.run_id)
            self.trace.applied(self.timeline.now, who, name, reply)
            if name in _WATCHED and not isinstance(reply, Refusal):
                count = int(command[2])
                parts = [encoded(part) for part in command[3:]]
                self.oracle.saw(name, parts[:count], parts[count:], reply)
        return replies

    def send(self, process: Process, link: Link, commands: Sequence[Command]) -> list[Any]:
        """Commands of one process, on a connection of its own. What `fates` says befalls them."""
        if self._is_over:
            raise Crash(process.name)
        name = _named(commands, run_id(link.run))
        is_lasting = process.is_newest and isinstance(process.actor, _LASTING)
        fate = self.fates.of_command(self.timeline.now, is_lasting=is_lasting, is_decisive=name in _DECISIVE)
        if fate is not None:
            self.befell(process, f"{name}: {fate.value}")
        self.timeline.sleep(self.fates.latency())
        match fate:
            case Fate.DIES_BEFORE:
                raise Crash(process.name)
            case Fate.LOST_REQUEST:
                raise ConnectionError("the request was lost (on purpose)")
            case Fate.LATE_REQUEST:
                self.timeline.after(self.fates.lateness(), partial(self._arrive_late, link, process, commands))
                raise ConnectionError("no answer in time (on purpose)")
            case Fate.SLOW:
                self.timeline.sleep(self.fates.slowness())
            case Fate.STOPPED_BEFORE | Fate.REPLACED_BEFORE:
                self._stop(process, fate)
        replies = self._answered(link, process, commands)
        match fate:
            case Fate.DIES_APPLIED:
                raise Crash(process.name)
            case Fate.LOST_REPLY:
                raise ConnectionError("the reply was lost (on purpose)")
            case Fate.STOPPED_AFTER | Fate.REPLACED_AFTER:
                self._stop(process, fate)
        return replies

    def _stop(self, process: Process, fate: Fate) -> None:
        if fate in REPLACED and process.is_newest:
            self._replace(process)
        self.timeline.sleep(self.fates.stop())
        self.befell(process, "goes on")

    def _answered(self, link: Link, process: Process, commands: Sequence[Command]) -> list[Any]:
        if self._is_over:
            raise Crash(process.name)
        if link.run != self.server.run or self.timeline.now < self._down_until:
            raise ConnectionError("the server has closed the connection (on purpose)")
        return self.apply(process.name, link, commands)

    def _arrive_late(self, link: Link, process: Process, commands: Sequence[Command]) -> None:
        if link.run == self.server.run:
            self.befell(process, f"{_named(commands, self.server.run_id)} arrives only now")
            self.apply(process.name, link, commands)


def _named(commands: Sequence[Command], server: str) -> str:
    """What commands are called: scripts by their names."""
    if len(commands) > 1:
        return "+".join(_named([command], server) for command in commands)
    name, *args = commands[0]
    if name == "EVALSHA":
        return script_names(server).get(args[0], "a script of another run")
    if name == "EVAL":
        sha = hashlib.sha1(args[0].encode(), usedforsecurity=False).hexdigest()
        return script_names(server).get(sha, "a script of another run")
    return str(name)
