"""The last looks at one job, and the load that follows from them. Knows no store and no clock but that of the facts.

Nothing in Redis says when a record came. But records are numbered, so whoever has looked before knows which numbers
were there; and workers report their busy time as a sum, so two looks give what lies between.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from pipeline.facts import JobFacts, PartitionFacts, WorkerFacts
from pipeline.plan import StagePlan, stream_name
from pipeline.pools import POOL
from pipeline.scaling.load import Load, StageLoad
from pipeline.scaling.settings import Scaling

MOMENTS: Final = 180
CELLS: Final = 40_000
"""The most partitions, over all moments of one job: it bounds memory for a job with very many of them."""

NEARLY_FULL: Final = 0.8
HELD_BACK_SHARE: Final = 1 / 3
"""A sender that was refused comes back a moment later: an inbox that is always filled up is not full at each look."""

Identity = tuple[str, str]
Crew = tuple[frozenset[Identity], tuple[int, ...]]
"""Who is there, and how many are wanted in each pool."""


@dataclass(frozen=True, slots=True)
class Moment:
    """One look. `heads`: records ever appended, by partition; the others by stage. `busy`: seconds so far."""

    now_ms: int
    heads: tuple[int, ...]
    arrived: tuple[int, ...]
    taken: tuple[int, ...]
    busy: tuple[float, ...]
    is_full: tuple[bool, ...]


class History:
    """What one process has seen of one job; another run of it or of the server, or a repartition, begins it anew."""

    def __init__(self) -> None:
        self._run = ""
        self._begin(0, 0)

    def _begin(self, stages: int, partitions: int) -> None:
        self._moments: deque[Moment] = deque(maxlen=max(2, min(MOMENTS, CELLS // max(1, partitions))))
        self._seen: dict[tuple[Identity, int], float] = {}
        self._busy = [0.0] * stages
        self._crew: Crew = (frozenset(), ())
        self._changed_at_ms = 0

    def add(self, facts: JobFacts) -> None:
        """Remembers this look. One that is not newer than the last one is left out."""
        record = facts.record
        stages = record.plan.stages
        run = f"{record.run} {record.run_id} {len(facts.partitions)}"
        if run != self._run:
            self._run = run
            self._begin(len(stages), len(facts.partitions))
        if self._moments and facts.now_ms <= self._moments[-1].now_ms:
            return
        self._note_crew(facts)
        self._add_busy(facts)
        parts = [[part for part in facts.partitions if part.stage == stage.index] for stage in stages]
        self._moments.append(
            Moment(
                facts.now_ms,
                tuple(arrived(part) for part in facts.partitions),
                tuple(sum(arrived(part) for part in own) for own in parts),
                tuple(sum(part.taken for part in own) for own in parts),
                tuple(self._busy),
                tuple(any(_is_nearly_full(part, facts) for part in own) for own in parts),
            )
        )

    def load(self, facts: JobFacts, scaling: Scaling, pool: str = POOL) -> Load | None:
        """The load of a pool at the last look, at `facts`; None before there are two looks since the warm-up.

        Only what was seen since the workers are the same, those of all pools, and the warm-up after that, counts.
        """
        since = max(
            facts.now_ms - int(1000 * scaling.window_seconds),
            self._changed_at_ms + int(1000 * scaling.warm_up_seconds),
        )
        window = [moment for moment in self._moments if moment.now_ms >= since]
        if len(window) < 2:
            return None
        mine, others = _counted(facts, pool)
        ages, stopped = self._ages(facts), _stopped(facts)
        stages = tuple(_stage_load(stage, facts, window, ages, stopped) for stage in facts.record.plan.stages)
        seconds = (window[-1].now_ms - window[0].now_ms) / 1000
        size = facts.record.scaled.get(pool)
        return Load(seconds, stages, mine, size.workers_wanted if size else 0, others, pool)

    def _note_crew(self, facts: JobFacts) -> None:
        wanted = tuple(each.workers_wanted for each in facts.record.scaled.values())
        crew = (frozenset((one.name, one.incarnation) for one in _there(facts)), wanted)
        if not self._moments or crew != self._crew:
            self._crew = crew
            self._changed_at_ms = facts.now_ms

    def _add_busy(self, facts: JobFacts) -> None:
        elapsed = (facts.now_ms - self._moments[-1].now_ms) / 1000 if self._moments else 0.0
        seen = {}
        for worker in facts.workers:
            who = (worker.name, worker.incarnation)
            for index, seconds in _busy_seconds(worker, len(self._busy)):
                before = self._seen.get((who, index))
                # One that is new has been busy no longer than since the last look.
                grown = min(seconds, elapsed) if before is None else seconds - before
                self._busy[index] += max(0.0, grown)
                seen[who, index] = max(seconds, before or 0.0)
        self._seen = seen

    def _ages(self, facts: JobFacts) -> dict[str, float]:
        """Partition -> seconds that its oldest record has waited at least; exact to the time between two looks."""
        moments, found = list(self._moments), {}
        for place, part in enumerate(facts.partitions):
            if part.backlog:
                passed = arrived(part) - part.backlog
                first = bisect_right(moments, passed, key=lambda moment: moment.heads[place])
                seen_ms = moments[first].now_ms if first < len(moments) else facts.now_ms
                found[part.name] = max(0, facts.now_ms - seen_ms) / 1000
        return found


def arrived(part: PartitionFacts) -> int:
    """Records that were ever appended: an entry's id says how many are before it."""
    first, _, record = part.position.order
    # In front of a control entry the position counts commits of timers, not records; there the backlog is 0.
    return first - 1 + (record + part.backlog if part.backlog else 0)


def _stage_load(
    stage: StagePlan, facts: JobFacts, window: list[Moment], ages: Mapping[str, float], stopped: Collection[str]
) -> StageLoad:
    at, first, last = stage.index, window[0], window[-1]
    seconds = (last.now_ms - first.now_ms) / 1000
    backlogged = [part for part in facts.partitions if part.stage == at and part.backlog]
    waiting = sum(part.name in stopped for part in backlogged)
    return StageLoad(
        index=at,
        name=stage.name,
        upstream=stage.upstream,
        partitions=stage.serving,
        arrival_rate=max(0, last.arrived[at] - first.arrived[at]) / seconds,
        taken_rate=max(0, last.taken[at] - first.taken[at]) / seconds,
        busy_workers=(last.busy[at] - first.busy[at]) / seconds,
        backlog=sum(part.backlog for part in backlogged),
        oldest_seconds=max((ages[part.name] for part in backlogged), default=0.0),
        is_stopped=stage.name in facts.record.still or (waiting > 0 and 2 * waiting >= len(backlogged)),
        is_held_back=sum(moment.is_full[at] for moment in window) > HELD_BACK_SHARE * len(window),
        pool=stage.pool,
    )


def _busy_seconds(worker: WorkerFacts, stages: int) -> Iterator[tuple[int, float]]:
    """(stage, seconds so far); what cannot be read is left out, since a report may come from another version."""
    reported = worker.report.get("busy")
    for text, seconds in reported.items() if isinstance(reported, dict) else ():
        if text.isascii() and text.isdecimal() and int(text) < stages and isinstance(seconds, int | float):
            yield int(text), float(seconds)


def _there(facts: JobFacts) -> list[WorkerFacts]:
    lease = facts.record.plan.limits.lease_seconds
    return [
        one
        for one in facts.workers
        if one.age_seconds < lease
        and not one.is_reported_dead
        and not one.is_leaving
        and one.report.get("stopping") is not True
    ]


def _counted(facts: JobFacts, pool: str) -> tuple[int, int]:
    """(workers of agents, workers that run by themselves) in the pool."""
    there = [one for one in _there(facts) if one.pool == pool]
    mine = sum(one.is_sized for one in there)
    return mine, len(there) - mine


def _is_nearly_full(part: PartitionFacts, facts: JobFacts) -> bool:
    limits = facts.record.plan.limits
    return part.backlog >= NEARLY_FULL * limits.inbox_records or part.backlog_bytes >= NEARLY_FULL * limits.inbox_bytes


def _stopped(facts: JobFacts) -> set[str]:
    """Partitions that wait for what no worker can speed up: a back-off, a reader that is behind, or a paused stage."""
    plan, behind = facts.record.plan, {output.name for output in facts.outputs if output.waiting}
    slow = {
        stage.index
        for stage in plan.stages
        if any(stream_name(sink) in behind for sink in plan.sinks if sink.name in stage.sinks)
    }
    slow |= _before_paused(facts)
    found = {part.name for part in facts.partitions if part.ring == "w" and part.stage in slow}
    for worker in facts.workers:
        hands = worker.report.get("hand")
        for place, hand in hands.items() if isinstance(hands, dict) else ():
            if isinstance(hand, dict) and hand.get("why") == "backoff":
                found.add(place)
    return found


def _before_paused(facts: JobFacts) -> set[int]:
    """The stages whose records come to a paused one: they fill up, one after the other."""
    stages, still = facts.record.plan.stages, facts.record.still
    found: set[int] = set()
    for stage in reversed(stages):
        if stage.name in still or stage.index in found:
            found |= set(stage.upstream)
    return found
