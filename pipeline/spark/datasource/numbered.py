"""The rows of one partition into the job under numbers that are the same at every attempt: what is in is cut off.

Beside its numbers a sender has, in Redis, the batch that it is in and a digest of what it has sent of that: an attempt
with other rows is refused, for numbers alone would let it put half of one batch behind half of another.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Any, Final

import msgspec

from pipeline.errors import InboxFull, ProducerError, StaleSender
from pipeline.records import Batch
from pipeline.spark.datasource.records import Records
from pipeline.store.senders import Feed, FeedAddress, Lane
from pipeline.wording import counted

_DIGEST_BYTES: Final = 16
_encoder = msgspec.msgpack.Encoder()


class _Mark(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a sender remembers: the batch, records in front of it, and the digest of those of it that are in."""

    batch: int
    before: int
    digest: str


@dataclass(slots=True)
class NumberedRows:
    """One partition of one batch. `what` names it in messages."""

    lane: Lane
    batch: int
    what: str
    count: int = 0
    _before: int = 0
    _known: tuple[int, str] | None = None
    _digest: Any = field(default_factory=lambda: blake2b(digest_size=_DIGEST_BYTES))

    def __post_init__(self) -> None:
        """Raises StaleSender when a later batch is in, ProducerError for a sender that is another's."""
        self._before = self.lane.taken
        if self.lane.position is None:
            if self.lane.taken:
                raise ProducerError(f"{self.what}: the sender {self.lane.name!r} is in use by another program")
            return
        try:
            mark = msgspec.convert(self.lane.position, _Mark)
        except msgspec.ValidationError as error:
            raise ProducerError(f"{self.what}: the sender {self.lane.name!r} is in use otherwise: {error}") from error
        if mark.batch > self.batch:
            raise StaleSender(
                f"{self.what}: batch {mark.batch} is in the job, and this is batch {self.batch}",
                hint="a checkpoint that was made anew needs a new option 'name'",
            )
        if mark.batch == self.batch:
            self._before = mark.before
            self._known = (self.lane.position_at - mark.before, mark.digest)

    def add(self, records: Records) -> None:
        """Blocks while the inbox is full. Raises InboxFull, ProducerError when other rows are in, StoreError."""
        batch, stop = records.batch, self.count + len(records.batch)
        content = (batch.values, batch.times, records.ids)
        if self._known is not None and self.count < self._known[0] <= stop:
            self._compare(content, self._known[0] - self.count)
        if self._before + stop > self.lane.taken:
            self._append(batch, records, content)
        self._digest.update(_pack(content))
        self.count = stop

    def finish(self) -> int:
        """The number of rows. Raises ProducerError when more were in already."""
        if self._known is not None and self.count < self._known[0]:
            raise self._others(f"the job has {counted(self._known[0], 'row')} of it, and now there are {self.count:,}")
        return self.count

    def _append(self, batch: Batch, records: Records, content: Any) -> None:
        def mark(index: int) -> dict[str, Any]:
            return {"batch": self.batch, "before": self._before, "digest": self._of(content, index + 1)}

        def place(index: int) -> str:
            return f"{self.what}, row {self.count + index + 1}: "

        try:
            self.lane.append(self._before + self.count + 1, batch, place, records.ids, mark)
        except InboxFull as error:
            told = f"add workers, write with fewer tasks, or raise option full_timeout_seconds; {error.hint}"
            raise type(error)(f"{self.what}: {error}", hint=told) from error

    def _compare(self, content: Any, count: int) -> None:
        if self._known is not None and self._of(content, count) != self._known[1]:
            raise self._others(f"what is in the job is not its first {counted(self._known[0], 'row')}")

    def _others(self, why: str) -> ProducerError:
        return ProducerError(
            f"{self.what}: another attempt had other rows: {why}",
            hint="rows that depend on when, or on how many cores, they are computed need staging; another frame needs"
            " another option 'name'",
        )

    def _of(self, content: Any, count: int) -> str:
        """The digest of all so far and the first `count` of these."""
        digest = self._digest.copy()
        digest.update(_pack(tuple(None if column is None else column[:count] for column in content)))
        return str(digest.hexdigest())


def _pack(content: Any) -> bytes:
    """Bytes for a digest, also of what cannot be stored and becomes a dead letter: an integer of more than 64 bits."""
    try:
        return _encoder.encode(content)
    except (TypeError, ValueError, OverflowError, RecursionError, msgspec.MsgspecError):
        return repr(content).encode("utf-8", "backslashreplace")


def send_rows(address: FeedAddress, split: str, batch: int, what: str, rows: Iterator[Records]) -> int:
    """Sends one partition, and returns its number of rows. A partition without rows registers no sender."""
    feed: Feed | None = None
    numbered: NumberedRows | None = None
    try:
        for records in rows:
            if feed is None or numbered is None:
                feed = address.open()
                numbered = NumberedRows(feed.lane(split), batch, what)
            numbered.add(records)
        return numbered.finish() if numbered is not None else 0
    finally:
        if feed is not None:
            feed.close()
