"""What the Pipelines page shows and to whom: pure functions over facts, no Redis, no Flower."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from pipeline import Pipeline, read, write
from pipeline.errors import EnvironmentFault
from pipeline.facts import JobFacts, JobRecord, PartitionFacts, WorkerFacts
from pipeline.flower.access import Access, is_loopback, parse_credentials, read_credentials
from pipeline.flower.history import CELLS, MOMENTS, NO_LAG, History, Lag
from pipeline.flower.layout import Cell, cells, edges
from pipeline.flower.picture import SHOWN_CHARACTERS, SHOWN_PARTITIONS, job_picture, jobs_picture
from pipeline.lifecycle import JobState
from pipeline.plan import Plan, compile_plan
from pipeline.positions import Position
from pipeline.settings import Limits
from pipeline.store.letters import DeadLetter

NOW_MS = 1_000_000


@cache
def a_plan(partitions: int = 1) -> Plan:
    """Two sources; one is keyed twice, and meets the other at a third key."""
    flow = Pipeline("flow")
    left = flow.source(read.iterable([1]), name="left").map(str, name="text").key_by(len, name="by_length")
    right = flow.source(read.iterable([2]), name="right")
    left.key_by(str, name="by_text").sink(write.stream("texts"), name="texts")
    left.union(right, name="both").key_by(str, name="by_both").sink(write.stream("all"), name="all")
    return compile_plan(flow.graph(), partitions, Limits())


def a_record(**changes: Any) -> JobRecord:
    record = JobRecord("job", a_plan(), JobState.RUNNING, "", 1, 1, 0, 1, "run", "open", frozenset())
    return replace(record, **changes)


def a_partition(stage: int = 0, **changes: Any) -> PartitionFacts:
    part = PartitionFacts(
        stage=stage,
        partition=0,
        owner="w0",
        incarnation="1-a",
        token="3:abc",
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


def a_job(*partitions: PartitionFacts, now_ms: int = NOW_MS, **changes: Any) -> JobFacts:
    facts = JobFacts(a_record(), now_ms, partitions, (), "leader-1", 0, {})
    return replace(facts, **changes)


def a_history(*looks: JobFacts) -> History:
    history = History()
    for facts in looks:
        history.add(facts)
    return history


# the drawing


def test_stages_stand_in_columns_behind_all_that_feeds_them() -> None:
    plan = a_plan()

    placed = dict(zip([stage.name for stage in plan.stages], cells(plan), strict=True))

    assert {name: cell.column for name, cell in placed.items()} == {
        "left": 0,
        "right": 0,
        "by_length": 1,
        "by_text": 2,
        "by_both": 2,
    }
    assert len(set(placed.values())) == len(placed)


def test_every_edge_of_the_drawing_runs_to_a_higher_column() -> None:
    plan = a_plan()
    place = cells(plan)

    names = {(plan.stage(one).name, plan.stage(other).name) for one, other in edges(plan)}

    assert names == {("left", "by_length"), ("by_length", "by_text"), ("by_length", "by_both"), ("right", "by_both")}
    assert all(place[one].column < place[other].column for one, other in edges(plan))


def test_a_pipeline_of_one_stage_has_one_cell_and_no_edge() -> None:
    flow = Pipeline("flow")
    flow.source(read.iterable([1]), name="ones").sink(write.stream("out"), name="out")
    plan = compile_plan(flow.graph(), 2, Limits())

    assert cells(plan) == (Cell(0, 0),)
    assert edges(plan) == ()


# rates and lag


def test_rates_are_those_of_the_last_five_seconds() -> None:
    looks = [a_job(a_partition(taken=100 * n, emitted=10 * n), now_ms=NOW_MS + 1000 * n) for n in range(3)]
    slow = [a_job(a_partition(taken=200 + n, emitted=20), now_ms=NOW_MS + 2000 + 1000 * n) for n in range(1, 11)]

    assert a_history(*looks[:1]).rates(0) == (0.0, 0.0)
    assert a_history(*looks).rates(0) == (100.0, 10.0)
    assert a_history(*looks, *slow).rates(0) == (1.0, 0.0)


def test_a_rate_after_a_long_pause_is_over_the_pause() -> None:
    history = a_history(a_job(a_partition()), a_job(a_partition(taken=600), now_ms=NOW_MS + 60_000))

    assert history.rates(0) == (10.0, 0.0)


def test_lag_is_the_age_of_the_first_look_that_saw_the_oldest_waiting_record() -> None:
    early = a_job(a_partition(position=Position("1-0"), backlog=10))  # records 1 .. 10 are there
    later = a_job(a_partition(position=Position("1-0"), backlog=30), now_ms=NOW_MS + 1000)  # 1 .. 30
    now = replace(a_partition(position=Position("1-0", 10), backlog=20), taken=10)  # 11 is next
    history = a_history(early, later, a_job(now, now_ms=NOW_MS + 4000))

    assert history.lag(0, now, NOW_MS + 4000) == Lag(3000, is_least=False)


def test_lag_of_what_was_there_before_the_watch_is_a_least_value() -> None:
    waiting = a_partition(position=Position("5-0"), backlog=10)
    history = a_history(a_job(waiting), a_job(waiting, now_ms=NOW_MS + 7000))

    assert history.lag(0, waiting, NOW_MS + 7000) == Lag(7000, is_least=True)


def test_an_empty_inbox_has_no_lag_even_in_front_of_a_control_entry() -> None:
    at_timers = a_partition(position=Position("8-0", 400), backlog=0)

    assert a_history(a_job(at_timers)).lag(0, at_timers, NOW_MS) == NO_LAG


def test_the_history_is_bounded_in_looks_and_in_partitions() -> None:
    small = a_history(*(a_job(a_partition(), now_ms=NOW_MS + n) for n in range(2 * MOMENTS)))
    many = [a_partition() for _ in range(CELLS // 10)]
    large = a_history(*(a_job(*many, now_ms=NOW_MS + n) for n in range(50)))

    assert len(small) == MOMENTS
    assert len(large) == 10


def test_a_new_job_of_the_same_name_begins_a_new_history() -> None:
    first = a_job(a_partition(taken=5_000))
    second = a_job(a_partition(taken=1), now_ms=NOW_MS + 1000, record=a_record(made_at_ms=NOW_MS))

    history = a_history(first, second)

    assert len(history) == 1
    assert history.rates(0) == (0.0, 0.0)


def test_a_look_that_is_not_newer_is_left_out() -> None:
    assert len(a_history(a_job(a_partition()), a_job(a_partition()))) == 1


# the picture


def pictured(facts: JobFacts, letters: list[DeadLetter] | None = None) -> dict[str, Any]:
    picture = job_picture(facts, letters or [], a_history(facts))
    return json.loads(json.dumps(picture))


def test_a_stage_shows_the_sums_of_its_partitions_and_the_worst_lag() -> None:
    parts = [
        a_partition(0, taken=5, emitted=4, filtered=1, backlog=7, backlog_bytes=70, done=True),
        a_partition(0, taken=3, emitted=3, dead=2, ring="w", owner=""),
        a_partition(1, taken=9),
    ]

    stage = pictured(a_job(*parts))["stages"][0]

    wanted = {"taken": 8, "emitted": 7, "filtered": 1, "backlog": 7, "backlog_bytes": 70, "dead": 2}
    assert {name: stage[name] for name in wanted} == wanted
    assert (stage["partitions"], stage["done"], stage["waiting"], stage["unowned"]) == (2, 1, 1, 1)
    assert (stage["name"], stage["operators"], stage["sinks"]) == ("left", ["text"], [])
    assert (stage["lag_ms"], stage["is_lag_least"]) == (0, True)


def test_a_paused_stage_is_shown_as_paused_with_its_partitions() -> None:
    facts = a_job(a_partition(0), a_partition(1, ring="1"), a_partition(1, done=True))
    name = facts.record.plan.stage_name(1)

    picture = pictured(replace(facts, record=replace(facts.record, still={name: 1})))

    assert [stage["is_paused"] for stage in picture["stages"]][:2] == [False, True]
    assert [part["state"] for part in picture["partitions"]] == ["idle", "its stage is paused", "done"]


@pytest.mark.parametrize(
    ("changes", "word"),
    [
        ({"done": True, "owner": ""}, "done"),
        ({"owner": ""}, "no owner"),
        ({"ring": "w"}, "waits for a full inbox"),
        ({"ring": "1"}, "at work"),
        ({}, "idle"),
    ],
)
def test_a_partition_says_in_words_what_it_does(changes: dict[str, Any], word: str) -> None:
    assert pictured(a_job(a_partition(**changes)))["partitions"][0]["state"] == word


def test_a_partition_shows_its_owner_term_token_and_position() -> None:
    row = pictured(a_job(a_partition(position=Position("7-0", 2), queued=1)))["partitions"][0]

    assert (row["owner"], row["incarnation"], row["term"], row["token"]) == ("w0", "1-a", 3, "3:abc")
    assert (row["position"], row["tickets"]) == ("7-0/2", 1)


def test_a_job_with_very_many_partitions_shows_the_first_ones_and_their_number() -> None:
    picture = pictured(a_job(*[a_partition() for _ in range(SHOWN_PARTITIONS + 5)]))

    assert len(picture["partitions"]) == SHOWN_PARTITIONS
    assert picture["partitions_total"] == SHOWN_PARTITIONS + 5


@pytest.mark.parametrize(
    ("worker", "word"),
    [
        (WorkerFacts("w0", "1-a", 0.1, False, {}), "alive"),
        (WorkerFacts("w0", "1-a", 9.0, False, {}), "silent"),
        (WorkerFacts("w0", "1-a", 0.1, True, {}), "dead"),
        (WorkerFacts("w0", "1-a", 9.0, False, {"stopping": True}), "stopped"),
    ],
)
def test_a_worker_says_in_a_word_how_it_is(worker: WorkerFacts, word: str) -> None:
    shown = pictured(a_job(a_partition(), workers=(worker,)))["workers"][0]

    assert (shown["state"], shown["partitions"]) == (word, 1)


def test_a_partition_of_an_earlier_incarnation_is_not_counted_for_the_worker() -> None:
    worker = WorkerFacts("w0", "2-b", 0.1, False, {})

    assert pictured(a_job(a_partition(), workers=(worker,)))["workers"][0]["partitions"] == 0


def test_dead_letters_show_operator_error_and_traceback_cut_to_a_bound_and_never_the_record() -> None:
    letter = DeadLetter("1700-0", 0, 1, "", "E" * 9_000, "T" * 9_000 + "end", b"secret")

    picture = pictured(a_job(a_partition(held=3), dead_letters=7), [letter])

    (shown,) = picture["letters"]
    assert (picture["dead_letters"], picture["held"]) == (7, 3)
    assert (shown["operator"], shown["partition"], shown["at_ms"]) == ("left", "0.1", 1700)
    assert len(shown["error"]) == len(shown["traceback"]) == SHOWN_CHARACTERS
    assert shown["traceback"].endswith("end")
    assert "secret" not in json.dumps(picture)


def test_jobs_are_listed_newest_first() -> None:
    picture = jobs_picture([a_record(job="old"), a_record(job="new", made_at_ms=2)], 9, ["foreign"])

    assert [job["job"] for job in picture["jobs"]] == ["new", "old"]
    assert (picture["total"], picture["unreadable"]) == (9, ["foreign"])


# who may see it


@pytest.mark.parametrize("address", ["127.0.0.1", "127.8.8.8", "::1", "localhost", "LOCALHOST"])
def test_loopback_addresses_need_no_password(address: str) -> None:
    assert is_loopback(address)
    assert Access(address, 0).credentials == ()


@pytest.mark.parametrize("address", ["", "0.0.0.0", "::", "10.0.0.7", "example.org", "127.0.0.1.example.org"])
def test_every_other_address_is_refused_without_a_password(address: str) -> None:
    with pytest.raises(EnvironmentFault) as caught:
        Access(address, 0)

    assert "CELERIAC_FLOWER_AUTH" in caught.value.hint
    assert Access(address, 0, ("me:secret",)).address == address


@pytest.mark.parametrize("host", ["localhost", "localhost:5555", "127.0.0.1:5555", "[::1]:5555"])
def test_without_a_password_names_of_this_machine_are_answered(host: str) -> None:
    assert Access("127.0.0.1", 0).admits_host(host)


@pytest.mark.parametrize("host", ["", "evil.example:5555", "127.0.0.1.evil.example", "[::1", "10.0.0.1"])
def test_without_a_password_no_other_name_is_answered(host: str) -> None:
    assert not Access("127.0.0.1", 0).admits_host(host)
    assert Access("127.0.0.1", 0, ("me:secret",)).admits_host(host)


def test_passwords_come_one_a_line_and_are_in_no_repr() -> None:
    found = parse_credentials("# viewers\n\nme:se:cret \nyou:other word\n", "here")

    assert found == ("me:se:cret", "you:other word")
    assert "cret" not in repr(Access("0.0.0.0", 0, found))


@pytest.mark.parametrize("text", ["", "# nobody\n", "me", ":secret", "me:", "me:sécret", "m e:secret"])
def test_what_is_no_password_is_refused_without_showing_it(text: str) -> None:
    with pytest.raises(EnvironmentFault) as caught:
        parse_credentials(text, "the file")

    assert "the file" in str(caught.value)
    assert "cret" not in str(caught.value)


def test_a_file_of_passwords_wins_over_the_variable(tmp_path: Path) -> None:
    file = tmp_path / "auth"
    file.write_text("file:one\n")

    assert read_credentials(file, "variable:two") == ("file:one",)
    assert read_credentials(None, "variable:two") == ("variable:two",)
    assert read_credentials(None, "") == ()


def test_a_file_that_cannot_be_read_is_an_error_not_an_open_door(tmp_path: Path) -> None:
    binary = tmp_path / "binary"
    binary.write_bytes(b"\xff\xfe")

    for file in (tmp_path / "missing", tmp_path, binary):
        with pytest.raises(EnvironmentFault):
            read_credentials(file, "variable:two")
