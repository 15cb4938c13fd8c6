"""One scenario's world: a job on a real Redis, its actors stepped in turn, and what can be seen at the end."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from pipeline import Pipeline
from pipeline.codec import decode_batch, decode_value, split_state_field
from pipeline.errors import CeleriacError, StoreUnavailable, UnknownJob
from pipeline.keying import GROUPS
from pipeline.lifecycle import ENDED, JobState
from pipeline.plan import STREAM_FORMATS, compile_plan, stream_name
from pipeline.publishing import file_sinks
from pipeline.settings import Limits
from pipeline.sinks.places import target_path
from pipeline.store import keys
from pipeline.store.agents import AgentLink
from pipeline.store.jobs import JobStore
from pipeline.store.patience import Patience
from pipeline.store.scripts import Scripts
from verification.clock import TimedScripts
from verification.points import Crash, Life, Points, Variant, scripts_of

JOB: Final = "verified"

MOST_ROUNDS: Final = 400
"""Rounds after which a scenario that has not come to its end counts as one that stands still."""


class Stalled(Exception):
    """The job did not come to its end."""


class Actor(ABC):
    """One process of a scenario. After its death another instance takes its place, with nothing but what is stored."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.lives = 0
        self.life = Life(Points(), name)
        self.is_up = False
        self.is_done = False

    @abstractmethod
    def start(self, world: World, scripts: Scripts) -> None:
        """A new process: everything that the last one knew is gone. `lives` counts it."""

    @abstractmethod
    def step(self, world: World) -> None:
        """Does a little. Sets `is_done` when there is nothing left to do. May raise StoreError: it is tried again."""

    def after_death(self, world: World) -> None:  # noqa: B027 - most deaths are noticed by nobody
        """What others notice at once, or time does."""


@dataclass(frozen=True, slots=True)
class Scenario:
    """A pipeline and those who move it. Everything is made anew for each run, so that no run knows of another.

    pipeline: a folder of its own -> the pipeline.
    actors: who moves it, in the order in which they step.
    has_pairs: all pairs of crashes are tried as well.
    told: of all that can be seen at the end, what must be equal in every run.
    is_long: so who has only read since another point dies there, as nobody does anything outside of Redis that
    outlives him; and each script is made to fail in one of its calls.
    begins_behind: faults begin behind the first command of this name, and are deaths around scripts only. What comes
    before is tried in another scenario.
    shows_removal: the job has been removed at the end; not a key of it may be left.
    """

    name: str
    pipeline: Callable[[Path], Pipeline]
    actors: Callable[[], Sequence[Actor]]
    partitions: int = 2
    limits: Limits = field(default_factory=Limits)
    has_pairs: bool = False
    told: Callable[[dict[str, Any]], dict[str, Any]] = lambda seen: seen
    is_long: bool = False
    begins_behind: str = ""
    shows_removal: bool = False


class World:
    """One run of a scenario."""

    def __init__(
        self,
        url: str,
        client: Any,
        folder: Path,
        scenario: Scenario,
        plan: Mapping[int, Variant],
        store: Callable[[str, Life], Scripts] = scripts_of,
    ) -> None:
        """`client` is the world's own, and deletes all that the server holds. `store`: what a process gets."""
        self.url = url
        self.client = client
        self.scenario = scenario
        self.points = Points(plan)
        self._store = store
        self.client.flushall()
        self.folder = folder
        self.graph = scenario.pipeline(folder).graph()
        self.plan = compile_plan(self.graph, scenario.partitions, scenario.limits)
        self.scripts = self.own_scripts()
        self.jobs = JobStore(self.scripts)
        self.agent = AgentLink(self.scripts, JOB)
        self._read_state: tuple[int, JobState | None] | None = None
        self.actors = list(scenario.actors())
        self.patience = Patience(sleep=lambda _: None)
        self.full_timeout_seconds: float | None = 0.0  # a full inbox is an error at once
        self.kept: dict[str, Any] = {}
        """What actors have handed to the outside world: it outlives them."""

    def own_scripts(self) -> Scripts:
        """What the world itself runs scripts by, with no crash points in them."""
        return TimedScripts(self.client, self.points)

    def run(self) -> dict[str, Any]:
        """Steps all actors in turn until all are done; what can be seen then. Raises Stalled, and what is a fault."""
        for _ in range(MOST_ROUNDS):
            for actor in self.actors:
                if not actor.is_done:
                    self._step(actor)
            if all(actor.is_done for actor in self.actors):
                return self.scenario.told(self.observe())
        waiting = ", ".join(actor.name for actor in self.actors if not actor.is_done)
        raise Stalled(f"after {MOST_ROUNDS} rounds these still wait: {waiting}")

    def step_others(self, actor: Actor) -> None:
        """What happens beside an actor in the middle of a step of its own."""
        for other in self.actors:
            if other is not actor and not other.is_done:
                self._step(other)

    def _step(self, actor: Actor) -> None:
        number = actor.life.number if actor.is_up else 0
        try:
            if not actor.is_up:
                actor.lives += 1
                actor.life = Life(self.points, actor.name)
                actor.start(self, self._store(self.url, actor.life))
                actor.is_up = True
            actor.step(self)
            if actor.life.is_dying:
                actor.life.die()
            if actor.life.number != number:
                self.points.last.add(actor.life.number)
        except Crash:
            actor.is_up = actor.is_done = False
            actor.after_death(self)
        except StoreUnavailable:
            pass  # a process that lives tries again
        except CeleriacError as error:
            raise Stalled(f"{actor.name} fails: {type(error).__name__}: {error}") from error

    def clock(self) -> float:
        """Seconds, for actors. Here no slice is ever over, so that steps are the same in every run."""
        return 0.0

    # what actors ask of it; no crash points of theirs

    def state(self) -> JobState | None:
        """None: there is no such job."""
        sent = len(self.points.sent)
        if (
            self._read_state is None or self._read_state[0] != sent or not sent
        ):  # nothing has been sent since it was read
            self._read_state = sent, self._stored_state()
        return self._read_state[1]

    def _stored_state(self) -> JobState | None:
        try:
            return self.jobs.state(JOB)
        except UnknownJob:
            return None

    def drain(self) -> None:
        """What a user does: the job ends when its input is worked off."""
        if self.state() is JobState.RUNNING:
            self.jobs.transition(JOB, JobState.DRAINING)
        self._read_state = None

    def may_hold(self, queue: str) -> bool:
        """False when a consumer that waits at this queue would be given nothing."""
        return True

    @property
    def has_ended(self) -> bool:
        """True when workers and leaders have nothing left to do."""
        return self.state() in (*ENDED, JobState.PUBLISHING, None) and not self.awaits_job

    @property
    def awaits_job(self) -> bool:
        """True before the job was created."""
        return any(actor.name == "submitter" and not actor.is_done for actor in self.actors)

    def let_lease_pass(self) -> None:
        """As if the time of the leader's leases had passed."""
        for job in self.jobs.list_ids():
            if self.client.exists(keys.leader(job)):
                self.client.hset(keys.leader(job), "until", 0)

    # what can be seen

    def observe(self) -> dict[str, Any]:
        """Everything that must be equal, however the run went."""
        seen: dict[str, Any] = {"handed out": self.kept, "files": self._files()}
        if self.scenario.shows_removal:
            return {**seen, "keys left": sorted(key.decode() for key in self._names())}
        facts = self.jobs.facts(JOB)
        counts: dict[str, int] = defaultdict(int)
        for part in facts.partitions:
            for what in ("taken", "emitted", "filtered", "late", "dead"):
                counts[f"{part.stage} {what}"] += getattr(part, what)
        letters = sorted(
            (letter.stage, letter.operator, repr(decode_batch(letter.payload).values), letter.error.splitlines()[-1])
            for letter in self.jobs.dead_letters(JOB, 1000)
        )
        return {
            **seen,
            "state of the job": facts.record.state.value,
            "outputs": {stream_name(s): self._output(s.name) for s in self.plan.sinks if s.format in STREAM_FORMATS},
            "state": self._state(),
            "dead letters": letters,
            "counts": dict(counts),
            "alarms": [alarm.name for alarm in facts.alarms],
            "not drained": [part.name for part in facts.partitions if part.backlog or not part.done],
        }

    def _output(self, sink: str) -> dict[str, list[Any]]:
        """key -> its values in order."""
        found: dict[str, list[Any]] = defaultdict(list)
        for _, fields in self.client.xrange(keys.out(JOB, sink)):
            batch = decode_batch(fields[b"d"]) if b"d" in fields else None
            if batch is not None:
                for key, value in zip(batch.keys or [None] * len(batch), batch.values, strict=True):
                    found[repr(key)].append(value)
        return dict(sorted(found.items()))

    def _state(self) -> dict[str, Any]:
        found, names = {}, set(self._names())
        for stage in self.plan.stages:
            for group in range(GROUPS):
                key = keys.state(JOB, stage.index, group)
                if key.encode() in names:
                    for name, data in self.client.hgetall(key).items():
                        found[repr((stage.index, *split_state_field(name)))] = decode_value(data)
        return found

    def _files(self) -> dict[str, list[str]]:
        """The lines of each published folder, sorted: partitions have no order among each other."""
        found = {}
        for sink in file_sinks(self.plan):
            folder = target_path(sink)
            paths = [path for path in folder.rglob("*") if path.is_file() and path.suffix != ".json"]
            found[sink.name] = sorted(line for path in paths for line in path.read_text().splitlines())
        return found

    def _names(self) -> list[bytes]:
        """All keys of the job, Celery's queues too."""
        return list(self.client.scan_iter(count=10_000))
