"""Sources that go on: whatever dies on the way, each record arrives once, in order, and none is lost."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from pipeline import read
from pipeline.errors import EncodingError, InboxClosed, PipelineError, StaleSender, StoreUnavailable
from pipeline.lifecycle import JobState
from tests.runtime.followed import Follow


def numbers(position: int | None) -> Iterator[tuple[int, int]]:
    for number in range((position or 0) + 1, 101):
        yield number, number


def test_a_generator_goes_on_behind_the_last_record_taken(follow: Callable[..., Follow]) -> None:
    calls: list[Any] = []

    def fn(position: int | None) -> Iterator[tuple[int, str]]:
        calls.append(position)
        start = position or 0
        yield from ((number, f"v{number}") for number in range(start + 1, start + 4))

    one = follow(read.generator(fn))
    one.until(lambda: len(one.values()) >= 3)
    one.start()
    one.until(lambda: len(one.values()) >= 9)

    values = one.values()
    assert values == [f"v{number}" for number in range(1, len(values) + 1)]
    assert calls[0] is None
    assert calls == [None, *range(3, 3 * len(calls), 3)]


def test_a_generator_that_has_an_end_completes_its_source(follow: Callable[..., Follow]) -> None:
    one = follow(read.generator(numbers, poll_seconds=None))

    summary = one.start().run()

    assert (summary.splits, summary.records) == (1, 100)
    assert one.values() == list(range(1, 101))
    assert one.job.jobs.read("j").completed_sources == {"in"}
    assert one.start().run().records == 0


@pytest.mark.parametrize("moment", ["before", "after"])
def test_a_feeder_that_dies_at_any_call_loses_nothing_and_doubles_nothing(
    follow: Callable[..., Follow], moment: Any
) -> None:
    one = follow(read.generator(numbers, poll_seconds=None))
    for ahead in range(1, 8):
        one.scripts.break_call(moment, ahead)
        for _ in range(3):
            try:
                one.start().run()
                break
            except StoreUnavailable:
                continue

    assert one.values() == list(range(1, 101))


def test_a_feeder_ends_when_its_job_drains_though_nothing_comes(follow: Callable[..., Follow]) -> None:
    one = follow(read.generator(lambda _: iter(())))
    one.rounds(3)

    one.job.jobs.transition("j", JobState.DRAINING)

    with pytest.raises(InboxClosed):
        one.start().run()


def test_an_older_feeder_is_fenced_by_the_newer_one(follow: Callable[..., Follow]) -> None:
    def slow(position: int | None) -> Iterator[tuple[int, int]]:
        yield (position or 0) + 1, (position or 0) + 1

    one = follow(read.generator(slow))
    one.until(lambda: len(one.values()) >= 1)
    old = one.feeder
    assert old is not None
    one.start()
    one.until(lambda: len(one.values()) >= 3)

    with pytest.raises(StaleSender):
        old.run()

    values = one.values()
    assert values == list(range(1, len(values) + 1))


def test_what_is_outside_is_waited_for_and_asked_again_from_the_same_position(
    follow: Callable[..., Follow], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    calls: list[Any] = []

    def fn(position: int | None) -> Iterator[tuple[int, int]]:
        calls.append(position)
        yield (position or 0) + 1, (position or 0) + 1
        if len(calls) < 5:
            raise ConnectionError("no route")

    one = follow(read.generator(fn))
    one.until(lambda: len(calls) > 6)

    values = one.values()
    assert values == list(range(1, len(values) + 1))
    assert "waiting for generator: the function of read.generator raised ConnectionError: no route" in caplog.text


@pytest.mark.parametrize(
    ("yielded", "error", "words"),
    [
        (7, PipelineError, r"not a pair \(position, value\)"),
        ((None, 1), PipelineError, "the position None"),
        (("x" * 5000, 1), EncodingError, "a position has 5,002 bytes"),
        ((1, 2, 3), PipelineError, "not a pair"),
    ],
)
def test_what_a_generator_may_not_yield_is_named(
    follow: Callable[..., Follow], yielded: Any, error: type[Exception], words: str
) -> None:
    one = follow(read.generator(lambda _: iter([yielded])))

    with pytest.raises(error, match=words):
        one.start().run()


def test_a_fault_of_the_function_is_told_with_its_line(follow: Callable[..., Follow]) -> None:
    def fn(_: Any) -> Iterator[tuple[int, int]]:
        yield 1, 1
        raise KeyError("id")

    one = follow(read.generator(fn))

    with pytest.raises(PipelineError, match=r"raised KeyError: 'id' \(.*test_following\.py:\d+\)"):
        one.start().run()
    assert one.values() == [1]


def test_a_value_that_cannot_be_stored_is_a_dead_letter_and_the_next_ones_go_on(follow: Callable[..., Follow]) -> None:
    one = follow(read.generator(lambda at: iter([(1, "a"), (2, object()), (3, "c")][at or 0 :])))
    one.until(lambda: len(one.values()) >= 2)

    assert one.values() == ["a", "c"]
    assert len(one.job.letters()) == 1


def test_a_slow_generator_does_not_keep_back_what_it_has_made(follow: Callable[..., Follow]) -> None:
    """The second value never comes: a reader that waits for it would keep the first."""
    gate = threading.Event()

    def fn(_: int | None) -> Iterator[tuple[int, int]]:
        yield 1, 1
        gate.wait()

    one = follow(read.generator(fn))
    one.until(lambda: one.values() == [1])
    gate.set()
