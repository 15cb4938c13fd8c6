"""Sends records to a web address, at least once, with the header `Idempotency-Key`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Final

import httpx
import msgspec

from pipeline.errors import RowRejected, SinkAway, SinkError
from pipeline.sinks.numbered import Delivery
from pipeline.sinks.secrets import without_secrets

_AWAY: Final = frozenset({408, 425, 429})
_SHOWN_CHARACTERS: Final = 200


class HttpCarrier:
    """One client for one sink of a worker. With a batch above 1 the body is a JSON array."""

    def __init__(self, url: str, headers: Mapping[str, str], batch: int, timeout_seconds: float) -> None:
        """Raises SinkError for an address or a header that cannot be one."""
        self.batch = batch
        self._shown = without_secrets(url)
        self._client: httpx.Client | None = None
        try:
            self._url = httpx.URL(url)
            self._headers = {"Content-Type": "application/json", **headers}
            httpx.Headers(self._headers)
            self._timeout = httpx.Timeout(timeout_seconds)
        except (httpx.InvalidURL, UnicodeError, ValueError) as error:
            raise SinkError(f"{self._shown} or one of its headers cannot be sent") from error

    def deliver(self, deliveries: Sequence[Delivery]) -> None:
        """Raises SinkAway for no answer, 5xx, 408, 425 and 429, RowRejected for other 4xx, SinkError for the rest."""
        key = deliveries[0].idempotency_key
        body = deliveries[0].row
        if self.batch > 1:
            key = f"{key}+{len(deliveries) - 1}"
            items = [{"idempotency_key": one.idempotency_key, "record": msgspec.Raw(one.row)} for one in deliveries]
            body = msgspec.json.encode(items)
        try:
            answer = self._opened().post(self._url, content=body, headers={**self._headers, "Idempotency-Key": key})
        except httpx.UnsupportedProtocol as error:
            raise SinkError(f"{self._shown} is no address of a web server") from error
        except httpx.TransportError as error:
            raise SinkAway(f"{self._shown} does not answer: {type(error).__name__}: {error}") from error
        self._judge(answer)

    def drop(self) -> None:
        client, self._client = self._client, None
        if client is not None:
            client.close()

    def _opened(self) -> httpx.Client:
        if self._client is None:
            self._client = httpx.Client(timeout=self._timeout)
        return self._client

    def _judge(self, answer: httpx.Response) -> None:
        code = answer.status_code
        if answer.is_success:
            return
        said = f"{self._shown} answers {code} {answer.reason_phrase}".rstrip()
        if code >= 500 or code in _AWAY:
            raise SinkAway(said, wait_seconds=_retry_after(answer))
        if code >= 400:
            raise RowRejected(f"{said}: {answer.text[:_SHOWN_CHARACTERS]}")
        raise SinkError(said, "give the sink the address that takes the records itself")


def _retry_after(answer: httpx.Response) -> float:
    with suppress(ValueError):
        return max(0.0, float(answer.headers.get("Retry-After", "0")))
    return 0.0
