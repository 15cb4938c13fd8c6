"""Which worker owns which partition: failure detection, take-over, levelling.

The decision is `moves.decide`, a pure function; `Placement` carries it out.
"""

from __future__ import annotations

import logging
import random
from collections.abc import Callable
from dataclasses import dataclass
from itertools import groupby

from leader.duties.moves import Move, Why, decide
from leader.duties.outlook import Outlook
from leader.roster import Hand, Identity, identity, is_live, stuck_hands
from pipeline.facts import JobFacts
from pipeline.store.leadership import Leadership
from pipeline.tickets import ticket

logger = logging.getLogger(__name__)

_EXPECTED = frozenset({Why.FIRST, Why.LEVELLED, Why.LEAVING, Why.NEW_SERVER})


@dataclass(frozen=True, slots=True)
class Stuck:
    """A worker that has held one record for too long."""

    worker: Identity
    hand: Hand


def stuck_workers(facts: JobFacts) -> list[Stuck]:
    """Live workers that user code holds up, with the records in their hands."""
    limits = facts.record.plan.limits
    return [
        Stuck(identity(worker), hand)
        for worker in facts.workers
        if is_live(worker, limits.lease_seconds)
        for hand in stuck_hands(worker, limits.stuck_seconds)
    ]


class Placement:
    """Gives every partition a live owner, as evenly as may be, moving as little as may be."""

    name = "placement"

    def __init__(self, leadership: Leadership, run_id: Callable[[], str], rng: random.Random) -> None:
        self._leadership = leadership
        self._run_id = run_id
        self._rng = rng
        self._outlook = Outlook()
        self._told: set[tuple[Identity, str, str]] = set()

    def run_once(self, facts: JobFacts, token: str) -> dict[str, int]:
        run_id = self._run_id()
        self._outlook = self._outlook.after(facts)
        self._tell_stuck(facts)
        moves = decide(facts, run_id, self._outlook)
        done = [move for move in moves if self._apply(facts.record.job, token, move)]
        _tell_moves(facts.record.job, done)
        return {"assigned": len(done)} if done else {}

    def _apply(self, job: str, token: str, move: Move) -> bool:
        return self._leadership.assign(
            job,
            token,
            move.place,
            (move.worker, move.incarnation),
            move.term,
            f"{self._rng.getrandbits(64):016x}",
            ticket(job, *move.place, move.term),
            move.is_unclean,
        )

    def _tell_stuck(self, facts: JobFacts) -> None:
        found = {(stuck.worker, stuck.hand.partition, stuck.hand.position): stuck for stuck in stuck_workers(facts)}
        for key, stuck in found.items():
            if key not in self._told:
                stage, _, partition = stuck.hand.partition.partition(".")
                logger.error(
                    "worker is stuck: one record in hand for %.0f s; its partitions go to whoever else is there: "
                    "job=%s stage=%s partition=%s position=%s worker=%s",
                    stuck.hand.age_ms / 1000,
                    facts.record.job,
                    stage,
                    partition,
                    stuck.hand.position,
                    stuck.worker[0],
                )
        self._told = set(found)


def _tell_moves(job: str, moves: list[Move]) -> None:
    def group(move: Move) -> tuple[str, str]:
        return move.why.value, move.worker

    for (why, worker), members in groupby(sorted(moves, key=group), key=group):
        same = list(members)
        level = logging.INFO if same[0].why in _EXPECTED else logging.WARNING
        places = " ".join(f"{move.place[0]}.{move.place[1]}" for move in same)
        logger.log(level, "partitions assigned, %s: job=%s worker=%s partitions=%s", why, job, worker, places)
