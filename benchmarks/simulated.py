"""A job that is only computed: stages with true rates, workers that boot and leave, a load of any shape. Discrete time.

Its facts are those that a leader reads, so the history and the policies of autoscaling are the real ones.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from pipeline.facts import JobFacts, JobRecord, PartitionFacts, WorkerFacts
from pipeline.lifecycle import JobState
from pipeline.plan import PROTOCOL, Plan, StagePlan
from pipeline.positions import Position
from pipeline.scaling.decision import Decision, decide
from pipeline.scaling.history import History
from pipeline.scaling.settings import Scaling
from pipeline.settings import Limits

STARTED_MS: Final = 1_000_000
EFFICIENCY: Final = 0.97
"""Share of its time that a worker with enough to do spends in slices."""

_PASSES: Final = 3


@dataclass(frozen=True, slots=True)
class SimulatedStage:
    """`true_rate`: records a second of one worker that does nothing else. `selectivity`: outputs for each input."""

    name: str
    true_rate: float
    selectivity: float = 1.0
    partitions: int = 16


@dataclass(slots=True)
class _Part:
    stage: int
    head: float = 0.0
    taken: float = 0.0

    @property
    def backlog(self) -> float:
        return self.head - self.taken


@dataclass(slots=True)
class _Worker:
    name: str
    ready_at: float
    gone_at: float = float("inf")
    busy: dict[int, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Row:
    """One look at the simulated job. Rates are records a second."""

    at: float
    offered_rate: float
    workers: int
    wanted: int
    backlog: float
    work_seconds: float


def a_plan(stages: Sequence[tuple[str, tuple[int, ...], int]], limits: Limits | None = None) -> Plan:
    """Of (name, upstream, partitions) of each stage."""
    made = tuple(
        StagePlan(index, name, bool(upstream), partitions, (name,), {}, (), upstream)
        for index, (name, upstream, partitions) in enumerate(stages)
    )
    return Plan(PROTOCOL, "simulated", "", made, (), limits or Limits())


def a_record(plan: Plan, scaling: Scaling, wanted: int, scaled_at_ms: int = 0) -> JobRecord:
    record = JobRecord("simulated", plan, JobState.RUNNING, "", 1, 1, 0, 1, "run", "open", frozenset())
    return replace(record, scaling=scaling, workers_wanted=wanted, scaled_at_ms=scaled_at_ms)


def a_partition(place: tuple[int, int], head: int, taken: int, backlog: int, owner: str = "") -> PartitionFacts:
    return PartitionFacts(
        *place, owner, "1-a" if owner else "", "", 1, Position(f"{head - backlog + 1}-0"), not backlog, backlog,
        100 * backlog, "1" if backlog else "", 0, False, False, taken, 0, 0, 0, 0, 0,
    )  # fmt: skip


class SimulatedJob:
    """A chain of stages. `offered` gives records a second at a time; what finds the inboxes full waits outside.

    The leader looks each second. `fail_over` is its death: the next one knows only what Redis keeps.
    """

    def __init__(
        self,
        stages: Sequence[SimulatedStage],
        scaling: Scaling,
        offered: Callable[[float], float],
        *,
        boot_seconds: float = 2.0,
        leave_seconds: float = 1.0,
        workers: int | None = None,
        limits: Limits | None = None,
    ) -> None:
        self._stages, self._scaling, self._offered = stages, scaling, offered
        self._boot_seconds, self._leave_seconds = boot_seconds, leave_seconds
        chain = [(stage.name, (at - 1,) if at else (), stage.partitions) for at, stage in enumerate(stages)]
        self._plan = a_plan(chain, limits)
        self._parts = [[_Part(at) for _ in range(stage.partitions)] for at, stage in enumerate(stages)]
        self._wanted = scaling.clamp(workers or scaling.minimum)
        self._crew = [_Worker(f"w{number}", 0.0) for number in range(self._wanted)]
        self._scaled_at_ms = 0
        self._history = History()
        self.now = 0.0
        self.outside = 0.0
        self.rows: list[Row] = []
        self.changes: list[tuple[float, Decision]] = []
        self.decisions: list[Decision] = []

    def run(self, seconds: float) -> None:
        until = self.now + seconds
        while self.now < until:
            self.step()

    def step(self) -> None:
        """One second: records come and are processed, then the leader looks."""
        self.now += 1.0
        self._arrive(self._offered(self.now))
        self._work()
        self._look()

    def fail_over(self) -> None:
        self._history = History()

    def there(self) -> list[_Worker]:
        return [one for one in self._crew if one.ready_at <= self.now < one.gone_at]

    def facts(self) -> JobFacts:
        names = [one.name for one in self.there()]
        parts = [
            a_partition((at, number), int(part.head), int(part.taken), int(part.head) - int(part.taken), owner)
            for at, own in enumerate(self._parts)
            for number, part in enumerate(own)
            for owner in [names[(number + at) % len(names)] if names else ""]
        ]
        workers = [
            WorkerFacts(
                one.name, "1-a", 0.1, False, {"sized": True, "busy": {str(at): busy for at, busy in one.busy.items()}}
            )
            for one in self.there()
        ]
        record = a_record(self._plan, self._scaling, self._wanted, self._scaled_at_ms)
        return JobFacts(record, STARTED_MS + int(1000 * self.now), tuple(parts), tuple(workers), "leader", 0, {})

    def _arrive(self, rate: float) -> None:
        parts, limit = self._parts[0], self._plan.limits.inbox_records
        room = sum(max(0.0, limit - part.backlog) for part in parts)
        waiting = self.outside + rate
        self.outside = max(0.0, waiting - room)
        for part in parts:
            part.head += (waiting - self.outside) / len(parts)

    def _work(self) -> None:
        """Each partition gets a fair share of its worker; the next passes give away what others did not need."""
        there = self.there()
        if not there:
            return
        left = [EFFICIENCY] * len(there)
        share = EFFICIENCY * len(there) / sum(stage.partitions for stage in self._stages)
        for _ in range(_PASSES):
            for at, stage in enumerate(self._stages):
                busy = [0.0] * len(there)
                for number, part in enumerate(self._parts[at]):
                    owner = (number + at) % len(there)
                    seconds = min((part.head - part.taken) / stage.true_rate, left[owner], share)
                    part.taken += seconds * stage.true_rate
                    left[owner] -= seconds
                    busy[owner] += seconds
                for worker, seconds in zip(there, busy, strict=True):
                    worker.busy[at] = worker.busy.get(at, 0.0) + seconds
                if at + 1 < len(self._stages):
                    outputs = sum(busy) * stage.true_rate * stage.selectivity
                    for part in self._parts[at + 1]:
                        part.head += outputs / self._stages[at + 1].partitions

    def _look(self) -> None:
        facts = self.facts()
        self._history.add(facts)
        decision = decide(facts, self._scaling, self._history.load(facts, self._scaling))
        self.decisions.append(decision)
        if decision.is_change:
            self.changes.append((self.now, decision))
            self._resize(decision.wanted, facts.now_ms)
        backlog = self.outside + sum(part.backlog for own in self._parts for part in own)
        work = sum(part.backlog / self._stages[part.stage].true_rate for own in self._parts for part in own)
        work += self.outside / self._stages[0].true_rate
        self.rows.append(Row(self.now, self._offered(self.now), len(self.there()), self._wanted, backlog, work))

    def _resize(self, wanted: int, now_ms: int) -> None:
        staying = [one for one in self._crew if one.gone_at == float("inf")]
        for one in staying[wanted:]:
            one.gone_at = self.now + self._leave_seconds
        for number in range(len(staying), wanted):
            self._crew.append(_Worker(f"w{number}-{now_ms}", self.now + self._boot_seconds))
        self._wanted, self._scaled_at_ms = wanted, now_ms
