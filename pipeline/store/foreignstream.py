"""A stream that others write, on whatever Redis: read, never changed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from redis.exceptions import ResponseError

from pipeline.store.connection import connect, translated

_MISSING: Final = "no such key"


@dataclass(frozen=True, slots=True)
class StreamPage:
    """Entries in order: (id, its fields). `has_last`: the entry that was read last is still there.

    newest: the highest id that the stream ever gave, "" where there is no stream. oldest: of those that are there.
    """

    entries: list[tuple[str, dict[bytes, bytes]]]
    has_last: bool
    newest: str
    oldest: str


class ForeignStream:
    """One stream of one Redis."""

    def __init__(self, url: str, key: str) -> None:
        """Connects to nothing yet. Raises UnsuitableServer for what is no address."""
        self._client = connect(url)
        self._key = key

    def page(self, last: str, count: int) -> StreamPage:
        """At most `count` entries behind the id `last`, as they are at one moment.

        Raises StoreUnavailable, UnsuitableServer, ForeignData where the key holds no stream, StoreError.
        """
        with translated():
            pipe = self._client.pipeline(transaction=True)
            pipe.xrange(self._key, last, "+", count + 1)
            pipe.xinfo_stream(self._key)
            rows, info = pipe.execute(raise_on_error=False)
            if isinstance(info, ResponseError) and _MISSING in str(info):
                return StreamPage([], False, "", "")
            for answer in (rows, info):
                if isinstance(answer, Exception):
                    raise answer
        entries = [(id_.decode(), fields or {}) for id_, fields in rows]
        has_last = bool(entries) and entries[0][0] == last
        return StreamPage(
            entries[1:] if has_last else entries[:count],
            has_last,
            info["last-generated-id"].decode(),
            info["first-entry"][0].decode() if info["first-entry"] else "",
        )

    def close(self) -> None:
        self._client.close()


def id_order(id_: str) -> tuple[int, int]:
    """For comparing ids."""
    milliseconds, _, number = id_.partition("-")
    return int(milliseconds), int(number or 0)


def fields_as_text(fields: dict[bytes, bytes]) -> dict[str, Any]:
    """Text where it is UTF-8; a value that is not stays bytes."""
    return {name.decode("utf-8", "replace"): text_or_bytes(value) for name, value in fields.items()}


def text_or_bytes(data: bytes) -> str | bytes:
    try:
        return data.decode()
    except UnicodeDecodeError:
        return data
