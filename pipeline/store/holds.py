"""What is held behind a dead letter of one key, as Redis keeps it: some numbers, and the records in pieces."""

from __future__ import annotations

from dataclasses import dataclass, replace

from pipeline.errors import DecodingError


@dataclass(frozen=True, slots=True)
class Hold:
    """Records of one key, oldest first: the pieces `first` .. `after` - 1, of the first one from record `offset` on."""

    records: int = 0
    bytes: int = 0
    first: int = 0
    offset: int = 0
    after: int = 0

    def with_piece(self, records: int, size: int) -> Hold:
        """One more piece is behind all others."""
        return replace(self, records=self.records + records, bytes=self.bytes + size, after=self.after + 1)

    def encode(self) -> str:
        """Scripts read the first two numbers."""
        return f"{self.records} {self.bytes} {self.first} {self.offset} {self.after}"


def read_hold(text: bytes) -> Hold:
    """Raises DecodingError."""
    try:
        records, size, first, offset, after = map(int, text.split(b" "))
    except ValueError as error:
        raise DecodingError(f"what is held behind a dead letter cannot be read: {text[:80]!r}") from error
    return Hold(records, size, first, offset, after)


def piece_field(number: int, key: bytes) -> bytes:
    """The name of a piece in the hash of its key group; `key` is the key's own field."""
    return b"%d %b" % (number, key)
