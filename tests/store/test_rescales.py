"""The scripts of a rescale, one by one: what they refuse, what a switch writes, who waits for whom, and how it ends."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from bench import Bench, Hand

from pipeline.control import Repartitioned, read_control
from pipeline.errors import Busy, JobStateError, StaleTerm
from pipeline.lifecycle import JobState
from pipeline.messages import EndOfInput, Table
from pipeline.operations import Operation, Phase
from pipeline.positions import Position
from pipeline.store import keys
from pipeline.store.commits import Idle, Output, Refusal, Refused, Target
from pipeline.store.cuts import CutStore
from pipeline.store.operations import OperationStore

Make = Callable[..., Bench]

END = 2**53 - 1


def a_store(bench: Bench) -> OperationStore:
    return OperationStore(bench.scripts)


def begin(bench: Bench, to: int, **options: Any) -> Operation:
    record = bench.jobs.read("j")
    a_store(bench).begin(record, record.plan.stage(1), to, "me", **options)
    found = bench.jobs.facts("j").operation
    assert found is not None
    return found


def switch(bench: Bench, operation: Operation) -> str:
    record = bench.jobs.read("j")
    return a_store(bench).switch("j", bench.token, record.plan, record.table, operation)[0]


def settle(bench: Bench) -> int | None:
    facts = bench.jobs.facts("j")
    assert facts.operation is not None
    return a_store(bench).settle("j", bench.token, facts.record.plan, facts.operation)


def rescaled(bench: Bench, to: int) -> None:
    assert switch(bench, begin(bench, to)) == "switched"


def put(bench: Bench, place: tuple[int, int], *values: Any) -> None:
    """One entry of the values, as an upstream commit puts it there."""
    hand = bench.worker((0, 0))
    table = bench.jobs.read("j").table
    outputs = {Target.partition("j", *place): [Output("D", len(values), None, b"\x01\x00" + bytes(len(values)))]}
    reply = hand.commit(table=table, outputs=outputs)
    assert not isinstance(reply, Refused), reply


def mark_of(bench: Bench, number: int) -> Position:
    return Position(bench.meta((1, number))["switch"])


# Beginning, and steering.


def test_an_operation_is_begun_shown_and_called_off(bench: Bench) -> None:
    operation = begin(bench, 3)

    assert (operation.phase, operation.stage, operation.is_urgent) == (Phase.WAITING, 1, False)
    assert operation.about.change == "rescale of words from 1 to 3 partitions"
    assert a_store(bench).call_off("j") == operation.about
    assert bench.jobs.facts("j").operation is None
    (past,) = bench.jobs.read("j").operations
    assert (past.outcome, past.about, past.switched_at_ms) == ("cancelled", operation.about, 0)
    assert past.begun_at_ms == operation.begun_at_ms <= past.at_ms


def test_only_one_operation_at_a_time_and_no_savepoint_meanwhile(bench: Bench) -> None:
    begin(bench, 3)

    with pytest.raises(Busy, match="busy: rescale of words, since 0 s, phase waiting"):
        begin(bench, 4)
    with pytest.raises(Busy, match="rescale of words"):
        CutStore(bench.scripts, "j", bench.plan).cut("s")
    a_store(bench).call_off("j")
    CutStore(bench.scripts, "j", bench.plan).cut("s")
    with pytest.raises(Busy, match="the savepoint s is being written"):
        begin(bench, 4)


def test_a_cut_by_an_old_plan_is_refused(make: Make) -> None:
    bench = make()
    rescaled(bench, 2)
    for number in range(2):
        hand = bench.worker((1, number))
        hand.commit(Position("1-1"), table=2)
    assert settle(bench) is not None

    with pytest.raises(Busy, match="changed just now"):
        CutStore(bench.scripts, "j", bench.plan, 1).cut("s")
    assert CutStore(bench.scripts, "j", bench.jobs.read("j").plan, 2).cut("s").epoch == 1


def test_what_is_not_running_is_not_rescaled(bench: Bench) -> None:
    bench.jobs.transition("j", JobState.DRAINING)

    with pytest.raises(JobStateError, match="'j' is draining"):
        begin(bench, 2)


def test_a_stage_that_has_ended_is_not_rescaled(bench: Bench) -> None:
    bench.client.hset(keys.meta("j", 1, 0), "done", 1)

    with pytest.raises(JobStateError, match="words of job 'j' is ending"):
        begin(bench, 2)


def test_a_plan_that_is_out_of_date_begins_nothing(bench: Bench) -> None:
    record = bench.jobs.read("j")
    bench.client.hset(keys.job("j"), "table", 2)

    with pytest.raises(Busy, match="changed just now"):
        a_store(bench).begin(record, record.plan.stage(1), 2, "me")
    assert bench.jobs.facts("j").operation is None


def test_it_can_be_hurried_and_is_too_late_behind_the_switch(bench: Bench) -> None:
    store = a_store(bench)
    with pytest.raises(JobStateError, match="no operation"):
        store.hurry("j")
    begin(bench, 2)
    store.hurry("j")
    operation = bench.jobs.facts("j").operation
    assert operation is not None
    assert operation.is_urgent
    switch(bench, operation)

    with pytest.raises(JobStateError, match="too late: the rescale of words is settling"):
        store.call_off("j")
    with pytest.raises(JobStateError, match="too late"):
        store.hurry("j")


# The switch.


def test_a_switch_marks_all_inboxes_and_new_partitions_wait_for_their_givers(make: Make) -> None:
    bench = make(partitions=2)
    put(bench, (1, 0), "a")

    rescaled(bench, 4)

    record = bench.jobs.read("j")
    assert (record.table, record.plan.stage(1).serving, record.plan.stage(1).partitions) == (2, 4, 4)
    assert [bench.headers((1, number))[-1] for number in range(4)] == [Table(2)] * 4
    assert [bench.meta((1, number))["switch"] for number in range(4)] == ["2-0", "1-0", "1-0", "1-0"]
    # 0 gives to 1 and has a record in front of its mark; 1 has arrived, and gives to 2 and 3
    assert [bench.meta((1, number))["gate"] for number in range(4)] == ["0", "1", "0", "0"]
    assert bench.meta((1, 0))["tells"] == "1"
    assert "tells" not in bench.meta((1, 1))


def test_a_switch_is_refused_without_lease_operation_or_its_table_and_done_only_once(make: Make) -> None:
    bench = make()
    operation = begin(bench, 2)
    record = bench.jobs.read("j")
    store = a_store(bench)
    before = bench.snapshot()

    with pytest.raises(StaleTerm):
        store.switch("j", "9:x", record.plan, record.table, operation)
    assert store.switch("j", bench.token, record.plan, 7, operation)[0] == "gone"
    bench.client.hset(keys.operation("j"), "id", "other")
    assert store.switch("j", bench.token, record.plan, 1, operation)[0] == "gone"
    bench.client.hset(keys.operation("j"), "id", operation.id)
    assert bench.snapshot() == before

    assert store.switch("j", bench.token, record.plan, 1, operation)[0] == "switched"
    after = bench.snapshot()
    assert store.switch("j", bench.token, record.plan, 1, operation)[0] == "gone"
    assert bench.snapshot() == after


@pytest.mark.parametrize(("field", "outcome"), [("done", "ending"), ("state", "stopped")])
def test_a_switch_looks_again_at_what_has_changed_since_it_was_begun(bench: Bench, field: str, outcome: str) -> None:
    operation = begin(bench, 2)
    if field == "done":
        bench.client.hset(keys.meta("j", 1, 0), "done", 1)
    else:
        bench.jobs.transition("j", JobState.DRAINING)
    before = bench.snapshot()

    assert switch(bench, operation) == outcome
    assert bench.snapshot() == before


def test_a_switch_passes_when_redis_is_full(bench: Bench, full_memory: Callable[[], None]) -> None:
    operation = begin(bench, 2)
    full_memory()

    assert switch(bench, operation) == "switched"


def test_who_waits_for_a_full_inbox_is_woken_to_route_anew(bench: Bench) -> None:
    bench.worker((0, 0)).fetch()
    bench.pop_ticket((0, 0))
    bench.client.hset(keys.meta("j", 0, 0), "ring", "w")
    bench.client.hset(keys.waiting("j", 1, 0), keys.meta("j", 0, 0), "1")

    rescaled(bench, 2)

    assert bench.tickets((0, 0)) == 1
    assert not bench.client.exists(keys.waiting("j", 1, 0))


# Arriving, the gate, passing.


def test_a_mark_is_passed_only_when_all_givers_have_arrived_and_the_last_one_rings(make: Make) -> None:
    bench = make(partitions=2)
    put(bench, (1, 0), "a")
    put(bench, (1, 1), "b")
    rescaled(bench, 3)  # 0 gives to 1, 1 gives to 2
    giver, middle, fresh = (bench.worker((1, number)) for number in range(3))

    assert fresh.commit(Position("1-1"), table=2) == Refused(Refusal.GATED)
    assert bench.ring((1, 2)) == "g"
    bench.pop_ticket((1, 2))
    assert not isinstance(middle.commit(mark_of(bench, 1), table=2, taken=1), Refused)
    assert (bench.meta((1, 2))["gate"], bench.ring((1, 2)), bench.tickets((1, 2))) == ("0", "1", 1)

    assert middle.commit(Position("2-1"), table=2) == Refused(Refusal.GATED)
    bench.pop_ticket((1, 1))
    assert not isinstance(giver.commit(mark_of(bench, 0), table=2, taken=1), Refused)
    assert (bench.meta((1, 1))["gate"], bench.tickets((1, 1))) == ("0", 1)
    for hand, end in [(giver, "2-1"), (middle, "2-1"), (fresh, "1-1")]:
        assert settle(bench) is None
        assert not isinstance(hand.commit(Position(end), table=2), Refused)
    meta = bench.meta((1, 2))
    assert {"switch", "before", "gate", "tells", "fresh"}.isdisjoint(meta)
    assert settle(bench) is not None
    assert bench.jobs.facts("j").operation is None
    assert bench.jobs.read("j").operations[-1].outcome == "done"


def test_at_a_gate_no_timer_fires_either(make: Make) -> None:
    bench = make(partitions=2)
    put(bench, (1, 0), "a")
    rescaled(bench, 1)
    receiver = bench.worker((1, 1))
    receiver.commit(mark_of(bench, 1), table=2)
    bench.client.hset(keys.meta("j", 1, 0), "gate", 1)
    keeper = bench.worker((1, 0))
    keeper.commit(mark_of(bench, 0), table=2, taken=1)

    assert keeper.commit(Position("2-0", 1), table=2, meta={"x": 1}) == Refused(Refusal.GATED)
    assert "x" not in bench.meta((1, 0))


def test_no_commit_jumps_over_a_mark(make: Make) -> None:
    bench = make()
    put(bench, (1, 0), "a")
    rescaled(bench, 2)
    hand = bench.worker((1, 0))

    assert hand.commit(Position("2-1"), table=2, taken=1) == Refused(Refusal.MOVED_ON)


def test_a_new_partition_hears_of_time_what_its_giver_has_by_its_arrival(make: Make) -> None:
    bench = make()
    put(bench, (1, 0), "a")
    bench.client.hset(keys.log("j", 1, 0), mapping={"w:0.0": 5})
    rescaled(bench, 2)
    assert "w:0.0" not in bench.log((1, 1))

    bench.worker((1, 0)).commit(mark_of(bench, 0), table=2, taken=1, log={"w:0.0": 70})

    assert bench.log((1, 1))["w:0.0"] == "70"


def test_those_that_were_there_hear_of_time_only_in_their_own_inbox(make: Make) -> None:
    bench = make(partitions=2)
    put(bench, (1, 0), "a")
    put(bench, (1, 1), "b")
    rescaled(bench, 3)

    bench.worker((1, 0)).commit(mark_of(bench, 0), table=2, taken=1, log={"w:0.0": 70})

    assert "w:0.0" not in bench.log((1, 1))


def test_of_givers_that_stand_at_their_marks_a_new_partition_hears_at_once(make: Make) -> None:
    bench = make()
    bench.client.hset(keys.log("j", 1, 0), mapping={"w:0.0": 5})

    rescaled(bench, 3)

    assert [bench.log((1, number)).get("w:0.0") for number in range(3)] == ["5"] * 3
    assert [bench.meta((1, number))["gate"] for number in range(3)] == ["0"] * 3


# Those behind, and partitions that end and come back.


def behind(bench: Bench) -> str:
    """The log of a third stage, which the stage `words` feeds."""
    plan = bench.plan
    words, lines = plan.stage(1), plan.stage(0)
    last = msgspec.structs.replace(words, index=2, name="last", upstream=(1,), nodes=("last",), sinks=())
    words = msgspec.structs.replace(words, exchanges={"last": 2})
    plan = msgspec.structs.replace(plan, stages=(lines, words, last))
    bench.client.hset(keys.job("j"), "plan", plan.encode())
    for number in range(last.partitions):
        fields = dict.fromkeys(("rec", "head", "sub", "bytes", "term"), 0)
        bench.client.hset(keys.meta("j", 2, number), mapping={"pos": "1-0", **fields})
    return keys.log("j", 2, 0)


def test_new_senders_hold_time_back_as_the_slowest_old_one(make: Make) -> None:
    bench = make(partitions=2)
    log = behind(bench)
    bench.client.hset(log, mapping={"w:1.0": 70, "w:1.1": 30})

    rescaled(bench, 4)

    assert bench.client.hmget(log, "w:1.2", "w:1.3") == [b"30", b"30"]
    assert not bench.client.hexists(keys.log("j", 2, 1), "w:1.2")  # nobody has promised anything there


def test_a_partition_comes_back_only_when_its_end_was_heard_of(make: Make) -> None:
    bench = make(partitions=2)
    log = behind(bench)
    rescaled(bench, 1)
    removed, kept = bench.worker((1, 1)), bench.worker((1, 0))
    kept.commit(Position("1-1"), table=2)
    assert settle(bench) is None
    ends = {Target.partition("j", 2, number): [Output("E")] for number in range(2)}
    removed.commit(Position("1-1"), table=2, meta={"done": 1, "watermark": END}, outputs=ends)
    assert bench.headers((2, 0)) == [EndOfInput("1.1")]
    assert settle(bench) is not None
    assert "owner" not in bench.meta((1, 1))
    operation = begin(bench, 2)
    before = bench.snapshot()

    assert switch(bench, operation) == "not yet"
    assert bench.snapshot() == before
    for number in range(2):
        bench.client.hset(keys.log("j", 2, number), mapping={"w:1.0": 9, "w:1.1": END})
    assert switch(bench, operation) == "switched"

    assert {"done", "watermark"}.isdisjoint(bench.meta((1, 1)))
    assert bench.meta((1, 1))["switch"] == "1-1"
    assert bench.client.hget(log, "w:1.1") == b"9"


def test_settling_is_fenced_and_waits_for_those_that_are_removed(make: Make) -> None:
    bench = make(partitions=2)
    rescaled(bench, 1)
    for number in range(2):
        bench.worker((1, number)).commit(Position("1-1"), table=2)
    facts = bench.jobs.facts("j")
    assert facts.operation is not None

    assert settle(bench) is None  # passed, and has not ended
    bench.client.hset(keys.meta("j", 1, 1), "done", 1)
    with pytest.raises(StaleTerm):
        a_store(bench).settle("j", "9:x", facts.record.plan, facts.operation)
    assert settle(bench) is not None


def test_an_empty_new_partition_is_idle_behind_its_mark(bench: Bench) -> None:
    rescaled(bench, 2)
    hand: Hand = bench.worker((1, 1))

    hand.commit(Position("1-1"), table=2)
    assert hand.commit(mode="more", table=2) == Idle()


def test_workers_are_told_of_a_switch(bench: Bench) -> None:
    last = bench.client.xrevrange(keys.control("j"), count=1)[0][0].decode()

    rescaled(bench, 2)

    owner = bench.owner()
    assert owner.wait_for_control(last, 1) != last
    assert read_control(bench.client.xrevrange(keys.control("j"), count=1)[0][1]) == Repartitioned(2)
    assert owner.still_stages() == (frozenset(), 2)
