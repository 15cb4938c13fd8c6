"""Sending records to a running job, from any application: `Producer`, and `AsyncProducer` for an event loop.

It needs neither Celery nor Spark, and reads no pipeline file.
"""

from __future__ import annotations

import asyncio
import atexit
import logging
import os
import re
import secrets
import threading
import time
import weakref
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime
from functools import partial
from types import TracebackType
from typing import Any, Final, Self, TypeVar

from pipeline.errors import ProducerError, StoreError
from pipeline.producing.bounds import Bounds, check_timeout
from pipeline.producing.opening import Destination, Opened, open_destination
from pipeline.producing.outbox import Outbox
from pipeline.store.durability import Durability

__all__ = ["AsyncProducer", "Durability", "Producer"]

REDIS_VARIABLE: Final = "CELERIAC_REDIS"
"""Where the address of Redis comes from when none is given."""

_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}\Z")
_EXIT_SECONDS: Final = 10.0

_log = logging.getLogger(__name__)
_T = TypeVar("_T")


class Producer:
    """Sends records to one source of one job; any number of threads may use it.

    Records of one key arrive in the order in which they were sent by one thread. A record is kept in this process
    until the job has it, and sent again after every fault: the job takes it once. `send` only hands over; what must not
    be lost with this process is safe when `flush` has returned.

    The first `send` connects. A forked child starts anew with a connection, a thread and a buffer of its own; what
    the parent holds stays the parent's to send.
    """

    def __init__(
        self,
        job: str,
        redis_url: str | None = None,
        *,
        source: str | None = None,
        name: str | None = None,
        lanes: int = 4,
        batch_records: int = 500,
        batch_bytes: int = 256 << 10,
        linger_seconds: float = 0.05,
        buffer_bytes: int = 32 << 20,
        full_timeout_seconds: float = 30.0,
    ) -> None:
        """Connects to nothing yet. Raises ProducerError for an argument that cannot be.

        redis_url: by default what the variable CELERIAC_REDIS says.
        source: the source's name; needed only where the pipeline has several of `read.producer()`.
        name: a name that this one process keeps through restarts; a second process of that name fences off the first.
        The others are as `pipeline.producing.bounds.Bounds` says.
        """
        url = redis_url or os.environ.get(REDIS_VARIABLE, "")
        if not url:
            raise ProducerError(
                "a producer needs the address of Redis",
                hint=f"give it redis_url=, or set the variable {REDIS_VARIABLE}",
            )
        if name is not None and not _NAME.match(name):
            raise ProducerError(
                f"{name!r} cannot be a producer's name", hint="use 1 to 64 letters, digits, '-', '_' and '.'"
            )
        self._bounds = Bounds(lanes, batch_records, batch_bytes, linger_seconds, buffer_bytes, full_timeout_seconds)
        self._destination = Destination(url, job, source, name or "", name is None)
        self._is_closed = False
        self._opening = threading.Lock()
        self._opened: Opened | None = None
        self._finalizer: weakref.finalize[..., Producer] | None = None
        _producers.add(self)

    @property
    def job(self) -> str:
        return self._destination.job

    @property
    def pending(self) -> int:
        """Records handed over that the job is not known to have."""
        return self._opened.outbox.pending if self._opened is not None else 0

    @property
    def full_timeout_seconds(self) -> float:
        return self._bounds.full_timeout_seconds

    def send(self, key: Any, value: Any, timestamp: int | datetime | None = None, id: str | None = None) -> None:
        """Hands one record over; waits only while the buffer is full, at most `full_timeout_seconds`.

        key: text, an integer, bytes or a tuple of these: records of one key keep their order. None: no order.
        value: plain data. It is encoded now: what is done to it later does not matter.
        timestamp: event time, in milliseconds since 1970 or as a datetime with its zone; this moment by default.
        id: the record's own id, of the outside world. A record whose id the source has seen before is dropped.

        Raises EncodingError (naming the field) for a record that cannot be stored or is too large, InboxFull or
        StoreUnavailable when there was no room in time: the record was not accepted then. Raises InboxClosed when the
        job drains or has ended, UnknownJob when there is none, StaleSender when another process uses the name,
        ProducerError after `close`: the producer is of no more use then.
        """
        opened = self._opened
        if opened is None or self._is_closed:
            opened = self._open()
        record = opened.packer.pack(key, value, timestamp, id, time.time_ns() // 1_000_000)
        if not opened.outbox.offer(record):
            opened.outbox.put(record, self._bounds.full_timeout_seconds)

    def try_send(self, key: Any, value: Any, timestamp: int | datetime | None = None, id: str | None = None) -> bool:
        """As `send`, but never waits: False when there is no room, or nothing is connected yet."""
        self._refuse_closed()
        opened = self._opened
        if opened is None:
            return False
        return opened.outbox.offer(opened.packer.pack(key, value, timestamp, id, time.time_ns() // 1_000_000))

    def flush(self, timeout_seconds: float | None = None) -> Durability:
        """Waits until the job has every record sent before this call, and says how safe they are there.

        Raises InboxFull or StoreUnavailable when that takes longer than the timeout, by default `full_timeout_seconds`;
        the records are kept then, and sending goes on. Raises also what ended the producer, as `send` does.
        """
        seconds = check_timeout(timeout_seconds, self._bounds.full_timeout_seconds)
        return self._open().outbox.flush(seconds)

    def close(self, timeout_seconds: float | None = None) -> None:
        """Flushes and ends. Records not taken in time are dropped, and their number is in the error. Idempotent.

        Raises as `flush` does.
        """
        seconds = check_timeout(timeout_seconds, self._bounds.full_timeout_seconds)
        with self._opening:
            was_closed, self._is_closed = self._is_closed, True
        if not was_closed and self._opened is not None:
            self._opened.outbox.close(seconds)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Closes. Raises what `close` raises, unless the body has raised: then that goes first."""
        try:
            self.close()
        except StoreError as other:
            if error is None:
                raise
            _log.error("a producer ends without having sent everything: %s", other)

    def __repr__(self) -> str:
        return f"Producer(job={self.job!r}, source={self._destination.source!r}, name={self._destination.name!r})"

    def _open(self) -> Opened:
        opened = self._opened
        if opened is not None and not self._is_closed:
            return opened
        with self._opening:
            self._refuse_closed()
            if self._opened is None:
                to = self._destination
                if not to.name:  # cannot be a name that somebody has chosen
                    to = Destination(to.redis_url, to.job, to.source, f"_{secrets.token_hex(8)}", True)
                self._opened = open_destination(to, self._bounds)
                self._finalizer = weakref.finalize(self, self._opened.outbox.quit)
                self._finalizer.atexit = False
                _outboxes.add(self._opened.outbox)
            return self._opened

    def _refuse_closed(self) -> None:
        if self._is_closed:
            raise ProducerError("the producer is closed", hint="make a new one")

    def _start_over(self) -> None:
        """In a forked child: locks may be held by threads that do not exist here, and the name is the parent's."""
        if self._finalizer is not None:
            self._finalizer.detach()
            if self._destination.name:
                to = self._destination
                self._destination = Destination(to.redis_url, to.job, to.source, "", True)
        self._opening = threading.Lock()
        self._opened = self._finalizer = None


class AsyncProducer:
    """A `Producer` for code in one event loop, which it never blocks: what waits, waits in a thread.

    The producer itself may be used by other threads all the while. Sends that wait keep their order.
    """

    def __init__(self, producer: Producer) -> None:
        self._producer = producer
        self._turn = asyncio.Lock()
        # Threads of our own: a job that is slow must not take those that the application has for other things.
        self._threads = ThreadPoolExecutor(max_workers=4, thread_name_prefix="celeriac-async-producer")

    async def send(self, key: Any, value: Any, timestamp: int | datetime | None = None, id: str | None = None) -> None:
        """As `Producer.send`. When it is cancelled while it waits, the record may be sent all the same."""
        if not self._turn.locked() and self._producer.try_send(key, value, timestamp, id):
            return
        async with self._turn:
            await self._in_thread(partial(self._producer.send, key, value, timestamp, id))

    async def flush(self, timeout_seconds: float | None = None) -> Durability:
        """As `Producer.flush`."""
        deadline = time.monotonic() + check_timeout(timeout_seconds, self._producer.full_timeout_seconds)
        return await self._in_thread(lambda: self._producer.flush(max(0.0, deadline - time.monotonic())))

    async def close(self, timeout_seconds: float | None = None) -> None:
        """As `Producer.close`."""
        try:
            await self._in_thread(partial(self._producer.close, timeout_seconds))
        finally:
            self._threads.shutdown(wait=False)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def _in_thread(self, call: Callable[[], _T]) -> _T:
        return await asyncio.get_running_loop().run_in_executor(self._threads, call)


_producers: weakref.WeakSet[Producer] = weakref.WeakSet()
_outboxes: weakref.WeakSet[Outbox] = weakref.WeakSet()


def _after_fork() -> None:
    """Nothing that belongs to the parent may be flushed or closed here."""
    _outboxes.clear()
    for producer in list(_producers):
        producer._start_over()


def _at_exit() -> None:
    """Sends what is left when the program ends in the ordinary way."""
    for outbox in list(_outboxes):
        try:
            outbox.close(_EXIT_SECONDS)
        except StoreError as error:
            _log.error("a producer ends without having sent everything: %s", error)


os.register_at_fork(after_in_child=_after_fork)
atexit.register(_at_exit)
