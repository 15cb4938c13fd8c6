"""Rings partitions that have work while nobody knows of it: their ticket was lost, or their flag is stale."""

from __future__ import annotations

import logging
import random
from dataclasses import dataclass

from leader.roster import comes_back, identity, is_live, waiting
from pipeline.facts import JobFacts, PartitionFacts
from pipeline.store.leadership import Leadership

logger = logging.getLogger(__name__)

ROUNDS = 2
"""Rounds in a row after which a partition that looks forgotten is: one look may fall between a pop and a heartbeat."""

_FIRST_DELAY_MS = 500
_LONGEST_DELAY_MS = 30_000


@dataclass(frozen=True, slots=True)
class Suspicion:
    """A partition that looked forgotten at `position`: for how many rounds in a row, how often rung, when again."""

    position: str
    rounds: int = 0
    rung: int = 0
    due_ms: int = 0


def looks_forgotten(part: PartitionFacts, facts: JobFacts) -> bool:
    """True when it has work, a live owner and no ticket, while its owner is not at work on it.

    One that waits for a full inbox is not forgotten: the commit that drains that inbox rings it. Nor is one that waits
    for those that give it keys: the last of them rings it. Nor one that
    backs off: its flag stays set, and its owner comes back by itself.
    """
    if part.at_end or part.is_through or part.queued:
        return False
    lease_seconds = facts.record.plan.limits.lease_seconds
    for worker in facts.workers:
        if identity(worker) == (part.owner, part.incarnation) and is_live(worker, lease_seconds):
            known = waiting(worker) if part.ring in ("w", "g") else comes_back(worker)
            return part.ring == "" or part.name not in known
    return False


def judge(
    part: PartitionFacts, facts: JobFacts, before: Suspicion | None, rng: random.Random
) -> tuple[Suspicion, bool]:
    """What to remember of the partition, and whether to ring it now.

    The waits between rings double, with jitter, until the position changes.
    """
    position = str(part.position)
    if before is None or before.position != position:
        before = Suspicion(position)
    if not looks_forgotten(part, facts):
        return Suspicion(position, 0, before.rung, before.due_ms), False
    rounds = before.rounds + 1
    if rounds < ROUNDS or facts.now_ms < before.due_ms:
        return Suspicion(position, rounds, before.rung, before.due_ms), False
    delay_ms = min(_LONGEST_DELAY_MS, _FIRST_DELAY_MS * 2 ** min(before.rung, 10))
    due_ms = facts.now_ms + int(delay_ms * rng.uniform(0.5, 1.0))
    return Suspicion(position, 0, before.rung + 1, due_ms), True


class Retry:
    """Sweeps the partitions of one job."""

    name = "retry"

    def __init__(self, leadership: Leadership, rng: random.Random) -> None:
        self._leadership = leadership
        self._rng = rng
        self._suspicions: dict[str, Suspicion] = {}

    def run_once(self, facts: JobFacts, token: str) -> dict[str, int]:
        working = {identity(worker): comes_back(worker) for worker in facts.workers}
        rung = 0
        for part in facts.partitions:
            suspicion, is_due = judge(part, facts, self._suspicions.get(part.name), self._rng)
            self._suspicions[part.name] = suspicion
            # With a clear flag nobody can be at work, whatever an older report says.
            is_at_work = part.ring != "" and part.name in working.get((part.owner, part.incarnation), frozenset())
            place = (part.stage, part.partition)
            if is_due and self._leadership.sweep(facts.record.job, token, place, is_at_work):
                rung += 1
                logger.warning(
                    "partition rung again, its ticket was lost: job=%s stage=%d partition=%d position=%s",
                    facts.record.job,
                    *place,
                    part.position,
                )
        return {"rung": rung} if rung else {}
