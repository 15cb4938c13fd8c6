"""What a producer refuses before anything is sent: each error names the field."""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import UTC, datetime, timedelta, timezone
from decimal import Decimal
from typing import Any

import msgspec
import pytest

from pipeline import read
from pipeline.errors import EncodingError, PipelineError, ProducerError
from pipeline.plan import PRODUCER_FORMAT, Plan, SourcePlan
from pipeline.producer import Producer
from pipeline.producing.bounds import Bounds, check_timeout
from pipeline.producing.opening import choose_source
from pipeline.producing.outgoing import Outgoing, Packer
from pipeline.settings import Limits

NOW = 1_700_000_000_000


def a_record(
    key: Any = "k",
    value: Any = 1,
    timestamp: Any = None,
    id: Any = None,
    *,
    record_bytes: int = 1000,
    with_keys: bool = False,
) -> Outgoing:
    return Packer(record_bytes, with_keys).pack(key, value, timestamp, id, NOW)


def sent(record: Outgoing) -> Any:
    return msgspec.msgpack.decode(bytes(record.data))


def looped() -> list[Any]:
    loop: list[Any] = []
    loop.append(loop)
    return loop


UNFIT: dict[str, tuple[dict[str, Any], str]] = {
    "value of an unknown type": ({"value": Decimal}, "value: "),
    "a part of the value": ({"value": {"items": [{"price": 1}, {"price": {1, object()}}]}}, "value.items[1].price: "),
    "a value that contains itself": ({"value": looped()}, "value[0][0]"),
    "half a character in a value": ({"value": {"name": "\ud800"}}, "value.name: "),
    "a large number": ({"value": [2**70]}, "value[0]: "),
    "a large value": ({"value": "x" * 1000}, "value: the record has 1,004 bytes, more than the 1,000"),
    "a large key": ({"key": "x" * 1001}, "key: it has 1,001 bytes"),
    "key and value together": ({"key": "x" * 600, "value": "y" * 600}, "value: the record has 1,203 bytes"),
    "a key that is a float": ({"key": 1.5}, "key: a key must be text"),
    "a key that is a bool": ({"key": True}, "key: a key must be text"),
    "half a character in a key": ({"key": "\ud800"}, "key: "),
    "a key that cannot travel": ({"key": 2**70, "with_keys": True}, "key: "),
    "an id that is no text": ({"id": 7}, "id: it must be text"),
    "an empty id": ({"id": ""}, "id: it must be text"),
    "a long id": ({"id": "é" * 600}, "id: it has 1,200 bytes"),
    "half a character in an id": ({"id": "\ud800"}, "id: "),
    "seconds for a timestamp": ({"timestamp": 1.5}, "timestamp: 1.5 is no time"),
    "a bool for a timestamp": ({"timestamp": True}, "timestamp: True is no time"),
    "a text for a timestamp": ({"timestamp": "today"}, "timestamp: 'today' is no time"),
    "a timestamp out of range": ({"timestamp": 2**53}, "timestamp: "),
    "a datetime without a zone": ({"timestamp": datetime(2024, 1, 1)}, "timestamp: 2024-01-01 00:00:00 has no time"),
}


@pytest.mark.parametrize(("fields", "message"), UNFIT.values(), ids=UNFIT.keys())
def test_a_record_that_cannot_be_sent_is_refused_by_the_name_of_its_field(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(EncodingError, match="^" + re.escape(message)):
        a_record(**fields)


def test_a_record_of_exactly_the_limit_is_taken() -> None:
    assert a_record(key=None, value="x" * 997, record_bytes=1000).hash is None


def test_what_is_done_to_a_value_after_sending_does_not_reach_the_record() -> None:
    value = {"a": [1]}
    record = a_record(value=value)

    value["a"].append(2)

    assert sent(record) == {"a": [1]}


def test_a_source_with_keys_gets_key_and_value() -> None:
    assert sent(a_record("k", [1], with_keys=True)) == {"key": "k", "value": [1]}
    assert sent(a_record(None, 1, with_keys=True)) == {"key": None, "value": 1}


@pytest.mark.parametrize(
    ("timestamp", "milliseconds"),
    [
        (None, NOW),
        (5, 5),
        (datetime(2024, 1, 1, tzinfo=UTC), 1_704_067_200_000),
        (datetime(2024, 1, 1, 1, tzinfo=timezone(timedelta(hours=1))), 1_704_067_200_000),
    ],
)
def test_a_timestamp_is_in_milliseconds_and_by_default_now(timestamp: Any, milliseconds: int) -> None:
    assert a_record(timestamp=timestamp).time_ms == milliseconds


@pytest.mark.parametrize(
    "bounds",
    [
        {"lanes": 0},
        {"lanes": 65},
        {"lanes": True},
        {"batch_records": 0},
        {"batch_bytes": 1.5},
        {"buffer_bytes": -1},
        {"linger_seconds": -0.1},
        {"linger_seconds": "1"},
        {"full_timeout_seconds": float("nan")},
        {"full_timeout_seconds": float("inf")},
    ],
)
def test_a_bound_out_of_its_range_is_refused_by_its_name(bounds: dict[str, Any]) -> None:
    with pytest.raises(ProducerError, match=next(iter(bounds))):
        Bounds(**bounds)


def test_a_timeout_is_a_number_of_seconds() -> None:
    assert check_timeout(None, 3.0) == 3.0
    assert check_timeout(0, 3.0) == 0
    with pytest.raises(ProducerError, match="timeout_seconds"):
        check_timeout(-1, 3.0)


def test_a_producer_needs_an_address_and_takes_it_from_the_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CELERIAC_REDIS", raising=False)
    with pytest.raises(ProducerError) as caught:
        Producer("j")
    assert "CELERIAC_REDIS" in caught.value.hint

    monkeypatch.setenv("CELERIAC_REDIS", "redis://:secret@host/0")
    producer = Producer("j", name="web-1")
    assert "secret" not in repr(producer)
    assert "web-1" in repr(producer)


@pytest.mark.parametrize("name", ["", "_hidden", "a/b", "a b", "x" * 65, "a\n"])
def test_a_name_that_could_be_mistaken_is_refused(name: str) -> None:
    with pytest.raises(ProducerError, match="name"):
        Producer("j", "redis://host/0", name=name)


def a_plan(*sources: tuple[str, str]) -> Plan:
    return Plan(1, "p", "f", (), (), Limits(), tuple(SourcePlan(name, format_, {}) for name, format_ in sources))


def test_the_only_source_that_takes_records_needs_no_name() -> None:
    plan = a_plan(("files", "text"), ("events", PRODUCER_FORMAT))

    assert choose_source(plan, "j", None).name == "events"
    assert choose_source(plan, "j", "events").name == "events"


@pytest.mark.parametrize(
    ("sources", "wanted", "message"),
    [
        ([("files", "text")], None, "no source that takes records"),
        ([("one", PRODUCER_FORMAT), ("two", PRODUCER_FORMAT)], None, "several sources that take records: one, two"),
        ([("files", "text"), ("one", PRODUCER_FORMAT)], "files", "no source 'files' that takes records"),
        ([("events", PRODUCER_FORMAT)], "event", "no source 'event'"),
    ],
)
def test_a_source_that_takes_no_records_is_refused(
    sources: list[tuple[str, str]], wanted: str | None, message: str
) -> None:
    with pytest.raises(ProducerError, match=message) as caught:
        choose_source(a_plan(*sources), "j", wanted)

    assert caught.value.hint


MISTAKES: list[Callable[[], object]] = [
    lambda: read.producer(with_keys=1),  # type: ignore[arg-type]
    lambda: read.producer(id_seconds=0),
    lambda: read.producer(id_seconds=1.5),  # type: ignore[arg-type]
    lambda: read.producer(id_count=True),
    lambda: read.producer(id_count=10**10),
]


@pytest.mark.parametrize("make", MISTAKES)
def test_read_producer_refuses_bounds_that_are_none(make: Callable[[], object]) -> None:
    with pytest.raises(PipelineError, match=r"read\.producer: "):
        make()


def test_read_producer_is_a_source_of_plain_data() -> None:
    spec = read.producer(with_keys=True, id_seconds=60, id_count=10)

    assert (spec.format, spec.path, spec.items) == (PRODUCER_FORMAT, "", None)
    assert spec.options == {"with_keys": True, "id_seconds": 60, "id_count": 10}
