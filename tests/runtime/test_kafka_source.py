"""A Kafka topic as a source, on the mock cluster of librdkafka: each message once, in order per partition."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Callable, Iterator
from typing import Any

import confluent_kafka as kafka
import pytest

from pipeline import read
from pipeline.errors import EnvironmentFault, InputError, PipelineError
from pipeline.plan import compile_plan
from pipeline.settings import Limits
from tests.runtime.followed import Follow

TOPIC = "theirs"
PARTITIONS = 4
"""As many as the mock cluster gives a topic."""


class Cluster:
    """A mock cluster of one broker, which lives as long as the producer that made it."""

    def __init__(self) -> None:
        self.producer = kafka.Producer({"bootstrap.servers": "mock", "test.mock.num.brokers": 1, "log_level": 0})
        brokers = self.producer.list_topics(timeout=10).brokers.values()
        self.servers = ",".join(f"{each.host}:{each.port}" for each in brokers)

    def send(self, first: int, last: int, partition: int | None = None) -> None:
        for number in range(first, last + 1):
            where = number % PARTITIONS if partition is None else partition
            self.raw(json.dumps(number).encode(), where, key=f"k{number}".encode())
        assert self.producer.flush(10) == 0

    def raw(self, value: bytes | None, partition: int = 0, key: bytes | None = None) -> None:
        self.producer.produce(TOPIC, value, key=key, partition=partition, timestamp=1_700_000_000_000)


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    made = Cluster()
    yield made
    made.producer.flush(10)


def in_order(values: list[Any]) -> dict[int, list[int]]:
    found: dict[int, list[int]] = defaultdict(list)
    for value in values:
        found[value % PARTITIONS].append(value)
    return dict(found)


def expected(first: int, last: int) -> dict[int, list[int]]:
    return in_order(list(range(first, last + 1)))


def test_every_partition_is_read_once_and_in_its_order_by_one_feeder_after_another(
    follow: Callable[..., Follow], cluster: Cluster
) -> None:
    cluster.send(0, 99)
    one = follow(read.kafka(cluster.servers, TOPIC))
    one.until(lambda: len(one.values()) >= 100, pause=True)
    cluster.send(100, 149)
    one.start()
    one.until(lambda: len(one.values()) >= 150, pause=True)
    one.rounds(5)

    assert in_order(one.values()) == expected(0, 149)
    assert one.feed().splits() == [f"partition-{number}" for number in range(PARTITIONS)]


@pytest.mark.parametrize("moment", ["before", "after"])
def test_a_feeder_that_dies_at_any_call_loses_and_doubles_nothing(
    follow: Callable[..., Follow], cluster: Cluster, moment: Any
) -> None:
    one = follow(read.kafka(cluster.servers, TOPIC), limits=Limits(inbox_records=64))
    for ahead in range(1, 9):
        cluster.send(20 * ahead - 20, 20 * ahead - 1)
        one.scripts.break_call(moment, ahead)
        one.rounds(3)
    one.scripts.faults.clear()

    one.until(lambda: len(one.values()) >= 160, pause=True)

    assert in_order(one.values()) == expected(0, 159)


def test_keys_values_and_what_is_no_json(follow: Callable[..., Follow], cluster: Cluster) -> None:
    cluster.raw(b'{"a": 1}', key=b"k")
    cluster.raw(b"{broken", key=b"k")
    cluster.raw(None, key=b"\xff")
    cluster.raw(b"[]")
    cluster.producer.flush(10)
    one = follow(read.kafka(cluster.servers, TOPIC, with_keys=True))

    one.until(lambda: len(one.values()) >= 3, pause=True)

    assert one.values() == [
        {"key": "k", "value": {"a": 1}},
        {"key": b"\xff", "value": None},
        {"key": None, "value": []},
    ]
    (letter,) = one.job.letters()
    assert "partition 0 of the topic 'theirs': offset 1: no JSON" in letter.error


@pytest.mark.parametrize(("kind", "value"), [("text", "\ufffda"), ("bytes", b"\xffa")])
def test_values_can_be_text_or_bytes(follow: Callable[..., Follow], cluster: Cluster, kind: str, value: Any) -> None:
    cluster.raw(b"\xffa")
    cluster.producer.flush(10)
    one = follow(read.kafka(cluster.servers, TOPIC, values=kind))

    one.until(lambda: len(one.values()) == 1, pause=True)

    assert one.values() == [value]


def test_a_topic_that_does_not_exist_ends_the_job(follow: Callable[..., Follow], cluster: Cluster) -> None:
    one = follow(read.kafka(cluster.servers, "nobody-made-this"))

    with pytest.raises(InputError, match="there is no topic 'nobody-made-this' on 127"):
        one.start().run()


def test_a_topic_that_was_made_anew_is_noticed(follow: Callable[..., Follow], cluster: Cluster) -> None:
    """The offset that is stored lies behind all that the topic has now."""
    cluster.send(0, 199)
    one = follow(read.kafka(cluster.servers, TOPIC))
    one.until(lambda: len(one.values()) == 200, pause=True)
    other = Cluster()
    other.send(0, 7)
    spec = read.kafka(other.servers, TOPIC)
    one.spec = spec
    one.start()

    with pytest.raises(InputError, match=r"was made anew: its next offset is 2, and 50 messages were there before"):
        one.until(lambda: False, rounds=200, pause=True)


def test_messages_that_were_deleted_before_they_were_read_are_counted(
    follow: Callable[..., Follow], cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The mock cluster deletes nothing by itself: what it would say then is put in its place."""
    cluster.send(0, 199)
    one = follow(read.kafka(cluster.servers, TOPIC))
    one.until(lambda: len(one.values()) == 200, pause=True)
    other = Cluster()
    other.send(0, 7)
    monkeypatch.setattr("pipeline.sources.kafkatopic.KafkaTopic.bounds", lambda *_: (60, 90))
    one.spec = read.kafka(other.servers, TOPIC)
    one.start()

    with pytest.raises(InputError, match="was trimmed: 10 messages from 50 on were deleted before they were read"):
        one.until(lambda: False, rounds=200, pause=True)


def test_what_was_lost_may_be_left_out_and_is_told(
    follow: Callable[..., Follow], cluster: Cluster, caplog: pytest.LogCaptureFixture
) -> None:
    cluster.send(0, 199)
    one = follow(read.kafka(cluster.servers, TOPIC, on_lost="continue"))
    one.until(lambda: len(one.values()) == 200, pause=True)
    other = Cluster()
    other.send(1_000, 1_007)
    one.spec = read.kafka(other.servers, TOPIC, on_lost="continue")
    one.start()

    one.until(lambda: len(one.values()) == 208, pause=True)

    assert in_order(one.values()[200:]) == expected(1_000, 1_007)
    assert "was made anew" in caplog.text


def test_a_broker_that_does_not_answer_is_waited_for(
    follow: Callable[..., Follow], redis_url: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert redis_url
    monkeypatch.setattr("pipeline.sources.kafkatopic.ANSWER_SECONDS", 0.2)
    one = follow(read.kafka("127.0.0.1:1", TOPIC, config={"log_level": "0"}))

    one.rounds(2)

    assert "waiting for the source: the topic 'theirs' on 127.0.0.1:1: " in caplog.text


def test_settings_may_hold_secrets_and_enter_no_plan(follow: Callable[..., Follow], redis_url: str) -> None:
    assert redis_url
    spec = read.kafka("h:1", TOPIC, config={"sasl.password": "s3cret", "sasl.username": "env:NOBODY_SETS_THIS"})
    one = follow(spec)

    assert b"s3cret" not in compile_plan(one.job.graph, 1, Limits()).encode()
    assert "s3cret" not in repr(spec)
    with pytest.raises(EnvironmentFault, match="NOBODY_SETS_THIS, which is not set"):
        one.start()


def test_a_setting_that_librdkafka_does_not_have_is_named(follow: Callable[..., Follow], redis_url: str) -> None:
    assert redis_url
    with pytest.raises(InputError, match=r'read\.kafka: No such configuration property: "securty.protocol"'):
        follow(read.kafka("h:1", TOPIC, config={"securty.protocol": "ssl"})).start().run()


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"values": "avro"}, "values must be one of json, text, bytes"),
        ({"on_lost": None}, "on_lost must be one of"),
        ({"config": {"a": 1}}, "config must be a dict of text"),
    ],
)
def test_a_bad_argument_is_named(options: dict[str, Any], words: str) -> None:
    with pytest.raises(PipelineError, match=f"read.kafka: {words}"):
        read.kafka("h:1", TOPIC, **options)
