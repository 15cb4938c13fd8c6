"""The placement decision: which partitions get a new owner, and why. Pure functions over the facts; no store here."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum

from leader.duties.balance import WARM_UP_MS, evening
from leader.duties.outlook import Outlook
from leader.roster import hands, identity, is_live, stuck_hands
from pipeline.bursts import burst_under_way, is_burst_pool
from pipeline.facts import Aim, JobFacts, PartitionFacts, WorkerFacts

SETTLING_MS = 30_000
"""A worker that lost all it owned is levelled to again after this long: one that comes and goes moves little."""

RETURN_SECONDS = 1.0
"""So long the partitions of a worker whose death was seen wait for its replacement, which starts in about this time.
Then they go to whoever is there."""


_HOLDING = ("running", "publishing", "committing")
"""What a hand does that ends by itself, and before that its worker gives nothing away."""


class Why(StrEnum):
    FIRST = "first owner"
    RETURNED = "their worker was replaced"
    TAKEN_OVER = "their worker is gone"
    STUCK = "their worker is stuck"
    LEVELLED = "levelling"
    LEAVING = "their worker is to end"
    DRAINED = "their node is drained"
    BALANCED = "evening out the load"
    POOL = "their worker is of another pool"
    BURST = "Spark works on their backlog"
    BURST_OVER = "Spark has done its part of their backlog"
    NEW_SERVER = "owners before the last restart or halt have ended"


PLANNED = frozenset({Why.LEVELLED, Why.LEAVING, Why.DRAINED, Why.BALANCED, Why.POOL, Why.BURST, Why.BURST_OVER})
"""Moves away from an owner that lives and works: it is asked first, and a few are moved at a time."""


class How(StrEnum):
    """ASSIGN gives it away at once. PLAN and ASK say what its owner is to do, later and now. STAY takes that back."""

    ASSIGN = "assign"
    PLAN = "plan"
    ASK = "ask"
    STAY = "stay"


@dataclass(frozen=True, slots=True)
class Move:
    """One partition goes to (worker, incarnation) under `term`. `is_unclean` counts against the record in front.

    owner: the token of the one that it is taken from. still_ms: for how long nobody has worked on it, as far as known.
    """

    place: tuple[int, int]
    worker: str
    incarnation: str
    term: int
    is_unclean: bool
    why: Why
    how: How = How.ASSIGN
    owner: str = ""
    still_ms: int = 0


class _Loads:
    """How many partitions each worker and node has, of each stage and in all, counted on as they are placed."""

    def __init__(self, nodes: Mapping[str, str]) -> None:
        self._nodes = nodes
        self.total: Counter[str] = Counter()
        self.of_stage: Counter[tuple[str, int]] = Counter()
        self._on_node: Counter[tuple[str, int]] = Counter()

    def add(self, worker: str, stage: int, count: int = 1) -> None:
        self.total[worker] += count
        self.of_stage[worker, stage] += count
        self._on_node[self._nodes.get(worker, ""), stage] += count

    def least(self, stage: int, workers: Collection[str]) -> str:
        """Fewest of this stage, then fewest in all, then fewest of this stage on its node, then by name."""

        def load(name: str) -> tuple[int, int, int, str]:
            on_node = self._on_node[self._nodes.get(name, ""), stage]
            return self.of_stage[name, stage], self.total[name], on_node, name

        return min(workers, key=load)


class _Scene:
    """The facts, sorted for the decision. `able`: workers that live, are not stuck, and are to have work."""

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
            if name not in self.stuck and not one.is_stopping and not one.is_leaving and one.node not in facts.drained
        }
        self._of_pool: dict[str, dict[str, WorkerFacts]] = {}
        for name, one in self.able.items():
            self._of_pool.setdefault(one.pool, {})[name] = one
        self._burst = burst_under_way(facts)

    def pool(self, part: PartitionFacts) -> str:
        """That of the stage; of a burst while that is to have the partition, and its worker is able to."""
        if self._burst is not None and self._burst.is_to_have(part) and self._burst.pool in self._of_pool:
            return self._burst.pool
        return self.facts.record.plan.pool_of(part.stage)

    def able_for(self, part: PartitionFacts) -> Mapping[str, WorkerFacts]:
        """The able workers of the partition's pool."""
        return self._of_pool.get(self.pool(part), {})

    def judge(self, part: PartitionFacts) -> Why | None:
        """Why the partition needs another owner now, or None."""
        if not part.owner:
            return Why.NEW_SERVER if part.term else Why.FIRST
        owner = self.workers.get(part.owner)
        if owner is None:
            return Why.TAKEN_OVER
        if part.owner in self.live:
            if owner.incarnation != part.incarnation:
                return Why.RETURNED if part.owner in self.able_for(part) else Why.TAKEN_OVER
            if part.owner in self.stuck:
                return Why.STUCK
            if owner.is_leaving:
                return Why.LEAVING
            if owner.node in self.facts.drained:
                return Why.DRAINED
            pool = self.pool(part)
            if owner.pool == pool:
                return None
            return Why.BURST if is_burst_pool(pool) else Why.BURST_OVER if is_burst_pool(owner.pool) else Why.POOL
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

    def aim(self, part: PartitionFacts) -> Aim | None:
        """Where it is meant to go, while that worker is able to take it."""
        able = self.able_for(part).get(part.aim.worker) if part.aim else None
        return part.aim if part.aim and able and able.incarnation == part.aim.incarnation else None

    def is_overdue(self, part: PartitionFacts, aim: Aim) -> bool:
        """True when its owner, which lives, has had the time to give it away.

        It has more while one step holds it up that had begun before: user code is not to be run twice for that.
        """
        waited_ms = self.facts.now_ms - aim.asked_ms
        owner = self.live.get(part.owner)
        if owner is None or waited_ms <= self.facts.record.plan.limits.collect_seconds * 1000:
            return False
        silent_ms = owner.age_seconds * 1000
        return not any(hand.why in _HOLDING and hand.age_ms + silent_ms >= waited_ms for hand in hands(owner))

    def move(self, part: PartitionFacts, worker: str, why: Why, how: How = How.ASSIGN) -> Move:
        incarnation = self.able[worker].incarnation
        unclean = how is How.ASSIGN and self.is_unclean(part, why)
        place, still_ms = (part.stage, part.partition), self._still_ms(part) if how is How.ASSIGN else 0
        return Move(place, worker, incarnation, part.term + 1, unclean, why, how, part.token, still_ms)

    def _still_ms(self, part: PartitionFacts) -> int:
        """From the last sign of its owner, or from when that was asked in vain."""
        owner = self.workers.get(part.owner)
        if part.aim is not None and part.aim.asked_ms and part.owner in self.live:
            return max(0, self.facts.now_ms - part.aim.asked_ms)
        if owner is None or owner.incarnation != part.incarnation:
            return 0
        held = [hand.age_ms for hand in hands(owner) if hand.partition == part.name and hand.why in _HOLDING]
        return int(owner.age_seconds * 1000) + max(held, default=0)


def decide(facts: JobFacts, run_id: str, outlook: Outlook) -> list[Move]:
    """The moves of this round; none while no worker is able to take anything, or a new server is not adopted.

    A partition goes to able workers of its pool only: while there is none, it stays where it is. One whose
    owner lives, and is to have work, stays too, except to level towards a worker that owns nothing. Done ones need no
    owner. One that is on its way counts for the worker that it goes to.
    """
    scene = _Scene(facts, outlook)
    if not scene.able or run_id != facts.record.run_id:
        return []
    loads = _Loads({worker.name: worker.node for worker in facts.workers})
    kept: list[PartitionFacts] = []
    homeless: list[tuple[PartitionFacts, Why]] = []
    underway: list[tuple[PartitionFacts, Aim]] = []
    moves: list[Move] = []
    for part in facts.partitions:
        if part.is_through:
            continue
        why, aim = scene.judge(part), scene.aim(part)
        if aim is not None and (why is None or why in PLANNED):
            underway.append((part, aim))
            loads.add(aim.worker, part.stage)
        elif why is not None and scene.able_for(part):
            homeless.append((part, why))
        elif part.owner in scene.live:
            loads.add(part.owner, part.stage)
            if why is None:
                kept.append(part)
                moves += [_staying(part)] if part.aim is not None else []
    moves += [_placed(scene, loads, part, why) for part, why in sorted(homeless, key=_returned_first)]
    wanted = [move for move in moves if move.how is How.PLAN] + _levelling(scene, loads, kept)
    done_now = [move for move in moves if move.how is not How.PLAN]
    if not underway and not wanted and not done_now:
        wanted = _balancing(scene, kept)
    return done_now + _paced(scene, underway, wanted)


def _paced(scene: _Scene, underway: list[tuple[PartitionFacts, Aim]], wanted: list[Move]) -> list[Move]:
    """Some planned moves are asked for at a time, the older ones first; what was asked in vain is done at once."""
    free = scene.facts.record.plan.limits.moves_at_once - sum(1 for _, aim in underway if aim.asked_ms)
    moves = []
    for part, aim in underway:
        why = _why_of(aim)
        if aim.asked_ms and scene.is_overdue(part, aim):
            moves.append(scene.move(part, aim.worker, why))
        elif not aim.asked_ms and free > 0:
            free -= 1
            moves.append(scene.move(part, aim.worker, why, How.ASK))
    return moves + [replace(move, how=How.ASK if number < free else How.PLAN) for number, move in enumerate(wanted)]


def _staying(part: PartitionFacts) -> Move:
    """Nobody is there any more to whom it was to go, and nothing drives it away."""
    assert part.aim is not None
    return Move((part.stage, part.partition), "", "", part.term, False, _why_of(part.aim), How.STAY, part.token)


def _why_of(aim: Aim) -> Why:
    try:
        return Why(aim.why)
    except ValueError:  # of a newer version's leader
        return Why.LEVELLED


def _returned_first(case: tuple[PartitionFacts, Why]) -> tuple[bool, int, int]:
    """Those with a fixed place come first, so that the others even out around them."""
    part, why = case
    return why is not Why.RETURNED, part.stage, part.partition


def _placed(scene: _Scene, loads: _Loads, part: PartitionFacts, why: Why) -> Move:
    if why is Why.RETURNED:
        worker = part.owner
    elif (aim := scene.aim(part)) is not None:
        worker = aim.worker
    else:
        worker = loads.least(part.stage, scene.able_for(part))
    loads.add(worker, part.stage)
    return scene.move(part, worker, why, How.PLAN if why in PLANNED else How.ASSIGN)


def _levelling(scene: _Scene, loads: _Loads, kept: list[PartitionFacts]) -> list[Move]:
    """Moves towards able workers that own nothing, until nobody of their pool has two more than they.

    What is on its way to them counts: a leader that dies among its plans has a successor that plans the rest.
    """
    owners = {part.owner for part in scene.facts.partitions if not part.is_through}
    fresh = [name for name, one in scene.able.items() if name not in owners and not _is_settling(scene, one)]
    moves = []
    for pool in dict.fromkeys(scene.able[name].pool for name in fresh):
        same = [part for part in kept if scene.pool(part) == pool]
        moves += _levelled(scene, loads, [name for name in fresh if scene.able[name].pool == pool], same)
    return moves


def _levelled(scene: _Scene, loads: _Loads, fresh: list[str], kept: list[PartitionFacts]) -> list[Move]:
    """Those of one pool."""
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
        moves.append(scene.move(part, poor, Why.LEVELLED, How.PLAN))
    return moves


def _balancing(scene: _Scene, kept: list[PartitionFacts]) -> list[Move]:
    """One move by load, when nothing else moves and the load has been uneven for a while."""
    since_ms = scene.outlook.uneven_since_ms
    if not since_ms or scene.facts.now_ms - since_ms < WARM_UP_MS:
        return []
    for pool in scene.facts.record.plan.pools():
        able = [one for one in scene.able.values() if one.pool == pool]
        found = evening(able, [part for part in kept if scene.pool(part) == pool])
        if found is not None:
            return [scene.move(found[0], found[1], Why.BALANCED, How.PLAN)]
    return []


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
