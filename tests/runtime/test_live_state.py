"""`client.state`: the state of keys as it was committed, shown as results."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from pipeline import Aggregation, Pipeline, count, maximum, mean, minimum, read, total, write
from pipeline.client import Client, StateValue
from pipeline.errors import ReadingError, UnknownJob
from pipeline.reading.live import LiveState
from tests.runtime.harness import LocalJob

OWN = Aggregation("mean(own)", lambda: [0, 0], lambda held, value: [held[0] + value, held[1] + 1], lambda held: held[0])
"""One of the user's own, with the name of a built-in: its result is not known outside the pipeline's file."""


def user_of(order: list[Any]) -> Any:
    """A list stands for the tuple that it was."""
    return tuple(order[0]) if isinstance(order[0], list) else order[0]


def remember(_key: Any, value: int, state: list[int] | None) -> tuple[int, list[int]]:
    return value, [*(state or []), value]


def a_flow() -> Pipeline:
    flow = Pipeline("shop")
    orders = flow.source(read.iterable([0]), name="orders")
    by_user = orders.key_by(user_of, name="by_user").map(lambda order: order[1], name="amount")
    by_user.aggregate(mean(), name="average").sink(write.stream("averages"), name="one")
    several = by_user.aggregate(
        n=count(), sum=total(), mean=mean(), least=minimum(), most=maximum(), own=OWN, name="several"
    )
    several.last(name="newest").sink(write.stream("newest"), name="two")
    by_user.stateful_map(remember, name="history").sink(write.stream("history"), name="three")
    orders.key_by(lambda order: order[1], name="by_amount").aggregate(count(), name="times").sink(
        write.stream("times"), name="four"
    )
    return flow


@pytest.fixture
def job(redis_url: str) -> Iterator[LocalJob]:
    with LocalJob(redis_url, a_flow()) as made:
        made.assign()
        made.send([["ann", 1], ["ann", 2], ["ann", 4], ["bob", 10], [1, 5], ["1", 6], [("t", 1), 7], [b"\x00", 8]])
        made.run_until_idle()
        yield made


@pytest.fixture
def state(job: LocalJob, redis_url: str) -> Iterator[LiveState]:
    with Client(redis_url) as client:
        yield client.state(job.job)


def test_a_mean_is_shown_as_the_mean_and_its_state_beside_it(state: LiveState) -> None:
    assert state.get("by_user", "ann", "average") == StateValue("ann", "average", 7 / 3, [7, 0, 0.0, 3])


def test_every_built_in_aggregation_is_shown_as_its_result(state: LiveState) -> None:
    found = state.get("several", "ann")

    assert found is not None
    assert found.result == {"n": 3, "sum": 7, "mean": 7 / 3, "least": 1, "most": 4, "own": [7, 3]}
    assert found.raw == [3, [7, 0, 0.0], [7, 0, 0.0, 3], 1, 4, [7, 3]]


@pytest.mark.parametrize("stage", ["by_user", "amount", 1, "1"])
def test_a_stage_is_named_by_number_by_its_key_or_by_an_operator_in_it(state: LiveState, stage: Any) -> None:
    assert list(state.operators(stage, "bob")) == ["average", "several", "newest", "history"]


def test_an_operator_with_state_is_meant_alone(state: LiveState) -> None:
    assert state.get("history", "ann") == StateValue("ann", "history", [1, 2, 4], [1, 2, 4])
    assert state.get("newest", "bob").result["sum"] == 10
    assert state.get("by_amount", 4).result == 1


def test_keys_of_different_types_are_different_keys(state: LiveState) -> None:
    found = [state.get("history", key).result for key in (1, "1", ("t", 1), b"\x00")]

    assert found == [[5], [6], [7], [8]]
    assert state.get("history", 2) is None
    assert state.get("history", "t") is None


def test_all_keys_and_items_are_found_once(state: LiveState) -> None:
    assert set(state.keys("by_user")) == {"ann", "bob", 1, "1", ("t", 1), b"\x00"}
    assert len(list(state.keys("by_user"))) == 6
    assert {item.key: item.result for item in state.items("by_amount")} == dict.fromkeys((1, 2, 4, 10, 5, 6, 7, 8), 1)
    assert len(list(state.items("by_user"))) == 6 * 4
    assert {item.operator for item in state.items("by_user", operator="average")} == {"average"}


def test_keys_are_found_by_prefix_and_up_to_a_limit(state: LiveState) -> None:
    assert list(state.keys("by_user", prefix="a")) == ["ann"]
    assert set(state.keys("by_user", prefix="")) == {"ann", "bob", "1"}
    assert len(list(state.keys("by_user", limit=2))) == 2
    assert [item.key for item in state.items("history", prefix="bo")] == ["bob"]


def test_many_keys_come_in_pages_each_once(job: LocalJob, state: LiveState) -> None:
    job.send([[f"user-{number}", number] for number in range(5_000)])
    job.run_until_idle()

    found = list(state.keys("average", prefix="user-"))

    assert len(found) == 5_000
    assert set(found) == {f"user-{number}" for number in range(5_000)}


def test_state_is_what_was_committed_and_follows_the_job(job: LocalJob, state: LiveState) -> None:
    job.send([["bob", 20]])
    assert state.get("history", "bob").result == [10]
    job.run_until_idle()

    assert state.get("history", "bob").result == [10, 20]


def test_what_is_asked_for_wrongly_is_answered_with_what_there_is(state: LiveState) -> None:
    for stage, operator, message, hint in [
        ("by_users", None, "the job 'j' has no stage 'by_users'", "did you mean 'by_user'?"),
        (9, None, "has no stage 9", "there are: by_user, by_amount"),
        ("orders", None, r"the stage 0 \('orders'\) of job 'j' has no keys", "there are: 1 (by_user), 2 (by_amount)"),
        ("by_user", "averge", "the stage 'by_user' has no operator 'averge' with state", "did you mean 'average'?"),
        (
            "by_user",
            None,
            "several operators hold state for the key 'ann': average, several, newest, history",
            "name one",
        ),
    ]:
        with pytest.raises(ReadingError, match=message) as wrong:
            state.get(stage, "ann", operator)
        assert wrong.value.hint == hint


@pytest.mark.parametrize("key", [1.5, True, None, ["a"], {"a": 1}, 2**70, "\ud800"])
def test_what_cannot_be_a_key_is_refused(state: LiveState, key: Any) -> None:
    with pytest.raises(ReadingError):
        state.get("average", key)


def test_a_job_that_is_gone_is_no_job_without_state(job: LocalJob, state: LiveState, redis_url: str) -> None:
    job.jobs.erase("j")

    with pytest.raises(UnknownJob):
        state.get("average", "ann")
    with pytest.raises(UnknownJob):
        state.keys("average")
    with Client(redis_url) as client, pytest.raises(UnknownJob):
        client.state("j")


def test_a_plan_that_does_not_say_which_operators_have_state_is_read_all_the_same(redis_url: str) -> None:
    with LocalJob(redis_url, a_flow()) as job, Client(redis_url) as client:
        plan = job.client.hget("celeriac:{j}:job", "plan")
        job.client.hset("celeriac:{j}:job", "plan", plan[: plan.index(b',"states"')] + b"}")
        job.assign()
        job.send([["ann", 3]])
        job.run_until_idle()
        state = client.state("j")

        assert state.get("average", "ann").raw == [3, 0, 0.0, 1]
        assert list(state.operators("by_user", "ann")) == ["average", "several", "newest", "history"]


def test_reading_changes_nothing(job: LocalJob, state: LiveState) -> None:
    before = job.client.dbsize(), job.client.info("persistence")["rdb_changes_since_last_save"]

    state.get("average", "ann")
    list(state.items("by_user"))

    assert (job.client.dbsize(), job.client.info("persistence")["rdb_changes_since_last_save"]) == before
