"""The numbers that a producer is made with. Checked once; nothing here waits or sends."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

from pipeline.errors import ProducerError

_MOST_LANES: Final = 64


@dataclass(frozen=True, slots=True)
class Bounds:
    """Raises ProducerError, naming the argument, for a number out of its range.

    lanes: senders that the keys are spread over. batch_records, batch_bytes: a lane's batch is sent when it has so
    much. linger_seconds: or when its oldest record has waited for so long. buffer_bytes: all that is held, batches on
    their way included. full_timeout_seconds: how long sending waits for room, and flushing for the server.
    """

    lanes: int = 4
    batch_records: int = 500
    batch_bytes: int = 256 << 10
    linger_seconds: float = 0.05
    buffer_bytes: int = 32 << 20
    full_timeout_seconds: float = 30.0

    def __post_init__(self) -> None:
        _check_whole("lanes", self.lanes, _MOST_LANES)
        _check_whole("batch_records", self.batch_records, 100_000)
        _check_whole("batch_bytes", self.batch_bytes, 1 << 30)
        _check_whole("buffer_bytes", self.buffer_bytes, 1 << 40)
        _check_seconds("linger_seconds", self.linger_seconds)
        _check_seconds("full_timeout_seconds", self.full_timeout_seconds)


def check_timeout(seconds: float | None, otherwise: float) -> float:
    """The timeout in seconds. Raises ProducerError when it is none."""
    if seconds is None:
        return otherwise
    _check_seconds("timeout_seconds", seconds)
    return seconds


def _check_whole(name: str, number: object, most: int) -> None:
    if not isinstance(number, int) or isinstance(number, bool) or not 1 <= number <= most:
        raise ProducerError(f"a producer's {name} must be a whole number from 1 to {most:,}, not {number!r}")


def _check_seconds(name: str, seconds: object) -> None:
    is_number = isinstance(seconds, int | float) and not isinstance(seconds, bool)
    if not is_number or not 0 <= float(seconds) < math.inf:  # type: ignore[arg-type]
        raise ProducerError(f"a producer's {name} must be a number of seconds, not {seconds!r}")
