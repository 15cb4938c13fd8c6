"""Sends records to a Kafka topic, at least once: an idempotent producer, and the record's own key in a header."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec
from confluent_kafka import KafkaError, KafkaException, Producer

from pipeline.errors import RowRejected, SinkAway, SinkError
from pipeline.keying import canonical_bytes
from pipeline.sinks.numbered import Delivery
from pipeline.wording import counted

DELIVERY_MS: Final = 15_000
"""How long librdkafka tries by itself before the sink counts as away."""

_GRACE_SECONDS: Final = 3.0

HEADER: Final = "idempotency-key"

_JSON: Final = msgspec.json.Encoder()
_REFUSED: Final = frozenset({KafkaError.MSG_SIZE_TOO_LARGE, KafkaError.INVALID_RECORD, KafkaError._INVALID_ARG})
_LASTING: Final = frozenset(
    {
        KafkaError._UNKNOWN_TOPIC,
        KafkaError.TOPIC_AUTHORIZATION_FAILED,
        KafkaError.CLUSTER_AUTHORIZATION_FAILED,
        KafkaError.TOPIC_EXCEPTION,
        KafkaError.POLICY_VIOLATION,
    }
)


class KafkaCarrier:
    """One producer for one sink of a worker."""

    def __init__(self, servers: str, topic: str, options: Mapping[str, str], batch: int) -> None:
        """Connects in the background. Raises SinkError for a setting that librdkafka does not know."""
        self.batch = batch
        self._topic = topic
        self._settings = {
            "bootstrap.servers": servers,
            "delivery.timeout.ms": DELIVERY_MS,
            "enable.idempotence": True,
            "linger.ms": 5,
            "log_level": 3,
            **options,
        }
        self._producer: Any = None
        try:
            self._open()
        except KafkaException as error:
            raise SinkError(f"the Kafka sink for {topic!r} cannot be set up: {_words(error.args[0])}") from error

    def deliver(self, deliveries: Sequence[Delivery]) -> None:
        errors: list[KafkaError] = []
        missing = len(deliveries)

        def note(error: KafkaError | None, _: Any) -> None:
            nonlocal missing
            missing -= 1
            if error is not None:
                errors.append(error)

        for one in deliveries:
            self._produce(one, note)
        self._producer.flush(DELIVERY_MS / 1000 + _GRACE_SECONDS)
        if errors:
            raise self._fault(errors[0])
        if missing:
            away = SinkAway(f"Kafka, topic {self._topic!r}: {counted(missing, 'record')} not taken in time")
            self.drop()
            raise away

    def drop(self) -> None:
        """Forgets what is on its way: it is sent again, under the same keys."""
        if self._producer is not None:
            self._producer.purge()
            self._producer.flush(1)
            self._producer = None

    def _open(self) -> None:
        if self._producer is None:
            self._producer = Producer(self._settings)

    def _produce(self, one: Delivery, note: Any) -> None:
        self._open()
        key = None if one.key is None else canonical_bytes(one.key)
        headers = {HEADER: one.idempotency_key}
        while True:
            try:
                self._producer.produce(self._topic, _JSON.encode(one.value), key, headers=headers, on_delivery=note)
                self._producer.poll(0)
                return
            except BufferError:
                self._producer.poll(0.1)
            except KafkaException as error:
                raise self._fault(error.args[0]) from error

    def _fault(self, error: KafkaError) -> Exception:
        said = f"Kafka, topic {self._topic!r}: {_words(error)}"
        if error.code() in _REFUSED:
            return RowRejected(said)
        if error.code() in _LASTING:
            return SinkError(said, "make the topic, or give this user the right to write there")
        self.drop()
        return SinkAway(said)


def _words(error: KafkaError) -> str:
    return f"{error.name()}: {error.str()}"
