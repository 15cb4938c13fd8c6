"""Reads what a job and its shadow give their sinks. Only the shadow waits for it."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from pipeline.errors import DecodingError, ShadowLost, StaleReader, StoreError, StoreUnavailable
from pipeline.plan import Plan, echo_name
from pipeline.records import Batch
from pipeline.store.outputs import OutputReader
from pipeline.store.ranges import Piece, extent_of, read_range
from pipeline.store.scripts import Scripts

PORTION: Final = 5_000
"""So many results at most are read of one sink at a time."""

_EARLY_SECONDS: Final = 0.1
_READER: Final = "shadow"


@dataclass(frozen=True, slots=True)
class Results:
    """Consecutive results of one partition for a sink. `first`: the number of the first one."""

    sink: str
    first: int
    piece: Piece

    @property
    def size(self) -> int:
        return len(self.piece.payload)

    def batch(self, start: int = 0) -> Batch:
        """Those with a number from `start` on. Raises DecodingError."""
        batch = self.piece.batch()
        return batch.slice(start - self.first, len(batch)) if start > self.first else batch


class LiveResults:
    """The echoes of a job's sinks, from their first result on. They are trimmed, whether or not they were read."""

    def __init__(self, client: Any, job: str, run: str, sinks: Sequence[str]) -> None:
        self._client = client
        self._job = job
        self._run = run
        self._next = dict.fromkeys(sinks, 1)

    def read(self) -> list[Results]:
        """What there is beyond what was read; after an error all of it again.

        Raises ShadowLost when it is not kept any more, StoreError.
        """
        found, ends = [], dict(self._next)
        for sink, number in self._next.items():
            stream = echo_name(sink)
            stop = min(extent_of(self._client, self._job, stream).stop, number + PORTION)
            try:
                for piece in read_range(self._client, self._job, stream, self._run, range(number, stop)):
                    found.append(Results(sink, piece.first, piece))
            except StaleReader as error:
                raise ShadowLost(
                    f"the shadow of job {self._job!r} was given up: results of sink {sink!r} came faster than they"
                    " were compared. The job goes on",
                    hint="begin it again at a calmer hour",
                ) from error
            ends[sink] = max(stop, number)
        self._next = ends
        return found


class ShadowResults:
    """The results of a shadow, which waits when they are not read."""

    def __init__(self, scripts: Scripts, shadow: str, run: str, plan: Plan) -> None:
        """Registers the readers, before the shadow works. Raises StoreError."""
        self._client = scripts.client
        self._shadow = shadow
        self._run = run
        self._readers = {
            sink.name: OutputReader(scripts, shadow, echo_name(sink.name), _READER, plan.limits) for sink in plan.sinks
        }
        self._next = {sink: reader.next_number for sink, reader in self._readers.items()}
        self._passed = dict(self._next)

    def read(self) -> list[Results]:
        """As that of `LiveResults`; the shadow may give up what was read before. Raises StoreError."""
        found, ends = [], dict(self._next)
        for sink, number in self._next.items():
            stream, reader = echo_name(sink), self._readers[sink]
            if self._passed[sink] != number:
                reader.pass_to(number)
                self._passed[sink] = number
            stop = min(extent_of(self._client, self._shadow, stream).stop, number + PORTION)
            for piece in read_range(self._client, self._shadow, stream, self._run, range(number, stop)):
                found.append(Results(sink, piece.first, piece))
            ends[sink] = max(stop, number)
        self._next = ends
        return found


class Listener:
    """Keeps the results of a job while its shadow is still being made, in a thread of its own."""

    def __init__(self, live: LiveResults, most_bytes: int, seconds: float = _EARLY_SECONDS) -> None:
        self._live = live
        self._most_bytes = most_bytes
        self._seconds = seconds
        self._stop = threading.Event()
        self._heard: list[Results] = []
        self._size = 0
        self._error: Exception | None = None
        self._thread = threading.Thread(target=self._run, name="listener", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def hear(self) -> None:
        """Keeps what there is beyond what was heard. What goes wrong is told by `end`."""
        try:
            found = self._live.read()
        except StoreUnavailable:
            return
        except (StoreError, DecodingError) as error:
            self._error = error
            return
        self._heard += found
        self._size += sum(results.size for results in found)
        if self._size > self._most_bytes:
            self._error = too_much(self._most_bytes, "results of the job")

    def end(self) -> list[Results]:
        """What was heard. Raises ShadowLost, StoreError as `LiveResults.read` did, or when it was too much."""
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join()
        if self._error is not None:
            raise self._error
        return self._heard

    def _run(self) -> None:
        while self._error is None and not self._stop.wait(self._seconds):
            self.hear()


def too_much(most_bytes: int, what: str) -> ShadowLost:
    return ShadowLost(
        f"the shadow was given up: more than {most_bytes >> 20:,} MiB of {what} wait for it. The job goes on",
        hint="give it more workers, or more room with --room",
    )
