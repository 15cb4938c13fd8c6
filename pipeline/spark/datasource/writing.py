"""A frame into a source of a job, each row once: sorted rows straight from the tasks, others through a staging folder.

The numbers of rows must be the same at every attempt, and the order of a frame is not. So rows are either proved to be
in an order of their own (`order_by`), or written down first and numbered as they lie there (`staging`).
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.pandas.types import to_arrow_schema

from pipeline.errors import ProducerError
from pipeline.producing.opening import choose_source
from pipeline.spark.datasource.faults import told
from pipeline.spark.datasource.numbered import send_rows
from pipeline.spark.datasource.options import Options, Use
from pipeline.spark.datasource.records import Layout, Records, check_order, chunks_of, layout_of, records_of
from pipeline.spark.datasource.results import scripts_of
from pipeline.spark.datasource.staged import StagedBatch, check_folder, write_part
from pipeline.store.jobs import JobStore
from pipeline.store.senders import FeedAddress
from pipeline.wording import counted

SORT_BYTES: Final = 256 << 20
"""The most that a task of a stream sorts in memory."""

_STAGED: Final = "staged"
_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}\Z")
_QUERY: Final = "sql.streaming.queryId"
_BATCH: Final = "streaming.sql.batchId"


@dataclass(frozen=True, slots=True)
class WritePlan:
    """All that tasks need to know; travels to them. name: "" for a stream's own.

    staging: a folder of this job, which no job shares that is made anew under its id; or nothing.
    """

    address: FeedAddress
    layout: Layout
    name: str
    staging: str
    partitions: int


@dataclass
class Sent(WriterCommitMessage):
    """What a task has done: rows that are in the job, or a staged file with its rows."""

    name: str
    partition: int
    rows: int
    path: str = ""


def plan_write(options: Options, schema: Any) -> WritePlan:
    """Raises ProducerError for wrong options or columns, UnknownJob, StoreError."""
    name, staging = options.text("name"), options.text("staging")
    is_stream = options.use is Use.WRITE_STREAM
    if name and not _NAME.match(name):
        raise ProducerError(f"option 'name' cannot be {name!r}", hint="1 to 64 letters, digits, '-', '_' and '.'")
    if not name and not is_stream:
        raise ProducerError(
            "df.write needs option 'name'",
            hint="what was written under a name is not written again: one for each frame",
        )
    _check_way(options)
    with scripts_of(options) as scripts:
        job = options.text("job")
        record = JobStore(scripts).read(job)
        source = choose_source(record.plan, job, options.text("source") or None)
        address = FeedAddress(options.redis_url, job, source.name, float(options.number("full_timeout_seconds")))
    layout = layout_of(
        to_arrow_schema(schema, timezone="UTC"), options, with_keys=bool(source.options.get("with_keys"))
    )
    if staging:
        check_folder(staging)
        staging = f"{staging}/{job}.{record.made_at_ms}/{source.name}"
    plan = WritePlan(address, layout, name, staging, options.number("frame_partitions"))
    if not is_stream:
        check_way(plan, name)
    return plan


def _check_way(options: Options) -> None:
    has_order, has_staging = bool(options.text("order_by")), bool(options.text("staging"))
    if has_order == has_staging:
        raise ProducerError(
            "the rows of a frame come in another order at every attempt: say how they are to be numbered",
            hint="either order_by and frame_partitions, for df.repartition(8, 'id').sortWithinPartitions('id');"
            " or staging, a folder that driver and executors share, for any frame",
        )
    if has_order and not options.number("frame_partitions"):
        raise ProducerError(
            "option 'order_by' needs option 'frame_partitions'",
            hint="the number given to repartition: a frame cut otherwise has other rows under the same number",
        )


def check_way(plan: WritePlan, name: str) -> None:
    """Returns unless this write was begun with another number of partitions, or with staging where it has none now, or
    the other way round: its rows would have other numbers. Raises ProducerError, StoreError.
    """
    feed = plan.address.open()
    try:
        begun = {split.rpartition("-of-")[2] for split in feed.splits(f"spark:{name}/")}
    finally:
        feed.close()
    others = begun - {_way(plan)}
    if others:
        raise ProducerError(
            f"the write {name!r} was begun with {' and '.join(map(_words, sorted(others)))}, and now it has"
            f" {_words(_way(plan))}",
            hint="go on as it was begun, or give another frame another name",
        )


def _way(plan: WritePlan) -> str:
    """What the names of a write's senders end with."""
    return _STAGED if plan.staging else str(plan.partitions)


def _words(way: str) -> str:
    return "a staging folder" if way == _STAGED else counted(int(way), "partition")


class BatchWriter(DataSourceArrowWriter):
    """`df.write`. The same name, with the same frame, writes nothing twice: it may be run again after any crash."""

    def __init__(self, plan: WritePlan) -> None:
        self._plan = plan

    def write(self, iterator: Iterator[Any]) -> Sent:
        """Raises ProducerError, InboxFull, StoreError; Spark then tries the task again."""
        with told():
            return _write(self._plan, iterator, self._plan.name, 0, is_sorted=True)

    def commit(self, messages: list[Any]) -> None:
        with told():
            _commit(self._plan, self._plan.name, 0, messages)

    def abort(self, messages: list[Any]) -> None:
        """What is in the job stays: the same write may be run again, and goes on from there."""


class StreamWriter(DataSourceStreamArrowWriter):
    """`df.writeStream`: each batch once, by its number in the checkpoint."""

    def __init__(self, plan: WritePlan) -> None:
        self._plan = plan

    def write(self, iterator: Iterator[Any]) -> Sent:
        """Raises as `BatchWriter.write`."""
        context = TaskContext.get()
        name = self._plan.name or str(context.getLocalProperty(_QUERY))
        with told():
            if not self._plan.staging:
                check_way(self._plan, name)
            return _write(self._plan, iterator, name, int(context.getLocalProperty(_BATCH)), is_sorted=False)

    def commit(self, messages: list[Any], batchId: int) -> None:  # noqa: N803
        names = {message.name for message in messages if message is not None}
        with told():
            for name in names:  # one, or none where no task had to run
                _commit(self._plan, name, batchId, messages)

    def abort(self, messages: list[Any], batchId: int) -> None:  # noqa: N803
        """As for a batch: the next attempt goes on from there."""


def _write(plan: WritePlan, batches: Iterator[Any], name: str, batch: int, *, is_sorted: bool) -> Sent:
    part = TaskContext.get().partitionId()
    if plan.staging:
        staged = StagedBatch(plan.staging, name, batch)
        if staged.is_closed():
            return Sent(name, part, 0)  # an earlier run has staged it all: only what is staged there counts
        path, rows = write_part(staged, part, batches)
        return Sent(name, part, rows, path)
    if part >= plan.partitions:
        raise ProducerError(
            f"the frame has a partition {part}, and option 'frame_partitions' is {plan.partitions}",
            hint="they must agree: df.repartition(8, …) and frame_partitions=8",
        )
    rows_in_order = batches if is_sorted else _sorted(plan.layout, batches)
    what = f"write {name!r}, batch {batch}, partition {part}"
    records = _in_order(plan.layout, rows_in_order)
    split = f"spark:{name}/{part}-of-{_way(plan)}"  # no producer has a colon in its name
    return Sent(name, part, send_rows(plan.address, split, batch, what, records))


def _commit(plan: WritePlan, name: str, batch: int, messages: list[Any]) -> None:
    if not plan.staging:
        return
    staged = StagedBatch(plan.staging, name, batch)
    parts = sorted((each.partition, each.path, each.rows) for each in messages if each is not None and each.rows)
    files = staged.close([(path, rows) for _, path, rows in parts])
    if staged.is_sent():
        return
    check_way(plan, name)
    for number, file in enumerate(files):
        what = f"write {name!r}, batch {batch}, staged file {number}"
        rows = _numbered(plan.layout, staged.rows(file))
        send_rows(plan.address, f"spark:{name}/{number}-of-{_way(plan)}", batch, what, rows)
    staged.end()


def _numbered(layout: Layout, batches: Iterator[Any]) -> Iterator[Records]:
    count = 0
    for chunk in chunks_of(batches):
        yield records_of(layout, chunk, count + 1)
        count += chunk.num_rows


def _in_order(layout: Layout, batches: Iterator[Any]) -> Iterator[Records]:
    before, count = None, 0
    for records in _numbered(layout, batches):
        check_order(layout, records.order, before, count + 1)
        before, count = records.order[-1], count + len(records.batch)
        yield records


def _sorted(layout: Layout, batches: Iterator[Any]) -> Iterator[Any]:
    """A stream cannot be sorted by Spark, so its tasks do. Raises ProducerError for more than SORT_BYTES."""
    held, size = [], 0
    for batch in batches:
        held.append(batch)
        size += batch.nbytes
        if size > SORT_BYTES:
            raise ProducerError(
                f"a partition of a micro-batch has more than {SORT_BYTES >> 20} MiB to sort",
                hint="more partitions, smaller batches, or staging",
            )
    if held:
        whole = pa.Table.from_batches(held).sort_by([(name, "ascending") for name in layout.order])
        yield from whole.combine_chunks().to_batches()
