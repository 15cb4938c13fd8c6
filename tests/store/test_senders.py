"""Senders: registering is idempotent, an exclusive one fences the older; finishing and completing count."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

import pytest
from bench import ENTRY, Bench, a_batch

from pipeline.errors import InboxClosed, StaleSender, StoreError, StoreUnavailable, UnknownJob
from pipeline.lifecycle import JobState
from pipeline.store import keys
from pipeline.store.patience import Patience
from pipeline.store.senders import FeedAddress


def test_registering_again_finds_the_same_sender_with_what_it_sent(bench: Bench) -> None:
    lane = bench.lane("s")
    lane.append(1, a_batch("a", "b"))
    before = bench.snapshot()

    again = bench.lane("s")

    assert (again.taken, again.finished) == (2, -1)
    assert bench.snapshot() == before


def test_senders_spread_over_the_entry_partitions_and_stay_there(make: Callable[..., Bench]) -> None:
    """A1: a sender is pinned to one entry partition for life."""
    bench = make(partitions=3)
    for number in range(6):
        bench.lane(str(number)).append(1, a_batch(number))
    for number in range(6):
        bench.lane(str(number)).append(1, a_batch(number, number))

    per_partition = [len(bench.values((0, partition))) for partition in range(3)]
    assert per_partition == [4, 4, 4]


def test_an_exclusive_registration_raises_the_epoch_and_fences_the_older(bench: Bench) -> None:
    first = bench.lane("p", exclusive=True)
    first.append(1, a_batch("a"))
    second = bench.lane("p", exclusive=True)

    assert second.taken == 1
    second.append(2, a_batch("b"))
    with pytest.raises(StaleSender):
        first.append(2, a_batch("c"))
    assert bench.values() == ["a", "b"]
    assert bench.log()["e:1"] == "2"


def test_sources_and_splits_of_the_same_name_are_different_senders(bench: Bench) -> None:
    bench.lane("s")
    name = "0/lines/s"

    assert bench.client.hget(keys.senders("j"), f"n:{name}") == b"1 0"
    assert bench.lane("t").taken == 0
    assert bench.client.hget(keys.senders("j"), "next") == b"3"


def test_a_job_that_takes_no_input_registers_nobody_new_but_knows_the_old(bench: Bench) -> None:
    bench.lane("old").append(1, a_batch("a"))
    bench.jobs.transition("j", JobState.DRAINING)
    before = bench.snapshot()

    with pytest.raises(InboxClosed):
        bench.lane("new")

    assert bench.lane("old").taken == 1
    assert bench.snapshot() == before


def test_a_split_finishes_once_with_its_exact_count(bench: Bench) -> None:
    lane = bench.lane("s")
    lane.append(1, a_batch("a", "b"))

    for wrong in (1, 3):
        with pytest.raises(StoreError):
            lane.finish(wrong)
    assert bench.jobs.facts("j").finished_splits == {}

    lane.finish(2)
    lane.finish(2)
    bench.lane("s").finish(2)

    assert bench.jobs.facts("j").finished_splits == {"lines": 1}
    assert bench.lane("s").finished == 2


def test_an_empty_split_finishes_with_nothing(bench: Bench) -> None:
    bench.lane("empty").finish(0)

    assert bench.lane("empty").finished == 0
    assert bench.jobs.facts("j").finished_splits == {"lines": 1}


def test_a_source_is_complete_only_with_all_its_splits(bench: Bench) -> None:
    bench.lane("a").finish(0)
    with pytest.raises(StoreError, match="1 finished splits, not 2"):
        bench.feed().complete(2)
    assert bench.jobs.read("j").completed_sources == frozenset()

    bench.lane("b").finish(0)
    bench.feed().complete(2)
    bench.feed().complete(2)

    assert bench.jobs.read("j").completed_sources == {"lines"}


def test_a_source_without_splits_is_complete_at_once(bench: Bench) -> None:
    bench.feed().complete(0)

    assert bench.jobs.read("j").completed_sources == {"lines"}


def test_an_address_opens_a_feed_and_hides_the_servers_address(bench: Bench) -> None:
    address = FeedAddress(bench.url, "j", "lines")

    address.open().lane("s").append(1, a_batch("a"))

    assert bench.values() == ["a"]
    assert "redis" not in repr(address)
    with pytest.raises(UnknownJob):
        FeedAddress(bench.url, "nobody", "lines").open()


def test_numbers_beyond_a_million_million_stay_exact(bench: Bench) -> None:
    """A7: Lua's own conversion would write an exponent."""
    last = 2**53 - 10
    lane = bench.lane("s")
    bench.client.hset(keys.log("j", *ENTRY), "1", last)
    lane.taken = last

    lane.append(last + 1, a_batch("a", "b"))

    assert bench.log()["1"] == str(last + 2)
    assert bench.headers()[0].first == last + 1


def test_a_call_is_repeated_while_redis_is_away() -> None:
    pauses: list[float] = []
    patience = Patience(clock=lambda: sum(pauses), sleep=pauses.append, rng=Random(1))
    outcomes = [StoreUnavailable("away"), StoreUnavailable("away"), [1]]

    def call() -> list[int]:
        outcome = outcomes.pop(0)
        if isinstance(outcome, StoreUnavailable):
            raise outcome
        return outcome

    assert patience.through_outages(call) == [1]
    assert len(pauses) == 2


def test_an_outage_that_lasts_too_long_is_given_up_with_the_error() -> None:
    pauses: list[float] = []
    patience = Patience(clock=lambda: sum(pauses), sleep=pauses.append, rng=Random(1))

    def call() -> list[int]:
        raise StoreUnavailable("away")

    with pytest.raises(StoreUnavailable, match="away"):
        patience.through_outages(call)

    assert sum(pauses) == pytest.approx(patience.outage_seconds, abs=1.0)
