"""Which moves are asked for, when, and where partitions go on several nodes: pure decisions."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from leader.duties.moves import How, Move, Why, decide
from leader.duties.outlook import Outlook
from pipeline.facts import Aim, JobFacts, JobRecord, PartitionFacts, WorkerFacts
from pipeline.graph import Graph, KeyBy, Sink, SinkSpec, Source, SourceSpec
from pipeline.lifecycle import JobState
from pipeline.plan import compile_plan
from pipeline.positions import Position
from pipeline.settings import Limits

NOW_MS = 1_000_000
RUN = "run-1"


def a_part(partition: int, owner: str, aim: Aim | None = None, stage: int = 0) -> PartitionFacts:
    return PartitionFacts(
        stage=stage,
        partition=partition,
        owner=owner,
        incarnation="1" if owner else "",
        token=f"3:{stage}.{partition}",
        term=3,
        position=Position("1-0"),
        at_end=True,
        backlog=0,
        backlog_bytes=0,
        ring="",
        queued=0,
        closed=False,
        done=False,
        taken=0,
        emitted=0,
        filtered=0,
        duplicate=0,
        late=0,
        dead=0,
        aim=aim,
    )


def an_aim(partition: int, worker: str, asked_ms: int = NOW_MS, why: str = "levelling", incarnation: str = "1") -> Aim:
    return Aim(f"3:0.{partition}", worker, incarnation, asked_ms, why)


def a_worker(name: str, node: str = "here", age: float = 0.1, *, leaving: bool = False, **report: Any) -> WorkerFacts:
    return WorkerFacts(name, "1", age, False, {"node": node, **report}, leaving)


def a_job(
    parts: list[PartitionFacts], workers: list[WorkerFacts], *drained: str, now_ms: int = NOW_MS, **limits: Any
) -> JobFacts:
    graph = Graph(
        "flow",
        (
            Source("lines", SourceSpec("iterable")),
            KeyBy("words", ("lines",), str),
            Sink("out", ("words",), SinkSpec("console"), "key"),
        ),
    )
    plan = compile_plan(graph, 2, Limits(**limits))
    record = JobRecord("job", plan, JobState.RUNNING, "", 1, 1, 0, 1, RUN, "open", frozenset())
    return JobFacts(record, now_ms, tuple(parts), tuple(workers), "L", 0, {}, drained=frozenset(drained))


def decided(facts: JobFacts) -> list[Move]:
    return decide(facts, RUN, Outlook().after(facts))


def told(moves: list[Move]) -> list[tuple[str, int, str]]:
    return [(move.how.value, move.place[1], move.worker) for move in moves]


def test_of_what_is_to_move_some_is_asked_for_and_the_rest_is_planned() -> None:
    parts = [a_part(number, "w1") for number in range(8)]

    moves = decided(a_job(parts, [a_worker("w1"), a_worker("w2")], moves_at_once=3))

    assert Counter(move.how for move in moves) == {How.ASK: 3, How.PLAN: 1}
    assert {(move.worker, move.why) for move in moves} == {("w2", Why.LEVELLED)}
    assert all(move.owner == f"3:0.{move.place[1]}" for move in moves)


def test_what_is_planned_is_asked_for_as_soon_as_there_is_room() -> None:
    parts = [a_part(0, "w1", an_aim(0, "w2")), a_part(1, "w1", an_aim(1, "w2", 0)), a_part(2, "w1", an_aim(2, "w2", 0))]
    workers = [a_worker("w1"), a_worker("w2")]

    assert told(decided(a_job(parts, workers, moves_at_once=2))) == [("ask", 1, "w2")]
    assert told(decided(a_job(parts, workers, moves_at_once=1))) == []


def test_what_was_asked_in_vain_is_assigned_and_counts_no_death() -> None:
    facts = a_job([a_part(0, "w1", an_aim(0, "w2", NOW_MS - 1_001))], [a_worker("w1"), a_worker("w2")])

    (move,) = decided(facts)

    assert (move.how, move.worker, move.is_unclean, move.still_ms) == (How.ASSIGN, "w2", False, 1_001)
    assert decided(replace(facts, now_ms=NOW_MS - 2)) == []


@pytest.mark.parametrize(
    ("since_ms", "why", "is_left"),
    [
        (1_400, "running", True),
        (1_900, "publishing", True),
        (1_000, "running", False),
        (1_900, "full", False),
        (1_900, "backoff", False),
    ],
)
def test_an_owner_that_is_held_up_since_before_the_question_is_left_in_peace(
    since_ms: int, why: str, is_left: bool
) -> None:
    hand = {"0.7": {"position": "1-0/0", "since_ms": since_ms, "why": why}}
    parts = [a_part(0, "w1", an_aim(0, "w2", NOW_MS - 1_500))]

    moves = decided(a_job(parts, [a_worker("w1", hand=hand), a_worker("w2")]))

    assert (moves == []) == is_left


def test_an_owner_that_is_stuck_is_not_waited_for() -> None:
    hand = {"0.0": {"position": "1-0/0", "since_ms": 61_000, "why": "running"}}
    parts = [a_part(0, "w1", an_aim(0, "w2", NOW_MS - 60_000))]

    (move,) = decided(a_job(parts, [a_worker("w1", hand=hand), a_worker("w2"), a_worker("a3")]))

    assert (move.how, move.why, move.worker, move.is_unclean) == (How.ASSIGN, Why.STUCK, "w2", True)


def test_an_owner_that_has_died_is_taken_over_by_the_one_that_was_meant() -> None:
    parts = [a_part(0, "w1", an_aim(0, "w2"))]

    (move,) = decided(a_job(parts, [a_worker("w1", age=5.0), a_worker("a2"), a_worker("w2")]))

    assert (move.how, move.why, move.worker) == (How.ASSIGN, Why.TAKEN_OVER, "w2")


@pytest.mark.parametrize("target", [a_worker("w2", age=9.0), a_worker("w2", leaving=True), a_worker("w2", "there")])
def test_a_target_that_cannot_take_it_any_more_is_replaced_or_the_partition_stays(target: WorkerFacts) -> None:
    levelled = a_job([a_part(0, "w1", an_aim(0, "w2"))], [a_worker("w1"), target], "there")
    driven = a_job([a_part(0, "w1", an_aim(0, "w2"))], [a_worker("w1", leaving=True), target, a_worker("w3")], "there")

    assert [move.how for move in decided(levelled)] == [How.STAY]
    assert told(decided(driven)) == [("ask", 0, "w3")]


def test_a_target_that_is_another_process_by_now_is_asked_for_anew() -> None:
    parts = [a_part(0, "w1", an_aim(0, "w2", incarnation="0"))]

    assert told(decided(a_job(parts, [a_worker("w1", leaving=True), a_worker("w2")]))) == [("ask", 0, "w2")]


def test_a_reason_of_a_newer_version_is_levelling() -> None:
    parts = [a_part(0, "w1", an_aim(0, "w2", NOW_MS - 5_000, "the moon"))]

    (move,) = decided(a_job(parts, [a_worker("w1"), a_worker("w2")]))

    assert move.why is Why.LEVELLED


def test_a_drained_node_gives_all_away_and_gets_nothing() -> None:
    parts = [a_part(0, "w1"), a_part(1, "w2"), a_part(2, ""), a_part(3, "w3")]
    workers = [a_worker("w1", "there"), a_worker("w2", "there"), a_worker("w3")]

    moves = decided(a_job(parts, workers, "there"))

    assert sorted(told(moves)) == [("ask", 0, "w3"), ("ask", 1, "w3"), ("assign", 2, "w3")]
    assert {move.why for move in moves if move.how is How.ASK} == {Why.DRAINED}


def test_without_anybody_else_a_drained_node_works_on() -> None:
    assert decided(a_job([a_part(0, "w1")], [a_worker("w1", "there")], "there")) == []


def test_a_stage_is_spread_over_nodes_as_well_as_over_workers() -> None:
    workers = [a_worker(name, node) for name, node in (("w0", "a"), ("w1", "a"), ("w2", "b"), ("w3", "b"))]
    parts = [a_part(number, "", stage=stage) for stage in (0, 1) for number in (0, 1)]

    moves = decided(a_job(parts, workers))

    node = {worker.name: worker.node for worker in workers}
    assert Counter((move.place[0], node[move.worker]) for move in moves) == Counter(
        [(0, "a"), (0, "b"), (1, "a"), (1, "b")]
    )
    assert len({move.worker for move in moves}) == 4


# properties

JOBS = st.builds(
    lambda owners, workers, drained, at_once: a_job(
        [a_part(number, owner) for number, owner in enumerate(owners)], workers, *drained, moves_at_once=at_once
    ),
    st.lists(st.sampled_from(["w0", "w1", "w2", ""]), min_size=1, max_size=12),
    st.tuples(
        *(st.builds(a_worker, st.just(f"w{n}"), st.sampled_from("ab"), leaving=st.booleans()) for n in range(4))
    ).map(list),
    st.sets(st.sampled_from("ab")),
    st.integers(1, 4),
)


def stepped(facts: JobFacts, moves: list[Move], answering: bool) -> JobFacts:
    """The job after the round's moves, and after its owners' answers."""
    by_place = {move.place: move for move in moves}
    parts = []
    for part in facts.partitions:
        move = by_place.get((part.stage, part.partition))
        aim = part.aim
        match move.how if move else None:
            case How.ASSIGN:
                assert move is not None
                parts.append(
                    replace(
                        part, owner=move.worker, incarnation="1", term=part.term + 1, token=f"t{part.term}", aim=None
                    )
                )
                continue
            case How.PLAN | How.ASK:
                assert move is not None
                asked = facts.now_ms if move.how is How.ASK else 0
                aim = Aim(part.token, move.worker, move.incarnation, asked, move.why.value)
            case How.STAY:
                aim = None
        if aim is not None and aim.asked_ms and answering:
            part = replace(part, owner=aim.worker, incarnation="1", term=part.term + 1, token=f"t{part.term}")
            aim = None
        parts.append(replace(part, aim=aim))
    return replace(facts, partitions=tuple(parts), now_ms=facts.now_ms + 250)


@given(facts=JOBS)
def test_never_are_more_asked_for_than_are_allowed_and_all_ends_where_it_may_be(facts: JobFacts) -> None:
    able = {worker.name for worker in facts.workers if not worker.is_leaving and worker.node not in facts.drained}
    outlook = Outlook()
    for _ in range(60):
        outlook = outlook.after(facts)
        moves = decide(facts, RUN, outlook)
        if not moves:
            break
        asked = sum(1 for part in facts.partitions if part.aim and part.aim.asked_ms)
        asked += sum(move.how is How.ASK for move in moves)
        assert asked <= facts.record.plan.limits.moves_at_once
        facts = stepped(facts, moves, answering=True)
    else:
        raise AssertionError("it never comes to rest")
    if able:
        assert {part.owner for part in facts.partitions} <= able


@given(facts=JOBS)
def test_the_plan_outlives_its_leader(facts: JobFacts) -> None:
    """A leader that knows nothing goes on with what is under way, and plans none of it anew."""
    moves = decided(facts)
    after = stepped(facts, moves, answering=False)

    again = [move for move in decided(after) if move.how in (How.PLAN, How.ASSIGN, How.STAY)]

    assert again == []
