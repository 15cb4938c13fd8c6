"""A decision with all that it was made from: whether it is time to judge, then what the policy says."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from pipeline.facts import JobFacts, Scaled
from pipeline.pools import POOL
from pipeline.scaling.bursting import burst_wish
from pipeline.scaling.load import Load
from pipeline.scaling.policies import BurstWish, Choice, Kind, Need, Repartition, choose
from pipeline.scaling.settings import Scaling

MOST_DECISIONS: Final = 100
"""Kept of one job, the newest ones."""

_QUIET: Final = (Kind.STEADY, Kind.WAITING)


@dataclass(frozen=True, slots=True)
class Decision:
    """`at_ms` is by the clock of Redis. `load` is None where nothing was measured."""

    at_ms: int
    kind: Kind
    before: int
    wanted: int
    why: str
    policy: str
    load: Load | None = None
    needs: tuple[Need, ...] = ()
    pool: str = POOL
    repartition: Repartition | None = None
    burst: BurstWish | None = None

    @property
    def is_change(self) -> bool:
        return self.wanted != self.before

    def is_news(self, last: Kind | None) -> bool:
        """Whether it is kept: a change, a burst, or another trouble than the one before.

        last: the kind last kept or quiet.
        """
        return self.is_change or self.burst is not None or (self.kind not in _QUIET and self.kind is not last)


def decide(facts: JobFacts, scaling: Scaling, load: Load | None, pool: str = POOL) -> Decision:
    """For one pool at most one change in `cooldown_seconds`, none before enough was measured.

    None up while some are still to come. Missing facts never change anything.
    """
    size = facts.record.scaled.get(pool, Scaled(scaling, 0))
    choice = _choice(facts, size, scaling, load)
    return Decision(
        facts.now_ms,
        choice.kind,
        size.workers_wanted,
        choice.wanted,
        choice.why,
        scaling.policy,
        load,
        choice.needs,
        pool,
        choice.repartition,
        choice.burst,
    )


def _choice(facts: JobFacts, size: Scaled, scaling: Scaling, load: Load | None) -> Choice:
    wanted = size.workers_wanted
    left_seconds = scaling.cooldown_seconds - (facts.now_ms - size.scaled_at_ms) / 1000
    if size.scaled_at_ms and left_seconds > 0:
        return Choice(Kind.WAITING, wanted, f"the last change was just now: cooldown for {left_seconds:.0f} s more")
    if load is None or load.seconds < scaling.measure_seconds:
        return Choice(Kind.WAITING, wanted, "not measured long enough since the leader or a worker came or went")
    choice = choose(load, scaling)
    if choice.wanted > wanted and load.workers < wanted:
        return Choice(
            Kind.WAITING,
            wanted,
            f"{choice.wanted} are wanted, but of {wanted} only {load.workers} have come yet",
            choice.needs,
        )
    wish = burst_wish(facts, load, scaling)
    if wish is not None and choice.kind is not Kind.UP:
        return Choice(Kind.BURST, wanted, wish.why, choice.needs, burst=wish)
    return choice
