"""The decisions of the leader's duties: pure functions over facts, no Redis."""

from __future__ import annotations

import itertools
import random
from collections import Counter
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from leader.duties.ending import sources_to_end
from leader.duties.gate import wanted_gate
from leader.duties.lifecycle import Change, next_state
from leader.duties.moves import RETURN_SECONDS, SETTLING_MS, Move, Why, decide
from leader.duties.outlook import Outlook
from leader.duties.placement import stuck_workers
from leader.duties.restarts import have_compared
from leader.duties.retention import forgettable
from leader.duties.retry import Suspicion, judge, looks_forgotten
from leader.main import default_name, read_environment
from leader.roster import at_work, hands
from pipeline.errors import EnvironmentFault
from pipeline.facts import JobFacts, JobRecord, PartitionFacts, WorkerFacts
from pipeline.graph import Graph, KeyBy, Sink, SinkSpec, Source, SourceSpec
from pipeline.lifecycle import JobState
from pipeline.plan import Plan, compile_plan
from pipeline.positions import Position
from pipeline.settings import Limits

NOW_MS = 1_000_000
RUN = "run-1"
HUNG: dict[str, Any] = {"hand": {"0.0": {"position": "1-0/0", "since_ms": 61_000, "why": "running"}}}


def a_plan(partitions: int = 2, limits: Limits | None = None) -> Plan:
    graph = Graph(
        "flow",
        (
            Source("lines", SourceSpec("iterable")),
            KeyBy("words", ("lines",), str),
            Sink("out", ("words",), SinkSpec("console"), "key"),
        ),
    )
    return compile_plan(graph, partitions, limits or Limits())


def a_record(**changes: Any) -> JobRecord:
    record = JobRecord("job", a_plan(), JobState.RUNNING, "", 1, 1, 0, 1, RUN, "open", frozenset())
    return replace(record, **changes)


def a_partition(stage: int = 0, partition: int = 0, owner: str = "", incarnation: str = "1", **changes: Any) -> Any:
    part = PartitionFacts(
        stage=stage,
        partition=partition,
        owner=owner,
        incarnation=incarnation if owner else "",
        token="",
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
    )
    return replace(part, **changes)


def a_worker(name: str, incarnation: str = "1", age: float = 0.1, dead: bool = False, **report: Any) -> WorkerFacts:
    return WorkerFacts(name, incarnation, age, dead, report)


def a_job(
    partitions: list[PartitionFacts],
    workers: list[WorkerFacts],
    record: JobRecord | None = None,
    now_ms: int = NOW_MS,
    dead_letters: int = 0,
) -> JobFacts:
    return JobFacts(record or a_record(), now_ms, tuple(partitions), tuple(workers), "L", dead_letters, {})


def decided(facts: JobFacts, run_id: str = RUN, outlook: Outlook | None = None) -> list[Move]:
    return decide(facts, run_id, (outlook or Outlook()).after(facts))


def owners(moves: list[Move]) -> dict[tuple[int, int], str]:
    return {move.place: move.worker for move in moves}


def test_nothing_is_placed_while_no_worker_lives() -> None:
    facts = a_job([a_partition(), a_partition(0, 1, "w1")], [a_worker("w1", age=2.0), a_worker("w2", dead=True)])

    assert decided(facts) == []


def test_a_new_job_is_spread_evenly_over_workers_and_stages() -> None:
    facts = a_job([a_partition(s, p, term=0) for s in range(2) for p in range(3)], [a_worker("w2"), a_worker("w1")])

    moves = decided(facts)

    assert Counter(move.worker for move in moves) == {"w1": 3, "w2": 3}
    assert Counter((move.worker, move.place[0]) for move in moves if move.worker == "w1") == {
        ("w1", 0): 2,
        ("w1", 1): 1,
    }
    assert {(move.term, move.is_unclean, move.why) for move in moves} == {(1, False, Why.FIRST)}


def test_what_lives_and_is_level_stays() -> None:
    facts = a_job([a_partition(0, 0, "w1"), a_partition(0, 1, "w2")], [a_worker("w1"), a_worker("w2"), a_worker("w3")])

    assert decided(facts) == []


@pytest.mark.parametrize(
    ("owner", "others", "expected"),
    [
        pytest.param(None, ["w2"], ("w2", True, Why.TAKEN_OVER), id="forgotten"),
        pytest.param(a_worker("w1", age=2.1), ["w2"], ("w2", True, Why.TAKEN_OVER), id="silent"),
        pytest.param(a_worker("w1", age=0.5, dead=True), ["w2"], None, id="seen to end, may return"),
        pytest.param(a_worker("w1", age=1.1, dead=True), ["w2"], ("w2", True, Why.TAKEN_OVER), id="did not return"),
        pytest.param(a_worker("w1", "2"), ["w2"], ("w1", True, Why.RETURNED), id="returned"),
        pytest.param(a_worker("w1", "2", age=3.0), ["w2"], ("w2", True, Why.TAKEN_OVER), id="returned and silent"),
        pytest.param(a_worker("w1", "2", stopping=True), ["w2"], ("w2", True, Why.TAKEN_OVER), id="returned to leave"),
        pytest.param(a_worker("w1", age=2.1, stopping=True), ["w2"], ("w2", False, Why.TAKEN_OVER), id="stopped"),
        pytest.param(a_worker("w1", stopping=True), ["w2"], None, id="still stopping"),
        pytest.param(a_worker("w1", **HUNG), ["w2"], ("w2", True, Why.STUCK), id="stuck"),
        pytest.param(a_worker("w1", **HUNG), [], None, id="stuck and alone"),
    ],
)
def test_a_partition_moves_when_its_owner_is_gone(
    owner: WorkerFacts | None, others: list[str], expected: tuple[str, bool, Why] | None
) -> None:
    workers = [*([owner] if owner else []), *(a_worker(name) for name in others)]

    moves = decided(a_job([a_partition(0, 0, "w1")], workers))

    assert [(move.worker, move.is_unclean, move.why) for move in moves] == ([expected] if expected else [])


@pytest.mark.parametrize("why", ["full", "mark", "backoff"])
def test_who_waits_with_a_record_in_hand_is_not_stuck(why: str) -> None:
    report: dict[str, Any] = {"hand": {"0.0": {"position": "1-0/0", "since_ms": 900_000, "why": why}}}

    assert stuck_workers(a_job([a_partition(0, 0, "w1")], [a_worker("w1", **report)])) == []


def test_only_the_record_in_hand_of_a_stuck_worker_is_counted_against() -> None:
    facts = a_job([a_partition(0, 0, "w1"), a_partition(0, 1, "w1")], [a_worker("w1", **HUNG), a_worker("w2")])

    assert {move.place: move.is_unclean for move in decided(facts)} == {(0, 0): True, (0, 1): False}


def test_a_stop_in_good_order_is_remembered_when_the_next_incarnation_has_overwritten_it() -> None:
    before = a_job([a_partition(0, 0, "w1")], [a_worker("w1", stopping=True)])
    outlook = Outlook().after(before)

    (move,) = decided(a_job([a_partition(0, 0, "w1")], [a_worker("w1", "2")], now_ms=NOW_MS + 250), RUN, outlook)

    assert (move.worker, move.incarnation, move.is_unclean) == ("w1", "2", False)


def test_silence_proves_nothing_just_after_the_leader_itself_was_cut_off() -> None:
    parts = [a_partition(0, 0, "w1")]
    outlook = Outlook().after(a_job(parts, [a_worker("w1")]))

    at_once = a_job(parts, [a_worker("w1", age=9.0), a_worker("w2")], now_ms=NOW_MS + 9_000)
    outlook = outlook.after(at_once)
    assert decide(at_once, RUN, outlook) == []

    for step in range(1, 10):
        later = a_job(parts, [a_worker("w1", age=9.0 + step / 4), a_worker("w2")], now_ms=NOW_MS + 9_000 + 250 * step)
        outlook = outlook.after(later)
    assert owners(decide(later, RUN, outlook)) == {(0, 0): "w2"}


def test_a_new_worker_gets_its_share_and_no_more() -> None:
    parts = [a_partition(s, p, "w1" if p < 2 else "w2") for s in range(2) for p in range(4)]

    moves = decided(a_job(parts, [a_worker("w1"), a_worker("w2"), a_worker("w3")]))

    assert {(move.worker, move.is_unclean, move.why) for move in moves} == {("w3", False, Why.LEVELLED)}
    assert sorted(move.place[0] for move in moves) == [0, 1]


def test_done_partitions_are_neither_placed_nor_counted() -> None:
    parts = [a_partition(0, 0, "gone", done=True), *(a_partition(0, p, "w1", done=True) for p in range(1, 5))]

    assert decided(a_job(parts, [a_worker("w1"), a_worker("w2")])) == []


def test_a_worker_that_lost_all_is_levelled_to_again_only_after_a_while() -> None:
    parts = [a_partition(0, p, "w1") for p in range(4)]
    outlook = Outlook(owned_at_ms={("w2", "1"): NOW_MS - SETTLING_MS + 1})
    facts = a_job(parts, [a_worker("w1"), a_worker("w2")])

    assert decided(facts, RUN, outlook) == []
    assert set(owners(decided(replace(facts, now_ms=NOW_MS + 1), RUN, outlook)).values()) == {"w2"}


def test_nothing_moves_while_a_restarted_redis_is_not_adopted() -> None:
    parts = [a_partition(0, 0, "w1"), a_partition(0, 1)]

    assert decided(a_job(parts, [a_worker("w1")]), run_id="run-2") == []


def test_partitions_whose_ownership_has_ended_are_spread_anew_and_nothing_counts_against_their_records() -> None:
    parts = [a_partition(0, 0), a_partition(0, 1), a_partition(0, 2, done=True)]

    moves = decided(a_job(parts, [a_worker("w1"), a_worker("w2")]))

    assert owners(moves) == {(0, 0): "w1", (0, 1): "w2"}
    assert {(move.term, move.is_unclean, move.why) for move in moves} == {(4, False, Why.NEW_SERVER)}


def test_a_restarted_redis_is_adopted_when_every_owner_has_compared_what_it_remembers() -> None:
    parts = [a_partition(0, 0, "w1"), a_partition(0, 1, "w2"), a_partition(0, 2)]
    early, late = a_worker("w1", server="run-2"), a_worker("w2", server=RUN)

    assert not have_compared(a_job(parts, [early, late]), "run-2")
    assert not have_compared(a_job(parts, [early, replace(late, report={"server": "run-2"}, incarnation="2")]), "run-2")
    assert have_compared(a_job(parts, [early, replace(late, report={"server": "run-2"})]), "run-2")


names = st.sampled_from(["w1", "w2", "w3", "w4", "w5"])
workers_strategy = st.lists(
    st.builds(
        a_worker,
        names,
        st.sampled_from(["1", "2"]),
        st.sampled_from([0.1, 1.9, 2.0, 30.0]),
        st.booleans(),
        stopping=st.booleans(),
        hand=st.sampled_from([{}, HUNG["hand"], None, "nonsense"]),
    ),
    unique_by=lambda worker: worker.name,
)
jobs_strategy = st.builds(
    lambda sizes, draw_owner, workers: a_job(
        [
            a_partition(stage, number, owner, incarnation)
            for stage, size in enumerate(sizes)
            for number, (owner, incarnation) in enumerate(draw_owner[stage][:size])
        ],
        workers,
    ),
    st.lists(st.integers(1, 6), min_size=1, max_size=3),
    st.lists(
        st.lists(st.tuples(st.one_of(st.just(""), names), st.sampled_from(["1", "2"])), min_size=6, max_size=6),
        min_size=3,
        max_size=3,
    ),
    workers_strategy,
)


def able(facts: JobFacts) -> dict[str, WorkerFacts]:
    return {
        one.name: one
        for one in facts.workers
        if one.age_seconds < 2.0 and not one.is_reported_dead and not one.report["stopping"]
        if one.report["hand"] != HUNG["hand"]
    }


def applied(facts: JobFacts, moves: list[Move]) -> JobFacts:
    by_place = {move.place: move for move in moves}
    parts = []
    for part in facts.partitions:
        move = by_place.get((part.stage, part.partition))
        parts.append(replace(part, owner=move.worker, incarnation=move.incarnation, term=move.term) if move else part)
    return replace(facts, partitions=tuple(parts))


@given(jobs_strategy)
def test_moves_go_to_able_workers_under_the_next_term_and_once(facts: JobFacts) -> None:
    moves = decided(facts)

    ready = able(facts)
    terms = {(part.stage, part.partition): part.term for part in facts.partitions}
    assert len({move.place for move in moves}) == len(moves)
    for move in moves:
        assert ready[move.worker].incarnation == move.incarnation
        assert move.term == terms[move.place] + 1


@given(jobs_strategy)
def test_afterwards_every_partition_has_a_live_owner_or_one_that_may_return(facts: JobFacts) -> None:
    after = applied(facts, decided(facts))

    if able(facts):
        by_name = {one.name: one for one in facts.workers}
        for part in after.partitions:
            owner = by_name[part.owner]
            is_alive = owner.age_seconds < 2.0 and not owner.is_reported_dead and owner.incarnation == part.incarnation
            assert is_alive or (owner.is_reported_dead and owner.age_seconds < RETURN_SECONDS)


@given(jobs_strategy)
def test_nothing_moves_when_nothing_changed(facts: JobFacts) -> None:
    outlook = Outlook().after(facts)
    after = applied(facts, decide(facts, RUN, outlook))

    assert decide(after, RUN, outlook.after(after)) == []


@given(st.integers(1, 3), st.integers(1, 12), st.integers(1, 5))
def test_a_first_placement_is_level_in_each_stage_and_nearly_in_all(stages: int, parts: int, workers: int) -> None:
    facts = a_job(
        [a_partition(stage, number) for stage in range(stages) for number in range(parts)],
        [a_worker(f"w{number}") for number in range(workers)],
    )

    moves = decided(facts)

    for stage in range(stages):
        loads = Counter(dict.fromkeys((one.name for one in facts.workers), 0))
        loads.update(move.worker for move in moves if move.place[0] == stage)
        assert max(loads.values()) - min(loads.values()) <= 1
    total = Counter(dict.fromkeys((one.name for one in facts.workers), 0))
    total.update(move.worker for move in moves)
    assert max(total.values()) - min(total.values()) <= 1


@given(st.integers(1, 3), st.integers(1, 12), st.integers(0, 3))
def test_levelling_leaves_nobody_with_two_more_than_the_newcomers(stages: int, parts: int, newcomers: int) -> None:
    before = [a_partition(stage, number, "old") for stage in range(stages) for number in range(parts)]
    facts = a_job(before, [a_worker("old"), *(a_worker(f"new{number}") for number in range(newcomers))])

    after = applied(facts, decided(facts))

    loads = Counter(dict.fromkeys((one.name for one in facts.workers), 0))
    loads.update(part.owner for part in after.partitions)
    assert max(loads.values()) - min(loads.values()) <= 1


@pytest.mark.parametrize(
    ("part", "expected"),
    [
        ({}, True),
        ({"ring": "1"}, True),
        ({"ring": "w"}, True),
        ({"at_end": True}, False),
        ({"queued": 1}, False),
        ({"incarnation": "0"}, False),
        ({"owner": ""}, False),
        ({"partition": 1, "ring": "1"}, False),
        ({"partition": 1, "ring": ""}, True),
        ({"partition": 2, "ring": "w"}, False),
        ({"partition": 2, "ring": "1"}, True),  # it was woken, and the ticket got lost
        ({"partition": 3, "ring": "1"}, False),
        ({"partition": 3, "ring": ""}, True),
    ],
)
def test_a_partition_looks_forgotten_when_nobody_knows_of_its_work(part: dict[str, Any], expected: bool) -> None:
    hand = {"0.2": {"position": "1-0/0", "since_ms": 5, "why": "full"}}
    hand["0.3"] = {"position": "1-0/0", "since_ms": 5, "why": "backoff"}
    worker = a_worker("w1", slices=["0.1"], hand=hand)
    subject = replace(a_partition(0, 0, "w1", at_end=False), **part)

    assert looks_forgotten(subject, a_job([subject], [worker])) is expected


def test_a_partition_that_backs_off_is_not_forgotten() -> None:
    hand = {"0.0": {"position": "1-0/0", "since_ms": 500_000, "why": "backoff"}}
    part = replace(a_partition(0, 0, "w1", at_end=False), ring="1")
    facts = a_job([part], [a_worker("w1", hand=hand)])

    assert not looks_forgotten(part, facts)
    assert looks_forgotten(replace(part, ring=""), facts)
    assert stuck_workers(facts) == []


def test_a_forgotten_partition_is_rung_at_the_second_look_and_then_ever_more_rarely() -> None:
    part = a_partition(0, 0, "w1", at_end=False)
    suspicion: Suspicion | None = None
    rung_at = []

    for round_ in range(200):
        facts = a_job([part], [a_worker("w1")], now_ms=NOW_MS + 250 * round_)
        suspicion, is_due = judge(part, facts, suspicion, random.Random(1))
        if is_due:
            rung_at.append(round_)

    assert rung_at[0] == 1
    gaps = [after - before for before, after in itertools.pairwise(rung_at)]
    assert gaps == sorted(gaps)
    assert gaps[-1] > 8 * gaps[0]


def test_progress_ends_the_suspicion() -> None:
    part = a_partition(0, 0, "w1", at_end=False)
    facts = a_job([part], [a_worker("w1")])
    old = Suspicion("1-0/0", rounds=1, rung=5, due_ms=NOW_MS + 99)

    moved = replace(part, position=Position("7-0"))

    assert judge(moved, facts, old, random.Random(1)) == (Suspicion("7-0/0", rounds=1), False)


def test_a_source_is_ended_when_complete_and_every_source_when_the_job_drains() -> None:
    parts = [a_partition(0, 0, closed=True), a_partition(0, 1), a_partition(1, 0), a_partition(1, 1)]
    closed = [replace(part, closed=part.stage == 0) for part in parts]
    complete = a_record(completed_sources=frozenset({"lines", "unknown"}))
    draining = a_record(state=JobState.DRAINING)

    assert sources_to_end(a_job(parts, [])) == []
    assert sources_to_end(a_job(parts, [], complete)) == ["lines"]
    assert sources_to_end(a_job(parts, [], draining)) == ["lines"]
    assert sources_to_end(a_job(closed, [], complete)) == []
    assert sources_to_end(a_job(closed, [], draining)) == []


def test_a_job_is_published_when_every_partition_is_done() -> None:
    parts = [a_partition(0, 0, done=True), a_partition(0, 1)]

    assert next_state(a_job(parts, [])) is None
    assert next_state(a_job(parts[:1], [])) == Change(JobState.PUBLISHING)


def test_too_many_dead_letters_fail_the_job_even_at_its_end() -> None:
    record = a_record(plan=a_plan(limits=Limits(dead_letters=2)))

    assert next_state(a_job([a_partition()], [], record, dead_letters=2)) is None
    change = next_state(a_job([a_partition(done=True)], [], record, dead_letters=3))
    assert change == Change(
        JobState.FAILED,
        "3 dead letters, more than the 2 allowed; `celeriac dead-letters list job` shows them: "
        "the job can go on when some are replayed or dropped",
    )


def test_what_is_held_behind_dead_letters_counts_with_them() -> None:
    record = a_record(plan=a_plan(limits=Limits(dead_letters=20, dead_letter_bytes=500)))

    def change(**held: int) -> Change | None:
        return next_state(a_job([a_partition(**held), a_partition(0, 1, held=9)], [], record, dead_letters=2))

    assert change(held=9, held_bytes=500) is None
    for held in ({"held": 10}, {"held": 1, "held_bytes": 501}):
        found = change(**held)
        assert found is not None
        assert found.to is JobState.FAILED
        assert f"dead letters and {held['held'] + 9} records held behind them" in found.reason


@pytest.mark.parametrize(
    ("gate", "used", "bound", "expected"),
    [
        ("open", 80, 100, None),
        ("open", 81, 100, "closed"),
        ("open", 999, 0, None),
        ("closed", 81, 100, None),
        ("closed", 75, 100, None),
        ("closed", 69, 100, "open"),
        ("closed", 999, 0, "open"),
    ],
)
def test_the_gate_closes_above_four_fifths_and_opens_below_seven_tenths(
    gate: str, used: int, bound: int, expected: str | None
) -> None:
    assert wanted_gate(gate, used, bound, has_backlog=True) == expected


@pytest.mark.parametrize(("used", "expected"), [(69, "open"), (75, "open"), (79, "open"), (80, None), (81, None)])
def test_with_nothing_left_to_drain_the_gate_does_not_wait_for_seven_tenths(used: int, expected: str | None) -> None:
    assert wanted_gate("closed", used, 100, has_backlog=False) == expected


def test_only_workers_long_silent_that_own_nothing_are_forgotten() -> None:
    workers = [a_worker("owner", age=99.0), a_worker("idle", age=99.0), a_worker("recent", age=59.0)]
    parts = [a_partition(0, 0, "owner")]

    assert [one.name for one in forgettable(a_job(parts, workers))] == ["idle"]
    ended = a_record(state=JobState.FINISHED)
    assert [one.name for one in forgettable(a_job(parts, workers, ended))] == ["owner", "idle"]


@pytest.mark.parametrize(
    "report", [{"hand": 3, "slices": "x"}, {"hand": {"0.0": 1}, "slices": [1, None]}, {"hand": {"0.0": {}}}]
)
def test_a_report_that_makes_no_sense_says_nothing(report: dict[str, Any]) -> None:
    assert hands(a_worker("w1", **report)) == []
    assert at_work(a_worker("w1", **report)) == frozenset()


def test_the_address_and_the_name_come_from_the_environment() -> None:
    redis_url = "redis://somewhere"

    assert read_environment({"CELERIAC_REDIS": redis_url, "CELERIAC_LEADER": "l1"}) == (redis_url, "l1")
    assert read_environment({"CELERIAC_REDIS": redis_url})[1] != default_name()


@pytest.mark.parametrize(
    ("environment", "named"),
    [({}, "CELERIAC_REDIS"), ({"CELERIAC_REDIS": "redis://x", "CELERIAC_LEADER": "a b"}, "CELERIAC_LEADER")],
)
def test_what_is_wrong_in_the_environment_is_named(environment: dict[str, str], named: str) -> None:
    with pytest.raises(EnvironmentFault, match=named) as caught:
        read_environment(environment)

    assert caught.value.hint
