"""Which partitions go to a burst and come back, what is far enough behind, and how far a burst is: pure decisions."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from leader.duties.moves import How, Move, Why
from pipeline.bursts import (
    Lag,
    Threshold,
    burst_pool,
    burst_under_way,
    due_burst,
    is_burst_pool,
    lags,
    open_places,
    shares,
)
from pipeline.cli.reports import status_json, status_lines
from pipeline.facts import JobFacts, PartitionFacts, WorkerFacts
from pipeline.lifecycle import JobState
from pipeline.operations import About, Operation, PastOperation, Phase
from pipeline.positions import Position
from pipeline.scaling.decision import Decision
from pipeline.scaling.policies import BurstWish, Kind
from pipeline.spark.streaming.slices import planned, read_cuts
from pipeline.validation import NAME
from tests.unit.test_moves_decided import NOW_MS, a_job, a_part, a_worker, decided
from tests.unit.test_stream_slices import BUSY, STANDING

NODE = "here.burst-1"
SPARK = f"{NODE}.spark"


def a_burst(
    *numbers: int, phase: Phase = Phase.BURSTING, until_ms: int = NOW_MS + 9_000, node: str = NODE
) -> Operation:
    """Of partitions of stage 0, up to record 100."""
    cuts = {f"0.{number}": "101-0/0" for number in numbers}
    about = About("burst", by="me@here", node=node, cuts=cuts)
    return Operation(
        "7", about, phase, -1, False, NOW_MS - 5_000, NOW_MS - 1_000, total=200, done=50, until_ms=until_ms
    )


def at(part: PartitionFacts, records: int, backlog: int = 500) -> PartitionFacts:
    return replace(part, position=Position(f"{records + 1}-0"), backlog=backlog, head=records + backlog)


def parts_of(*owners: str) -> list[PartitionFacts]:
    return [at(a_part(number, owner), 10) for number, owner in enumerate(owners)]


def spark(node: str = NODE, **report: Any) -> WorkerFacts:
    return a_worker(f"{node}.spark", node=node, pool=burst_pool(node), **report)


def job_of(parts: list[PartitionFacts], workers: list[WorkerFacts], operation: Operation | None) -> JobFacts:
    return replace(a_job(parts, workers, moves_at_once=9), operation=operation)


def asked(moves: list[Move]) -> list[tuple[int, str, Why]]:
    return [(move.place[1], move.worker, move.why) for move in moves if move.how is How.ASK]


# the leader


def test_its_partitions_go_to_its_worker_and_no_others() -> None:
    facts = job_of(parts_of("w1", "w1", "w2", "w2"), [a_worker("w1"), a_worker("w2"), spark()], a_burst(1, 3))

    assert asked(decided(facts)) == [(1, SPARK, Why.BURST), (3, SPARK, Why.BURST)]


def test_a_worker_of_a_burst_that_owns_nothing_is_given_nothing_to_level() -> None:
    facts = job_of(parts_of("w1", "w1", "w1", "w1"), [a_worker("w1"), spark()], None)

    assert decided(facts) == []


def test_a_partition_at_its_cut_goes_back_while_the_others_stay() -> None:
    parts = [at(part, records) for part, records in zip(parts_of(SPARK, SPARK, "w1"), (100, 99, 10), strict=True)]

    assert asked(decided(job_of(parts, [a_worker("w1"), spark()], a_burst(0, 1)))) == [(0, "w1", Why.BURST_OVER)]


def test_a_partition_that_is_at_its_cut_before_spark_is_there_stays_where_it_is() -> None:
    parts = [at(a_part(0, "w1"), 100)]

    assert decided(job_of(parts, [a_worker("w1"), spark()], a_burst(0))) == []


@pytest.mark.parametrize(
    "operation",
    [
        None,
        a_burst(0, phase=Phase.RETURNING),
        a_burst(0, until_ms=NOW_MS - 1),
        a_burst(0, node="another.burst-2"),
        replace(a_burst(0), about=About("upgrade", code="c", file="f.py")),
    ],
)
def test_all_goes_back_when_the_burst_is_over_or_its_command_is_gone(operation: Operation | None) -> None:
    facts = job_of(parts_of(SPARK), [a_worker("w1"), spark()], operation)

    assert asked(decided(facts)) == [(0, "w1", Why.BURST_OVER)]


def test_until_its_worker_is_heard_of_partitions_stay_where_they_are() -> None:
    assert decided(job_of(parts_of("w1"), [a_worker("w1")], a_burst(0, phase=Phase.STARTING))) == []


@pytest.mark.parametrize("gone", [a_worker(SPARK, NODE, 60.0, pool=burst_pool(NODE)), spark(stopping=True)])
def test_when_its_worker_dies_or_ends_workers_take_over(gone: WorkerFacts) -> None:
    (move,) = decided(job_of(parts_of(SPARK), [a_worker("w1"), gone], a_burst(0)))

    assert move.worker == "w1"


def test_with_nobody_to_take_them_back_partitions_stay_with_spark() -> None:
    parts = [at(a_part(0, SPARK), 100)]

    assert decided(job_of(parts, [spark()], a_burst(0))) == []


def test_a_partition_without_an_owner_goes_to_spark_at_once() -> None:
    (move,) = decided(job_of(parts_of(""), [a_worker("w1"), spark()], a_burst(0)))

    assert (move.worker, move.how) == (SPARK, How.ASSIGN)


@given(st.lists(st.sampled_from(["w1", "w2", SPARK]), min_size=1, max_size=6), st.sets(st.integers(0, 5)))
def test_moves_to_spark_and_back_end(owners: list[str], numbers: set[int]) -> None:
    """What is asked for, carried out, is where it stays."""
    workers = [a_worker("w1"), a_worker("w2"), spark()]
    facts = job_of(parts_of(*owners), workers, a_burst(*numbers))
    for _ in range(12):
        moves = [move for move in decided(facts) if move.how in (How.ASK, How.ASSIGN)]
        if not moves:
            break
        to = {move.place: move.worker for move in moves}
        moved = [replace(part, owner=to.get((part.stage, part.partition), part.owner)) for part in facts.partitions]
        facts = replace(facts, partitions=tuple(moved))

    assert decided(facts) == []
    assert {part.partition for part in facts.partitions if part.owner == SPARK} == numbers & set(range(len(owners)))


def test_no_stage_can_have_the_pool_of_a_burst() -> None:
    assert is_burst_pool(burst_pool(NODE))
    assert not is_burst_pool("main")
    assert NAME.fullmatch(burst_pool(NODE)) is None


def test_cuts_that_cannot_be_read_are_left_out() -> None:
    operation = replace(a_burst(), about=About("burst", node=NODE, cuts={"0.0": "?", "0.1": "9-0/0"}))

    found = burst_under_way(job_of([], [], operation))

    assert found is not None
    assert found.cuts == {"0.1": Position("9-0")}


# what its worker takes


def test_a_slice_ends_at_the_cut_and_none_begins_behind_it() -> None:
    cut = {(1, 2): Position("7-0")}

    (found,) = planned(STANDING, set(), 1000, cut)
    there = replace(STANDING, backlogs={(1, 2): replace(BUSY, position=Position("7-0"))})

    assert found.reach.stop == Position("7-0")
    assert planned(there, set(), 1000, cut) == []
    assert len(planned(there, set(), 1000)) == 1
    assert planned(STANDING, set(), 1000, {(1, 2): Position("99-0")})[0].reach.stop == BUSY.end


def test_cuts_travel_as_text() -> None:
    assert read_cuts('{"1.2": "7-0/3"}') == {(1, 2): Position("7-0", 3)}


# which partitions


def test_behind_are_those_with_so_many_records() -> None:
    assert [Threshold(5).is_reached(Lag((0, 0), backlog)) for backlog in (0, 4, 5)] == [False, False, True]


def test_or_those_that_need_so_long_at_their_pace() -> None:
    before = job_of([at(a_part(0, "w1"), 0, 90), at(a_part(1, "w1"), 0, 90), a_part(2, "w1")], [], None)
    after = replace(
        before,
        now_ms=NOW_MS + 2_000,
        partitions=(replace(at(a_part(0, "w1"), 20, 70), taken=20), at(a_part(1, "w1"), 0, 90), a_part(2, "w1")),
    )

    found = lags(after, [(0, 0), (0, 1), (0, 2)], before)

    assert [(each.name, each.seconds) for each in found] == [("0.0", 7.0), ("0.1", float("inf")), ("0.2", 0.0)]
    assert [Threshold(seconds=7.5).is_reached(each) for each in found] == [False, True, False]


def test_those_that_are_through_are_not_behind() -> None:
    assert lags(job_of([replace(a_part(0, "w1"), done=True)], [], None), [(0, 0)]) == []


def test_by_default_paused_stages_and_those_of_other_pools_are_left_out() -> None:
    facts = job_of([a_part(0, "w1"), a_part(0, "w1", stage=1), a_part(1, "w1", stage=1)], [], None)
    stages = facts.record.plan.stages
    pooled = msgspec.structs.replace(
        facts.record.plan, stages=(stages[0], msgspec.structs.replace(stages[1], pool="gpu"))
    )

    assert open_places(facts, None, None) == [(0, 0), (1, 0), (1, 1)]
    assert open_places(replace(facts, record=replace(facts.record, still={"words": 1})), None, None) == [(0, 0)]
    other = replace(facts, record=replace(facts.record, plan=pooled))
    assert open_places(other, None, None) == [(0, 0)]
    assert open_places(other, "words", [1, 7]) == [(1, 1)]


# how far it is


def test_shares_count_up_to_the_cut_and_what_came_since() -> None:
    starts, cuts = (
        {"0.0": Position("11-0"), "0.1": Position("11-0")},
        {"0.0": Position("101-0"), "0.1": Position("101-0")},
    )
    facts = job_of([at(a_part(0, SPARK), 60, 70), at(a_part(1, "w1"), 110, 20)], [], None)

    first, second = shares(facts, starts, cuts)

    assert (first.total, first.done, first.left, first.is_reached) == (90, 50, 30, False)
    assert (second.total, second.done, second.left, second.is_reached) == (90, 90, 20, True)


def test_status_shows_it_while_it_runs_and_says_when_its_command_is_gone() -> None:
    facts = job_of(parts_of(SPARK, "w1"), [a_worker("w1"), spark()], a_burst(0, 1))

    (line,) = [line for line in status_lines(facts, []) if line.startswith("operation")]
    gone = "\n".join(status_lines(replace(facts, operation=a_burst(0, until_ms=NOW_MS - 1)), []))

    assert line == (
        f"operation burst of 2 partitions, since 5 s, phase bursting, by me@here: 50 of 200 records on {NODE}"
    )
    assert "its command is gone: what Spark has not done yet goes back to workers" in gone
    shown = status_json(facts, [])["operation"]
    assert (shown["kind"], shown["node"], shown["cuts"]["0.1"]) == ("burst", NODE, "101-0/0")


# whose turn it is to begin one


def a_decision(at_ms: int = NOW_MS - 1_000, kind: Kind = Kind.BURST) -> Decision:
    wish = BurstWish("words", (0, 1), 700.0) if kind is Kind.BURST else None
    return Decision(at_ms, kind, 2, 2, "why", "ds2", burst=wish)


def past(begun_at_ms: int) -> PastOperation:
    return PastOperation(begun_at_ms + 500, begun_at_ms, 0, "done", About("burst"))


def test_a_fresh_wish_is_due_until_somebody_has_begun_it() -> None:
    facts = job_of([], [], None)
    record = facts.record
    wish = a_decision()

    assert due_burst(facts, [a_decision(kind=Kind.UP), wish]) == wish
    assert due_burst(facts, [a_decision(NOW_MS - 61_000)]) is None
    assert due_burst(facts, [a_decision(kind=Kind.UP)]) is None
    assert due_burst(replace(facts, operation=a_burst(0)), [wish]) is None
    assert due_burst(replace(facts, record=replace(record, operations=(past(NOW_MS - 900),))), [wish]) is None
    assert due_burst(replace(facts, record=replace(record, operations=(past(NOW_MS - 9_000),))), [wish]) == wish
    assert due_burst(replace(facts, record=replace(record, state=JobState.SUSPENDED)), [wish]) is None
