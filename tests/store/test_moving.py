"""Moves from an owner that lives, as Redis keeps them: wanted, asked for, given away, noted."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from bench import ENTRY, KEYED, Bench, a_batch

from pipeline import tickets
from pipeline.control import Assign, Collect, Created, read_control
from pipeline.errors import DecodingError, ForeignData, StaleTerm, UnknownJob
from pipeline.facts import Aim, Moved, PartitionFacts
from pipeline.lifecycle import JobState
from pipeline.store import keys
from pipeline.store.moving import MOST_MOVES, MovingStore
from pipeline.store.ownership import Assigned

TARGET = ("v", "1-b", "n2", "levelling")


@pytest.fixture
def moving(bench: Bench) -> MovingStore:
    bench.owner("w", "1-a").heartbeat("{}")
    bench.owner("v", "1-b").heartbeat("{}")
    return MovingStore(bench.scripts, "j")


def facts(bench: Bench) -> PartitionFacts:
    return next(part for part in bench.jobs.facts("j").partitions if (part.stage, part.partition) == ENTRY)


def gives(bench: Bench, row: Assigned, rested_ms: int = 0) -> bool:
    ticket = tickets.ticket("j", row.stage, row.partition, row.term + 1)
    return bench.owner(row.worker, row.incarnation).give_away(row, ticket, rested_ms)


def control(bench: Bench) -> list[Any]:
    return [read_control(fields) for _, fields in bench.client.xrange(keys.control("j"))]


def test_an_owner_that_is_asked_gives_the_partition_away_and_the_new_one_works_at_once(
    bench: Bench, moving: MovingStore
) -> None:
    row = bench.assign()
    bench.acquire(row)
    assert moving.want(bench.token, ENTRY, row.token, "ask", TARGET)
    assert bench.owner().table() == ([row], {"0.0": row.token})

    assert gives(bench, row)

    new = Assigned(*ENTRY, "v", "1-b", "2:n2")
    assert bench.owner().table() == ([], {})
    assert bench.owner("v", "1-b").table() == ([new], {})
    meta = bench.meta()
    assert (meta["term"], meta["token"], meta["owner"]) == ("2", "2:n2", "v")
    assert meta["ticket"].encode() == tickets.ticket("j", *ENTRY, 2)
    assert (facts(bench).owner, facts(bench).term, facts(bench).aim) == ("v", 2, None)
    assert bench.acquire(row) is None
    assert bench.acquire(new) is not None
    assert control(bench) == [Created(), Assign("0.0", "w", 1), Collect("0.0", "w", 1), Assign("0.0", "v", 2)]


def test_a_backlog_rings_the_new_owner(bench: Bench, moving: MovingStore) -> None:
    row = bench.assign()
    bench.lane().append(1, a_batch("a"))
    bench.acquire(row)
    assert bench.tickets() == 0
    moving.want(bench.token, ENTRY, row.token, "ask", TARGET)

    gives(bench, row)

    assert (bench.tickets(), bench.ring()) == (1, "1")


def test_what_is_only_planned_is_not_asked_for_and_is_not_given_away(bench: Bench, moving: MovingStore) -> None:
    row = bench.assign()

    assert moving.want(bench.token, ENTRY, row.token, "plan", TARGET)

    assert facts(bench).aim == Aim(row.token, "v", "1-b", 0, "levelling")
    assert bench.owner().table() == ([row], {})
    assert not gives(bench, row)
    assert bench.meta()["term"] == "1"


def test_asking_again_keeps_the_time_of_the_first_time_and_another_target_takes_its_place(
    bench: Bench, moving: MovingStore
) -> None:
    row = bench.assign()
    moving.want(bench.token, ENTRY, row.token, "plan", TARGET)
    moving.want(bench.token, ENTRY, row.token, "ask", TARGET)
    first = facts(bench).aim
    assert first is not None
    assert first.asked_ms > 0
    messages = len(control(bench))

    moving.want(bench.token, ENTRY, row.token, "ask", ("v", "1-b", "n3", "levelling"))
    moving.want(bench.token, ENTRY, row.token, "plan", TARGET)
    assert facts(bench).aim == first
    assert len(control(bench)) == messages

    moving.want(bench.token, ENTRY, row.token, "ask", ("u", "1-c", "n3", "their worker is to end"))
    aim = facts(bench).aim
    assert aim is not None
    assert (aim.worker, aim.incarnation, aim.why) == ("u", "1-c", "their worker is to end")


def test_what_is_withdrawn_stays(bench: Bench, moving: MovingStore) -> None:
    row = bench.assign()
    moving.want(bench.token, ENTRY, row.token, "ask", TARGET)

    assert moving.withdraw(bench.token, ENTRY, row.token)

    assert facts(bench).aim is None
    assert not gives(bench, row)
    assert bench.acquire(row) is not None


@pytest.mark.parametrize("lost", ["never there", "another incarnation", "seen dead"])
def test_nothing_is_given_to_a_worker_that_is_gone(bench: Bench, moving: MovingStore, lost: str) -> None:
    row = bench.assign()
    match lost:
        case "never there":
            moving.want(bench.token, ENTRY, row.token, "ask", ("u", "1-u", "n2", "levelling"))
        case "another incarnation":
            moving.want(bench.token, ENTRY, row.token, "ask", TARGET)
            bench.owner("v", "2-b").heartbeat("{}")
        case _:
            moving.want(bench.token, ENTRY, row.token, "ask", TARGET)
            bench.client.hset(keys.workers("j"), "d:v", "1-b")

    assert not gives(bench, row)

    assert facts(bench).owner == "w"
    assert facts(bench).aim is None
    assert bench.acquire(row) is not None


def test_an_owner_that_is_fenced_gives_nothing_away(bench: Bench, moving: MovingStore) -> None:
    old = bench.assign()
    new = bench.assign(worker="u", incarnation="1-u", nonce="y")
    moving.want(bench.token, ENTRY, new.token, "ask", TARGET)

    assert gives(bench, old)  # it is no longer its own

    assert facts(bench).owner == "u"
    assert bench.meta()["token"] == new.token


def test_an_ownership_that_has_ended_gives_nothing_away(bench: Bench, moving: MovingStore) -> None:
    """As after a restart of Redis: what was asked of its owners is still there."""
    row = bench.assign()
    moving.want(bench.token, ENTRY, row.token, "ask", TARGET)
    bench.client.hdel(keys.meta("j", *ENTRY), "token")

    assert gives(bench, row)

    assert (bench.meta()["term"], bench.meta()["owner"]) == ("1", "w")


def test_an_assignment_ends_what_was_asked_of_the_owner_before(bench: Bench, moving: MovingStore) -> None:
    row = bench.assign()
    moving.want(bench.token, ENTRY, row.token, "ask", TARGET)

    new = bench.assign(worker="u", incarnation="1-u", nonce="y")

    assert bench.client.hgetall(keys.moving("j")) == {}
    assert gives(bench, row)
    assert facts(bench).token == new.token


def test_what_was_meant_for_an_owner_before_means_nothing(bench: Bench, moving: MovingStore) -> None:
    row = bench.assign()
    bench.client.hset(keys.moving("j"), "0.0", "9:z|v|1-b|n2|5|levelling")

    assert facts(bench).aim is None
    assert not gives(bench, row)
    assert not moving.want(bench.token, ENTRY, "9:z", "ask", TARGET)


def test_only_the_leader_asks(bench: Bench, moving: MovingStore) -> None:
    row = bench.assign()

    with pytest.raises(StaleTerm):
        moving.want("0:x", ENTRY, row.token, "ask", TARGET)

    assert bench.client.hgetall(keys.moving("j")) == {}


def test_nothing_moves_in_a_job_that_has_ended(bench: Bench, moving: MovingStore) -> None:
    row = bench.assign()
    moving.want(bench.token, ENTRY, row.token, "ask", TARGET)
    bench.jobs.transition("j", JobState.CANCELLED)

    assert not gives(bench, row)
    assert not moving.want(bench.token, ENTRY, row.token, "ask", TARGET)
    assert bench.meta()["token"] == row.token


def test_moves_are_made_without_memory_too(bench: Bench, moving: MovingStore, full_memory: Callable[[], None]) -> None:
    rows = bench.assign(), bench.assign(KEYED)
    full_memory()

    for row in rows:
        place = (row.stage, row.partition)
        assert moving.want(bench.token, place, row.token, "plan", TARGET)
        assert moving.want(bench.token, place, row.token, "ask", TARGET)
        assert gives(bench, row)

    new = bench.owner("v", "1-b").assigned()
    assert [bench.acquire(row) is not None for row in new] == [True, True]
    assert len(moving.moves()) == 2


def test_the_pause_is_kept_when_the_new_owner_has_acquired(bench: Bench, moving: MovingStore) -> None:
    row = bench.assign()
    bench.acquire(row)
    moving.want(bench.token, ENTRY, row.token, "ask", TARGET)
    gives(bench, row)
    assert moving.moves() == []
    from_, why, how, since = bench.meta()["moved"].split("|")
    assert (from_, why, how) == ("w", "levelling", "collected")
    bench.client.hset(keys.meta("j", *ENTRY), "moved", f"{from_}|{why}|{how}|{int(since) - 70}")

    bench.acquire(bench.owner("v", "1-b").assigned()[0])
    bench.acquire(bench.owner("v", "1-b").assigned()[0])

    (moved,) = moving.moves()
    assert moved == Moved(moved.at_ms, "0.0", "w", "v", "levelling", "collected", moved.pause_ms)
    assert moved.pause_ms >= 70
    assert "moved" not in bench.meta()


def test_a_pause_counts_from_the_last_slice_but_not_from_before_the_question(bench: Bench, moving: MovingStore) -> None:
    row = bench.assign()
    moving.want(bench.token, ENTRY, row.token, "ask", TARGET)
    asked = facts(bench).aim
    assert asked is not None

    gives(bench, row, rested_ms=3_600_000)

    assert bench.meta()["moved"] == f"w|levelling|collected|{asked.asked_ms}"


def test_a_pause_that_goes_on_through_another_move_begins_with_the_first(bench: Bench, moving: MovingStore) -> None:
    row = bench.assign()
    moving.want(bench.token, ENTRY, row.token, "ask", TARGET)
    gives(bench, row)
    since = bench.meta()["moved"].rpartition("|")[2]

    ticket = tickets.ticket("j", *ENTRY, 3)
    bench.leadership.assign("j", bench.token, ENTRY, ("u", "1-u"), 3, "n3", ticket, True, "their worker is gone")

    assert bench.meta()["moved"] == f"w|their worker is gone|forced|{since}"


def test_a_first_owner_is_no_move(bench: Bench, moving: MovingStore) -> None:
    ticket = tickets.ticket("j", *ENTRY, 1)
    bench.leadership.assign("j", bench.token, ENTRY, ("w", "1-a"), 1, "x", ticket, False, "first owner")

    bench.acquire(bench.owner().assigned()[0])

    assert moving.moves() == []


def test_only_the_last_moves_are_kept(bench: Bench, moving: MovingStore) -> None:
    bench.client.lpush(keys.moves("j"), *["1|0.0|a|b|levelling|forced|1"] * MOST_MOVES)
    row = bench.assign()
    moving.want(bench.token, ENTRY, row.token, "ask", TARGET)
    gives(bench, row)

    bench.acquire(bench.owner("v", "1-b").assigned()[0])

    assert bench.client.llen(keys.moves("j")) == MOST_MOVES
    assert moving.moves(1)[0].why == "levelling"
    assert moving.moves(1)[0].owner == "v"


@pytest.mark.parametrize("key", ["moving", "assignment", "control"])
def test_a_key_of_another_type_is_refused_before_anything_is_written(
    bench: Bench, moving: MovingStore, key: str
) -> None:
    row = bench.assign()
    moving.want(bench.token, ENTRY, row.token, "ask", TARGET)
    name = getattr(keys, key)("j")
    bench.client.delete(name)
    bench.client.set(name, "foreign")
    before = bench.meta()

    with pytest.raises(ForeignData):
        gives(bench, row)

    assert bench.meta() == before


def test_a_move_that_makes_no_sense_is_foreign(bench: Bench, moving: MovingStore) -> None:
    bench.client.hset(keys.moving("j"), "0.0", "nonsense")
    with pytest.raises(ForeignData):
        bench.jobs.facts("j")

    bench.client.lpush(keys.moves("j"), "nonsense")
    with pytest.raises(ForeignData):
        moving.moves()


def test_a_node_is_drained_until_it_is_undrained(bench: Bench, moving: MovingStore) -> None:
    moving.drain("here")
    moving.drain("there", stops=True)

    assert bench.jobs.facts("j").drained == {"here", "there"}
    assert [moving.is_to_stop(node) for node in ("here", "there", "elsewhere")] == [False, True, False]
    assert moving.undrain("here")
    assert not moving.undrain("here")
    assert bench.jobs.facts("j").drained == {"there"}


def test_marks_of_nodes_that_were_to_stop_are_bounded_and_others_stay(
    bench: Bench, moving: MovingStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pipeline.store.moving.MOST_DRAINED", 3)
    bench.client.hset(keys.drained("j"), mapping={"old": "900 stop", "kept": "1 stay", "older": "80 stop"})

    moving.drain("older", stops=True)
    assert bench.jobs.facts("j").drained == {"old", "kept", "older"}
    moving.drain("new", stops=True)
    assert bench.jobs.facts("j").drained == {"kept", "older", "new"}
    moving.drain("newer")

    assert bench.jobs.facts("j").drained == {"kept", "new", "newer"}
    bench.client.hset(keys.drained("j"), mapping=dict.fromkeys(("a", "b", "new"), "5 stay"))
    moving.drain("newest", stops=True)
    assert len(bench.jobs.facts("j").drained) == 6


def test_nodes_of_a_job_that_is_not_there_are_not_drained(bench: Bench) -> None:
    nowhere = MovingStore(bench.scripts, "nope")

    with pytest.raises(UnknownJob):
        nowhere.drain("here")
    with pytest.raises(UnknownJob):
        nowhere.undrain("here")

    assert bench.client.exists(keys.drained("nope")) == 0


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {b"kind": b"Explode"},
        {b"kind": b"Assign"},
        {b"kind": b"Collect", b"partition": b"0.0", b"worker": b"w", b"term": b"x"},
    ],
)
def test_a_control_message_that_is_none_of_ours_is_an_error(fields: dict[bytes, bytes]) -> None:
    with pytest.raises(DecodingError, match="control message"):
        read_control(fields)


def test_an_unknown_control_message_is_told_loudly_and_says_look(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    last = bench.owner().wait_for_control("0-0", 1)
    id_ = bench.client.xadd(keys.control("j"), {"kind": "Explode"}).decode()

    assert bench.owner().wait_for_control(last, 1) == id_

    assert [record.levelname for record in caplog.records] == ["ERROR"]
    assert "unknown kind 'Explode'" in caplog.text
