"""Gives records to a function of the user, at least once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from pipeline.errors import SinkAway
from pipeline.kernel.faults import OperatorError, describe, is_of_user_code
from pipeline.sinks.numbered import Delivery


class CallCarrier:
    """Calls fn with lists of {"key", "value", "idempotency_key"}."""

    def __init__(self, sink: str, fn: Callable[[list[dict[str, Any]]], Any], batch: int) -> None:
        self.batch = batch
        self._sink = sink
        self._fn = fn

    def deliver(self, deliveries: Sequence[Delivery]) -> None:
        """Raises SinkAway when fn raises it, or an OSError (ConnectionError, TimeoutError); else OperatorError."""
        records = [{"key": one.key, "value": one.value, "idempotency_key": one.idempotency_key} for one in deliveries]
        try:
            self._fn(records)
        except SinkAway:
            raise
        except OSError as error:
            raise SinkAway(
                f"the function of the sink {self._sink!r} cannot reach its place: {describe(error)}"
            ) from error
        except BaseException as error:
            if not is_of_user_code(error):
                raise
            raise OperatorError(self._sink, error) from error

    def drop(self) -> None:
        """There is nothing to close."""
