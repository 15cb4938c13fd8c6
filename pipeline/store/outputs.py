"""Readers of output streams: each has a place in Redis, and the stream is trimmed to what they need."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal, TypeAlias

from pipeline.codec import decode_batch
from pipeline.errors import JobRestored, ReadingError, StaleReader, StoreError, TailLost, UnknownJob
from pipeline.facts import OutputFacts, ReaderFacts
from pipeline.losses import HINT, LOST
from pipeline.messages import Data, decode_header
from pipeline.positions import entry_after
from pipeline.records import Batch
from pipeline.settings import Limits
from pipeline.store import keys
from pipeline.store.connection import translated
from pipeline.store.foreign import entry_id, integer, ours, text_of
from pipeline.store.losses import LossStore, unknown_job
from pipeline.store.scripts import Scripts
from pipeline.store.standing import restored
from pipeline.wording import counted

LONGEST_WAIT_MS: Final = 5_000
"""Below the time after which the client takes a silent server for dead."""

TEMPORARY: Final = "_"
"""Names of readers that nobody comes back under begin with it: what they have read stays in the stream."""

Start: TypeAlias = Literal["begin", "end"] | int
"""Where a new reader begins: the oldest record that is kept, behind the newest, or the record of that number."""


@dataclass(frozen=True, slots=True)
class Opening:
    """How a reader is registered. One that is known goes on where it stood, wherever `start` is.

    expire_seconds: the leader forgets a reader that was silent for so long; None: never.
    """

    start: Start = "begin"
    expire_seconds: float | None = None


@dataclass(frozen=True, slots=True)
class Stretch:
    """Some records of a stream, as they are stored. `first` is the number of the first one; numbers begin at 1.

    entry: the id of the entry. skipped: records of it that are not part of this.
    """

    first: int
    count: int
    entry: str
    skipped: int
    payload: bytes

    def batch(self) -> Batch:
        """Raises DecodingError."""
        batch = decode_batch(self.payload)
        return batch.slice(self.skipped, len(batch)) if self.skipped else batch

    def place(self, records: int) -> str:
        """The place behind so many of these records."""
        done = self.skipped + records
        return entry_after(self.entry, done) if records == self.count else _place(self.entry, done)


class OutputReader:
    """Reads one output stream of a job under a name. Records are kept until `advance` has passed them.

    A call that raised StoreUnavailable may be repeated, whether or not Redis has applied it.
    """

    def __init__(
        self, scripts: Scripts, job: str, sink: str, reader: str, limits: Limits, opening: Opening | None = None
    ) -> None:
        """Registers the reader, or goes on where it stood. Raises UnknownJob, ReadingError for a start out of reach."""
        opening = opening or Opening()
        self._scripts = scripts
        self._sink = sink
        self._reader = reader
        self._bounds = _bounds(limits)
        self._job = job
        self._keys = _keys(job, sink)
        self._opening = opening
        self._read_to = ""
        self._register(opening)
        self._read_to = self.position
        self._unanswered: str | None = None

    def _register(self, opening: Opening) -> None:
        job, sink, scripts, reader = self._job, self._sink, self._scripts, self._reader
        expire_ms = "" if opening.expire_seconds is None else max(1, int(opening.expire_seconds * 1000))
        answer = scripts.run("reader", [*self._keys, keys.job(job)], [reader, opening.start, expire_ms, *self._bounds])
        match answer[0]:
            case -5:
                raise UnknownJob(f"there is no job {job!r}", hint="celeriac list shows the jobs")
            case -3:
                raise ReadingError(
                    f"the result {opening.start} of {sink!r} is no longer kept; the oldest is {answer[1]}",
                    hint="begin reads from the oldest on",
                )
            case -4:
                raise ReadingError(
                    f"the result {opening.start} of {sink!r} is not there yet; the next one will be {answer[1]}"
                )
        with ours(self._keys[1]):
            self.position: str = answer[1].decode()
            _order(self.position)
        with ours(keys.job(job)):
            self._run = answer[3].decode()
        self.is_new, self._adopted, self._server = bool(answer[2]), answer[4], scripts.server

    def _compare(self) -> None:
        """Another run of the server answers: goes on if it has all that was read. Raises TailLost, JobRestored."""
        server = self._scripts.meet()
        answer = self._scripts.run("resume", [keys.job(self._job), self._keys[1]], [self._reader])
        if answer[0] == -5:
            raise unknown_job(self._job)
        with ours(self._keys[1]):
            run, adopted, end, place = answer[1].decode(), answer[2], answer[3].decode(), answer[4].decode()
            _order(end), _order(place or end)
        if run.partition(".")[0] != self._run.partition(".")[0]:
            raise unknown_job(self._job)
        if _order(self._read_to) > _order(end):
            raise self._lost(run, end)
        if not place:
            entry, skipped = _parts(self.position)
            self._register(Opening(_first(entry) + skipped, self._opening.expire_seconds))
        elif _order(place) < _order(self.position):
            self.position = place  # that it had gone on from there is lost, and nothing else
        self._run, self._adopted, self._server = run, adopted, server

    def _lost(self, run: str, end: str) -> StoreError:
        who = "a reader without a name" if self._reader.startswith(TEMPORARY) else f"reader {self._reader}"
        had, has = self.next_number - 1, _first(end) - 1
        lost = counted(had - has, "record")
        line = f"output {self._sink!r}: {who} had read up to result {had:,}, Redis has {has:,} ({lost})"
        if run != self._run:
            return JobRestored(
                f"{restored(self._job, run.partition('.')[2])}: {line}",
                hint=f"the numbers behind {has:,} are given again, to other results: read anew from there",
            )
        LossStore(self._scripts, self._job).report(run, [line])
        return TailLost(f"{LOST}: {line}", hint=HINT)

    @property
    def read_to(self) -> str:
        """The place behind all that was read."""
        return self._read_to

    @property
    def next_number(self) -> int:
        """The number of the first record that was not read yet."""
        entry, skipped = _parts(self._read_to)
        return _first(entry) + skipped

    def fetch(self, entries: int = 64, wait_ms: int = 0) -> list[Stretch]:
        """What is next behind all that was read before; may wait up to `wait_ms` (5 s at most) for the first.

        Raises StaleReader when records were trimmed that were not read, DecodingError, StoreError.
        """
        if self._scripts.server != self._server:
            self._compare()
        place, found = self._read_to, []
        for id_bytes, fields in self._entries(entries, wait_ms):
            entry, skipped = _parts(place)
            header, id_ = decode_header(fields.get(b"h", b"")), id_bytes.decode()
            if _first(id_) > _first(entry) + skipped:
                raise StaleReader(
                    f"results {_first(entry) + skipped} to {_first(id_) - 1} of {self._sink!r} are gone: "
                    f"the reader {self._reader!r} was removed, or had expired"
                )
            count = header.count if isinstance(header, Data) else 0
            skipped = skipped if id_ == entry else 0
            if isinstance(header, Data):
                found.append(Stretch(_first(id_) + skipped, count - skipped, id_, skipped, fields.get(b"d", b"")))
            place = entry_after(id_, count)
        self._read_to = place
        return found

    def read(self, entries: int = 64, wait_ms: int = 0) -> list[Batch]:
        """As `fetch`, decoded."""
        return [stretch.batch() for stretch in self.fetch(entries, wait_ms)]

    def advance(self, to: str | None = None) -> None:
        """Gives up what stands in front of a place, by default all that was read.

        Raises StaleReader if the reader was removed, or moved by somebody else.
        """
        if self._unanswered is not None:
            self._move(self._unanswered)
        to = self._read_to if to is None else to
        if to != self.position:
            self._move(to)

    def pass_to(self, number: int) -> None:
        """Gives up what stands in front of the result of that number, which whoever asks has read elsewhere.

        Raises as `advance` does.
        """
        with translated():
            found = self._scripts.client.xrevrange(self._keys[0], f"{number - 1}", "-", count=1)
        place = f"{number}-0"
        for id_bytes, fields in found:
            entry = id_bytes.decode()
            header = decode_header(fields.get(b"h", b""))
            if isinstance(header, Data) and _first(entry) + header.count > number:
                place = _place(entry, number - _first(entry))
        if _order(place) > _order(self.position):
            self.advance(place)

    def keep(self) -> None:
        """Says that the reader is still there. Raises as `advance` does."""
        self._move(self.position if self._unanswered is None else self._unanswered)

    def _move(self, to: str) -> None:
        if self._scripts.server != self._server:
            self._compare()
        is_repeated = self._unanswered == to
        self._unanswered = to
        answer = self._scripts.run("advance", self._keys, [self._reader, self.position, to, *self._bounds])
        self._unanswered = None
        match answer[0]:
            case -1:
                raise StaleReader(f"the reader {self._reader!r} of {self._sink!r} was removed, or had expired")
            case -2 if not (is_repeated and answer[1] == to.encode()):
                raise StaleReader(
                    f"the reader {self._reader!r} of {self._sink!r} was moved by another process",
                    hint="give each process a reader of its own name",
                )
        self.position = to

    def _entries(self, count: int, wait_ms: int) -> list[Any]:
        raw = self._page(count)
        if not raw and wait_ms:
            # XREAD wants the id before the one we look for; an id below it in the same stream does not exist.
            before = _before(_parts(self._read_to)[0])
            with translated():
                self._scripts.client.xread({self._keys[0]: before}, count=1, block=min(wait_ms, LONGEST_WAIT_MS))
            raw = self._page(count)
        return raw

    def _page(self, count: int) -> list[Any]:
        """Nothing is added to a stream before the job has adopted the server: what is read with that belongs to it."""
        entry, _ = _parts(self._read_to)
        with translated():
            pipe = self._scripts.client.pipeline(transaction=False)
            pipe.xrange(self._keys[0], entry, "+", count=count)
            pipe.hget(keys.job(self._job), "run_id")
            raw, adopted = pipe.execute()
        if adopted is None:
            raise unknown_job(self._job)
        if adopted != self._adopted:
            self._compare()
            return self._page(count)
        return list(raw)


def remove_reader(scripts: Scripts, job: str, sink: str, reader: str, limits: Limits) -> bool:
    """Takes the reader out, and wakes those who waited for it. False if there is none. Raises StoreError."""
    return bool(scripts.run("dismiss", _keys(job, sink), [reader, *_bounds(limits)])[0])


def remove_silent(scripts: Scripts, job: str, token: str, sink: str, limits: Limits) -> list[str] | None:
    """Takes out the readers that have expired and returns their names; None if `token` no longer leads the job."""
    answer = scripts.run("reap", [keys.leader(job), *_keys(job, sink)], [token, *_bounds(limits)])
    return [name.decode("utf-8", "backslashreplace") for name in answer[1]] if answer[0] == 1 else None


def output_facts(sink: str, raw: Mapping[bytes, bytes], waiting: int, now_ms: int) -> OutputFacts:
    """What the hash of an output stream says. Raises ValueError."""
    meta = text_of(raw)
    head = integer(meta, "head", 0)
    readers = []
    for name in sorted(field[2:] for field in meta if field.startswith("r:")):
        entry, skipped = _parts(meta["r:" + name])
        readers.append(
            ReaderFacts(
                name=name,
                is_temporary=name.startswith(TEMPORARY),
                next_number=_first(entry) + skipped,
                unread=max(0, head + 1 - _first(entry) - skipped),
                silent_seconds=max(0, now_ms - integer(meta, "h:" + name, now_ms)) / 1000,
                expire_seconds=integer(meta, "x:" + name) / 1000 if "x:" + name in meta else None,
            )
        )
    oldest = _first(meta.get("pos", "1-0"))
    return OutputFacts(sink, oldest, head + 1, integer(meta, "bytes", 0), waiting, tuple(readers))


def _keys(job: str, sink: str) -> list[str]:
    return [keys.out(job, sink), keys.out_meta(job, sink), keys.out_waiting(job, sink)]


def _bounds(limits: Limits) -> tuple[int, int, float]:
    return limits.inbox_records, limits.inbox_bytes, limits.inbox_low


def _place(entry: str, record: int) -> str:
    return f"{entry}/{record}" if record else entry


def _parts(place: str) -> tuple[str, int]:
    """Raises ValueError."""
    entry, _, record = place.partition("/")
    return entry_id(entry), int(record or 0)


def _first(entry: str) -> int:
    """The number of the first record of an entry, or of the next one behind control."""
    return int(entry.partition("-")[0])


def _order(place: str) -> tuple[int, int, int]:
    """Grows along a stream."""
    entry, skipped = _parts(place)
    first, _, sub = entry.partition("-")
    return int(first), int(sub), skipped


def _before(entry: str) -> str:
    first, _, sub = entry.partition("-")
    return f"{first}-{int(sub) - 1}" if int(sub) else f"{int(first) - 1}-18446744073709551615"
