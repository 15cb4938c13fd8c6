"""Taking the tickets of several partitions with what they are for, in one round trip."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from bench import Bench, a_batch, values_of

from pipeline.errors import ForeignData
from pipeline.lifecycle import JobState
from pipeline.store import keys
from pipeline.store.ownership import Assigned, Calm

FIRST, SECOND = (0, 1), (0, 0)  # in which the first and the second split end


def calm(bench: Bench, row: Assigned) -> Calm:
    """As its owner is before the first slice, with a clear ring flag and no ticket."""
    acquired = bench.acquire(row)
    assert acquired is not None
    bench.client.hdel(keys.meta("j", row.stage, row.partition), "ring")
    return Calm(row.stage, row.partition, row.token, acquired.position)


def two(make: Callable[..., Bench]) -> tuple[Bench, list[Calm]]:
    bench = make(partitions=2)
    return bench, [calm(bench, bench.assign(place)) for place in (FIRST, SECOND)]


def fill(bench: Bench, *splits: str) -> None:
    for split in splits:
        bench.lane(split).append(1, a_batch(split))


def take(bench: Bench, waiting: list[Calm], table: int = 1) -> list[tuple[tuple[int, int], list[Any]]]:
    taken = bench.owner().take_tickets(table, waiting, 100, 1 << 20)
    return [((each.stage, each.partition), values_of(entries)) for each, entries in taken]


def test_tickets_are_taken_with_the_entries_that_they_are_for(make: Callable[..., Bench]) -> None:
    bench, waiting = two(make)
    fill(bench, "a", "b")

    assert take(bench, waiting) == [(FIRST, ["a"]), (SECOND, ["b"])]

    assert [bench.tickets(place) for place in (FIRST, SECOND)] == [0, 0]
    assert [bench.ring(place) for place in (FIRST, SECOND)] == ["1", "1"]
    assert take(bench, waiting) == []


def test_a_partition_without_a_ticket_is_left_alone(make: Callable[..., Bench]) -> None:
    bench, waiting = two(make)
    fill(bench, "a")

    assert take(bench, waiting) == [(FIRST, ["a"])]


def test_the_ticket_of_a_new_owner_is_not_taken(make: Callable[..., Bench]) -> None:
    bench, waiting = two(make)
    fill(bench, "a", "b")
    bench.assign(FIRST, worker="other")

    assert take(bench, waiting) == [(SECOND, ["b"])]

    assert bench.tickets(FIRST) == 1


def test_a_ticket_for_a_position_that_was_left_is_not_taken(make: Callable[..., Bench]) -> None:
    bench, waiting = two(make)
    fill(bench, "a")
    bench.client.hset(keys.meta("j", *FIRST), "rec", 1)

    assert take(bench, waiting) == []

    assert bench.tickets(FIRST) == 1


def test_a_job_that_has_ended_or_has_another_table_keeps_its_tickets(make: Callable[..., Bench]) -> None:
    bench, waiting = two(make)
    fill(bench, "a")

    assert take(bench, waiting, table=2) == []
    bench.jobs.transition("j", JobState.CANCELLED)
    assert take(bench, waiting) == []

    assert bench.tickets(FIRST) == 1


def test_a_redis_without_memory_gives_tickets(make: Callable[..., Bench], full_memory: Callable[[], None]) -> None:
    bench, waiting = two(make)
    fill(bench, "a")
    full_memory()

    assert take(bench, waiting) == [(FIRST, ["a"])]


@pytest.mark.parametrize("key", [keys.inbox, keys.meta, keys.queue])
def test_a_key_of_another_program_costs_no_ticket(make: Callable[..., Bench], key: Callable[..., str]) -> None:
    bench, waiting = two(make)
    fill(bench, "a", "b")
    bench.client.delete(key("j", *SECOND))
    bench.client.set(key("j", *SECOND), "not ours")

    with pytest.raises(ForeignData):
        take(bench, waiting)

    assert bench.tickets(FIRST) == 1
