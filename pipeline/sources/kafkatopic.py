"""Messages of a Kafka topic, by confluent-kafka, which is an extra.

Each topic partition is a split, its position an offset. One consumer reads all; it joins no group and commits nothing.
"""

from __future__ import annotations

import logging
import time
from collections import defaultdict, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import msgspec

from pipeline.errors import CeleriacError, EnvironmentFault, InputError, SourceAway
from pipeline.graph import SourceSpec
from pipeline.records import Batch
from pipeline.sinks.secrets import value_of
from pipeline.sources.endless import After, Portion, foreign_position, nothing
from pipeline.sources.feed import BATCH_BYTES, BATCH_RECORDS, FAULT_CHARACTERS
from pipeline.store.foreignstream import text_or_bytes

try:
    import confluent_kafka as kafka
except ModuleNotFoundError as error:
    raise EnvironmentFault("read.kafka needs a Kafka client", hint="pip install 'celeriac[kafka]'") from error

LOOK_SECONDS: Final = 30.0
"""How often new partitions of the topic are looked for."""

ANSWER_SECONDS: Final = 5.0

_TAKEN_AT_ONCE: Final = 1_000
_AHEAD: Final = 4 * BATCH_RECORDS
"""Messages of all partitions that are kept before they are taken."""

_AHEAD_KILOBYTES: Final = 16_384

_LASTING: Final = frozenset(
    getattr(kafka.KafkaError, name)
    for name in (
        "UNKNOWN_TOPIC_OR_PART",
        "_UNKNOWN_TOPIC",
        "_UNKNOWN_PARTITION",
        "TOPIC_EXCEPTION",
        "TOPIC_AUTHORIZATION_FAILED",
        "CLUSTER_AUTHORIZATION_FAILED",
        "SASL_AUTHENTICATION_FAILED",
        "UNSUPPORTED_SASL_MECHANISM",
        "_AUTHENTICATION",
    )
)

_log = logging.getLogger(__name__)


class KafkaTopic:
    """A `pipeline.sources.endless.Source`."""

    def __init__(self, spec: SourceSpec, clock: Callable[[], float] = time.monotonic) -> None:
        """Connects to nothing. Raises EnvironmentFault for a variable that is not set."""
        self.poll_seconds: float = spec.options["poll_seconds"]
        self.topic: str = spec.options["topic"]
        self.options = spec.options
        self._servers: str = spec.options["servers"]
        self._config = {name: value_of(text, "read.kafka") for name, text in spec.secrets.items()}
        self._clock = clock
        self._consumer: Any = None
        self._look_at = 0.0
        self._known: set[int] = set()
        self._waiting: list[int] = []
        self._ahead: dict[int, deque[Any]] = defaultdict(deque)
        self._trouble: Any = None

    def look(self, room: int) -> Sequence[TopicPartition]:
        now = self._clock()
        if now >= self._look_at:
            found = self._partitions()
            self._look_at = now + LOOK_SECONDS
            self._waiting = sorted(found - self._known)
        given, self._waiting = self._waiting[:room], self._waiting[room:]
        self._known.update(given)
        return [TopicPartition(self, number) for number in given]

    def forgettable(self) -> Sequence[str]:
        return ()

    def close(self) -> None:
        if self._consumer is not None:
            self._consumer.close()
            self._consumer = None

    def assign(self, partition: int, offset: int) -> None:
        """Reads this partition from the offset on, beside the others."""
        self._ahead.pop(partition, None)
        new = kafka.TopicPartition(self.topic, partition, offset)
        self._call(lambda consumer: consumer.incremental_unassign([new]) if partition in self._assigned() else None)
        self._call(lambda consumer: consumer.incremental_assign([new]))

    def unassign(self, partition: int) -> None:
        self._ahead.pop(partition, None)
        if self._consumer is not None and partition in self._assigned():
            self._consumer.incremental_unassign([kafka.TopicPartition(self.topic, partition)])

    def take(self, partition: int) -> list[Any]:
        """Messages of this partition that have come, an error among them perhaps. Raises SourceAway, InputError."""
        ahead = self._ahead[partition]
        if not ahead and sum(map(len, self._ahead.values())) < _AHEAD:
            for message in self._call(lambda consumer: consumer.consume(_TAKEN_AT_ONCE, 0.0)):
                number = message.partition()
                if number is not None and number >= 0:
                    self._ahead[number].append(message)
                else:
                    self._trouble = message.error()
        if not ahead and self._trouble is not None:
            trouble, self._trouble = self._trouble, None
            raise self.translated(trouble)
        taken: list[Any] = []
        size = 0
        while ahead and len(taken) < BATCH_RECORDS and size < BATCH_BYTES:
            taken.append(ahead.popleft())
            size += len(taken[-1].value() or b"")
        return taken

    def bounds(self, partition: int) -> tuple[int, int]:
        """The oldest offset that is there, and the next one that will be. Raises SourceAway."""
        place = kafka.TopicPartition(self.topic, partition)
        low, high = self._call(lambda consumer: consumer.get_watermark_offsets(place, timeout=ANSWER_SECONDS))
        return low, high

    def translated(self, error: Any) -> CeleriacError:
        """SourceAway for what may pass, InputError for what will not."""
        text = f"the topic {self.topic!r} on {self._servers}: {error.str()}"
        if error.code() in _LASTING or error.fatal():
            return InputError(text, hint="check the topic's name, and user, password and rights in config=")
        return SourceAway(text)

    def _partitions(self) -> set[int]:
        found = self._call(lambda consumer: consumer.list_topics(self.topic, timeout=ANSWER_SECONDS))
        topic = found.topics.get(self.topic)
        if topic is None or (topic.error is None and not topic.partitions):
            raise SourceAway(f"the topic {self.topic!r} on {self._servers} has no partitions yet")
        if topic.error is not None:
            if topic.error.code() == kafka.KafkaError.UNKNOWN_TOPIC_OR_PART:
                raise InputError(
                    f"there is no topic {self.topic!r} on {self._servers}", hint="check its name, or make it first"
                )
            raise self.translated(topic.error)
        return set(topic.partitions)

    def _assigned(self) -> set[int]:
        return {each.partition for each in self._call(lambda consumer: consumer.assignment())}

    def _call(self, call: Callable[[Any], Any]) -> Any:
        try:
            if self._consumer is None:
                self._consumer = kafka.Consumer(self._settings(), logger=_log)
            return call(self._consumer)
        except kafka.KafkaException as error:
            trouble = error.args[0]
            if trouble.code() == kafka.KafkaError._INVALID_ARG:
                raise InputError(f"read.kafka: {trouble.str()}", hint="see the settings of librdkafka") from error
            raise self.translated(trouble) from error

    def _settings(self) -> dict[str, Any]:
        return {
            "client.id": "celeriac",
            "queued.max.messages.kbytes": _AHEAD_KILOBYTES,
            **self._config,
            "bootstrap.servers": self._servers,
            "group.id": "celeriac",  # librdkafka wants one; nothing is committed under it
            "enable.auto.commit": False,
            "enable.auto.offset.store": False,
            "auto.offset.reset": "error",
            "allow.auto.create.topics": False,
            "error_cb": self._note,
        }

    def _note(self, error: Any) -> None:
        self._trouble = error


@dataclass(frozen=True, slots=True)
class TopicPartition:
    """A `pipeline.sources.endless.Split`."""

    topic: KafkaTopic
    number: int

    @property
    def name(self) -> str:
        return f"partition-{self.number}"

    def open(self, position: Any) -> PartitionReader:
        return PartitionReader(self.topic, self.number, position)


class PartitionReader:
    """`position` is the offset of the next message, or None for the oldest."""

    def __init__(self, topic: KafkaTopic, number: int, position: Any) -> None:
        self._topic = topic
        self._number = number
        self._where = f"partition {number} of the topic {topic.topic!r}"
        if position is not None and (type(position) is not int or not 0 <= position < 1 << 63):
            raise foreign_position(position)
        self._next: int | None = position
        topic.assign(number, kafka.OFFSET_BEGINNING if self._next is None else self._next)

    def read(self) -> Portion:
        messages = self._topic.take(self._number)
        fault = next((index for index, message in enumerate(messages) if message.error() is not None), None)
        if fault == 0:
            return self._on_error(messages[0].error())
        taken = messages[:fault]
        if fault is not None:
            self._topic.assign(self._number, taken[-1].offset() + 1)  # the error comes again, if it lasts
        if not taken:
            return nothing(After.WAITING)
        offsets = [message.offset() for message in taken]
        self._next = offsets[-1] + 1
        batch = self._batch(taken)
        return Portion(
            batch, After.MORE, lambda index: offsets[index] + 1, lambda index: f"{self._where}: offset {offsets[index]}"
        )

    def close(self) -> None:
        self._topic.unassign(self._number)

    def _batch(self, messages: list[Any]) -> Batch:
        batch = Batch([], times=[])
        assert batch.times is not None
        for index, message in enumerate(messages):
            value, why = _value(message.value(), self._topic.options["values"])
            if why:
                batch.faults[index] = f"{self._where}: offset {message.offset()}: {why}"
            elif self._topic.options["with_keys"]:
                key = message.key()
                value = {"key": None if key is None else text_or_bytes(key), "value": value}
            batch.values.append(value)
            batch.times.append(max(0, message.timestamp()[1]))
        return batch

    def _on_error(self, error: Any) -> Portion:
        if error.code() not in (kafka.KafkaError._AUTO_OFFSET_RESET, kafka.KafkaError.OFFSET_OUT_OF_RANGE):
            raise self._topic.translated(error)
        low, high = self._topic.bounds(self._number)
        at = self._next or 0
        if at > high:
            what = f"{self._where} was made anew: its next offset is {high}, and {at} messages were there before"
        elif at < low:
            what = f"{self._where} was trimmed: {low - at} messages from {at} on were deleted before they were read"
        else:
            raise SourceAway(f"{self._where}: {error.str()}")
        if self._topic.options["on_lost"] == "fail":
            raise InputError(what, hint='keep the topic longer, or read it with on_lost="continue"')
        _log.warning("%s; reading goes on from %d", what, low)
        self._next = low
        self._topic.assign(self._number, low)
        return nothing(After.MORE)


def _value(data: bytes | None, kind: str) -> tuple[Any, str]:
    """The value, and why it is none. A message without a value (a deletion) is None."""
    if data is None or kind == "bytes":
        return data, ""
    if kind == "text":
        return data.decode("utf-8", "replace"), ""
    try:
        return msgspec.json.decode(data), ""
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        return data[:FAULT_CHARACTERS].decode("utf-8", "replace"), f"no JSON: {error}"
