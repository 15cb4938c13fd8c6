"""The placement decision: which partitions get a new owner, and why. Pure functions over the facts; no store here."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass
from enum import StrEnum

from leader.duties.outlook import Outlook
from leader.roster import identity, is_live, is_stopping, stuck_hands
from pipeline.facts import JobFacts, PartitionFacts, WorkerFacts

SETTLING_MS = 30_000
"""A worker that lost all it owned is levelled to again after this long: one that comes and goes moves little."""

RETURN_SECONDS = 1.0
"""So long the partitions of a worker whose death was seen wait for its replacement, which starts in about this time.
Then they go to whoever is there."""


class Why(StrEnum):
    FIRST = "first owner"
    RETURNED = "their worker was replaced"
    TAKEN_OVER = "their worker is gone"
    STUCK = "their worker is stuck"
    LEVELLED = "levelling"
    LEAVING = "their worker is to end"
    NEW_SERVER = "owners before the last restart or halt have ended"


@dataclass(frozen=True, slots=True)
class Move:
    """One partition goes to (worker, incarnation) under `term`. `is_unclean` counts against the record in front."""

    place: tuple[int, int]
    worker: str
    incarnation: str
    term: int
    is_unclean: bool
    why: Why


class _Loads:
    """How many partitions each worker has, of each stage and in all, counted on as they are placed."""

    def __init__(self) -> None:
        self.total: Counter[str] = Counter()
        self.of_stage: Counter[tuple[str, int]] = Counter()

    def add(self, worker: str, stage: int, count: int = 1) -> None:
        self.total[worker] += count
        self.of_stage[worker, stage] += count

    def least(self, stage: int, workers: Collection[str]) -> str:
        """Fewest of this stage, then fewest in all, then by name."""
        return min(workers, key=lambda name: (self.of_stage[name, stage], self.total[name], name))


class _Scene:
    """The facts, sorted for the decision. `able`: workers that live, do not leave and are not stuck."""

    def __init__(self, facts: JobFacts, outlook: Outlook) -> None:
        limits = facts.record.plan.limits
        self.facts = facts
        self.outlook = outlook
        self.lease_seconds = limits.lease_seconds
        self.workers = {worker.name: worker for worker in facts.workers}
        self.live = {name: one for name, one in self.workers.items() if is_live(one, limits.lease_seconds)}
        self.stuck = {
            name: {hand.partition for hand in found}
            for name, one in self.live.items()
            if (found := stuck_hands(one, limits.stuck_seconds))
        }
        self.able = {
            name: one
            for name, one in self.live.items()
            if name not in self.stuck and not is_stopping(one) and not one.is_leaving
        }

    def judge(self, part: PartitionFacts) -> Why | None:
        """Why the partition needs another owner now, or None."""
        if not part.owner:
            return Why.NEW_SERVER if part.term else Why.FIRST
        owner = self.workers.get(part.owner)
        if owner is None:
            return Why.TAKEN_OVER
        if part.owner in self.live:
            if owner.incarnation != part.incarnation:
                return Why.RETURNED if part.owner in self.able else Why.TAKEN_OVER
            if part.owner in self.stuck:
                return Why.STUCK
            return Why.LEAVING if owner.is_leaving else None
        return None if self._may_return(owner) else Why.TAKEN_OVER

    def _may_return(self, owner: WorkerFacts) -> bool:
        """Its agent saw it end and is starting it again, or its silence may be ours."""
        if owner.is_reported_dead:
            return owner.age_seconds < min(RETURN_SECONDS, self.lease_seconds)
        return self.facts.now_ms < self.outlook.doubtful_until_ms

    def is_unclean(self, part: PartitionFacts, why: Why) -> bool:
        """True when the record at the partition's position may have ended its worker."""
        if why is Why.STUCK:
            return part.name in self.stuck[part.owner]
        return why in (Why.RETURNED, Why.TAKEN_OVER) and (part.owner, part.incarnation) not in self.outlook.stopped

    def move(self, part: PartitionFacts, worker: str, why: Why) -> Move:
        incarnation = self.able[worker].incarnation
        unclean = self.is_unclean(part, why)
        return Move((part.stage, part.partition), worker, incarnation, part.term + 1, unclean, why)


def decide(facts: JobFacts, run_id: str, outlook: Outlook) -> list[Move]:
    """The moves of this round; none while no worker is able to take anything, or a new server is not adopted.

    A partition whose owner lives, and is not to end, stays, except to level towards a worker that owns nothing. Done
    ones need no owner.
    """
    scene = _Scene(facts, outlook)
    if not scene.able or run_id != facts.record.run_id:
        return []
    loads = _Loads()
    kept: list[PartitionFacts] = []
    homeless: list[tuple[PartitionFacts, Why]] = []
    for part in facts.partitions:
        if part.is_through:
            continue
        why = scene.judge(part)
        if why is not None:
            homeless.append((part, why))
        elif part.owner in scene.live:
            kept.append(part)
            loads.add(part.owner, part.stage)
    moves = [_placed(scene, loads, part, why) for part, why in sorted(homeless, key=_returned_first)]
    return moves + _levelling(scene, loads, kept)


def _returned_first(case: tuple[PartitionFacts, Why]) -> tuple[bool, int, int]:
    """Those with a fixed place come first, so that the others even out around them."""
    part, why = case
    return why is not Why.RETURNED, part.stage, part.partition


def _placed(scene: _Scene, loads: _Loads, part: PartitionFacts, why: Why) -> Move:
    worker = part.owner if why is Why.RETURNED else loads.least(part.stage, scene.able)
    loads.add(worker, part.stage)
    return scene.move(part, worker, why)


def _levelling(scene: _Scene, loads: _Loads, kept: list[PartitionFacts]) -> list[Move]:
    """Moves towards able workers that own nothing, until nobody has two more than they."""
    owners = {part.owner for part in scene.facts.partitions if not part.is_through}
    fresh = [name for name, one in scene.able.items() if name not in owners and not _is_settling(scene, one)]
    held: dict[str, list[PartitionFacts]] = {}
    for part in kept:
        held.setdefault(part.owner, []).append(part)
    moves = []
    while fresh and any(held.values()):
        poor = min(fresh, key=lambda name: (loads.total[name], name))
        rich = max((name for name, parts in held.items() if parts), key=lambda name: (loads.total[name], name))
        if loads.total[rich] - loads.total[poor] < 2:
            break
        part = _most_doubled(loads, held[rich], poor)
        held[rich].remove(part)
        loads.add(rich, part.stage, -1)
        loads.add(poor, part.stage)
        moves.append(scene.move(part, poor, Why.LEVELLED))
    return moves


def _is_settling(scene: _Scene, worker: WorkerFacts) -> bool:
    owned_at_ms = scene.outlook.owned_at_ms.get(identity(worker))
    return owned_at_ms is not None and scene.facts.now_ms - owned_at_ms < SETTLING_MS


def _most_doubled(loads: _Loads, parts: list[PartitionFacts], to: str) -> PartitionFacts:
    """The one whose stage its owner has most of, compared with the worker it would go to."""
    return max(
        parts,
        key=lambda part: (
            loads.of_stage[part.owner, part.stage] - loads.of_stage[to, part.stage],
            part.stage,
            part.partition,
        ),
    )
