"""The position of a source is stored with the record it belongs to, whatever is cut or retried."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from bench import ENTRY, Bench, a_batch, a_job_id
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pipeline.errors import EncodingError, InboxFull, StaleSender, StoreUnavailable, UnknownJob
from pipeline.lifecycle import JobState
from pipeline.records import Batch
from pipeline.settings import Limits
from pipeline.store import keys
from pipeline.store.patience import Patience
from pipeline.store.payloads import POSITION_BYTES
from pipeline.store.senders import Feed, FeedAddress
from tests.runtime.harness import FlakyScripts


def behind(first: int) -> Callable[[int], Any]:
    """The position behind a record is its number, as a list."""
    return lambda index: ["at", first + index]


def test_a_position_comes_back_with_the_registration(bench: Bench) -> None:
    lane = bench.lane()
    assert (lane.position, lane.position_at) == (None, 0)

    lane.append(1, a_batch("a", "b"), position=behind(1))

    again = bench.lane()
    assert (lane.position, lane.position_at) == (again.position, again.position_at) == (["at", 2], 2)
    assert again.taken == 2


def test_a_batch_without_a_position_leaves_the_stored_one_behind_with_its_number(bench: Bench) -> None:
    lane = bench.lane()
    lane.append(1, a_batch("a"), position=behind(1))

    lane.append(2, a_batch("b"))

    again = bench.lane()
    assert (again.taken, again.position, again.position_at) == (2, ["at", 1], 1)


def test_every_piece_of_a_cut_batch_has_a_position_of_its_own(make: Callable[..., Bench]) -> None:
    """The inbox becomes full in the middle of a batch: the position is that of the last record taken."""
    bench = make(limits=Limits(inbox_records=16))
    lane = bench.lane()

    with pytest.raises(InboxFull):
        lane.append(1, a_batch(*range(100)), position=behind(1))

    again = bench.lane()
    assert again.taken == 16
    assert (again.position, again.position_at) == (["at", 16], 16)
    assert lane.position == ["at", 16]


def test_a_large_batch_that_is_cut_by_bytes_keeps_position_and_number_together(make: Callable[..., Bench]) -> None:
    bench = make(limits=Limits(entry_bytes=2_000))

    bench.lane().append(1, a_batch(*["x" * 300] * 40), position=behind(1))

    assert bench.lane().position == ["at", 40]


def test_a_retry_of_what_was_taken_does_not_move_the_position(bench: Bench) -> None:
    lane = bench.lane()
    lane.append(1, a_batch("a", "b"), position=behind(1))

    lane.append(1, a_batch("a"), position=lambda _: "elsewhere")

    assert bench.lane().position == ["at", 2]


def test_an_older_instance_cannot_move_the_position(bench: Bench) -> None:
    old = bench.lane("p", exclusive=True)
    old.append(1, a_batch("a"), position=behind(1))
    bench.lane("p", exclusive=True)

    with pytest.raises(StaleSender):
        old.append(2, a_batch("b"), position=behind(2))

    assert bench.lane("p").position == ["at", 1]


@pytest.mark.parametrize("position", ["x" * POSITION_BYTES, object(), "\ud800"])
def test_a_position_that_cannot_be_stored_is_refused_before_anything_is_sent(bench: Bench, position: Any) -> None:
    lane = bench.lane()
    before = bench.snapshot()

    with pytest.raises(EncodingError, match="position"):
        lane.append(1, a_batch("a"), position=lambda _: position)

    assert bench.snapshot() == before


def test_a_sender_that_leaves_leaves_no_position(bench: Bench) -> None:
    lane = bench.lane("s", exclusive=True)
    lane.append(1, a_batch("a"), position=behind(1))

    assert lane.leave()

    assert bench.log() == {"gone": "1"}


def test_positions_and_own_ids_go_together(bench: Bench) -> None:
    lane = bench.lane()

    lane.append(1, a_batch("a", "b"), ids=["one", "one"], position=behind(1))

    assert bench.headers()[0].skip == (1,)
    assert bench.lane().position == ["at", 2]


def test_a_feed_lists_the_splits_of_its_own_source_only(bench: Bench) -> None:
    for split in ("b", "a"):
        bench.lane(split)
    bench.client.hset(keys.senders("j"), "n:0/linesX/c", "9 0")
    bench.client.hset(keys.senders("j"), "n:1/lines/d", "9 0")

    assert bench.feed().splits() == ["a", "b"]


def test_a_feed_says_whether_its_job_takes_input(bench: Bench) -> None:
    feed = bench.feed()
    assert feed.takes_input()

    bench.jobs.transition("j", JobState.DRAINING)
    assert not feed.takes_input()

    bench.jobs.erase("j")
    with pytest.raises(UnknownJob):
        feed.takes_input()


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data(), total=st.integers(1, 40), sizes=st.lists(st.integers(1, 12), min_size=1, max_size=8))
def test_a_reader_that_dies_at_any_call_goes_on_exactly_behind_what_was_taken(
    redis_url: str, data: st.DataObject, total: int, sizes: list[int]
) -> None:
    """Lost requests and lost replies: the successor knows only what Redis tells it."""
    bench = Bench(redis_url, a_job_id(), limits=Limits(inbox_records=64))
    scripts = FlakyScripts(bench.client)
    feed = Feed(
        scripts,
        FeedAddress(redis_url, bench.job, "lines", 0.0),
        bench.plan,
        bench.run_of_job,
        Patience(outage_seconds=0.0),
    )
    records = list(range(1, total + 1))

    for turn in range(1_000):
        if turn < 30 and data.draw(st.booleans()):
            scripts.break_call(data.draw(st.sampled_from(["before", "after"])), data.draw(st.integers(1, 4)))
        try:
            lane = feed.lane("s", exclusive=True)
            assert lane.taken == lane.position_at == (lane.position or 0)
            at = lane.position or 0
            while at < total:
                batch = Batch(records[at : at + sizes[turn % len(sizes)]])
                lane.append(lane.taken + 1, batch, position=lambda index, at=at: at + index + 1)
                at += len(batch)
            break
        except StoreUnavailable:
            continue

    assert bench.values(ENTRY) == records
    assert bench.lane("s").position == total
    bench.close()
