"""The part of an inbox that its owner has fetched: entries are decoded once and handed out as records or control."""

from __future__ import annotations

import sys
from collections import deque
from dataclasses import dataclass
from typing import TypeAlias

from pipeline.codec import decode_batch
from pipeline.errors import DecodingError, ForeignData
from pipeline.messages import Barrier, Data, EndOfInput, Header, Release, Table, Watermark, decode_header
from pipeline.positions import Position, entry_after
from pipeline.records import MAX_TIME, MIN_TIME, Batch
from pipeline.store.commits import Entry
from pipeline.wording import counted


@dataclass(frozen=True, slots=True)
class Records:
    """Consecutive records; `end` is the position behind them, `released_bytes` belong to entries left behind.

    `places` are those of the batch's records among all, where some that were seen before have been left out of it.
    `replay_of`: the dead letter whose record it is. `left_out`: records that are not in the batch.
    """

    batch: Batch
    end: Position
    released_bytes: int
    places: tuple[int, ...] | None = None
    replay_of: str = ""
    left_out: int = 0

    def until(self, count: int) -> int:
        """How many records to take for the first `count` of the batch, which holds more."""
        return count if self.places is None else self.places[count]


@dataclass(frozen=True, slots=True)
class Poisoned:
    """An entry whose payload cannot be read."""

    payload: bytes
    count: int
    why: DecodingError
    end: Position
    released_bytes: int


@dataclass(frozen=True, slots=True)
class Promise:
    """The sender's watermark becomes `time`; MAX_TIME is its end."""

    sender: str
    time: int
    end: Position
    released_bytes: int


@dataclass(frozen=True, slots=True)
class LetGo:
    """A held key goes on; the payload is its dead letter's record, a batch of one. `end` is behind all of it."""

    header: Release
    payload: bytes
    end: Position


@dataclass(frozen=True, slots=True)
class Mark:
    """A barrier or a routing table."""

    header: Barrier | Table
    end: Position


Item: TypeAlias = Records | Poisoned | Promise | LetGo | Mark


class Inbox:
    """Fetched entries of one partition, from `position` on. Never skips and never reorders."""

    def __init__(self, position: Position, payload_bytes: int = sys.maxsize) -> None:
        """`payload_bytes`: the largest payload that is decoded: memory stays bounded whatever is in an inbox."""
        self.position = position
        self._payload_bytes = payload_bytes
        self.read_from = position.entry
        self._entries: deque[Entry] = deque()
        self._head: tuple[str, Header, Batch | None] | None = None

    def __bool__(self) -> bool:
        return bool(self._entries)

    def add(self, entries: list[Entry]) -> None:
        """Entries as they were read from `read_from` on.

        Raises DecodingError for an unreadable header, ForeignData when there is no entry at `read_from`.
        """
        if not entries or entries[0].id != self.read_from:
            raise ForeignData(
                f"entries are missing in an inbox, from {self.read_from} on",
                hint="another program has deleted or trimmed keys that begin with celeriac: on this Redis",
            )
        self._entries.extend(entries)
        last = entries[-1]
        header = decode_header(last.header)
        self.read_from = entry_after(last.id, header.count if isinstance(header, Data) else 0)

    def move_to(self, end: Position) -> None:
        """The commit up to `end` was applied."""
        self.position = end
        while self._entries and self._entries[0].id != end.entry:
            self._entries.popleft()

    def take(self, limit: int) -> Item:
        """What comes next: at most `limit` records, or one control entry. Raises DecodingError for a bad header."""
        entry = self._entries[0]
        header, batch, why = self._decoded(entry)
        record = self.position.record
        match header:
            case Data():
                if why is not None:
                    end = Position(entry_after(entry.id, header.count))
                    return Poisoned(entry.payload, header.count, why, end, len(entry.payload))
                if record >= header.count:
                    return self._promise_of(entry, header)
                assert batch is not None
                return self._records(entry, header, batch, record, limit)
            case Watermark():
                return Promise(header.sender, header.time, Position(entry_after(entry.id, 0)), 0)
            case EndOfInput():
                return Promise(header.sender, MAX_TIME, Position(entry_after(entry.id, 0)), 0)
            case Release():
                return LetGo(header, entry.payload, Position(entry_after(entry.id, 0)))
            case Barrier() | Table():
                return Mark(header, Position(entry_after(entry.id, 0)))

    def take_again(self, limit: int) -> Item:
        """What the last `take` gave, decoded anew: the values that were handed out may have been changed since."""
        self._head = None
        return self.take(limit)

    def _decoded(self, entry: Entry) -> tuple[Header, Batch | None, DecodingError | None]:
        if self._head is not None and self._head[0] == entry.id:
            return self._head[1], self._head[2], None
        header = decode_header(entry.header)
        if not isinstance(header, Data):
            return header, None, None
        try:
            if len(entry.payload) > self._payload_bytes:
                raise DecodingError(
                    f"a payload has {len(entry.payload):,} bytes, more than the {self._payload_bytes:,} of any of ours"
                )
            batch = decode_batch(entry.payload)
            if len(batch) != header.count:
                raise DecodingError(f"a payload holds {counted(len(batch), 'record')}, its header says {header.count}")
            if any(not 0 <= index < len(batch) for index in batch.faults):
                raise DecodingError("a payload names a fault of a record that it does not hold")
        except DecodingError as error:
            return header, None, error
        self._head = (entry.id, header, batch)
        return header, batch, None

    def _promise_of(self, entry: Entry, header: Data) -> Promise:
        time = header.watermark if header.watermark is not None else MIN_TIME
        return Promise(header.sender, time, Position(entry_after(entry.id, header.count)), len(entry.payload))

    def _records(self, entry: Entry, header: Data, batch: Batch, record: int, limit: int) -> Records:
        """Records of this entry and, where it ends without a promise, of the Data entries behind it."""
        stop = min(header.count, record + limit)
        taken = [_without_skipped(batch, header.skip, record, stop)]
        spans = [(record, stop, header.skip)]
        has_all = not header.skip
        end, released = _after(entry, header, stop)
        if header.replay_of:
            return Records(taken[0], end, released, None, header.replay_of)
        room = limit - (stop - record)
        for number in range(1, len(self._entries)):
            if room <= 0 or end.record:
                break
            entry = self._entries[number]
            if entry.id != end.entry:
                break  # one between is missing
            header_, batch_, why = self._decoded(entry)
            if not isinstance(header_, Data) or batch_ is None or why is not None or not are_alike(batch, batch_):
                break
            if header_.replay_of:
                break
            stop = min(header_.count, room)
            taken.append(_without_skipped(batch_, header_.skip, 0, stop))
            spans.append((0, stop, header_.skip))
            has_all = has_all and not header_.skip
            end, more = _after(entry, header_, stop)
            released += more
            room -= stop
        if has_all:
            return Records(joined(taken), end, released)
        left_out = sum(start <= index < stop for start, stop, skip in spans for index in skip)
        return Records(joined(taken), end, released, _places(spans), left_out=left_out)


def _after(entry: Entry, header: Data, stop: int) -> tuple[Position, int]:
    """The position behind record `stop` - 1 of an entry, and the bytes that are left behind with it."""
    if stop < header.count or header.watermark is not None:
        return Position(entry.id, stop), 0
    return Position(entry_after(entry.id, header.count)), len(entry.payload)


def _places(spans: list[tuple[int, int, tuple[int, ...]]]) -> tuple[int, ...]:
    """Of spans (start, stop, skip) one after the other: the places of what is not skipped."""
    found: list[int] = []
    before = 0
    for start, stop, skip in spans:
        found += [before + i - start for i in range(start, stop) if i not in skip]
        before += stop - start
    return tuple(found)


def _without_skipped(batch: Batch, skip: tuple[int, ...], start: int, stop: int) -> Batch:
    if not skip:
        return batch if start == 0 and stop == len(batch) else batch.slice(start, stop)
    kept = [batch.slice(i, i + 1) for i in range(start, stop) if i not in skip]
    return joined(kept or [batch.slice(0, 0)])


def are_alike(one: Batch, other: Batch) -> bool:
    """Whether both have the same columns, so that joining them loses none."""
    return (one.keys is None, one.times is None, one.ids is None) == (
        other.keys is None,
        other.times is None,
        other.ids is None,
    )


def joined(batches: list[Batch]) -> Batch:
    """One batch of batches that are alike."""
    if len(batches) == 1:
        return batches[0]
    whole = batches[0].slice(0, len(batches[0]))
    for batch in batches[1:]:
        whole.faults.update({len(whole.values) + i: why for i, why in batch.faults.items()})
        whole.values.extend(batch.values)
        if whole.keys is not None and batch.keys is not None:
            whole.keys.extend(batch.keys)
        if whole.times is not None and batch.times is not None:
            whole.times.extend(batch.times)
        if whole.ids is not None and batch.ids is not None:
            whole.ids.extend(batch.ids)
    return whole
