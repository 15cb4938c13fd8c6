"""Which worker owns which partition: failure detection, take-over, levelling.

The decision is `moves.decide`, a pure function; `Placement` carries it out.
"""

from __future__ import annotations

import logging
import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Final, assert_never

from leader.duties.moves import PLANNED, How, Move, Why, decide
from leader.duties.outlook import Outlook
from leader.roster import Hand, Identity, identity, is_live, stuck_hands
from pipeline.facts import JobFacts
from pipeline.nodes import unserved_stages
from pipeline.store.leadership import Leadership
from pipeline.store.moving import MovingStore
from pipeline.store.scripts import Scripts
from pipeline.tickets import ticket

logger = logging.getLogger(__name__)

PATIENCE_MS: Final = 5_000
"""A stage without a worker for longer than this is told of."""

_EXPECTED = PLANNED | {Why.FIRST, Why.NEW_SERVER}


_COUNTED = {How.ASSIGN: "assigned", How.PLAN: "planned", How.ASK: "asked", How.STAY: "withdrawn"}
_TOLD = {How.ASSIGN: "assigned", How.PLAN: "are to move", How.ASK: "asked for", How.STAY: "stay after all"}


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

    def __init__(self, scripts: Scripts, leadership: Leadership, run_id: Callable[[], str], rng: random.Random) -> None:
        self._scripts = scripts
        self._leadership = leadership
        self._run_id = run_id
        self._rng = rng
        self._outlook = Outlook()
        self._told: set[tuple[Identity, str, str]] = set()
        self._unserved: dict[str, int] = {}

    def run_once(self, facts: JobFacts, token: str) -> dict[str, int]:
        run_id = self._run_id()
        self._outlook = self._outlook.after(facts)
        self._tell_stuck(facts)
        self._tell_unserved(facts)
        moves = decide(facts, run_id, self._outlook)
        for move in _first_planned(facts, moves):
            self._apply(facts.record.job, token, move)
        done = [move for move in moves if self._apply(facts.record.job, token, move)]
        _tell_moves(facts.record.job, done)
        counts = Counter(_COUNTED[move.how] for move in done)
        return dict(counts)

    def _apply(self, job: str, token: str, move: Move) -> bool:
        """False when the partition has another owner by now, or the job has ended."""
        moving = MovingStore(self._scripts, job)
        match move.how:
            case How.ASSIGN:
                return self._leadership.assign(
                    job,
                    token,
                    move.place,
                    (move.worker, move.incarnation),
                    move.term,
                    self._nonce(),
                    ticket(job, *move.place, move.term),
                    move.is_unclean,
                    move.why.value,
                    move.still_ms,
                )
            case How.PLAN | How.ASK:
                aim = (move.worker, move.incarnation, self._nonce(), move.why.value)
                return moving.want(token, move.place, move.owner, "ask" if move.how is How.ASK else "plan", aim)
            case How.STAY:
                return moving.withdraw(token, move.place, move.owner)
            case _:
                assert_never(move.how)

    def _nonce(self) -> str:
        return f"{self._rng.getrandbits(64):016x}"

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

    def _tell_unserved(self, facts: JobFacts) -> None:
        """Once, when a stage has had no worker for longer than workers take to come."""
        found = unserved_stages(facts)
        for stage, why in found.items():
            since_ms = self._unserved.get(stage, facts.now_ms)
            if since_ms and facts.now_ms - since_ms >= PATIENCE_MS:
                logger.warning("nobody can run a stage: job=%s stage=%s %s", facts.record.job, stage, why)
                since_ms = 0
            self._unserved[stage] = since_ms
        self._unserved = {stage: at for stage, at in self._unserved.items() if stage in found}


def _first_planned(facts: JobFacts, moves: list[Move]) -> list[Move]:
    """New moves that belong together are all noted before the first is asked for: else a worker that has got that one
    would have its share by the looks of it, and the next leader would not know of the others.
    """
    aimed = {(part.stage, part.partition) for part in facts.partitions if part.aim is not None}
    new = [move for move in moves if move.how in (How.PLAN, How.ASK) and move.place not in aimed]
    return [replace(move, how=How.PLAN) for move in new] if len(new) > 1 else []


def _tell_moves(job: str, moves: list[Move]) -> None:
    def group(move: Move) -> tuple[str, str, str]:
        return move.how.value, move.why.value, move.worker

    for (how, why, worker), members in groupby(sorted(moves, key=group), key=group):
        same = list(members)
        level = logging.INFO if same[0].why in _EXPECTED else logging.WARNING
        places = " ".join(f"{move.place[0]}.{move.place[1]}" for move in same)
        logger.log(
            level, "partitions %s, %s: job=%s worker=%s partitions=%s", _TOLD[How(how)], why, job, worker, places
        )
