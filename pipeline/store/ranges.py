"""Results of an output stream by their numbers, for whoever keeps its place outside Redis. Changes nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Final

from pipeline.codec import decode_batch
from pipeline.errors import DecodingError, JobRestored, StaleReader, StoreError, TailLost, UnknownJob
from pipeline.losses import HINT, LOST
from pipeline.messages import Data, decode_header
from pipeline.records import Batch
from pipeline.store import keys
from pipeline.store.connection import translated
from pipeline.store.foreign import entry_id, ours
from pipeline.store.jobs import NO_JOB
from pipeline.store.losses import LossStore, unknown_job
from pipeline.store.scripts import Scripts
from pipeline.store.standing import restored
from pipeline.wording import counted

PAGE_BYTES: Final = 4 << 20
"""About so much comes with one answer of Redis; one entry may be larger."""

_FIRST_ENTRIES: Final = 8
_MOST_ENTRIES: Final = 512


@dataclass(frozen=True, slots=True)
class Extent:
    """What there is of an output stream: results first <= number < stop.

    run: the job's made_at.generation. server: the run of the server that the job has adopted; where the stream ended
    when that began is `began_at`, if anything had to be noted.
    """

    first: int
    stop: int
    run: str
    server: str
    began_at: int | None


@dataclass(frozen=True, slots=True)
class Piece:
    """Consecutive results of one partition, `partition` of the stage that made them, as they are stored."""

    first: int
    count: int
    skipped: int
    partition: int
    payload: bytes

    def batch(self, decode: Callable[[bytes], Batch] = decode_batch) -> Batch:
        """Raises DecodingError, also for an entry with fewer records than it should have."""
        batch = decode(self.payload)
        if self.skipped or self.count != len(batch):
            batch = batch.slice(self.skipped, self.skipped + self.count)
        if len(batch) != self.count:
            raise DecodingError(
                f"result {self.first}: its entry holds {counted(len(batch), 'record')}, not {self.count}"
            )
        return batch


def extent_of(client: Any, job: str, stream: str) -> Extent:
    """As it is at one moment. Raises UnknownJob, StoreError."""
    with translated():
        pipe = client.pipeline(transaction=True)
        pipe.hmget(keys.job(job), "made_at", "generation", "run_id")
        pipe.hmget(keys.out_meta(job, stream), "pos", "head", "restored_end")
        (made_at, generation, server), (pos, head, began_at) = pipe.execute()
    if made_at is None:
        raise UnknownJob(f"there is no job {job!r}", hint=NO_JOB)
    with ours(keys.out_meta(job, stream)):
        return Extent(
            first=_number(pos or b"1-0"),
            stop=int(head or 0) + 1,
            run=f"{made_at.decode()}.{generation.decode()}",
            server=(server or b"").decode(),
            began_at=None if began_at is None else _number(began_at),
        )


def check_place(scripts: Scripts, job: str, stream: str, known: Extent, number: int, who: str) -> Extent:
    """What there is now, for one who is to go on with result `number`, and knew of `known` when that was noted.

    Raises UnknownJob for a job that was removed or made anew, JobRestored for another generation, TailLost (the job
    halts) when Redis has come back with less, StaleReader when results from `number` on are trimmed.
    """
    now = extent_of(scripts.client, job, stream)
    if now.run.partition(".")[0] != known.run.partition(".")[0]:
        raise unknown_job(job)
    has = now.stop if now.server == known.server or now.began_at is None else min(now.stop, now.began_at)
    line = f"output {stream!r}: {who} had read up to result {number - 1:,}, Redis has {has - 1:,}"
    if now.run != known.run and number > has:
        raise JobRestored(
            f"{restored(job, now.run.partition('.')[2])}: {line}",
            hint=f"the numbers behind {has - 1:,} are given again, to other results: read anew, from there",
        )
    if number > has:
        raise _lost(scripts, job, now.run, f"{line} ({counted(number - has, 'record')})")
    if number < now.first:
        raise _gone(stream, number, now.first - 1, who)
    return now


def read_range(client: Any, job: str, stream: str, run: str, numbers: range) -> Iterator[Piece]:
    """The results of these numbers, each once and in order, page by page.

    Raises StaleReader when some are trimmed, JobRestored or UnknownJob when the job is not that of `run` any more,
    StoreError when some are not there.
    """
    expected, entries = numbers.start, _FIRST_ENTRIES
    start = _holder(client, job, stream, expected) if len(numbers) else ""
    while expected < numbers.stop:
        page = _page(client, job, stream, run, (start, f"{numbers.stop - 1}", entries))
        size = 0
        for id_, fields in page:
            header, first = decode_header(fields.get(b"h", b"")), _number(id_)
            start = f"({id_.decode()}"
            if not isinstance(header, Data) or first + header.count <= expected or expected >= numbers.stop:
                continue
            if first > expected:
                raise _gone(stream, expected, first - 1, "")
            payload = fields.get(b"d", b"")
            stop = min(first + header.count, numbers.stop)
            yield Piece(expected, stop - expected, expected - first, _partition(header.sender), payload)
            expected, size = stop, size + len(payload)
        if not page:
            raise _missing(client, job, stream, range(expected, numbers.stop))
        entries = max(1, min(_MOST_ENTRIES, 2 * entries, len(page) * PAGE_BYTES // max(1, size)))


def _page(client: Any, job: str, stream: str, run: str, bounds: tuple[str, str, int]) -> list[Any]:
    start, end, count = bounds
    with translated():
        pipe = client.pipeline(transaction=True)
        pipe.xrange(keys.out(job, stream), start, end, count=count)
        pipe.hmget(keys.job(job), "made_at", "generation")
        page, (made_at, generation) = pipe.execute()
    if made_at is None or made_at.decode() != run.partition(".")[0]:
        raise unknown_job(job)
    if generation.decode() != run.partition(".")[2]:
        raise JobRestored(restored(job, generation.decode()), hint="read anew")
    return list(page)


def _holder(client: Any, job: str, stream: str, number: int) -> str:
    """The id of the entry that holds a result, or would."""
    with translated():
        found = client.xrevrange(keys.out(job, stream), f"{number}", "-", count=1)
    return found[0][0].decode() if found else f"{number}-0"


def _missing(client: Any, job: str, stream: str, left: range) -> StoreError:
    now = extent_of(client, job, stream)
    if left.start < now.first:
        return _gone(stream, left.start, min(left.stop, now.first) - 1, "")
    return StoreError(
        f"results {left.start:,} to {left.stop - 1:,} of {stream!r} are not there: it ends at {now.stop - 1:,}"
    )


def _gone(stream: str, first: int, last: int, who: str) -> StaleReader:
    held = f": {who} was removed, or had expired" if who else ": they were trimmed while they were read"
    return StaleReader(
        f"results {first:,} to {last:,} of {stream!r} are gone{held}",
        hint="a reader with a name holds what it has not read; begin anew, with a new checkpoint, from what is kept",
    )


def _lost(scripts: Scripts, job: str, run: str, line: str) -> StoreError:
    LossStore(scripts, job).report(run, [line])
    return TailLost(f"{LOST}: {line}", hint=HINT)


def _number(id_: bytes) -> int:
    """Raises ValueError."""
    return int(entry_id(id_.decode()).partition("-")[0])


def _partition(sender: str) -> int:
    """Of a commit's sender, `stage.partition`."""
    number = sender.rpartition(".")[2]
    return int(number) if number.isdecimal() else -1
