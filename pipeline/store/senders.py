"""External senders: registering, appending by number, finishing. What `pipeline.sources` feeds a job through."""

from __future__ import annotations

import logging
import random
from collections.abc import Callable
from dataclasses import dataclass
from time import monotonic, sleep
from typing import Any, Final

from tenacity import Retrying, retry_if_exception_type, stop_after_delay, wait_random_exponential

from pipeline.codec import check_encodable, encode_batch, shown
from pipeline.errors import (
    EncodingError,
    InboxClosed,
    InboxFull,
    StaleSender,
    StoreError,
    StoreFull,
    StoreUnavailable,
    UnknownJob,
    UnknownSender,
)
from pipeline.plan import Plan
from pipeline.records import Batch
from pipeline.store import keys
from pipeline.store.connection import connect
from pipeline.store.jobs import JobStore
from pipeline.store.scripts import Scripts

logger = logging.getLogger(__name__)

FULL_PAUSE_SECONDS: Final = 0.01
OUTAGE_SECONDS: Final = 120.0
"""A sender waits this long for a Redis that is away before it gives up."""


@dataclass(frozen=True, slots=True)
class FeedAddress:
    """All that a process needs to feed one source of a job; may travel to Spark executors."""

    redis_url: str
    job: str
    source: str
    full_timeout_seconds: float | None = None

    def open(self) -> Feed:
        """Raises UnknownJob, StoreError."""
        scripts = Scripts(connect(self.redis_url))
        record = JobStore(scripts).read(self.job)
        return Feed(scripts, self, record.plan, record.generation)

    def __repr__(self) -> str:
        return f"FeedAddress(job={self.job!r}, source={self.source!r})"


class Feed:
    """Feeds one source of a job."""

    def __init__(self, scripts: Scripts, address: FeedAddress, plan: Plan, generation: int) -> None:
        self._scripts = scripts
        self._address = address
        self._plan = plan
        self._generation = generation
        self._stage = plan.entry_stage(address.source)

    def lane(self, split: str, *, exclusive: bool = False) -> Lane:
        """Registers a sender, or finds it again. With `exclusive` an older instance of it is fenced off.

        Splits are not exclusive: two attempts send the same records under the same numbers, which is harmless.
        Raises UnknownJob, InboxClosed (a new sender after the end of the source), StoreError.
        """
        job, stage = self._address.job, self._stage
        name = f"{self._generation}/{self._address.source}/{split}"
        names = [keys.senders(job), keys.job(job)]
        names += [keys.log(job, stage.index, number) for number in range(stage.partitions)]
        answer = persistent(lambda: self._scripts.run("register", names, [name, "1" if exclusive else "0"]))
        if answer[0] == -5:
            raise UnknownJob(f"there is no job {job!r}")
        if answer[0] == -3:
            raise InboxClosed(f"the job {job!r} takes no new input: it is draining or has ended")
        return Lane(self._scripts, self._address, self._plan, name, answer[1:])

    def complete(self, splits: int) -> None:
        """Says that all splits of the source are finished; the job then ends its input.

        Raises StoreError if another number of splits has finished, UnknownJob.
        """
        job, source = self._address.job, self._address.source
        answer = persistent(lambda: self._scripts.run("complete", [keys.job(job), keys.senders(job)], [source, splits]))
        if answer[0] == -5:
            raise UnknownJob(f"there is no job {job!r}")
        if answer[0] == -6:
            raise StoreError(f"source {source!r} has {answer[1]} finished splits, not {splits}")


class Lane:
    """One registered sender. Its numbers start at 1 and have no gaps; `taken` is the highest that the job has."""

    def __init__(self, scripts: Scripts, address: FeedAddress, plan: Plan, name: str, registration: list[int]) -> None:
        self._scripts = scripts
        self._address = address
        self._limits = plan.limits
        self._id, self._epoch, partition, self.taken, self.finished = registration
        job, stage = address.job, plan.entry_stage(address.source).index
        self._log = keys.log(job, stage, partition)
        self._keys = [
            keys.inbox(job, stage, partition),
            keys.meta(job, stage, partition),
            self._log,
            keys.job(job),
        ]
        self.name = name

    def append(self, first: int, batch: Batch) -> None:
        """Appends the records numbered first .. first + len(batch) - 1; what the job has already is cut off.

        A record that cannot be encoded, or is larger than the job's limit, becomes a fault: it keeps its number and
        ends as a dead letter. Blocks while the inbox is full. Returns when Redis has taken the records.
        Raises InboxFull (after `full_timeout_seconds`), InboxClosed, StaleSender, UnknownSender, UnknownJob,
        StoreError for a gap.
        """
        if first > self.taken + 1:
            raise StoreError(f"sender {self.name!r}: number {first} would leave a gap behind {self.taken}")
        start = max(0, self.taken + 1 - first)
        while start < len(batch):
            stop = min(len(batch), start + max(1, self._limits.inbox_records // 8))
            start = self._append_piece(first, batch, start, stop)

    def _append_piece(self, first: int, batch: Batch, start: int, stop: int) -> int:
        piece = batch.slice(start, stop)
        payload = encode_faulty(piece, self._limits.record_bytes)
        if len(payload) > self._limits.entry_bytes and stop - start > 1:
            return self._append_piece(first, batch, start, start + (stop - start) // 2)
        self._send(first + start, len(piece), payload)
        return self.taken + 1 - first

    def _send(self, first: int, count: int, payload: bytes) -> None:
        args = [
            self._id,
            self._epoch,
            first,
            count,
            payload,
            "",
            self._limits.inbox_records,
            self._limits.inbox_bytes,
        ]
        full_since: float | None = None
        while True:
            code, last = self._answer(args)
            if code == -4:
                full_since = full_since if full_since is not None else monotonic()
                self._wait_while_full(full_since)
                continue
            self.taken = max(self.taken, last)
            if code in (1, 2, 3):
                return
            raise self._refusal(code, last)

    def _answer(self, args: list[Any]) -> tuple[int, int]:
        """The script's answer; a Redis without memory counts as a full inbox."""
        try:
            code, last = persistent(lambda: self._scripts.run("append", self._keys, args))
        except StoreFull:
            return -4, self.taken
        return code, last

    def _wait_while_full(self, since: float) -> None:
        limit = self._address.full_timeout_seconds
        if limit is not None and monotonic() - since > limit:
            raise InboxFull(
                f"the inbox of sender {self.name!r} stayed full for {limit} s",
                hint="the job is slower than its input: add workers, or wait longer",
            )
        sleep(FULL_PAUSE_SECONDS * (0.5 + random.random()))

    def finish(self, count: int) -> None:
        """Says that the split has exactly `count` records. Idempotent. Raises StoreError if it has not."""
        job = self._address.job
        names = [self._log, keys.senders(job), keys.job(job)]
        answer = persistent(lambda: self._scripts.run("finish", names, [self._id, count, self._address.source]))
        if answer[0] != 1:
            raise self._refusal(answer[0], answer[1] if len(answer) > 1 else 0)

    def _refusal(self, code: int, last: int) -> StoreError:
        job = self._address.job
        match code:
            case -1:
                return UnknownSender(
                    f"sender {self.name!r} is not registered with job {job!r}", hint="register it anew"
                )
            case -2:
                return StaleSender(f"a newer instance of sender {self.name!r} has registered; this one must stop")
            case -3:
                return InboxClosed(f"the job {job!r} takes no new input: it is draining or has ended")
            case -5:
                return UnknownJob(f"there is no job {job!r}", hint="it was removed, or Redis lost it")
            case _:
                return StoreError(
                    f"sender {self.name!r}: the job has its numbers up to {last}, and others do not follow"
                )


def persistent(call: Callable[[], list[Any]]) -> list[Any]:
    """Runs a call that may safely be repeated, again and again while Redis is away, for OUTAGE_SECONDS."""
    for attempt in Retrying(
        retry=retry_if_exception_type(StoreUnavailable),
        wait=wait_random_exponential(multiplier=0.05, max=1.0),
        stop=stop_after_delay(OUTAGE_SECONDS),
        reraise=True,
    ):
        with attempt:
            return call()
    raise AssertionError("unreachable: Retrying returns or raises")


def encode_faulty(batch: Batch, record_bytes: int) -> bytes:
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
            faults[index] = _storable(str(error))
            values[index] = shown(value, 1000)
            continue
        if size > record_bytes:
            faults[index] = f"the record has {size} bytes, more than the limit of {record_bytes}"
            values[index] = shown(value, 1000)
    return encode_batch(Batch(values, batch.keys, batch.times, batch.ids, faults))


def _storable(text: str) -> str:
    """The text without lone surrogates, which no encoder takes."""
    return text.encode("utf-8", "backslashreplace").decode()
