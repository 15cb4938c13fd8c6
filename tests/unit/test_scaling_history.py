"""What a leader has seen of a job becomes a load; recorded looks at real jobs are decided as they were."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest

from benchmarks.simulated import a_partition, a_plan, a_record
from leader.duties.autoscale import Autoscale
from pipeline.facts import JobFacts, OutputFacts, PartitionFacts, WorkerFacts
from pipeline.plan import SinkPlan
from pipeline.scaling.decision import Decision, decide
from pipeline.scaling.history import MOMENTS, History
from pipeline.scaling.policies import Kind, ds2, watermarks
from pipeline.scaling.settings import Scaling
from pipeline.settings import Limits

TRACES = Path(__file__).parent / "traces"
SCALING = Scaling(1, 4, warm_up_seconds=0.0)
PLAN = a_plan([("source", (), 2), ("count", (0,), 2)])


def a_worker(
    name: str = "w0", busy: dict[str, Any] | None = None, incarnation: str = "1-a", **report: Any
) -> WorkerFacts:
    return WorkerFacts(name, incarnation, 0.1, False, {"sized": True, "busy": busy or {}, **report})


def a_look(second: float, *parts: PartitionFacts, workers: tuple[WorkerFacts, ...] = (), **changes: Any) -> JobFacts:
    record = a_record(PLAN, SCALING, 1)
    return replace(JobFacts(record, int(1000 * second), parts, workers, "leader", 0, {}), **changes)


def seen(*looks: JobFacts) -> History:
    history = History()
    for look in looks:
        history.add(look)
    return history


def test_rates_and_busy_time_are_what_lies_between_the_first_and_the_last_look() -> None:
    first = a_look(10, a_partition((0, 0), 100, 50, 50), workers=(a_worker(busy={"0": 3.0}),))
    last = a_look(20, a_partition((0, 0), 300, 150, 150), workers=(a_worker(busy={"0": 8.0}),))

    load = seen(first, last).load(last, SCALING)

    assert load is not None
    stage = load.stages[0]
    assert (stage.arrival_rate, stage.taken_rate, stage.busy_workers, stage.backlog) == (20.0, 10.0, 0.5, 150)
    assert stage.true_rate == 20.0
    assert (load.seconds, load.workers, load.others, load.wanted) == (10.0, 1, 0, 1)


def test_the_oldest_record_is_as_old_as_the_first_look_that_knew_its_number() -> None:
    looks = [a_look(second, a_partition((0, 0), 100 * second, 150, 100 * second - 150)) for second in (1, 2, 3, 4)]

    load = seen(*looks).load(looks[-1], SCALING)

    assert load is not None
    # Number 151 is the next one: it was there at the second look, and not yet at the first.
    assert load.stages[0].oldest_seconds == 2.0


def test_busy_time_of_a_worker_that_ended_or_is_new_is_not_lost_and_not_invented() -> None:
    crew = {"workers": (a_worker("w0", {"1": 5.0}), a_worker("w1", {"1": 100.0}))}
    looks = [
        a_look(0, **crew),
        a_look(10, workers=(a_worker("w0", {"1": 9.0}), a_worker("w1", {"1": 103.0}))),
        a_look(20, workers=(a_worker("w0", {"1": 9.0}), a_worker("w1", {"1": 2.0}, incarnation="2-b"))),
        a_look(30, workers=(a_worker("w0", {"1": 8.0}), a_worker("w1", {"1": 500.0}, incarnation="3-c"))),
        a_look(31, workers=(a_worker("w0", {"1": 8.0}), a_worker("w1", {"1": 500.5}, incarnation="3-c"))),
    ]
    history = seen(*looks)

    # 4 + 3, then 2, then at most the ten seconds since the last look, then 0.5; a sum that fell counts for nothing.
    assert history._moments[-1].busy[1] - history._moments[0].busy[1] == pytest.approx(19.5)


def test_a_paused_stage_and_what_is_stuck_before_it_are_stopped_and_ask_for_nothing() -> None:
    plan = a_plan([("source", (), 2), ("hop", (0,), 2), ("count", (1,), 2), ("beside", (0,), 2)])
    record = replace(a_record(plan, SCALING, 2), plan=plan)

    def look(second: float, ring: str, still: dict[str, int]) -> JobFacts:
        came = int(1000 * second)
        parts = [a_partition((stage, 0), came, 0, came) for stage in (1, 2)]
        parts = [replace(part, ring=ring) if part.stage == 1 else part for part in parts]
        return replace(a_look(second, *parts, workers=(a_worker(),)), record=replace(record, still=still))

    def load(ring: str, **still: int) -> Any:
        looks = [look(second, ring, still) for second in (1, 31)]
        found = seen(*looks).load(looks[-1], Scaling(1, 4, warm_up_seconds=0.0, window_seconds=60.0))
        assert found is not None
        return found

    def stopped(ring: str, **still: int) -> list[str]:
        return [stage.name for stage in load(ring, **still).stages if stage.is_stopped]

    assert stopped("w") == []
    assert stopped("1", count=1) == ["count"]
    assert stopped("w", count=1) == ["hop", "count"]
    assert load("w", count=1).oldest_seconds == 0.0
    assert watermarks(load("w"), SCALING).wanted == 3
    assert watermarks(load("w", count=1), SCALING).kind is Kind.DOWN
    assert ds2(load("w", count=1), SCALING).kind is Kind.DOWN
    assert ds2(load("w"), SCALING).kind is Kind.UNKNOWN


@pytest.mark.parametrize(
    "change",
    [
        {"workers": (a_worker("w0"), a_worker("w1"))},
        {"workers": (a_worker("w0", incarnation="2-b"),)},
        {"workers": (replace(a_worker("w0"), age_seconds=5.0),)},
        {"workers": (replace(a_worker("w0"), is_leaving=True),)},
        {"record": a_record(PLAN, SCALING, 2)},
    ],
)
def test_what_was_seen_before_workers_changed_does_not_count(change: dict[str, Any]) -> None:
    looks = [a_look(second, workers=(a_worker("w0"),)) for second in range(10)]
    changed = a_look(10, **{"workers": (a_worker("w0"),), **change})

    assert seen(*looks).load(looks[-1], SCALING) is not None
    assert seen(*looks, changed).load(changed, SCALING) is None


def test_the_warm_up_is_left_out() -> None:
    looks = [a_look(second, workers=(a_worker(),)) for second in range(12)]

    load = seen(*looks).load(looks[-1], Scaling(1, 4, warm_up_seconds=5.0))

    assert load is not None
    assert load.seconds == 6.0


def test_another_run_of_the_job_begins_anew() -> None:
    looks = [a_look(second) for second in range(5)]
    restored = replace(a_look(5), record=replace(a_record(PLAN, SCALING, 1), generation=1))

    assert seen(*looks, restored).load(restored, SCALING) is None


def test_the_history_is_bounded() -> None:
    assert len(seen(*(a_look(second) for second in range(2 * MOMENTS)))._moments) == MOMENTS


def test_partitions_in_a_back_off_or_behind_a_slow_reader_are_stopped() -> None:
    sink = SinkPlan("out", "stream", "", {}, None)
    plan = replace_stage_sinks(("out",), (sink,))
    parts = (a_partition((1, 0), 10, 0, 10), replace(a_partition((1, 1), 10, 0, 10), ring="w"))
    hand = {"hand": {"1.0": {"position": "1-0/0", "since_ms": 1, "why": "backoff"}}}
    output = OutputFacts("out", 1, 1, 0, 1, ())

    def is_stopped(**changes: Any) -> bool:
        record = replace(a_record(PLAN, SCALING, 1), plan=plan)
        looks = [replace(a_look(second, *parts), record=record, **changes) for second in (1, 2)]
        load = seen(*looks).load(looks[-1], SCALING)
        assert load is not None
        return load.stages[1].is_stopped

    assert not is_stopped()
    assert is_stopped(outputs=(output,))
    assert is_stopped(workers=(a_worker(**hand),))


def replace_stage_sinks(names: tuple[str, ...], sinks: tuple[SinkPlan, ...]) -> Any:
    stages = (PLAN.stages[0], msgspec.structs.replace(PLAN.stages[1], sinks=names))
    return msgspec.structs.replace(PLAN, stages=stages, sinks=sinks)


def test_an_entry_whose_inboxes_are_full_again_and_again_holds_its_senders_back() -> None:
    limits = Limits(inbox_records=100)
    plan = a_plan([("source", (), 2)], limits)
    backlogs = [100, 20, 90, 30, 95, 10]
    looks = [
        replace(a_look(at, a_partition((0, 0), 1000, 0, size)), record=a_record(plan, SCALING, 1))
        for at, size in enumerate(backlogs)
    ]

    load = seen(*looks).load(looks[-1], SCALING)
    calm = seen(*looks[:2], *looks[3:4], *looks[5:]).load(looks[-1], SCALING)

    assert load is not None
    assert load.stages[0].is_held_back
    assert calm is not None
    assert not calm.stages[0].is_held_back


@pytest.mark.parametrize("report", [{"busy": None}, {"busy": {"x": 1, "9": 1.0, "0": "a"}}, {"busy": [1]}])
def test_reports_that_cannot_be_read_are_left_out(report: dict[str, Any]) -> None:
    workers = (WorkerFacts("w0", "1-a", 0.1, False, report),)
    looks = [a_look(second, workers=workers) for second in (1, 2)]

    load = seen(*looks).load(looks[-1], SCALING)

    assert load is not None
    assert load.stages[0].busy_workers == 0
    assert load.others == 1


# recorded jobs


def replayed(name: str, scaling: Scaling, fail_over_at: int | None = None) -> list[Decision]:
    """The decisions of a leader that sees the recorded looks. They are not carried out: the record says what was."""
    header, *rows = json.loads((TRACES / f"{name}.json").read_text())
    plan = a_plan([(stage, tuple(upstream), partitions) for stage, upstream, partitions in header["stages"]])
    history, decisions, wanted, scaled_at_ms = History(), [], rows[0]["wanted"], 0
    for number, row in enumerate(rows):
        if number == fail_over_at:
            history = History()
        if row["wanted"] != wanted:
            wanted, scaled_at_ms = row["wanted"], row["now_ms"]
        parts = tuple(a_partition((at, part), head, taken, left) for at, part, head, taken, left in row["parts"])
        workers = tuple(
            WorkerFacts(who, incarnation, age, False, {"sized": bool(pool), "busy": busy})
            for who, incarnation, age, pool, busy in row["workers"]
        )
        record = a_record(plan, scaling, wanted, scaled_at_ms)
        facts = JobFacts(record, row["now_ms"], parts, workers, "leader", 0, {})
        history.add(facts)
        decisions.append(decide(facts, scaling, history.load(facts, scaling)))
    return decisions


def first_change(decisions: list[Decision]) -> tuple[int, Decision]:
    return next((number, decision) for number, decision in enumerate(decisions) if decision.is_change)


def test_a_recorded_backlog_asks_for_all_workers_as_soon_as_its_speed_is_known() -> None:
    decisions = replayed("backlog", Scaling(1, 3, catch_up_seconds=10, cooldown_seconds=5))

    at, decision = first_change(decisions)
    assert {each.kind for each in decisions[:at]} <= {Kind.WAITING, Kind.UNKNOWN}
    assert (decision.kind, decision.before, decision.wanted) == (Kind.UP, 1, 3)
    assert "is not enough" in decision.why
    assert not any(each.kind is Kind.DOWN for each in decisions[: at + 15])


def test_a_recorded_rise_asks_for_one_more_and_keeps_it_while_it_catches_up() -> None:
    decisions = replayed("rising", Scaling(1, 3, catch_up_seconds=20, cooldown_seconds=8))

    at, decision = first_change(decisions)
    assert (decision.kind, decision.before, decision.wanted) == (Kind.UP, 1, 2)
    # While it catches up nobody goes, though the rate of arrival would need one worker only.
    later = [each for each in decisions[at:] if each.before == 2]
    assert Kind.CATCHING_UP in {each.kind for each in later}
    assert all(each.load is not None and each.load.backlog < 200 for each in later if each.kind is Kind.DOWN)


def test_a_recorded_rise_is_followed_by_watermarks_too() -> None:
    decisions = replayed("rising", Scaling(1, 3, "watermarks", cooldown_seconds=8))

    changes = [(each.before, each.wanted) for each in decisions if each.is_change]

    assert (2, 3) in changes  # the oldest record of the burst waits for longer than the high mark
    assert not any(each.wanted < each.before and each.load and each.load.oldest_seconds > 1 for each in decisions)


def test_a_leader_that_takes_over_in_a_recorded_job_waits_until_it_has_measured_itself() -> None:
    scaling = Scaling(1, 3, catch_up_seconds=10, cooldown_seconds=5)
    at, _ = first_change(replayed("backlog", scaling))

    decisions = replayed("backlog", scaling, fail_over_at=at)

    assert {decision.kind for decision in decisions[at : at + 10]} == {Kind.WAITING}
    assert {decision.kind for decision in decisions[at + 15 :]} != {Kind.WAITING}


def test_a_job_that_is_not_scaled_is_not_measured() -> None:
    class Forbidden:
        def __getattr__(self, name: str) -> Any:
            raise AssertionError(name)

    duty = Autoscale(Forbidden(), Forbidden())  # type: ignore[arg-type]
    record = replace(a_record(PLAN, SCALING, 1), scaling=None)

    assert duty.run_once(replace(a_look(1), record=record), "token") == {}
