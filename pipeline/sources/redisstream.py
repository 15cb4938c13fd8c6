"""Entries of a Redis stream that others write. The position is the id of the last entry; no consumer group is made."""

from __future__ import annotations

import logging
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from pipeline.errors import ForeignData, InputError, SourceAway, StoreError, StoreUnavailable
from pipeline.records import Batch
from pipeline.sinks.secrets import without_secrets
from pipeline.sources.endless import After, Portion, foreign_position, nothing
from pipeline.sources.feed import BATCH_BYTES, BATCH_RECORDS
from pipeline.store.foreignstream import ForeignStream, StreamPage, fields_as_text, id_order

STREAM_SPLIT: Final = "entries"
"""The one split of such a source."""

_FIRST_COUNT: Final = 100
_START: Final = "0-0"
_ENTRY: Final = re.compile(r"\d{1,20}-\d{1,20}\Z")

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class StreamOptions:
    """As `read.redis_stream` made them."""

    url: str
    key: str
    with_ids: bool
    on_lost: str
    poll_seconds: float


class RedisStream:
    """A `pipeline.sources.endless.Source` and its one split."""

    name = STREAM_SPLIT

    def __init__(self, url: str, options: StreamOptions) -> None:
        """`url` may hold a password. Raises InputError for what is no address."""
        self.poll_seconds = options.poll_seconds
        self._url = url
        self._options = options
        self._is_given = False
        self._open().close()

    def look(self, room: int) -> Sequence[RedisStream]:
        if self._is_given:
            return ()
        self._is_given = True
        return (self,)

    def forgettable(self) -> Sequence[str]:
        return ()

    def close(self) -> None:
        pass

    def open(self, position: Any) -> StreamReader:
        return StreamReader(self._open(), self._options, without_secrets(self._url), position)

    def _open(self) -> ForeignStream:
        try:
            return ForeignStream(self._url, self._options.key)
        except StoreError as error:
            raise InputError(f"read.redis_stream: {error}", hint=error.hint) from error


class StreamReader:
    """Reads pages. `position` is the id of the last entry taken, or None."""

    def __init__(self, stream: ForeignStream, options: StreamOptions, where: str, position: Any) -> None:
        self._stream = stream
        self._options = options
        self._where = f"the stream {options.key!r} on {where}"
        if position is not None and not (isinstance(position, str) and _ENTRY.match(position)):
            raise foreign_position(position)
        self._last = _START if position is None else position
        self._count = _FIRST_COUNT

    def read(self) -> Portion:
        try:
            page = self._stream.page(self._last, self._count)
        except StoreUnavailable as error:
            raise SourceAway(f"{self._where} cannot be read: {error}") from error
        except ForeignData as error:
            raise InputError(f"{self._where} is no stream: {error.__cause__}", hint="check the key") from error
        except StoreError as error:
            raise InputError(f"{self._where} cannot be read: {error}", hint=error.hint) from error
        if not page.newest:
            raise SourceAway(f"there is no {self._where.removeprefix('the ')}", hint="it is read as soon as there is")
        if self._last != _START and not page.has_last:
            page = self._without_its_last(page)
        return self._portion(page)

    def close(self) -> None:
        self._stream.close()

    def _portion(self, page: StreamPage) -> Portion:
        ids = [id_ for id_, _ in page.entries]
        if not ids:
            return nothing(After.WAITING)
        size = sum(len(name) + len(value) for _, fields in page.entries for name, value in fields.items())
        is_full = len(ids) >= self._count
        self._count = max(1, self._count // 2) if size > BATCH_BYTES else min(BATCH_RECORDS, 2 * self._count)
        self._last = ids[-1]
        values: list[Any] = [fields_as_text(fields) for _, fields in page.entries]
        if self._options.with_ids:
            values = [{"id": id_, "value": value} for id_, value in zip(ids, values, strict=True)]
        batch = Batch(values, times=[id_order(id_)[0] for id_ in ids])
        after = After.MORE if is_full else After.WAITING
        return Portion(batch, after, ids.__getitem__, lambda index: f"{self._where}: {ids[index]}")

    def _without_its_last(self, page: StreamPage) -> StreamPage:
        """The entry read last is not there any more, so newer ones may have gone with it unread.

        That is sure not to be so only when nothing newer was ever added. Raises InputError, unless losses are allowed.
        """
        newest, last = id_order(page.newest), id_order(self._last)
        if newest == last:
            return page
        if newest < last:
            what = f"{self._where} was made anew: its newest id is {page.newest}, and {self._last} was read before"
        else:
            left = page.oldest or "nothing"
            what = f"{self._where} was trimmed: {self._last} was read last, and the oldest left is {left}"
        if self._options.on_lost == "fail":
            raise InputError(
                f"{what}; entries between may be lost",
                hint='keep the stream longer, or read it with on_lost="continue"',
            )
        _log.warning("%s; reading goes on with what is there, entries between may be lost", what)
        if newest > last:
            return page
        self._last = _START
        return StreamPage([], False, page.newest, page.oldest)
