"""What a producer holds and the thread that sends it: bounded, in order per lane, each batch until it is taken."""

from __future__ import annotations

import logging
import random
import threading
import time
from collections.abc import Callable
from functools import partial
from typing import Final

from pipeline.errors import (
    InboxFull,
    JobRestored,
    ProducerError,
    SourcePaused,
    StoreError,
    StoreUnavailable,
    UnknownJob,
)
from pipeline.producing.bounds import Bounds
from pipeline.producing.outgoing import Outgoing
from pipeline.producing.queue import LaneQueue
from pipeline.store.durability import Durability
from pipeline.store.senders import Feed, Lane
from pipeline.wording import counted

_FULL_SECONDS: Final = 0.01
_MOST_FULL_SECONDS: Final = 0.1
_AWAY_SECONDS: Final = 0.05
_MOST_AWAY_SECONDS: Final = 1.0

_IDLE_SECONDS: Final = 30.0
"""A `quit` that could not wake the thread is noticed by then."""

_VISIT_SECONDS: Final = 300.0
"""Much less than the silence after which a leader forgets a producer without a name."""

_log = logging.getLogger(__name__)


class Outbox:
    """Any thread may hand over; one daemon thread sends.

    `_lock` guards everything but the lanes, which belong to the thread. `_work` wakes the thread, `_progress` those
    who wait for room or for records to be taken.
    """

    def __init__(
        self,
        feed: Feed,
        lanes: list[Lane],
        bounds: Bounds,
        *,
        leaves: bool,
        clock: Callable[[], float] = time.monotonic,
        rng: random.Random | None = None,
    ) -> None:
        """`leaves`: the senders are of no use to anybody later, and are forgotten at the end."""
        self._feed = feed
        self._bounds = bounds
        self._leaves = leaves
        self._clock = clock
        self._rng = rng or random.Random()
        self._queues = [LaneQueue(lane, bounds) for lane in lanes]
        self._lock = threading.Lock()
        self._work = threading.Condition(self._lock)
        self._progress = threading.Condition(self._lock)
        self._bytes = 0
        self._blocked = 0
        self._turn = 0
        self._is_closing = False
        self._is_abandoned = False
        self._first_asked = 0
        self._visit_at = self._clock() + _VISIT_SECONDS
        self._failure: StoreError | None = None
        self._thread = threading.Thread(target=self._run, name="celeriac-producer", daemon=True)
        self._thread.start()

    @property
    def pending(self) -> int:
        """Records that the job is not known to have."""
        with self._lock:
            return self._pending()

    def offer(self, record: Outgoing) -> bool:
        """Takes the record if there is room, without waiting. Raises ProducerError when closed, and what ended it."""
        with self._lock:
            return self._offer(record)

    def put(self, record: Outgoing, timeout_seconds: float) -> None:
        """Waits for room. Raises InboxFull or StoreUnavailable after the timeout, and as `offer` does."""
        with self._lock:
            deadline = self._clock() + timeout_seconds
            while not self._offer(record):
                left = deadline - self._clock()
                if left <= 0:
                    raise self._no_room(timeout_seconds)
                self._blocked += 1  # those who wait for room are not to wait for batches to fill as well
                self._work.notify()
                self._progress.wait(left)
                self._blocked -= 1

    def flush(self, timeout_seconds: float) -> Durability:
        """Waits until the job has every record handed over before this call; how safe they are there.

        Raises InboxFull or StoreUnavailable after the timeout (the records are kept, and sent on), and what ended it.
        """
        with self._lock:
            self._await_taken(timeout_seconds)
        return self._feed.durability()

    def close(self, timeout_seconds: float) -> None:
        """Ends the thread when everything is taken. After the timeout the rest is dropped, and said in the error.

        Raises as `flush` does. May be called again.
        """
        with self._lock:
            self._is_closing = True
            try:
                self._await_taken(timeout_seconds)
            except StoreError:
                self._is_abandoned = True
                raise
            finally:
                self._work.notify()
        self._thread.join(timeout_seconds)

    def quit(self) -> None:
        """Takes nothing more; the thread ends by itself when everything is taken. Does not wait."""
        self._is_closing = True
        # The garbage collector calls this, perhaps in a thread that holds the lock just now.
        if self._lock.acquire(blocking=False):
            try:
                self._work.notify()
            finally:
                self._lock.release()

    # Handing over, under the lock.

    def _offer(self, record: Outgoing) -> bool:
        if self._failure is not None:
            self._check()
        if self._is_closing:
            raise ProducerError("the producer is closed", hint="make a new one")
        size = record.size
        if self._bytes and self._bytes + size > self._bounds.buffer_bytes:
            return False
        self._bytes += size
        turn = record.hash
        if turn is None:
            turn = self._turn = self._turn + 1
        queues = self._queues
        if queues[turn % len(queues)].add(record, self._clock):
            self._work.notify()
        return True

    def _await_taken(self, timeout_seconds: float) -> None:
        deadline = self._clock() + timeout_seconds
        wanted = [queue.accepted for queue in self._queues]
        for queue in self._queues:
            queue.urgent = queue.accepted
        self._work.notify()
        while any(queue.taken < count for queue, count in zip(self._queues, wanted, strict=True)):
            self._check()
            left = deadline - self._clock()
            if left <= 0:
                raise self._not_taken(timeout_seconds)
            self._progress.wait(left)

    def _check(self) -> None:
        """Raises anew what ended the thread."""
        if self._failure is not None:
            text = f"{self._failure}; {counted(self._pending(), 'record')} handed over before may not have been taken"
            if isinstance(self._failure, JobRestored):
                counts = self._failure.acknowledged, self._failure.survived
                raise JobRestored(text, self._failure.hint, *counts) from self._failure
            raise type(self._failure)(text, hint=self._failure.hint) from self._failure

    def _pending(self) -> int:
        return sum(len(queue) for queue in self._queues)

    def _trouble(self) -> StoreError | None:
        return next((queue.trouble for queue in self._queues if queue.trouble is not None), None)

    def _no_room(self, seconds: float) -> StoreError:
        trouble, text = self._trouble(), f"the producer's buffer stayed full for {seconds:g} s"
        if isinstance(trouble, SourcePaused):
            return SourcePaused(f"{text}: {trouble}", trouble.hint)
        if isinstance(trouble, StoreUnavailable):
            return StoreUnavailable(f"{text}: {trouble}", hint="the record was not accepted; try again later")
        return InboxFull(text, hint="the job is slower than its input: add workers, send less, or wait longer")

    def _not_taken(self, seconds: float) -> StoreError:
        trouble = self._trouble()
        text = f"{counted(self._pending(), 'record')} not taken within {seconds:g} s"
        if isinstance(trouble, SourcePaused):
            return SourcePaused(f"{text}: {trouble}", trouble.hint)
        if isinstance(trouble, InboxFull):
            return InboxFull(f"{text}: the inbox is full", hint="the job is slower than its input: add workers")
        return StoreUnavailable(text + (f": {trouble}" if trouble else ""), hint="is the server up, and fast enough?")

    # Sending, in the thread.

    def _run(self) -> None:
        is_done = False
        try:
            while (task := self._next()) is not None:
                task()
            if self._leaves:
                self._leave()
            is_done = True
        finally:
            with self._lock:
                if not is_done and self._failure is None:
                    self._failure = StoreError("the producer's thread has ended by an error", hint="see the log")
                self._progress.notify_all()
            self._feed.close()

    def _next(self) -> Callable[[], None] | None:
        """Waits for something to do. None when there is nothing left."""
        with self._lock:
            while True:
                if self._failure is not None or self._is_abandoned:
                    return None
                queue, due_at = self._earliest()
                now = self._clock()
                # First, since there may always be something to send.
                if self._leaves and self._visit_at <= now:
                    return self._visit
                if due_at <= now:
                    queue.pack()
                    return partial(self._send, queue)
                if self._is_closing and not self._pending():
                    return None
                self._work.wait(min(_IDLE_SECONDS, due_at - now))

    def _earliest(self) -> tuple[LaneQueue, float]:
        """The lane that is due first; each lane gets its turn when several are due."""
        is_urgent = self._is_closing or self._blocked > 0
        self._first_asked = (self._first_asked + 1) % len(self._queues)
        order = self._queues[self._first_asked :] + self._queues[: self._first_asked]
        return min(((queue, queue.due_at(is_urgent)) for queue in order), key=lambda pair: pair[1])

    def _send(self, queue: LaneQueue) -> None:
        packet = queue.packet
        assert packet is not None
        try:
            queue.lane.append(packet.first, packet.batch, ids=packet.ids)
        except (InboxFull, StoreUnavailable) as error:
            with self._lock:
                queue.put_off(error, self._clock() + self._pause(error, queue.failures))
        except StoreError as error:
            if isinstance(error, JobRestored):
                error = self._restored(error)
            # Whoever sends, flushes or closes is told by an error.
            _log.info("a producer stops: sender=%s: %s", queue.lane.name, error)
            with self._lock:
                self._failure = error
                self._progress.notify_all()
        else:
            with self._lock:
                self._bytes -= queue.settle()
                self._progress.notify_all()

    def _restored(self, error: JobRestored) -> StoreError:
        """The error for the whole producer: what all of its lanes had, and still have."""
        try:
            has = sum(queue.lane.survived() for queue in self._queues)
        except StoreError:
            return error
        had = sum(queue.lane.taken for queue in self._queues)
        text = f"this producer had {counted(had, 'record')} acknowledged, and the job has {has:,} of them"
        return JobRestored(f"{str(error).partition(': sender ')[0]}: {text}", error.hint, had, has)

    def _pause(self, error: StoreError, failures: int) -> float:
        """Seconds, growing, with jitter."""
        first, most = (_FULL_SECONDS, _MOST_FULL_SECONDS)
        if isinstance(error, StoreUnavailable):
            first, most = _AWAY_SECONDS, _MOST_AWAY_SECONDS
        return self._rng.uniform(0.5, 1.0) * min(most, first * 2.0 ** min(failures, 10))

    def _visit(self) -> None:
        """Says that this producer is there, though it may have nothing to send."""
        self._visit_at = self._clock() + _VISIT_SECONDS
        try:
            self._feed.visit([queue.lane for queue in self._queues])
        except StoreError as error:  # the next time has a chance, and what matters is told by the next append
            _log.info("a producer could not say that it is there: %s", error)

    def _leave(self) -> None:
        with self._lock:
            if self._failure is not None or self._pending():
                return
        try:
            for queue in self._queues:
                queue.lane.leave()
        except UnknownJob:
            pass  # all of it went with the job
        except StoreError as error:
            _log.info("a producer's senders stay registered: %s", error)
