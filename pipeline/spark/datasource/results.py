"""Results of a job as a frame: once as they are now (`spark.read`), and as a stream from checkpoint to checkpoint."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from time import monotonic
from typing import Any, Final, TypeVar

from pyspark.sql.datasource import DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow

from pipeline.client import check_reader
from pipeline.errors import ReadingError
from pipeline.lifecycle import WORKING
from pipeline.reading.choosing import choose_output
from pipeline.settings import Limits
from pipeline.spark.datasource.columns import ResultColumns
from pipeline.spark.datasource.faults import told
from pipeline.spark.datasource.options import Options
from pipeline.store.connection import connect
from pipeline.store.jobs import JobStore
from pipeline.store.outputs import TEMPORARY, Opening, OutputReader
from pipeline.store.patience import Patience
from pipeline.store.ranges import Extent, Piece, check_place, extent_of, read_range
from pipeline.store.scripts import Scripts

HOLD_SECONDS: Final = 60.0
"""So long what a batch read has planned is held for it while no task of it reads."""

OUTAGE_SECONDS: Final = 30.0
"""So long a streaming query waits for a Redis that is away, before it fails."""

_BATCH_RECORDS: Final = 8_000

_T = TypeVar("_T")


class ResultRange(InputPartition):
    """Results that one task reads. `holder`: the reader without a name that keeps them there meanwhile, or nothing."""

    def __init__(self, stream: str, run: str, numbers: range, holder: str, limits: Limits) -> None:
        super().__init__(None)
        self.stream, self.run, self.numbers, self.holder, self.limits = stream, run, numbers, holder, limits


class ResultReader(DataSourceReader):
    """The results that are kept when the frame is planned."""

    def __init__(self, options: Options, schema: Any) -> None:
        """Raises ReadingError, UnknownJob, StoreError."""
        self._options = options
        self._schema = schema
        if options.text("start") == "end":
            raise ReadingError(
                "option 'start' cannot be 'end' here: nothing would be read", hint='"begin", or a number'
            )
        ResultColumns(to_arrow_schema(schema, timezone="UTC"), options.text("value_as"))
        with told(), scripts_of(options) as scripts:
            self._stream, _ = output_of(scripts, options)

    def partitions(self) -> Sequence[InputPartition]:
        with told(), scripts_of(self._options) as scripts:
            stream, limits = output_of(scripts, self._options)
            job = self._options.text("job")
            holder = ""
            if JobStore(scripts).state(job) in WORKING:
                holder = f"{TEMPORARY}spark-{secrets.token_hex(8)}"
            found = self._held(scripts, (stream, holder, limits)) if holder else extent_of(scripts.client, job, stream)
            numbers = range(self._first(found), found.stop)
            return _cut(numbers, self._options, lambda part: ResultRange(stream, found.run, part, holder, limits))

    def _held(self, scripts: Scripts, reader: tuple[str, str, Limits]) -> Extent:
        stream, holder, limits = reader
        job, start = self._options.text("job"), self._options.text("start")
        opening = Opening("begin" if start == "begin" else int(start), HOLD_SECONDS)
        OutputReader(scripts, job, stream, holder, limits, opening)
        return extent_of(scripts.client, job, stream)

    def _first(self, found: Extent) -> int:
        start = self._options.text("start")
        if start == "begin":
            return found.first
        if not found.first <= int(start) <= found.stop:
            raise ReadingError(
                f"the result {start} of {self._stream!r} is not there: it holds {found.first} to {found.stop - 1}",
                hint="option 'start' may be \"begin\"",
            )
        return int(start)

    def read(self, partition: InputPartition) -> Iterator[Any]:
        return read_results(self._options, self._schema, partition)


class ResultStream(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """A named reader. Spark's checkpoint knows where it stands; Redis, what may be trimmed behind it.

    An offset is {"next": number of the next result, "run", "server"}: which job, and which run of Redis, that was of.
    Outages are waited for, on the driver; a task that meets one fails, and Spark tries it again.
    """

    def __init__(self, options: Options, schema: Any) -> None:
        """Raises ReadingError, UnknownJob, StoreError."""
        self._options = options
        self._schema = schema
        self._job, self._name = options.text("job"), options.text("reader")
        self._target: int | None = None
        self._scripts: Scripts | None = None
        self._reader: OutputReader | None = None
        ResultColumns(to_arrow_schema(schema, timezone="UTC"), options.text("value_as"))
        with told(), scripts_of(options) as scripts:
            check_reader(self._name)
            self._stream, self._limits = output_of(scripts, options)

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802
        """Where a query with a new checkpoint begins: where the reader stands, if it is known."""
        start = self._options.text("start")
        opening = Opening(start if start in ("begin", "end") else int(start))  # type: ignore[arg-type]
        return self._insist(lambda: _offset(self._now(), self._registered(opening).next_number))

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        most = self._options.number("max_records")
        return ReadMaxRows(most) if most else ReadAllAvailable()

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        self._target = self._insist(lambda: self._now().stop)

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802
        """As far as the limit lets a batch go; `start` itself when there is nothing new."""
        now = self._insist(lambda: self._checked(start))
        stop = now.stop if self._target is None else min(now.stop, self._target)
        if isinstance(limit, ReadMaxRows):
            stop = min(stop, start["next"] + limit.max_rows)
        return _offset(now, stop) if stop > start["next"] else start

    def reportLatestOffset(self) -> dict[str, Any]:  # noqa: N802
        now = self._insist(self._now)
        return _offset(now, now.stop)

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """The same results for the same offsets, in whatever session."""
        now = self._insist(lambda: self._checked(start) and self._checked(end))
        numbers, limits = range(start["next"], end["next"]), self._limits
        return _cut(numbers, self._options, lambda part: ResultRange(self._stream, now.run, part, "", limits))

    def read(self, partition: InputPartition) -> Iterator[Any]:
        return read_results(self._options, self._schema, partition)

    def commit(self, end: dict[str, Any]) -> None:
        """Spark's log has the batch that ends here, so what stands in front of it is never asked for again.

        It is told of a batch only when the next one is planned: the newest batch stays in Redis until then.
        """
        self._insist(lambda: self._checked(end))
        self._insist(lambda: self._registered(Opening(end["next"])).pass_to(end["next"]))

    def stop(self) -> None:
        if self._scripts is not None:
            self._scripts.client.close()

    def __getstate__(self) -> dict[str, Any]:
        """What tasks need: connections stay here."""
        return {**self.__dict__, "_scripts": None, "_reader": None}

    def _insist(self, call: Callable[[], _T]) -> _T:
        with told():
            return Patience(OUTAGE_SECONDS).through_outages(lambda: [call()])[0]  # type: ignore[no-any-return]

    def _live(self) -> Scripts:
        if self._scripts is None:
            self._scripts = Scripts(connect(self._options.redis_url))
        return self._scripts

    def _now(self) -> Extent:
        return extent_of(self._live().client, self._job, self._stream)

    def _checked(self, offset: dict[str, Any]) -> Extent:
        """What there is now. Raises as `check_place`, and ReadingError for an offset that is none of ours."""
        try:
            number, run, server = int(offset["next"]), str(offset["run"]), str(offset["server"])
        except (KeyError, TypeError, ValueError) as error:
            raise ReadingError(
                f"the checkpoint's offset {offset!r} is not of this source", hint="use a new checkpoint"
            ) from error
        who = f"reader {self._name!r}"
        now = check_place(self._live(), self._job, self._stream, Extent(0, 0, run, server, None), number, who)
        self._registered(Opening(number))
        return now

    def _registered(self, opening: Opening) -> OutputReader:
        """The reader in Redis; one that was taken out, of which nothing is lost, is there again."""
        if self._reader is None:
            self._reader = OutputReader(self._live(), self._job, self._stream, self._name, self._limits, opening)
        return self._reader


@contextmanager
def scripts_of(options: Options) -> Iterator[Scripts]:
    """On a connection that is closed at the end."""
    with closing(connect(options.redis_url)) as client:
        yield Scripts(client)


def output_of(scripts: Scripts, options: Options) -> tuple[str, Limits]:
    """The output stream that is meant. Raises ReadingError, UnknownJob, StoreError."""
    job = options.text("job")
    plan = JobStore(scripts).read(job).plan
    return choose_output(plan, job, options.text("stream") or None), plan.limits


def read_results(options: Options, schema: Any, part: Any) -> Iterator[Any]:
    """The Arrow batches of one task.

    Raises StaleReader, JobRestored, UnknownJob, ReadingError, DecodingError, StoreError.
    """
    if not isinstance(part, ResultRange):
        return  # Spark makes a partition of its own where there is none
    columns = ResultColumns(to_arrow_schema(schema, timezone="UTC"), options.text("value_as"))
    job, pieces, count = options.text("job"), list[Piece](), 0
    with told(), scripts_of(options) as scripts:
        hold = _Hold(scripts, job, part)
        for piece in read_range(scripts.client, job, part.stream, part.run, part.numbers):
            hold.keep()
            pieces.append(piece)
            count += piece.count
            if count >= _BATCH_RECORDS:
                yield columns.batch(pieces)
                pieces, count = [], 0
        if count:
            yield columns.batch(pieces)


class _Hold:
    """Keeps the reader without a name of a batch read alive while a task reads."""

    def __init__(self, scripts: Scripts, job: str, part: ResultRange) -> None:
        self._due = float("inf")
        if part.holder:
            opening = Opening(part.numbers.start, HOLD_SECONDS)
            self._reader = OutputReader(scripts, job, part.stream, part.holder, part.limits, opening)
            self._due = monotonic() + HOLD_SECONDS / 3

    def keep(self) -> None:
        if monotonic() >= self._due:
            self._reader.keep()
            self._due = monotonic() + HOLD_SECONDS / 3


def _cut(numbers: range, options: Options, make: Any) -> list[InputPartition]:
    step = options.number("partition_records")
    return [make(numbers[start : start + step]) for start in range(0, len(numbers), step)]


def _offset(now: Extent, number: int) -> dict[str, Any]:
    return {"next": number, "run": now.run, "server": now.server}
