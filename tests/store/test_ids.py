"""Records' own ids: one that was seen before is dropped, whoever sends it; what is remembered stays bounded."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import pytest
import redis
from bench import ENTRY, Bench, a_batch

from pipeline.errors import ForeignData, InboxFull, StaleSender, StoreFull, UnknownJob, UnknownSender
from pipeline.messages import Data
from pipeline.plan import PRODUCER_FORMAT, SourcePlan
from pipeline.settings import Limits
from pipeline.store import ids, keys
from pipeline.store.durability import Durability, durability_of, read_durability
from pipeline.store.ids import GROUPS, Memory
from pipeline.store.senders import Feed, FeedAddress, Lane


def a_lane(bench: Bench, split: str = "a", **options: Any) -> Lane:
    """A lane of the source `lines` with these bounds on ids."""
    plan = msgspec.structs.replace(bench.plan, sources=(SourcePlan("lines", PRODUCER_FORMAT, options),))
    return Feed(bench.scripts, FeedAddress(bench.url, bench.job, "lines", 0.0), plan, bench.run_of_job).lane(
        split, exclusive=True
    )


def group_of(bench: Bench, id_: str) -> str:
    """The key of the set that remembers the id."""
    return ids.arguments(bench.job, "lines", [id_], Memory())[0][0]


def remembered(bench: Bench) -> int:
    return sum(bench.client.zcard(keys.ids(bench.job, "lines", group)) for group in range(GROUPS))


def skips(bench: Bench, place: Any = ENTRY) -> list[tuple[int, ...]]:
    return [header.skip for header in bench.headers(place) if isinstance(header, Data)]


def test_an_id_that_comes_again_is_named_to_be_skipped_and_counted_as_duplicate(bench: Bench) -> None:
    lane = a_lane(bench)

    lane.append(1, a_batch("a", "b", "c"), ids=["x", None, "y"])
    lane.append(4, a_batch("d", "e", "f"), ids=["y", "z", None])

    assert skips(bench) == [(), (0,)]
    assert lane.taken == 6
    assert bench.meta()["duplicate"] == "1"
    assert remembered(bench) == 3


def test_an_id_that_is_twice_in_one_batch_counts_the_first_time(bench: Bench) -> None:
    a_lane(bench).append(1, a_batch(*"abcd"), ids=["x", "x", "y", "x"])

    assert [sorted(skip) for skip in skips(bench)] == [[1, 3]]
    assert bench.meta()["duplicate"] == "2"


def test_an_id_is_known_to_every_lane_and_every_entry_partition_of_its_source(make: Callable[..., Bench]) -> None:
    bench = make(partitions=2)
    one, other = a_lane(bench, "one"), a_lane(bench, "other")
    one.append(1, a_batch("a"), ids=["x"])

    other.append(1, a_batch("a"), ids=["x"])

    assert sorted(skips(bench, (0, 0)) + skips(bench, (0, 1))) == [(), (0,)]


def test_a_batch_without_ids_touches_no_set(bench: Bench) -> None:
    a_lane(bench).append(1, a_batch("a", "b"), ids=[None, None])

    assert remembered(bench) == 0
    assert skips(bench) == [()]


def test_a_retry_of_a_batch_whose_reply_was_lost_is_taken_and_its_ids_are_no_duplicates(bench: Bench) -> None:
    lane = a_lane(bench)
    lane.append(1, a_batch("a", "b"), ids=["x", "y"])
    lane.taken = 0  # as if the reply had been lost

    lane.append(1, a_batch("a", "b"), ids=["x", "y"])

    assert skips(bench) == [()]
    assert lane.taken == 2


def test_a_retry_with_other_bounds_keeps_each_id_with_its_record(bench: Bench) -> None:
    a_lane(bench, "before").append(1, a_batch("old"), ids=["c"])
    lane = a_lane(bench)
    lane.append(1, a_batch("a", "b"), ids=["a", "b"])
    lane.taken = 1  # as if only a part was known to be taken

    lane.append(1, a_batch(*"abcd"), ids=[*"abcd"])

    assert skips(bench) == [(), (), (0,)]
    assert bench.values() == ["old", "a", "b", "c", "d"]


def test_large_batches_are_cut_and_their_ids_with_them(make: Callable[..., Bench]) -> None:
    bench = make(limits=Limits(inbox_records=80))
    a_lane(bench, "before").append(1, a_batch("old"), ids=["n17"])

    a_lane(bench).append(1, a_batch(*range(30)), ids=[f"n{number}" for number in range(30)])

    assert skips(bench) == [(), (), (7,), ()]
    assert remembered(bench) == 30


def test_an_id_older_than_the_bound_of_time_is_new_again(bench: Bench) -> None:
    lane = a_lane(bench, id_seconds=60)
    lane.append(1, a_batch("a"), ids=["x"])
    key = group_of(bench, "x")
    assert 0 < bench.client.pttl(key) <= 60_000
    bench.client.zincrby(key, -61_000, ids.digest("x"))

    lane.append(2, a_batch("a"), ids=["x"])

    assert skips(bench) == [(), ()]
    assert bench.client.zcard(key) == 1


def test_ids_that_are_too_old_are_taken_out_when_their_set_is_met(bench: Bench) -> None:
    lane = a_lane(bench, id_seconds=60)
    lane.append(1, a_batch("a"), ids=["x"])
    key = group_of(bench, "x")
    bench.client.zadd(key, {b"an old one": 1})

    lane.append(2, a_batch("a"), ids=["x"])

    assert bench.client.zrange(key, 0, -1) == [ids.digest("x")]


def test_no_more_ids_are_kept_than_the_bound_of_number_and_the_oldest_go_first(bench: Bench) -> None:
    lane = a_lane(bench, id_count=2 * GROUPS)

    for start in range(0, 3_000, 100):
        lane.append(start + 1, a_batch(*range(100)), ids=[f"id-{start + i}" for i in range(100)])

    assert remembered(bench) <= 2 * GROUPS
    lane.append(3_001, a_batch("again"), ids=["id-2999"])
    assert skips(bench)[-1] == (0,)


def test_a_refused_batch_leaves_its_ids_unknown(bench: Bench) -> None:
    lane = a_lane(bench)
    lane.append(1, a_batch("a"), ids=["x"])
    bench.client.hset(keys.meta("j", *ENTRY), "head", bench.limits.inbox_records + 100)
    before = bench.snapshot()

    with pytest.raises(InboxFull):
        lane.append(2, a_batch("b"), ids=["y"])
    a_lane(bench, "a")  # a newer instance
    after = bench.snapshot()
    with pytest.raises(StaleSender):
        lane.append(2, a_batch("b"), ids=["y"])

    assert remembered(bench) == 1
    assert before.keys() == after.keys()
    assert bench.snapshot() == after


def test_a_redis_without_memory_remembers_no_id(bench: Bench, full_memory: Callable[[], None]) -> None:
    lane = a_lane(bench)
    full_memory()

    with pytest.raises(InboxFull) as caught:
        lane.append(1, a_batch("a"), ids=["x"])

    assert remembered(bench) == 0
    assert not isinstance(caught.value, StoreFull)


def test_a_foreign_key_in_the_place_of_a_set_is_told_before_anything_is_written(bench: Bench) -> None:
    lane = a_lane(bench)
    bench.client.set(group_of(bench, "x"), "foreign")
    before = bench.snapshot()

    with pytest.raises(ForeignData):
        lane.append(1, a_batch("a"), ids=["x"])

    assert bench.snapshot() == before


def test_ids_go_with_the_job(bench: Bench) -> None:
    a_lane(bench).append(1, a_batch("a"), ids=["x"])

    bench.jobs.erase("j")

    assert list(bench.client.scan_iter("*:ids:*")) == []


def test_bounds_of_ids_come_from_the_plan_of_the_source_and_are_rounded_up() -> None:
    source = SourcePlan("in", PRODUCER_FORMAT, {"id_seconds": 5, "id_count": 257})

    assert Memory.of(source) == Memory(milliseconds=5_000, per_group=2)
    assert Memory.of(None) == Memory.of(replace_options(source))


def replace_options(source: SourcePlan) -> SourcePlan:
    return msgspec.structs.replace(source, options={})


# Leaving, visitors, and what the server promises.


def test_a_sender_that_leaves_leaves_nothing_behind_but_its_records(bench: Bench) -> None:
    stayed = bench.lane("stays")
    stayed.append(1, a_batch("a"))
    before = (bench.client.hgetall(keys.senders("j")), bench.log())
    lane = bench.lane("leaves", exclusive=True)
    lane.append(1, a_batch("b"))

    assert lane.leave()

    senders = bench.client.hgetall(keys.senders("j"))
    assert (senders, bench.log()) == ({**before[0], b"next": b"3"}, {**before[1], "gone": "1"})
    assert bench.values() == ["a", "b"]
    assert not lane.leave()


def test_a_zombie_cannot_make_the_job_forget_its_successor(bench: Bench) -> None:
    old = bench.lane("p", exclusive=True)
    new = bench.lane("p", exclusive=True)

    assert not old.leave()

    new.append(1, a_batch("a"))


def test_visitors_that_are_silent_for_long_are_forgotten_and_nobody_else(make: Callable[..., Bench]) -> None:
    bench = make(partitions=2)
    stayed, named, left = bench.lane("_stays/0"), bench.lane("named/0"), bench.lane("_leaves/0")
    bench.feed().visit([stayed, left])
    bench.client.zincrby(keys.visitors("j"), -3_600_001, left.visitor)

    assert bench.leadership.forget_visitors("j", bench.token, 3600.0, 10) == 1
    assert bench.leadership.forget_visitors("j", bench.token, 3600.0, 10) == 0

    for lane in (stayed, named):
        lane.append(1, a_batch("a"))
    with pytest.raises(UnknownSender):
        left.append(1, a_batch("a"))
    names = {name for name in bench.client.hkeys(keys.senders("j")) if name.startswith(b"n:")}
    assert names == {b"n:0/lines/_stays/0", b"n:0/lines/named/0"}
    assert bench.client.zrange(keys.visitors("j"), 0, -1) == [stayed.visitor.encode()]


def test_no_more_visitors_are_forgotten_at_once_than_asked_for(bench: Bench) -> None:
    lanes = [bench.lane(f"_{number}/0") for number in range(5)]
    bench.feed().visit(lanes)
    for lane in lanes:
        bench.client.zincrby(keys.visitors("j"), -10_000, lane.visitor)

    assert bench.leadership.forget_visitors("j", bench.token, 1.0, 3) == 3
    assert bench.leadership.forget_visitors("j", bench.token, 1.0, 3) == 2


def test_a_visitor_that_was_heard_of_again_stays(bench: Bench) -> None:
    lane = bench.lane("_v/0", exclusive=True)
    for _ in range(2):
        bench.feed().visit([lane])
        bench.client.zincrby(keys.visitors("j"), -10_000, lane.visitor)
    bench.feed().visit([lane])

    assert bench.leadership.forget_visitors("j", bench.token, 1.0, 10) == 0
    assert lane.leave()
    assert not bench.client.exists(keys.visitors("j"))


def test_a_removed_job_takes_no_visitors(bench: Bench) -> None:
    lane = bench.lane("_v/0")
    bench.jobs.erase("j")

    with pytest.raises(UnknownJob):
        bench.feed().visit([lane])

    assert bench.snapshot() == {}


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({"appendonly": "no", "appendfsync": "always"}, Durability.OFF),
        ({"appendonly": "yes", "appendfsync": "always"}, Durability.ALWAYS),
        ({"appendonly": "yes", "appendfsync": "everysec"}, Durability.EVERYSEC),
        ({"appendonly": "yes", "appendfsync": "no"}, Durability.OFF),
        ({"appendonly": "yes"}, Durability.UNKNOWN),
        ({}, Durability.OFF),
    ],
)
def test_the_durability_is_what_the_settings_of_the_server_mean(settings: dict[str, str], expected: Durability) -> None:
    assert durability_of(settings) is expected


def test_the_durability_is_what_this_server_is_set_to_now(bench: Bench) -> None:
    before = bench.client.config_get("append*")
    assert before["appendonly"] == "yes"
    try:
        bench.client.config_set("appendfsync", "always")
        assert read_durability(bench.client) is Durability.ALWAYS
        bench.client.config_set("appendfsync", "everysec")
        assert read_durability(bench.client) is Durability.EVERYSEC
    finally:
        bench.client.config_set("appendfsync", before["appendfsync"])


def test_a_server_that_does_not_tell_is_unknown(bench: Bench) -> None:
    bench.client.acl_setuser("shy", enabled=True, nopass=True, keys=["*"], commands=["+@all", "-config"])
    try:
        with redis.Redis(unix_socket_path=bench.url.removeprefix("unix://").partition("?")[0], username="shy") as shy:
            assert read_durability(shy) is Durability.UNKNOWN
    finally:
        bench.client.acl_deluser("shy")
