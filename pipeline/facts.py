"""What is known of a job at one moment: read by the store, judged by the leader, shown by the CLI."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from pipeline.lifecycle import WORKING, JobState
from pipeline.operations import Operation, PastOperation
from pipeline.plan import Plan
from pipeline.pools import POOL
from pipeline.positions import Position
from pipeline.scaling.settings import Scaling


@dataclass(frozen=True, slots=True)
class StateChange:
    """A job has entered a state, at a time in server milliseconds, and why."""

    at_ms: int
    state: JobState
    reason: str


@dataclass(frozen=True, slots=True)
class Scaled:
    """How the workers of one pool are scaled, how many agents are to keep, and when that was changed; 0 for never."""

    scaling: Scaling
    workers_wanted: int
    scaled_at_ms: int = 0


@dataclass(frozen=True, slots=True)
class JobRecord:
    """A job as it is registered. Times are server milliseconds. `waits`: source -> what it waits for just now.

    history: its newest changes of state, oldest first. paused: source -> since when it is held back by command.

    losses: what those who remember more than Redis have said is missing. accepted: the same, of the generation before.
    """

    job: str
    plan: Plan
    state: JobState
    reason: str
    made_at_ms: int
    changed_at_ms: int
    generation: int
    table: int
    run_id: str
    gate: str
    completed_sources: frozenset[str]
    waits: dict[str, str] = field(default_factory=dict)
    losses: tuple[str, ...] = ()
    accepted: tuple[str, ...] = ()
    claim: str = ""
    """When a run took the job last, in server milliseconds, and which; nothing for one that never ran."""
    history: tuple[StateChange, ...] = ()
    paused: dict[str, int] = field(default_factory=dict)
    scaling: Scaling | None = None
    """How its workers are scaled; None for a job whose workers are a fixed number."""
    workers_wanted: int = 0
    scaled_at_ms: int = 0
    """How many workers agents are to keep, and when that was changed; 0 without `scaling`, and before any change.

    These three are those of the pool `main`."""
    pools: dict[str, Scaled] = field(default_factory=dict)
    """Those of the other pools that are scaled."""
    saving: int = 0
    """The number of the savepoint that is being written, or was left by an exporter that is gone; 0 for none."""
    restoring: str = ""
    """While the job is filled from a savepoint: the name of that."""
    operations: tuple[PastOperation, ...] = ()
    """The newest lifecycle operations that have ended, oldest first."""
    is_submitted: bool = False
    """Whether its workers publish its results; else the run that has it does."""
    still: dict[str, int] = field(default_factory=dict)
    """Stage -> since when it is paused."""
    shadow: str = ""
    """`token job` of the shadow that runs beside it, or was left by a command that is gone."""
    held_back: str = ""
    """`token` of a backfill that holds back sources, or has left them so; then their names, a line each."""
    code: str = ""
    """The only version that may work at it since it was promoted; nothing where workers run what they find."""

    @property
    def run(self) -> str:
        """Tells jobs of the same id, and generations of one job, apart."""
        return f"{self.made_at_ms}.{self.generation}"

    @property
    def is_drained(self) -> bool:
        """Whether a drain has ended its input, or is about to."""
        worked = [change.state for change in self.history if change.state in WORKING]
        return worked[-1:] == [JobState.DRAINING]

    @property
    def scaled(self) -> dict[str, Scaled]:
        """Pool -> how it is scaled; those with a fixed number of workers are not there."""
        if self.scaling is None:
            return self.pools
        return {POOL: Scaled(self.scaling, self.workers_wanted, self.scaled_at_ms), **self.pools}


@dataclass(frozen=True, slots=True)
class Aim:
    """A move that the leader wants: from the owner with `token` to (worker, incarnation), and why.

    asked_ms: when the owner was asked to give it away, by the job's clock; 0 while that is only planned.
    """

    token: str
    worker: str
    incarnation: str
    asked_ms: int
    why: str


@dataclass(frozen=True, slots=True)
class Moved:
    """A partition, as `stage.partition`, has got another owner at a time in server milliseconds.

    how: "collected" by the owner before, or "forced". pause_ms: for how long nobody has worked on it.
    """

    at_ms: int
    partition: str
    before: str
    owner: str
    why: str
    how: str
    pause_ms: int


@dataclass(frozen=True, slots=True)
class PartitionFacts:
    """One partition. `backlog` is in records, `queued` the number of tickets in its queue.

    ring: "" (idle), "1" (a ticket exists or its owner is at work), "w" (waits for a full inbox), "g" (waits for those
        that give it keys).
    is_switching: it has not passed the place yet where the number of its stage's partitions changes.
    held, held_bytes: records behind dead letters that hold their keys.
    """

    stage: int
    partition: int
    owner: str
    incarnation: str
    token: str
    term: int
    position: Position
    at_end: bool
    backlog: int
    backlog_bytes: int
    ring: str
    queued: int
    closed: bool
    done: bool
    taken: int
    emitted: int
    filtered: int
    duplicate: int
    late: int
    dead: int
    skipped: int = 0
    held: int = 0
    held_bytes: int = 0
    head: int = 0
    """Records that were ever appended."""
    is_switching: bool = False
    aim: Aim | None = None
    """Where it is to move; None also for what was meant for an owner before this one."""

    @property
    def name(self) -> str:
        return f"{self.stage}.{self.partition}"

    @property
    def is_through(self) -> bool:
        """Nothing is left to do for it: its input has ended, and it has passed that."""
        return self.done and not self.is_switching


@dataclass(frozen=True, slots=True)
class WorkerFacts:
    """One worker. `age_seconds` is the time since its last heartbeat, `is_reported_dead` what its agent saw."""

    name: str
    incarnation: str
    age_seconds: float
    is_reported_dead: bool
    report: dict[str, Any]
    is_leaving: bool = False
    """Its agent ends it as soon as it owns nothing."""

    @property
    def node(self) -> str:
        """The node that it runs on, as far as it says so."""
        node = self.report.get("node")
        return node if isinstance(node, str) else ""

    @property
    def pool(self) -> str:
        """The pool that it belongs to."""
        pool = self.report.get("pool")
        return pool if isinstance(pool, str) and pool else POOL

    @property
    def is_stopping(self) -> bool:
        """Whether it says that it ends in good order: all that it took is committed."""
        return self.report.get("stopping") is True

    @property
    def is_sized(self) -> bool:
        """Whether its agent keeps as many of its kind as the leader wants."""
        return self.report.get("sized") is True


@dataclass(frozen=True, slots=True)
class ReaderFacts:
    """One reader of an output stream, which has not read the results from `next_number` on.

    is_temporary: it has no name of its own; what it has read is not given up. expire_seconds: None for never.
    """

    name: str
    is_temporary: bool
    next_number: int
    unread: int
    silent_seconds: float
    expire_seconds: float | None


@dataclass(frozen=True, slots=True)
class OutputFacts:
    """One output stream. It keeps the results from `oldest` to `next_number` - 1. `waiting`: partitions that it stops.

    `name` is what its readers ask for: the stream's name, or that of a console sink.
    """

    name: str
    oldest: int
    next_number: int
    bytes: int
    waiting: int
    readers: tuple[ReaderFacts, ...]

    @property
    def slowest(self) -> ReaderFacts | None:
        """The reader that the stream waits for when it is full."""
        return min(self.readers, key=lambda reader: (reader.next_number, reader.name), default=None)


@dataclass(frozen=True, slots=True)
class Alarm:
    """Counts of a job that do not agree. `name` tells alarms of one job apart.

    stage: the name of the stage, or nothing for what concerns a sink or the job; partition: -1 then.
    at_ms: when it was found first, by the clock of Redis; 0 for one that nobody has kept.
    """

    name: str
    stage: str
    partition: int
    text: str
    at_ms: int = 0


@dataclass(frozen=True, slots=True)
class JobFacts:
    record: JobRecord
    now_ms: int
    partitions: tuple[PartitionFacts, ...]
    workers: tuple[WorkerFacts, ...]
    leader: str
    dead_letters: int
    finished_splits: dict[str, int]
    """Source -> splits of it that are finished."""
    outputs: tuple[OutputFacts, ...] = ()
    """The output streams, in the order of the plan."""
    dead_letter_bytes: int = 0
    """What all dead letters take in Redis, estimated."""
    alarms: tuple[Alarm, ...] = ()
    """What the leader found wrong in the books, oldest first."""
    leader_term: int = 0
    """Grows with each change of leaders."""
    operation: Operation | None = None
    """The lifecycle operation under way."""
    drained: frozenset[str] = frozenset()
    """Nodes whose workers are to own nothing."""

    @property
    def held(self) -> int:
        """Records that are held behind dead letters of their keys."""
        return sum(part.held for part in self.partitions)

    @property
    def held_bytes(self) -> int:
        return sum(part.held_bytes for part in self.partitions)


def waiting_sources(record: JobRecord) -> dict[str, str]:
    """Source -> what it waits for, where the job still reads."""
    if record.state is not JobState.RUNNING:
        return {}
    paused = {source: f"paused; `celeriac unpause {record.job} {source}` lets it go on" for source in record.paused}
    return record.waits | paused


def still_stages(record: JobRecord) -> dict[str, str]:
    """Stage -> what its partitions wait for, where it was paused and the job works."""
    if record.state not in WORKING:
        return {}
    return {stage: f"paused; `celeriac unpause {record.job} --stage {stage}` lets it go on" for stage in record.still}


def waiting_for(facts: JobFacts) -> frozenset[str]:
    """What partitions wait for with a back-off, in the words of their workers, and what sources wait for."""
    found = {f"source {source}: {why}" for source, why in waiting_sources(facts.record).items()}
    found |= {f"stage {stage}: {why}" for stage, why in still_stages(facts.record).items()}
    for worker in facts.workers:
        hands = worker.report.get("hand")
        for hand in hands.values() if isinstance(hands, dict) else ():
            if isinstance(hand, dict) and hand.get("reason"):
                found.add(str(hand["reason"]))
    return frozenset(found)
