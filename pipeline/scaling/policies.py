"""How many workers a load asks for. Pure: a load and its bounds in, a choice out; it never waits and never remembers.

`ds2` solves the job from its sources to its sinks (Kalavri et al., OSDI 2018): what each stage must do to keep up and
to catch up, by what a worker can do in a second of work. `watermarks` goes one step up or down at two marks.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Final

from pipeline.keying import GROUPS
from pipeline.scaling.load import LEAST_RATE, Load, StageLoad
from pipeline.scaling.settings import Scaling
from pipeline.wording import counted

HELD_BACK_GROWTH: Final = 1.5
"""What senders would send who are held back cannot be seen: it is taken for so much more than what came."""

CALM_SECONDS: Final = 1.0
"""A backlog that the workers are through with in this time is no backlog to catch up with."""

BUSY_LOW_WATERMARK: Final = 0.4
"""With one of two workers gone the other one is still below `busy_high`."""


class Kind(StrEnum):
    """What was decided. WAITING: it is too early to judge. LIMITED: more is wanted than bounds or partitions allow.

    BURST: Spark is to work off what the most workers would need too long for.
    """

    UP = "up"
    DOWN = "down"
    STEADY = "steady"
    CATCHING_UP = "catching up"
    LIMITED = "limited"
    BURST = "burst"
    UNKNOWN = "unknown"
    WAITING = "waiting"


@dataclass(frozen=True, slots=True)
class Need:
    """What one stage must do. `workers` would be at work on it all the time."""

    stage: str
    target_rate: float
    true_rate: float | None
    workers: float


@dataclass(frozen=True, slots=True)
class Repartition:
    """Another number of partitions for one keyed stage, so that more workers can share its work."""

    stage: str
    before: int
    wanted: int


@dataclass(frozen=True, slots=True)
class BurstWish:
    """Partitions of one stage that Spark is to work on. seconds: what the furthest one would need with workers only."""

    stage: str
    partitions: tuple[int, ...]
    seconds: float

    @property
    def why(self) -> str:
        count = counted(len(self.partitions), "partition")
        needs = "would never be through" if math.isinf(self.seconds) else f"would need {self.seconds:,.0f} s"
        return f"{count} of {self.stage} {needs} with the most workers: Spark is to work off their backlog"


@dataclass(frozen=True, slots=True)
class Choice:
    """How many workers agents should keep, and why."""

    kind: Kind
    wanted: int
    why: str
    needs: tuple[Need, ...] = field(default=())
    repartition: Repartition | None = None
    burst: BurstWish | None = None


def choose(load: Load, scaling: Scaling) -> Choice:
    """The choice of the policy that the job was given, always within its bounds."""
    choice = ds2(load, scaling) if scaling.policy == "ds2" else watermarks(load, scaling)
    wanted = scaling.clamp(choice.wanted)
    if wanted == choice.wanted:
        return choice
    kind = Kind.UP if wanted > load.wanted else Kind.DOWN if wanted < load.wanted else choice.kind
    return replace(choice, kind=kind, wanted=wanted, why=f"the bounds are {scaling.minimum}..{scaling.maximum}")


def ds2(load: Load, scaling: Scaling) -> Choice:
    """Enough workers for every stage's target rate, with a dead zone between too many and too few."""
    wanted_rates = target_rates(load, scaling.catch_up_seconds)
    unknown = [
        stage.name
        for stage in load.own
        if wanted_rates[stage.index] > 0 and stage.true_rate is None and not stage.is_stopped
    ]
    needs = tuple(_need(stage, wanted_rates[stage.index]) for stage in load.own)
    if unknown:
        why = f"nothing was processed in {', '.join(unknown)} while it was measured: its speed is not known"
        return Choice(Kind.UNKNOWN, load.wanted, why, needs)
    shares = _Shares(load, needs, scaling)
    now = shares.of(load.wanted)
    if now > scaling.busy_high:
        return _up(load, scaling, shares, needs)
    fewer = shares.fewest(scaling.busy_low)
    if fewer is None or fewer >= load.wanted:
        return Choice(
            Kind.STEADY, load.wanted, f"the busiest of {counted(load.wanted, 'worker')} is to work {now:.0%}", needs
        )
    work_seconds = sum(stage.backlog / (stage.true_rate or math.inf) for stage in load.own if not stage.is_stopped)
    if work_seconds > CALM_SECONDS * (load.workers + load.others):
        why = f"fewer would do, but {counted(load.backlog, 'record')} still to work off, {work_seconds:,.0f} s of work"
        return Choice(Kind.CATCHING_UP, load.wanted, why, needs)
    why = f"the busiest of {counted(fewer, 'worker')} is to work {shares.of(fewer):.0%}; now it would be {now:.0%}"
    return Choice(Kind.DOWN, fewer, why, needs)


def target_rates(load: Load, catch_up_seconds: float) -> dict[int, float]:
    """Stage -> records a second that it must process: what its upstreams send at their targets, and its backlog.

    A stage behind several others is taken to get the same share of what each of them processes.
    """
    found: dict[int, float] = {}
    taken = {stage.index: stage.taken_rate for stage in load.stages}
    is_stopped = any(stage.is_stopped for stage in load.stages)
    for stage in load.stages:
        rate = stage.arrival_rate
        came_from = sum(taken[each] for each in stage.upstream)
        if came_from >= LEAST_RATE:
            rate *= sum(found[each] for each in stage.upstream) / came_from
        elif not stage.upstream and stage.is_held_back and not is_stopped:
            rate *= HELD_BACK_GROWTH
        found[stage.index] = rate + (0.0 if stage.is_stopped else stage.backlog / catch_up_seconds)
    return found


def watermarks(load: Load, scaling: Scaling) -> Choice:
    """One more above the high mark of age or of busy share, one fewer below both low ones."""
    busy, age = load.busy_share, load.oldest_seconds
    if busy is None:
        return Choice(Kind.UNKNOWN, load.wanted, "no worker is there")
    facts = f"the oldest record has waited {age:.0f} s, workers work {busy:.0%}"
    if age > scaling.age_high_seconds or (busy > scaling.busy_high and not any(each.is_stopped for each in load.own)):
        useful = sum(stage.partitions for stage in load.own)
        if load.wanted + load.others >= useful:
            busiest = max(load.own, key=lambda stage: stage.busy_workers / stage.partitions)
            more = _more_partitions(load, scaling, busiest, 2 * busiest.partitions)
            return Choice(Kind.LIMITED, load.wanted, f"{facts}: {_too_few(busiest, more)}", repartition=more)
        if load.wanted >= scaling.maximum:
            return Choice(Kind.LIMITED, load.wanted, f"{facts}, and more than {scaling.maximum} are not allowed")
        return Choice(Kind.UP, load.wanted + 1, f"{facts}: above the high mark")
    if age < scaling.age_low_seconds and busy < BUSY_LOW_WATERMARK and load.wanted > scaling.minimum:
        return Choice(Kind.DOWN, load.wanted - 1, f"{facts}: below the low mark")
    return Choice(Kind.STEADY, load.wanted, f"{facts}: between the marks")


class _Shares:
    """How busy the busiest worker would be with so many of them: 4 partitions on 3 workers are 2 for one of them.

    Placement levels the partitions of each stage and of all together; of what that leaves open, the worst is taken.
    """

    def __init__(self, load: Load, needs: tuple[Need, ...], scaling: Scaling) -> None:
        pairs = zip(needs, load.own, strict=True)
        self._parts = sorted(
            ((need.workers / stage.partitions, stage.partitions) for need, stage in pairs), reverse=True
        )
        self._total = sum(stage.partitions for stage in load.own)
        self._others = load.others
        self.sizes = range(scaling.minimum, scaling.maximum + 1)

    def of(self, workers: int) -> float:
        there = max(1, workers + self._others)
        left, share = math.ceil(self._total / there), 0.0
        for each, partitions in self._parts:
            count = min(left, math.ceil(partitions / there))
            share += each * count
            left -= count
        return share

    def fewest(self, share: float) -> int | None:
        """The fewest workers with which nobody works more than so much; None when the bounds do not allow it."""
        return next((size for size in self.sizes if self.of(size) <= share), None)

    def best(self) -> int:
        """The fewest with which more would not help."""
        return min(self.sizes, key=lambda size: (self.of(size), size))

    def least(self) -> float:
        """With a worker for every partition of every stage."""
        return self.of(self._total)


def _up(load: Load, scaling: Scaling, shares: _Shares, needs: tuple[Need, ...]) -> Choice:
    now = shares.of(load.wanted)
    enough = shares.fewest(scaling.busy_target)
    wanted = max(load.wanted, shares.best() if enough is None else enough)
    why = (
        f"{counted(load.wanted, 'worker')} would have to work {now:.0%};"
        f" the busiest of {wanted} works {shares.of(wanted):.0%}"
    )
    if enough is None and shares.least() < shares.of(scaling.maximum):
        why += f"; more than {scaling.maximum} are not allowed"
    more = None
    if shares.least() > scaling.busy_target:
        need, stage = max(zip(needs, load.own, strict=True), key=lambda pair: pair[0].workers / pair[1].partitions)
        more = _more_partitions(load, scaling, stage, math.ceil(need.workers / scaling.busy_target))
        why += f"; {_too_few(stage, more)}"
    return Choice(Kind.UP if wanted > load.wanted else Kind.LIMITED, wanted, why, needs, more)


def _need(stage: StageLoad, target_rate: float) -> Need:
    true_rate = stage.true_rate
    if stage.is_stopped:  # work that is dropped and done anew says nothing of its speed
        return Need(stage.name, target_rate, true_rate, stage.busy_workers)
    return Need(stage.name, target_rate, true_rate, target_rate / true_rate if true_rate and target_rate else 0.0)


def _more_partitions(load: Load, scaling: Scaling, stage: StageLoad, useful: int) -> Repartition | None:
    """Doubled until `useful` workers can share the stage, as far as so many are allowed; None where nothing changes.

    The partitions of an entry stage belong to senders.
    """
    useful = min(useful, scaling.maximum + load.others, GROUPS)
    if not stage.upstream or useful <= stage.partitions:
        return None
    wanted = stage.partitions
    while wanted < useful:
        wanted *= 2
    return Repartition(stage.name, stage.partitions, min(wanted, GROUPS))


def _too_few(stage: StageLoad, more: Repartition | None) -> str:
    text = f"a worker for each partition of the stage {stage.name} ({stage.partitions}) is not enough"
    if more is not None:
        return f"{text}: it gets {more.wanted}"
    if not stage.upstream:
        return f"{text}, and those of a source are not changed"
    return f"{text}, and more workers are not allowed"
