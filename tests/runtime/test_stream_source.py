"""A Redis stream of others as a source: each entry once and in order, and no loss goes unnoticed."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import redis
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pipeline import read
from pipeline.embedded.redis import EmbeddedRedis
from pipeline.errors import EnvironmentFault, InputError, PipelineError
from pipeline.plan import compile_plan
from pipeline.settings import Limits
from tests.e2e.chaos import wait_until
from tests.runtime.followed import Follow

pytestmark = pytest.mark.foreign_keys("theirs")


@pytest.fixture
def client(redis_url: str) -> Iterator[redis.Redis]:
    with redis.Redis.from_url(redis_url) as made:
        yield made


def add(client: redis.Redis, *numbers: int) -> None:
    for number in numbers:
        client.xadd("theirs", {"n": str(number)}, id=f"{number}-0")


def numbers_of(values: list[Any]) -> list[int]:
    return [int(value["n"]) for value in values]


def test_entries_come_as_dicts_of_text_once_and_in_order(
    follow: Callable[..., Follow], client: redis.Redis, redis_url: str
) -> None:
    client.xadd("theirs", {"a": "1", "b": b"\xff"}, id="5-1")
    one = follow(read.redis_stream(redis_url, "theirs", with_ids=True))
    one.rounds(3)
    client.xadd("theirs", {"a": "2"}, id="5-2")
    one.start()
    one.rounds(3)

    assert one.values() == [
        {"id": "5-1", "value": {"a": "1", "b": b"\xff"}},
        {"id": "5-2", "value": {"a": "2"}},
    ]


def test_a_long_stream_is_read_in_pages(follow: Callable[..., Follow], client: redis.Redis, redis_url: str) -> None:
    add(client, *range(1, 1_001))
    one = follow(read.redis_stream(redis_url, "theirs"))

    one.until(lambda: len(one.values()) == 1_000)

    assert numbers_of(one.values()) == list(range(1, 1_001))


def test_a_stream_that_is_not_there_yet_is_waited_for(
    follow: Callable[..., Follow], client: redis.Redis, redis_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    one = follow(read.redis_stream(redis_url, "theirs"))
    one.rounds(3)
    assert "there is no stream 'theirs' on " in caplog.text

    add(client, 1)

    one.until(lambda: numbers_of(one.values()) == [1])


@pytest.mark.parametrize("trim", ["past the reader", "everything"])
def test_entries_that_were_trimmed_unread_end_the_job_with_the_ids(
    follow: Callable[..., Follow], client: redis.Redis, redis_url: str, trim: str
) -> None:
    add(client, 1, 2, 3)
    one = follow(read.redis_stream(redis_url, "theirs"))
    one.rounds(3)
    add(client, 4, 5, 6)
    client.xtrim("theirs", maxlen=1 if trim == "past the reader" else 0, approximate=False)

    left = "6-0" if trim == "past the reader" else "nothing"
    with pytest.raises(
        InputError, match=f"was trimmed: 3-0 was read last, and the oldest left is {left}; entries"
    ) as caught:
        one.start().round()
    assert 'on_lost="continue"' in caught.value.hint


def test_a_loss_that_is_allowed_is_told_and_reading_goes_on(
    follow: Callable[..., Follow], client: redis.Redis, redis_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    add(client, 1, 2, 3)
    one = follow(read.redis_stream(redis_url, "theirs", on_lost="continue"))
    one.rounds(3)

    add(client, 4, 5, 6)
    client.xtrim("theirs", maxlen=1, approximate=False)
    one.rounds(3)

    assert numbers_of(one.values()) == [1, 2, 3, 6]
    assert "3-0 was read last, and the oldest left is 6-0" in caplog.text


def test_a_stream_that_was_trimmed_behind_its_reader_has_lost_nothing(
    follow: Callable[..., Follow], client: redis.Redis, redis_url: str
) -> None:
    add(client, 1, 2, 3)
    one = follow(read.redis_stream(redis_url, "theirs"))
    one.rounds(3)

    client.xtrim("theirs", maxlen=0, approximate=False)
    one.start()
    one.rounds(3)

    assert numbers_of(one.values()) == [1, 2, 3]


def test_a_stream_that_was_made_anew_is_noticed(
    follow: Callable[..., Follow], client: redis.Redis, redis_url: str
) -> None:
    add(client, 7, 8)
    one = follow(read.redis_stream(redis_url, "theirs"))
    one.rounds(3)
    client.delete("theirs")
    add(client, 1)

    with pytest.raises(InputError, match="was made anew: its newest id is 1-0, and 8-0 was read before"):
        one.start().round()


def test_a_stream_that_was_made_anew_is_read_from_its_beginning_where_losses_are_allowed(
    follow: Callable[..., Follow], client: redis.Redis, redis_url: str
) -> None:
    add(client, 7, 8)
    one = follow(read.redis_stream(redis_url, "theirs", on_lost="continue"))
    one.rounds(3)
    client.delete("theirs")
    add(client, 1, 2)
    one.rounds(5)

    assert numbers_of(one.values()) == [7, 8, 1, 2]


def test_a_key_that_holds_no_stream_ends_the_job(
    follow: Callable[..., Follow], client: redis.Redis, redis_url: str
) -> None:
    client.set("theirs", "text")

    with pytest.raises(InputError, match=r"the stream 'theirs' on .* is no stream: WRONGTYPE"):
        follow(read.redis_stream(redis_url, "theirs")).start().round()


def test_a_redis_that_is_away_is_waited_for(
    follow: Callable[..., Follow], redis_url: str, caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    caplog.set_level("INFO")
    assert redis_url
    with EmbeddedRedis.start(tmp_path / "theirs") as server:
        with redis.Redis.from_url(server.url) as theirs:
            add(theirs, 1, 2)
        one = follow(read.redis_stream(server.url, "theirs"))
        one.rounds(3)
        os.kill(server.pid, signal.SIGKILL)
        wait_until(lambda: not server.is_alive(), "the server has died")
        one.rounds(5)
        assert "waiting for entries: the stream 'theirs'" in caplog.text
        server.restart()
        with redis.Redis.from_url(server.url) as theirs:
            add(theirs, 3)

        one.until(lambda: numbers_of(one.values()) == [1, 2, 3])
    assert "entries is there again" in caplog.text


def test_the_password_is_neither_in_the_plan_nor_in_a_message(redis_url: str, follow: Callable[..., Follow]) -> None:
    assert redis_url
    spec = read.redis_stream("redis://me:s3cret@127.0.0.1:1/0", "theirs")
    one = follow(spec)

    plan = compile_plan(one.job.graph, 1, Limits())

    assert b"s3cret" not in plan.encode()
    assert "s3cret" not in repr(spec)
    assert one.job.graph.node("in").spec.secrets == {"url": "redis://me:s3cret@127.0.0.1:1/0"}  # type: ignore[union-attr]


def test_a_variable_that_is_not_set_is_named(redis_url: str, follow: Callable[..., Follow]) -> None:
    assert redis_url
    with pytest.raises(EnvironmentFault, match="in the variable NOBODY_SETS_THIS, which is not set"):
        follow(read.redis_stream("env:NOBODY_SETS_THIS", "theirs")).start()


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: read.redis_stream("localhost", "k"), "the address has no scheme"),
        (lambda: read.redis_stream("redis://h", ""), "key must be text"),
        (lambda: read.redis_stream("redis://h", "k", on_lost="skip"), "on_lost must be one of fail, continue"),
        (lambda: read.redis_stream("redis://h", "k", with_ids=1), "with_ids must be True or False"),  # type: ignore[arg-type]
    ],
)
def test_a_bad_argument_is_named(call: Callable[[], Any], words: str) -> None:
    with pytest.raises(PipelineError, match=f"read.redis_stream: .*{words}"):
        call()


@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(operations=st.lists(st.sampled_from(["add", "many", "kill", "before", "after", "round"]), max_size=30))
def test_whatever_dies_each_entry_comes_once_and_in_order(redis_url: str, operations: list[str]) -> None:
    with redis.Redis.from_url(redis_url) as client:
        client.flushall()
        one = Follow(redis_url, read.redis_stream(redis_url, "theirs"), limits=Limits(inbox_records=64))
        count = 0
        for operation in [*operations, "add"]:
            match operation:
                case "add" | "many":
                    more = 1 if operation == "add" else 150
                    add(client, *range(count + 1, count + more + 1))
                    count += more
                case "kill":
                    one.start()
                case "round":
                    one.rounds(2)
                case "before" | "after" as moment:
                    one.scripts.break_call(moment, 2)
        one.scripts.faults.clear()
        one.until(lambda: len(one.values()) >= count)
        one.rounds(3)

        assert numbers_of(one.values()) == list(range(1, count + 1))
        one.close()
