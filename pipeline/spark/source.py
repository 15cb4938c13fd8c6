"""Spark as the reader of a source: executors append in parallel, one split a partition."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Final
from urllib.parse import unquote, urlsplit

import pyarrow as pa
from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812

from pipeline import errors
from pipeline.errors import CeleriacError, InputError
from pipeline.sources.feed import Chunk, Feed, FeedAddress, SourceSummary, SplitWriter
from pipeline.sources.formats import LineCutter
from pipeline.sources.layout import FileInput
from pipeline.sources.parquetrows import ParquetFormat, TableChunk
from pipeline.sources.splits import Split, check_unchanged

_RESULT: Final = pa.schema([("split", pa.string()), ("records", pa.int64())])
_GLOB_MARKS: Final = re.compile(r"([\\*?\[\]{}])")
_OUR_ERROR: Final = re.compile(r"pipeline\.errors\.(\w+): (.*)")


def read_with_spark(session: SparkSession, source: FileInput, address: FeedAddress) -> SourceSummary:
    """Appends all records of the splits and ends them. Does not complete the source.

    A task that fails is tried again, and a copy may run beside it: the numbers are those of the rows in their
    split, so the job takes each once.
    Raises InputError for input that cannot be read or has changed, and the feed's errors by their own type.
    """
    counts: list[int] = []
    for splits, block in _groups(source):
        task = _Task(source, {(split.path, split.start): split for split in splits}, address)
        try:
            frame = _pinned_scan(session, source, splits, block)
            rows = frame.mapInArrow(task.run, "split string, records long").collect()
        except (PySparkException, Py4JJavaError) as error:
            raise _translated(error, source.path) from error
        counts += [row["records"] for row in rows]
    return SourceSummary(sum(1 for count in counts if count), sum(counts), source.describe())


def file_urls(paths: Iterable[str]) -> list[str]:
    """These absolute paths in order, as Spark reads exactly them."""
    return ["file://" + _GLOB_MARKS.sub(r"\\\1", path) for path in sorted(paths)]


@dataclass(frozen=True)
class _Task:
    """What an executor does with its partition. `splits` by path and start."""

    source: FileInput
    splits: dict[tuple[str, int], Split]
    address: FeedAddress

    def run(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Feeds the splits of the partition and yields a row for each. Nothing reorders rows before this."""
        feed: Feed | None = None
        reading: _Reading | None = None
        for batch in batches:
            for identity, rows in _by_split(batch):
                if reading is None or reading.identity != identity:
                    if reading is not None:
                        yield reading.finish()
                    feed = feed or self.address.open()  # a partition without rows opens none
                    reading = _Reading(self.source, self._split(identity), identity, feed)
                reading.add(rows)
        if reading is not None:
            yield reading.finish()

    def _split(self, identity: tuple[str, int]) -> Split:
        uri, start = identity
        path = unquote(urlsplit(uri).path)
        split = self.splits.get((path, start))
        if split is None:
            raise InputError(f"{path}: Spark reads a block at byte {start} that was not planned")
        return split


class _Reading:
    """One split on its way into the feed."""

    def __init__(self, source: FileInput, split: Split, identity: tuple[str, int], feed: Feed) -> None:
        check_unchanged(split)
        self.identity = identity
        self._split = split
        self._writer = SplitWriter(feed, split.name)
        self._chunk = _chunker(source, split)

    def add(self, rows: pa.RecordBatch) -> None:
        self._writer.add(self._chunk(rows))

    def finish(self) -> pa.RecordBatch:
        check_unchanged(self._split)
        row = {"split": self._split.name, "records": self._writer.finish()}
        return pa.RecordBatch.from_pylist([row], schema=_RESULT)


def _chunker(source: FileInput, split: Split) -> Callable[[pa.RecordBatch], Chunk]:
    form = source.form
    if isinstance(form, ParquetFormat):
        return lambda rows: TableChunk(form, rows)
    cutter = LineCutter(form, split)
    return lambda rows: cutter.chunk(rows.column(0).to_pylist())


def _groups(source: FileInput) -> Iterator[tuple[list[Split], int]]:
    """Splits to scan with one block length. It holds all of a compressed file: Spark would cut a .bz2."""
    blocks = [split for split in source.splits if not split.is_compressed]
    wholes = [split for split in source.splits if split.is_compressed]
    if blocks:
        yield blocks, source.split_bytes
    if wholes:
        yield wholes, max(split.size for split in wholes)


def _pinned_scan(session: SparkSession, source: FileInput, splits: Sequence[Split], block: int) -> DataFrame:
    """The rows of the splits, with file and block as the last two columns, one split per partition."""
    session.conf.set("spark.sql.files.maxPartitionBytes", str(block))
    session.conf.set("spark.sql.files.openCostInBytes", str(block))
    session.conf.unset("spark.sql.files.maxPartitionNum")
    session.conf.set("spark.sql.legacy.parquet.nanosAsLong", "true")
    identity = [F.col("_metadata.file_path"), F.col("_metadata.file_block_start")]
    paths = file_urls({split.path for split in splits})
    if isinstance(source.form, ParquetFormat):
        # By other names, as Spark cannot address every name: a dot means a part of a struct.
        names = ["`" + name.replace("`", "``") + "`" for name in source.form.columns]
        columns = [F.col(name).alias(f"column_{number}") for number, name in enumerate(names)]
        frame = session.read.parquet(*paths).select(*columns, *identity)
    else:
        # As bytes: they are decoded in Python, by the same function as in the other reader.
        frame = session.read.format("text").load(paths).select(F.col("value").cast("binary"), *identity)
    _check_complete(frame, splits)
    return frame


def _check_complete(frame: DataFrame, splits: Sequence[Split]) -> None:
    """Spark leaves out files whose names begin with `_` or `.`, silently, even when they are named."""
    scanned = {unquote(urlsplit(uri).path) for uri in frame.inputFiles()}
    missing = sorted({split.path for split in splits} - scanned)
    if missing:
        raise InputError(f"Spark does not read {missing[0]}", hint="rename it, or use reader='local'")


def _by_split(batch: pa.RecordBatch) -> Iterator[tuple[tuple[str, int], pa.RecordBatch]]:
    """The rows of a batch without the last two columns, which name the split that they belong to."""
    if not batch.num_rows:
        return
    paths, starts = batch.column(batch.num_columns - 2), batch.column(batch.num_columns - 1)
    rows = batch.select(list(range(batch.num_columns - 2)))
    ends = [(paths[at].as_py(), starts[at].as_py()) for at in (0, batch.num_rows - 1)]
    if ends[0] == ends[1]:
        yield ends[0], rows
        return
    done = 0
    for identity, members in groupby(zip(paths.to_pylist(), starts.to_pylist(), strict=True)):
        count = sum(1 for _ in members)
        yield identity, rows.slice(done, count)
        done += count


def _translated(error: Exception, path: str) -> CeleriacError:
    """The error of ours that an executor raised, or an InputError with what Spark says."""
    text = str(error)
    found = _OUR_ERROR.findall(text)
    if found:
        name, message = found[-1]
        kind = getattr(errors, name, None)
        if isinstance(kind, type) and issubclass(kind, CeleriacError):
            return kind(message)
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return InputError(f"Spark could not read {path}: {lines[0] if lines else error!r}")
