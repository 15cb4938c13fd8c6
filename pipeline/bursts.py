"""Bursts: Spark works off the backlog of some partitions, up to a cut, while others go on. Data and decisions only.

A burst is an operation that its command carries out, and a node whose one worker, a streaming query, is of a pool of
its own. While the operation stands, its partitions are of that pool, each up to its cut: so they go there and come back
as partitions ever move, and nothing has to be done when any process dies.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from pipeline.facts import JobFacts, PartitionFacts
from pipeline.lifecycle import WORKING
from pipeline.nodes import NODE_NAME
from pipeline.operations import Operation, Phase
from pipeline.pools import POOL
from pipeline.positions import Position
from pipeline.scaling.decision import Decision
from pipeline.scaling.policies import Kind

_PREFIX: Final = "burst:"  # no name of a pool that a stage can have holds a colon

WISH_SECONDS: Final = 60.0
"""A burst that was decided, and that nobody has begun for so long, is not begun any more: much may have changed."""


def burst_pool(node: str) -> str:
    """The pool of the worker of a burst on that node."""
    return _PREFIX + node


def is_burst_pool(pool: str) -> bool:
    return pool.startswith(_PREFIX) and NODE_NAME.match(pool.removeprefix(_PREFIX)) is not None


@dataclass(frozen=True, slots=True)
class Burst:
    """One that is under way. cuts: partition, as `stage.partition` -> where its worker stops."""

    pool: str
    cuts: Mapping[str, Position]

    def is_to_have(self, part: PartitionFacts) -> bool:
        """Whether its worker has still to work on it."""
        cut = self.cuts.get(part.name)
        return cut is not None and not part.is_through and part.position.order < cut.order


def burst_under_way(facts: JobFacts) -> Burst | None:
    """None also when its command is gone, or gives back what it has."""
    operation = facts.operation
    if operation is None or operation.about.kind != "burst" or operation.is_abandoned(facts.now_ms):
        return None
    if operation.phase is Phase.RETURNING:
        return None
    return Burst(burst_pool(operation.about.node), cuts_of(operation))


def cuts_of(operation: Operation) -> dict[str, Position]:
    """Partition -> where its burst ends; what cannot be read is left out, since it may come from another version."""
    found = {}
    for name, text in operation.about.cuts.items():
        try:
            found[name] = Position.parse(text)
        except ValueError:
            continue
    return found


@dataclass(frozen=True, slots=True)
class Threshold:
    """How far behind a partition must be: so many records, or so many seconds at the pace that it has."""

    records: int = 1
    seconds: float | None = None

    def is_reached(self, lag: Lag) -> bool:
        if not lag.backlog:
            return False
        return lag.backlog >= self.records if self.seconds is None else lag.seconds >= self.seconds


@dataclass(frozen=True, slots=True)
class Lag:
    """How far a partition is behind. seconds: to work that off at the pace measured; infinite where it stands still.

    0 where it was not measured.
    """

    place: tuple[int, int]
    backlog: int
    seconds: float = 0.0

    @property
    def name(self) -> str:
        return f"{self.place[0]}.{self.place[1]}"


def lags(facts: JobFacts, places: Collection[tuple[int, int]], before: JobFacts | None = None) -> list[Lag]:
    """Those of these partitions that are not through, at `facts`; with their seconds since the look `before`."""
    taken = {part.name: part.taken for part in before.partitions} if before is not None else {}
    passed = (facts.now_ms - before.now_ms) / 1000 if before is not None else 0.0
    found = []
    for part in facts.partitions:
        place = (part.stage, part.partition)
        if place not in places or part.is_through:
            continue
        pace = (part.taken - taken.get(part.name, 0)) / passed if passed > 0 else None
        seconds = 0.0 if pace is None else part.backlog / pace if pace > 0 else float("inf")
        found.append(Lag(place, part.backlog, seconds if part.backlog else 0.0))
    return found


def open_places(facts: JobFacts, stage: str | None, numbers: Iterable[int] | None) -> list[tuple[int, int]]:
    """The partitions that are asked for, by the name of their stage and their numbers.

    Without a stage: those of all stages of the pool `main` that are not paused.
    """
    record, chosen = facts.record, set(numbers) if numbers is not None else None
    return [
        (part.stage, part.partition)
        for part in facts.partitions
        if (chosen is None or part.partition in chosen)
        and (
            record.plan.stage_name(part.stage) == stage
            if stage is not None
            else record.plan.pool_of(part.stage) == POOL and record.plan.stage_name(part.stage) not in record.still
        )
    ]


@dataclass(frozen=True, slots=True)
class Share:
    """What a burst has to do with one partition, and how far that is. By records; `left`: behind the cut."""

    name: str
    start: Position
    cut: Position
    position: Position
    left: int
    is_through: bool
    owner: str

    @property
    def total(self) -> int:
        return max(0, self.start.records_to(self.cut))

    @property
    def done(self) -> int:
        """Records that were processed since the burst began, up to the cut, by whoever it was."""
        return self.total if self.is_reached else min(self.total, max(0, self.start.records_to(self.position)))

    @property
    def is_reached(self) -> bool:
        return self.is_through or self.position.order >= self.cut.order


def shares(facts: JobFacts, starts: Mapping[str, Position], cuts: Mapping[str, Position]) -> list[Share]:
    """The partitions of a burst as they stand."""
    found = []
    for part in facts.partitions:
        if part.name in cuts:
            start, cut = starts[part.name], cuts[part.name]
            behind = max(0, part.head + 1 - cut.order[0])
            left = part.backlog if part.position.order >= cut.order else behind
            found.append(Share(part.name, start, cut, part.position, left, part.is_through, part.owner))
    return found


def due_burst(facts: JobFacts, decisions: Sequence[Decision]) -> Decision | None:
    """The newest burst that the autoscaler has decided, while it is fresh and nobody has begun one since."""
    if facts.record.state not in WORKING:
        return None
    if facts.operation is not None and not facts.operation.is_abandoned(facts.now_ms):
        return None
    wish = next((each for each in decisions if each.kind is Kind.BURST and each.burst is not None), None)
    if wish is None or facts.now_ms - wish.at_ms > WISH_SECONDS * 1000:
        return None
    begun = [past.begun_at_ms for past in facts.record.operations if past.about.kind == "burst"]
    if facts.operation is not None and facts.operation.about.kind == "burst":
        begun.append(facts.operation.begun_at_ms)
    return None if any(at >= wish.at_ms for at in begun) else wish
