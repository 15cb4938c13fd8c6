"""Dead letters of a run in bulk, made from what went wrong. Whatever a user's error holds, they can be stored."""

from __future__ import annotations

import traceback
from collections.abc import Iterable
from typing import Final, TypeAlias

import msgspec

from pipeline.codec import decode_batch
from pipeline.errors import EncodingError
from pipeline.kernel.faults import OperatorError, describe
from pipeline.records import Batch

Failure: TypeAlias = OperatorError | EncodingError

_ERROR_CHARACTERS: Final = 2000
_TRACEBACK_CHARACTERS: Final = 8000


class Letter(msgspec.Struct, frozen=True):
    """A record given up. `payload` is the record as a batch of one; of a timer, its due time.

    kind: record or timer. tried: a line for each attempt before the last one: milliseconds, number, error.
    holds: later records of its key are held behind it.
    """

    stage: int
    partition: int
    operator: str
    error: str
    traceback: str
    payload: bytes
    kind: str = "record"
    tried: tuple[str, ...] = ()
    holds: bool = False

    def record(self) -> Batch:
        """The record as a batch of one."""
        return decode_batch(self.payload)


def letter_of(
    failure: Failure | str,
    place: tuple[int, int],
    payload: bytes,
    kind: str = "record",
    tried: Iterable[str] = (),
    *,
    holds: bool = False,
) -> Letter:
    """The letter of a record that failed so, at (stage, partition); of long texts a part is kept."""
    if isinstance(failure, OperatorError):
        trace = "".join(traceback.format_exception(failure.cause))
        operator, error = failure.operator, describe(failure.cause)
    else:
        trace, operator, error = "", "", str(failure)
    shown, why = _clean(operator), _clean(error[:_ERROR_CHARACTERS])
    where = _clean(trace[-_TRACEBACK_CHARACTERS:])
    lines = tuple(_clean(" ".join(line.split())[:_ERROR_CHARACTERS]) for line in tried)
    return Letter(*place, shown, why, where, payload, kind, lines, holds)


def described(failure: Failure) -> str:
    """What went wrong, with the operator where it is known."""
    if isinstance(failure, OperatorError):
        return f"{failure.operator}: {describe(failure.cause)}"
    return str(failure)


def _clean(text: str) -> str:
    return text.encode("utf-8", "backslashreplace").decode()
