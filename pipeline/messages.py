"""The in-band messages: what may stand in an inbox, as a closed union. Control out of band is in `pipeline.control`.

A header is a JSON array whose first item is the kind, so that scripts can write the numbers only they know.
"""

from __future__ import annotations

from typing import Annotated, Final, TypeAlias

import msgspec

from pipeline.errors import DecodingError
from pipeline.records import MAX_TIME, MIN_TIME

_REPLAY: Final = "replay:"

Count: TypeAlias = Annotated[int, msgspec.Meta(ge=0, le=MAX_TIME)]
"""What scripts can count with."""

Time: TypeAlias = Annotated[int, msgspec.Meta(ge=MIN_TIME, le=MAX_TIME)]


class Data(msgspec.Struct, frozen=True, array_like=True, tag="D"):
    """A batch of one sender, numbered first .. first + count - 1; its payload is the entry's second field.

    watermark: the sender's promise after this batch, in milliseconds, or None.
    table: version of the routing table it was sent under. skip: indices of records seen before by their ids.
    """

    sender: str
    first: Count
    count: Count
    watermark: Time | None
    table: Count
    skip: tuple[Count, ...] = ()

    @property
    def replay_of(self) -> str:
        """The id of the dead letter whose record this is, or nothing. Senders of names have no colon."""
        return self.sender.removeprefix(_REPLAY) if self.sender.startswith(_REPLAY) else ""


class Watermark(msgspec.Struct, frozen=True, array_like=True, tag="W"):
    """The sender promises that no later record of its own is older than `time` (milliseconds)."""

    sender: str
    time: Time


class EndOfInput(msgspec.Struct, frozen=True, array_like=True, tag="E"):
    """The sender sends no more data."""

    sender: str


class Release(msgspec.Struct, frozen=True, array_like=True, tag="R"):
    """Lets the held key of the dead letter `letter` go; the payload is the letter's record, which runs if `has_record`.

    records, bytes: what was behind the letter when it was taken away, and counts as held no more since then.
    """

    letter: str
    has_record: bool
    records: Count
    bytes: Count


class Barrier(msgspec.Struct, frozen=True, array_like=True, tag="B"):
    """Opens epoch `epoch` at this place."""

    epoch: Count


class Table(msgspec.Struct, frozen=True, array_like=True, tag="T"):
    """The stage's routing table has this version behind this place."""

    version: Count


Header: TypeAlias = Data | Watermark | EndOfInput | Release | Barrier | Table

_decoder: msgspec.json.Decoder[Header] = msgspec.json.Decoder(Header)


def decode_header(data: bytes) -> Header:
    """Raises DecodingError for anything else, an unknown kind included: it is never skipped."""
    try:
        return _decoder.decode(data)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise DecodingError(
            f"an inbox entry has an unreadable header: {error}; it begins with {data[:80]!r}"
        ) from error


def encode_header(header: Header) -> bytes:
    return msgspec.json.encode(header)
