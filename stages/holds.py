"""The keys of one partition that are held behind dead letters: what commits add behind a letter, and how a key goes on.

What is held stands in Redis and changes only by commits of the steps that pass it, so it is moved on exactly once.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Final

from pipeline.codec import decode_batch, encode_batch, key_field
from pipeline.errors import DecodingError
from pipeline.keying import group_of, groups_of_partition
from pipeline.plan import StagePlan
from pipeline.positions import Position
from pipeline.records import Batch
from pipeline.store import keys
from pipeline.store.commits import Write
from pipeline.store.holds import Hold, piece_field
from pipeline.store.ownership import Ownership
from stages.inbox import LetGo, are_alike, joined
from stages.step import Outcome

_PIECE_BYTES: Final = 100
"""What a piece takes in Redis beyond its payload, roughly."""

_PIECE_RECORDS: Final = 500
"""A step of few records reads no more than it needs."""


def held_groups(stage: StagePlan, partition: int, partitions: int) -> list[int]:
    """The key groups of one of so many partitions where keys of it may be held."""
    return groups_of_partition(partition, partitions) if stage.on_error.holds_keys else []


@dataclass(slots=True)
class Page:
    """What goes on in one step: the dead letter's own record, if it is its turn, then held ones; `limit` in all.

    `counts`: how many records are in each of the first pieces, as far as `batch` has looked.
    """

    key: Any
    hold: Hold
    own: bytes
    pieces: list[bytes]
    limit: int
    counts: list[int] = field(default_factory=list)

    def batch(self) -> Batch:
        """The records in order, decoded anew. Raises DecodingError."""
        self.counts = []
        parts = [decode_batch(self.own)] if self.own else []
        room, offset = self.limit - len(parts), self.hold.offset
        for piece in self.pieces:
            if room <= 0:
                break
            part = decode_batch(piece)
            self.counts.append(len(part))
            # One that was edited, or came from another stage, may have other columns: it is a step of its own.
            if parts and not are_alike(parts[0], part):
                break
            parts.append(part.slice(offset, offset + room))
            room, offset = room - len(parts[-1]), 0
        return joined(parts) if parts else Batch([])

    def behind(self, done: int) -> Hold:
        """What is held when the first `done` of its records are gone."""
        hold, left = self.hold, done - (1 if self.own else 0)
        records, size, first, offset = hold.records - left, hold.bytes, hold.first, hold.offset
        for piece, count in zip(self.pieces, self.counts, strict=False):
            if offset + left < count:
                offset += left
                break
            left -= count - offset
            size, first, offset = size - len(piece) - _PIECE_BYTES, first + 1, 0
        return Hold(records, size, first, offset, hold.after)


class Holds:
    """`keys`: those that are held, with what is behind their letters. It knows of a commit when that was applied."""

    def __init__(self, ownership: Ownership, stage: int, partition: int, page_bytes: int) -> None:
        self.keys: dict[Any, Hold] = {}
        self._ownership = ownership
        self._stage = stage
        self._meta = keys.meta(ownership.job, stage, partition)
        self._page_bytes = page_bytes
        self._changed: dict[Any, Hold | None] = {}

    def reset(self, held: dict[Any, Hold]) -> None:
        """Forgets all, and goes on from what Redis holds."""
        self.keys, self._changed = dict(held), {}

    def applied(self) -> None:
        """The commit of the last step was applied."""
        for key, hold in self._changed.items():
            if hold is None:
                self.keys.pop(key, None)
            else:
                self.keys[key] = hold
        self._changed = {}

    def keep(self, outcome: Outcome) -> list[Write]:
        """Holds the keys that a step gave up, and puts its held records behind all that is held of their keys."""
        self._changed = dict.fromkeys(outcome.given_up, Hold())
        pieces: dict[int, list[Any]] = {}
        records = size = 0
        for key, batch in outcome.held.items():
            hold = before = self._changed.get(key) or self.keys[key]
            stored = pieces.setdefault(group_of(key), [])
            for start in range(0, len(batch), _PIECE_RECORDS):
                part = batch.slice(start, start + _PIECE_RECORDS)
                payload = encode_batch(part)
                stored += [piece_field(hold.after, key_field(key)), payload]
                hold = hold.with_piece(len(part), len(payload) + _PIECE_BYTES)
            records, size = records + hold.records - before.records, size + hold.bytes - before.bytes
            self._changed[key] = hold
        writes = [Write("HSET", self._records_key(group), values) for group, values in pieces.items()]
        return writes + self._numbers() + self._counts(records, size)

    def page(self, item: LetGo, at: Position, limit: int, *, is_exact: bool = False) -> Page:
        """What goes on next of a key that was let go; `is_exact`: so many records, else perhaps less.

        Raises DecodingError, ForeignData, StoreError.
        """
        found = decode_batch(item.payload).keys
        if not found:
            raise DecodingError("an inbox entry lets a key go without naming it")
        hold = self.keys.get(found[0], Hold())
        own = item.payload if item.header.has_record and not at.record else b""
        room = limit - 1 if own else limit
        pieces: list[bytes] = []
        if room > 0 and hold.records:
            there = hold.after - hold.first
            by_bytes = self._page_bytes * there // hold.bytes
            by_records = 1 + room * there // hold.records  # of average pieces, and the first may be half gone
            count = min(there, room) if is_exact else max(1, min(there, by_bytes, by_records))
            pieces = self._ownership.load_held(self._stage, found[0], hold.first, count)
        return Page(found[0], hold, own, pieces, limit)

    def pass_page(self, item: LetGo, at: Position, page: Page, outcome: Outcome) -> bool:
        """Adds to a step that ran a page what takes its records away; whether the key, or its turn, is over with it.

        A record that failed leaves those behind it where they are, held by the new letter.
        """
        done = outcome.counts.taken - sum(map(len, outcome.held.values()))
        left = page.behind(done)
        has_failed = bool(outcome.given_up)
        is_over = has_failed or not left.records
        self._changed = {page.key: left if has_failed or left.records else None}
        gone = [piece_field(number, key_field(page.key)) for number in range(page.hold.first, left.first)]
        if gone:
            outcome.writes.append(Write("HDEL", self._records_key(group_of(page.key)), gone))
        # What the letter had behind it when it was taken away is counted out already.
        records = (0 if at.record else item.header.records - page.hold.records) + (left.records if has_failed else 0)
        size = (0 if at.record else item.header.bytes - page.hold.bytes) + (left.bytes if has_failed else 0)
        outcome.writes += self._numbers() + self._counts(records, size)
        outcome.counts.taken = 0  # they were taken when they were held
        return is_over

    def _numbers(self) -> list[Write]:
        """The numbers of the keys that change."""
        set_: dict[int, list[Any]] = {}
        gone: dict[int, list[Any]] = {}
        for key, hold in self._changed.items():
            if hold is None:
                gone.setdefault(group_of(key), []).append(key_field(key))
            else:
                set_.setdefault(group_of(key), []).extend((key_field(key), hold.encode()))
        return [*self._writes("HSET", set_.items()), *self._writes("HDEL", gone.items())]

    def _writes(self, command: Any, groups: Iterable[tuple[int, list[Any]]]) -> list[Write]:
        job = self._ownership.job
        return [Write(command, keys.held(job, self._stage, group), values) for group, values in groups]

    def _counts(self, records: int, size: int) -> list[Write]:
        """What is held by all letters of the partition, as limits and people are told."""
        if not records and not size:
            return []
        return [Write("HINCRBY", self._meta, ["held", records]), Write("HINCRBY", self._meta, ["held_bytes", size])]

    def _records_key(self, group: int) -> str:
        return keys.held_records(self._ownership.job, self._stage, group)
