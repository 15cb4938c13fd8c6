"""Spark as the reader of a source: its tasks read blocks of files and append them, several at a time.

A task gets the names of some consecutive blocks and reads them itself, with the reader that runs without Spark, too:
splits, names and numbers of records are the same, and no record goes through the JVM.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import pyarrow as pa
from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from pipeline.errors import InputError
from pipeline.sources.feed import FeedAddress, SourceSummary
from pipeline.sources.layout import FileInput
from pipeline.sources.local import read_split
from pipeline.sources.splits import portions_of
from pipeline.spark.datasource.faults import error_behind, told

_RESULT: Final = pa.schema([("records", pa.int64())])


def read_with_spark(session: SparkSession, source: FileInput, address: FeedAddress) -> SourceSummary:
    """Appends all records of the splits and ends them. Does not complete the source.

    A task that fails is tried again, and a copy may run beside it: the numbers are those of the rows in their
    split, so the job takes each once.
    Raises InputError for input that cannot be read or has changed, and the feed's errors by their own type.
    """
    task = _Task(source, portions_of(source.splits), address)
    numbers = session.range(0, len(task.portions), 1, max(1, len(task.portions)))
    try:
        counts = [row["records"] for row in numbers.mapInArrow(task.run, "records long").collect()]
    except (PySparkException, Py4JJavaError) as error:
        raise error_behind(error) or _unknown(error, source.path) from error
    return SourceSummary(sum(1 for count in counts if count), sum(counts), source.describe())


@dataclass(frozen=True)
class _Task:
    """What an executor does with its partition, which holds the numbers of portions."""

    source: FileInput
    portions: tuple[range, ...]
    address: FeedAddress

    def run(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Feeds the splits of the portions and yields a row for each split."""
        for batch in batches:
            for number in batch.column(0).to_pylist():
                with told():
                    feed = self.address.open()
                    splits = (self.source.splits[place] for place in self.portions[number])
                    counts = [read_split(self.source, split, feed) for split in splits]
                yield pa.RecordBatch.from_arrays([pa.array(counts, pa.int64())], schema=_RESULT)


def _unknown(error: Exception, path: str) -> InputError:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return InputError(f"Spark could not read {path}: {lines[0] if lines else error!r}")
