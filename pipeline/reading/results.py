"""Results of a running or ended job, read from one of its output streams: an iterator with a place that Redis keeps."""

from __future__ import annotations

import math
import os
import secrets
import weakref
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import islice, repeat
from types import TracebackType
from typing import Any, Final, NamedTuple, Self, TypeVar

from pipeline.errors import ReadingError, StaleReader, StoreError
from pipeline.lifecycle import WORKING, JobState
from pipeline.settings import Limits
from pipeline.store.connection import connect
from pipeline.store.jobs import JobStore
from pipeline.store.outputs import TEMPORARY, Opening, OutputReader, Stretch, remove_reader
from pipeline.store.patience import Patience
from pipeline.store.scripts import Scripts

TEMPORARY_SECONDS: Final = 60.0
"""After so much silence a reader without a name is forgotten: its process has died, or hangs."""

FETCH_BYTES: Final = 4 << 20
"""About so much encoded data is held at once; one entry may be larger."""

_FIRST_ENTRIES: Final = 8
_MOST_ENTRIES: Final = 256
_ROUND_SECONDS: Final = 1.0
"""How often the job's state is looked at while nothing comes."""

_GOODBYE_SECONDS: Final = 2.0

_T = TypeVar("_T")


class Result(NamedTuple):
    """One result. `position` is its number in the stream: 1, 2, 3, …, the same however often and by whom it is read."""

    key: Any
    value: Any
    position: int


@dataclass(frozen=True, slots=True)
class Reading:
    """What is read, and how. `name` None: a reader without a name, which is taken out at the end.

    wait_seconds: the iterator pauses, with StopIteration, when nothing came for so long; None: it waits for the job.
    """

    redis_url: str = field(repr=False)
    job: str
    output: str
    name: str | None
    opening: Opening
    wait_seconds: float | None


class Results:
    """An iterator over results, for one thread of one process.

    It ends when the job has ended and all is read. A reader with a name goes on where `commit` has left it: what was
    handed out behind that comes again, with the same positions. The job keeps what a reader has not committed, and
    waits when that is too much. One without a name commits by itself what was handed out.

    Outages of Redis are waited for. Every method raises StaleReader when the reader was removed, has expired or was
    moved by another process of its name, UnknownJob when the job was removed, StoreError, DecodingError.
    """

    def __init__(self, scripts: Scripts, reading: Reading, limits: Limits, patience: Patience | None = None) -> None:
        """Registers the reader. Raises UnknownJob, ReadingError for a start out of reach, StoreError."""
        self._scripts = scripts
        self._jobs = JobStore(scripts)
        self._limits = limits
        self._patience = patience or Patience()
        self._pid = os.getpid()
        self._is_closed = False
        self._name = reading.name or f"{TEMPORARY}{secrets.token_hex(8)}"
        if reading.name is None:
            expire_seconds = reading.opening.expire_seconds or TEMPORARY_SECONDS
            reading = replace(reading, opening=Opening(reading.opening.start, expire_seconds))
        self._reading = reading
        self._queue: deque[Stretch] = deque()
        self._stretch: Stretch | None = None
        self._current: Iterator[Result] = iter(())
        self._entries = _FIRST_ENTRIES
        self.state: JobState | None = None
        """The job's state once it works no more and all is read, else None."""
        self._reader = self._register(reading.opening)
        self.next_position = self._reader.next_number
        """The number of the next result that is handed out."""
        self._finalizer: weakref.finalize[..., Results] | None = None
        if reading.name is None:
            self._finalizer = weakref.finalize(self, _say_goodbye, reading, self._name, limits, self._pid)

    @property
    def is_new(self) -> bool:
        """False for a named reader that goes on where it stood."""
        return self._reader.is_new

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Result:
        """The next result; StopIteration at the end, or when `wait_seconds` are over: it may be asked again then."""
        if self._patience.clock() >= self._due:
            self._keep()
        while (result := next(self._current, None)) is None:
            if not self._open_next():
                raise StopIteration
        self.next_position = result.position + 1
        return result

    def take(self, most: int = 1000) -> list[Result]:
        """What is there, at most so many results; waits for the first. None: the end, or `wait_seconds` are over."""
        if self._patience.clock() >= self._due:
            self._keep()
        while not (results := list(islice(self._current, most))):
            if not self._open_next():
                return []
        while len(results) < most and self._queue and self._open_next():
            results += islice(self._current, most - len(results))
        self.next_position = results[-1].position + 1
        return results

    def commit(self) -> None:
        """Says that all that was handed out is done with: it is not read again under this name. One call of Redis."""
        self._check_use()
        try:
            self._insist(lambda: self._reader.advance(self._place()))
        except StaleReader as error:
            self._come_back(error)
        self._note_heard()

    def close(self) -> None:
        """Ends reading. A reader with a name stays registered, at its last commit. Idempotent."""
        self._is_closed = True
        self._current, self._stretch = iter(()), None
        self._queue.clear()
        if self._finalizer is not None:
            self._finalizer()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _open_next(self) -> bool:
        """Makes the next stretch the current one. False when there is none."""
        self._check_use()
        if not self._queue and not self._fetch():
            return False
        stretch = self._queue[0]
        batch = stretch.batch()  # first: what cannot be read must not be passed over
        self._stretch = self._queue.popleft()
        numbers = range(stretch.first, stretch.first + stretch.count)
        self._current = map(Result, batch.keys or repeat(None), batch.values, numbers)
        return True

    def _fetch(self) -> bool:
        """Fills the queue; waits. False when there is nothing more, or nothing yet."""
        if self._reading.name is None:
            self.commit()
        wait_seconds = self._reading.wait_seconds
        until = math.inf if wait_seconds is None else self._patience.clock() + wait_seconds
        self.state, wait_ms = None, 0
        while True:
            if self._receive(wait_ms):
                self.state = None
                return True
            if self.state:
                return False
            state = self._insist(lambda: self._jobs.state(self._reading.job))
            now = self._patience.clock()
            wait_ms = max(0, int(1000 * min(_ROUND_SECONDS, until - now, self._due - now)))
            if state not in WORKING:
                self.state, wait_ms = state, 0  # and one look more: it may have ended behind the last one
            elif now >= until:
                return False
            elif now >= self._due:
                self._keep()

    def _receive(self, wait_ms: int) -> bool:
        """Queues what is there, and waits for the first of it. False when no record has come."""
        while True:
            before = self._reader.read_to
            try:
                found = self._insist(partial(self._reader.fetch, self._entries, wait_ms))
            except StaleReader as error:
                self._come_back(error)
                continue
            if found:
                size = sum(len(stretch.payload) for stretch in found) // len(found)
                self._entries = max(1, min(_MOST_ENTRIES, 2 * self._entries, FETCH_BYTES // max(1, size)))
                self._queue.extend(found)
                return True
            if self._reader.read_to == before:
                return False
            wait_ms = 0

    def _place(self) -> str | None:
        """Behind what was handed out; None for behind all that was read."""
        if self._stretch is None:
            return self._reader.position if self._queue else None
        handed = self.next_position - self._stretch.first
        return None if not self._queue and handed == self._stretch.count else self._stretch.place(handed)

    def _keep(self) -> None:
        self._check_use()
        try:
            self._insist(self._reader.keep)
        except StaleReader as error:
            self._come_back(error)
        self._note_heard()

    def _come_back(self, stale: StaleReader) -> None:
        """A reader without a name that was taken for dead goes on, if nothing is lost. Raises StaleReader."""
        if self._reading.name is not None:
            raise stale
        self._queue.clear()
        self._current, self._stretch = iter(()), None
        try:
            self._reader = self._register(replace(self._reading.opening, start=self.next_position))
        except ReadingError as error:
            raise StaleReader(
                f"this reader was silent for too long, and missed results: {error}",
                hint="give it a name: then the job keeps what it has not read",
            ) from error

    def _register(self, opening: Opening) -> OutputReader:
        at = self._reading
        reader = self._insist(lambda: OutputReader(self._scripts, at.job, at.output, self._name, self._limits, opening))
        self._note_heard()
        return reader

    def _note_heard(self) -> None:
        seconds = self._reading.opening.expire_seconds
        self._due = math.inf if seconds is None else self._patience.clock() + seconds / 3

    def _insist(self, call: Callable[[], _T]) -> _T:
        return self._patience.through_outages(lambda: [call()])[0]  # type: ignore[no-any-return]

    def _check_use(self) -> None:
        if self._is_closed:
            raise ReadingError("these results are closed", hint="call client.results(...) again")
        if os.getpid() != self._pid:
            raise ReadingError(
                "results are read in another process than the one that asked for them",
                hint="call client.results(...) again behind the fork",
            )


def _say_goodbye(reading: Reading, name: str, limits: Limits, pid: int) -> None:
    """Takes a reader without a name out, unless this is a forked child. Whoever cannot say so is forgotten in time.

    On a connection of its own: an interrupt may have left the other one in the middle of an answer.
    """
    if os.getpid() != pid:
        return
    with suppress(StoreError):
        client = connect(reading.redis_url, timeout_seconds=_GOODBYE_SECONDS)
        try:
            remove_reader(Scripts(client), reading.job, reading.output, name, limits)
        finally:
            client.close()
