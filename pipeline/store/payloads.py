"""What an append carries, as bytes: payloads in which what cannot be stored is a fault, and positions. Pure."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any, Final

import msgspec

from pipeline.codec import check_encodable, encode_batch, shown
from pipeline.errors import EncodingError
from pipeline.records import Batch

logger = logging.getLogger(__name__)

POSITION_BYTES: Final = 4096
"""The most that a position may have as JSON."""


def no_place(_index: int) -> str:
    return ""


def encode_faulty(batch: Batch, record_bytes: int, place: Callable[[int], str] = no_place) -> bytes:
    """The payload; records that cannot be stored are replaced by faults that say why."""
    try:
        payload = encode_batch(batch)
        if len(payload) <= record_bytes:
            return payload
    except EncodingError as error:
        logger.debug("a batch holds records that cannot be stored: %s", error)
    values = list(batch.values)
    faults = {index: _storable(why) for index, why in batch.faults.items()}
    for index, value in enumerate(values):
        try:
            size = check_encodable(value)
        except EncodingError as error:
            faults[index] = _storable(place(index) + str(error))
            values[index] = shown(value, 1000)
            continue
        if size > record_bytes:
            faults[index] = _storable(
                f"{place(index)}the record has {size} bytes, more than the limit of {record_bytes}"
            )
            values[index] = shown(value, 1000)
    return encode_batch(Batch(values, batch.keys, batch.times, batch.ids, faults))


def encoded_position(position: Any) -> bytes:
    """Raises EncodingError."""
    if position is None:
        return b""
    try:
        encoded = msgspec.json.encode(position)
    except (TypeError, ValueError, OverflowError, RecursionError, msgspec.MsgspecError) as error:
        raise EncodingError(f"the position {shown(position, 200)} is no JSON value: {error}") from error
    if len(encoded) > POSITION_BYTES:
        raise EncodingError(
            f"a position has {len(encoded):,} bytes as JSON, more than the {POSITION_BYTES:,} allowed",
            hint="keep a number or a short text, not what was read",
        )
    return encoded


def _storable(text: str) -> str:
    """The text without lone surrogates, which no encoder takes."""
    return text.encode("utf-8", "backslashreplace").decode()
