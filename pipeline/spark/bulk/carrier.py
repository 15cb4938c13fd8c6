"""What runs in a task of Spark: reads or receives batches, carries the kernel over them, ends the input, tells facts.

A task of a keyed stage is one partition of it. It knows nothing of other tasks and keeps all state in memory; rows are
given as they come, so all else is bounded. Run again it gives the same rows: its input has an order of its own.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from itertools import chain
from time import perf_counter
from typing import Any, Final, Protocol
from urllib.parse import unquote

import pyarrow as pa
from pyspark import TaskContext

from pipeline.codec import decode_batch, encode_batch
from pipeline.errors import EnvironmentFault, RecordFailed
from pipeline.graph import Keyed, Transform
from pipeline.kernel.operators import Aggregate
from pipeline.kernel.stage import StageKernel
from pipeline.plan import Plan, StagePlan
from pipeline.programs.runners import Programs
from pipeline.records import Batch, Timer
from pipeline.schemas import Column
from pipeline.spark.bulk.counting import KeyCounts, counted_exchanges, with_numbers
from pipeline.spark.bulk.definition import Definition
from pipeline.spark.bulk.facts import Counts, NativeFact, SplitCount, encode_fact
from pipeline.spark.bulk.faults import told
from pipeline.spark.bulk.finalrows import FinalRows, Groups
from pipeline.spark.bulk.output import BulkEncoder, Selected, TaskFiles
from pipeline.spark.bulk.picking import PickedRecords
from pipeline.spark.bulk.portions import FilePortions, Portions, are_alike, extend, merged
from pipeline.spark.bulk.rows import (
    COUNTS,
    FILE,
    HELD,
    LETTER,
    NATIVE,
    SPLIT,
    START,
    STATE,
    TIMERS,
    Row,
    RowBuffer,
    is_fact,
    keyed_batch,
    rows_of,
)
from pipeline.spark.bulk.stepping import BulkStepper, Outcome, state_rows
from pipeline.spark.frames import FrameColumns, refuse_times
from pipeline.spark.frames import rows_of as records_of
from pipeline.spark.garbage import settle
from pipeline.wording import counted

_STEP_RECORDS: Final = 4_000
_STEP_BYTES: Final = 1 << 20
_TIMERS_PER_STEP: Final = 2_000
_BLOCK_BITS: Final = 40
"""A block has fewer rows."""


class Seed(Protocol):
    """What a keyed stage begins with: plain data for tasks, opened in the task of its partition."""

    def state(self, stage: StagePlan, partition: int) -> Iterable[tuple[str, Any, Any]]:
        """(operator, key, state) of the keys of this partition."""

    def timers(self, stage: StagePlan, partition: int) -> Iterable[Timer]:
        """Those that are open."""


@dataclass(frozen=True)
class StageTask:
    """All that a task needs to know. Spark carries it to the executors.

    handed: sinks whose records go to the driver. keeps_state: state and open timers are told at the end.
    ends_input: at the end of a task's rows its input has ended, and all timers fire. selected: where only some keys of
    one stage are wanted.
    """

    definition: Definition
    plan: Plan
    index: int
    job: str
    handed: frozenset[str]
    keeps_state: bool = False
    ends_input: bool = True
    seed: Seed | None = None
    selected: Selected | None = None

    @property
    def stage(self) -> StagePlan:
        return self.plan.stage(self.index)


@dataclass(frozen=True)
class EntryTask:
    """Reads portions of a source. Its rows have the number of a portion as their one column."""

    task: StageTask
    portions: Portions

    def run(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        with told():
            for batch in batches:
                for number in batch.column(0).to_pylist():
                    yield from self._read(number)

    def _read(self, number: int) -> Iterator[pa.RecordBatch]:
        task, counted = self.task, dict[str, int]()
        with ExitStack() as stack:
            work = _Work(task, number, stack)
            for piece in self.portions.read(number, task.plan.limits):
                counted[piece.split] = piece.numbers
                yield from work.run(decode_batch(piece.payload), [piece.payload])
            for split, records in counted.items():
                fact = encode_fact(SplitCount(task.stage.name, split, records))
                work.rows.add_fact(SPLIT, fact, task.stage.name)
            yield from work.finish()


@dataclass(frozen=True)
class FrontTask:
    """Reads a block of a file, of which Spark has dropped records already: its rows are those of `fronts.kept`."""

    task: StageTask
    portions: FilePortions

    def run(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        blocks, numbers = set[tuple[str, int]](), list[int]()
        for batch in batches:
            paths, starts, of_rows = (column.to_pylist() for column in batch.columns)
            blocks.update(zip(paths, starts, strict=True))
            numbers += of_rows
        with told():
            if len(blocks) > 1:
                raise EnvironmentFault("Spark has given two blocks of files to one task, and was asked not to")
            for path, start in blocks:
                # The first row of a block is always there.
                yield from self._read(unquote(path).removeprefix("file://"), start, [n - numbers[0] for n in numbers])

    def _read(self, path: str, start: int, rows: list[int]) -> Iterator[pa.RecordBatch]:
        task = self.task
        partition, place, split = self.portions.located(path, start)
        with ExitStack() as stack:
            # Blocks of one portion have one identity, and come in their order.
            work = _Work(task, partition, stack, place << _BLOCK_BITS)
            picked = PickedRecords(split, self.portions.source.form, rows, task.plan.limits)
            taken = 0
            for payload in picked:
                batch = decode_batch(payload)
                taken += len(batch)
                yield from work.run(batch, [payload])
            work.drop(picked.count - taken)
            if picked.count:
                fact = encode_fact(SplitCount(task.stage.name, split.name, picked.count))
                work.rows.add_fact(SPLIT, fact, task.stage.name)
            yield from work.finish()


@dataclass(frozen=True)
class KeyedTask:
    """One partition of a keyed stage. Its rows are sorted by their identity, the start row first."""

    task: StageTask

    def run(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        with told():
            rows = (row for batch in batches for row in rows_of(batch))
            start = next(rows, None)
            if start is None:
                return
            if start.edge != START:
                raise RecordFailed(f"stage {self.task.stage.name!r}: a partition has no start row")
            yield from self._run(start.pid, rows)

    def _run(self, partition: int, rows: Iterator[Row]) -> Iterator[pa.RecordBatch]:
        with ExitStack() as stack:
            work = _Work(self.task, partition, stack)
            work.take_seed()
            for batch, payloads in _gathered(self._of_stage(rows, work.rows)):
                yield from work.run(batch, payloads)
            yield from work.finish()

    def _of_stage(self, rows: Iterator[Row], others: RowBuffer) -> Iterator[Row]:
        """The rows for this stage. What tasks before it have told goes on to the driver."""
        edge = self.task.stage.name
        for row in rows:
            if row.edge == edge:
                yield row
            elif is_fact(row.edge):
                others.pass_on(row)


@dataclass(frozen=True)
class FinalTask:
    """One partition of a keyed stage of which Spark has aggregated the records: goes on behind its `last`.

    In doubt it does nothing, and says so.
    """

    task: StageTask
    rows: FinalRows

    def run(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        context = TaskContext.get()
        assert context is not None
        partition, fact = context.partitionId(), NativeFact()
        with told(), ExitStack() as stack:
            groups = self.rows.read(batches, fact)
            first = next(groups, None)
            if self.rows.doubts(fact):
                rows = RowBuffer(self.task.index, partition)
                rows.add_fact(NATIVE, encode_fact(fact))
                yield from rows.rest()
                return
            work = _Work(self.task, partition, stack)
            counts = Counts(self.rows.entry, partition)
            for each in chain([] if first is None else [first], groups):
                yield from work.take_finals(each, *self.rows.operators)
                counts.emitted += sum(each.records)
            if partition == 0:
                # All tasks have met the same.
                counts.filtered = fact.filtered
                work.rows.add_fact(NATIVE, encode_fact(fact))
            counts.taken = counts.emitted + counts.filtered
            work.rows.add_fact(COUNTS, encode_fact(counts))
            yield from work.finish()


@dataclass(frozen=True)
class UnpackTask:
    """Makes columns for a DataFrame operator of the records for it, which were looked at when they were given."""

    columns: tuple[Column, ...]

    def run(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        with told():
            columns = FrameColumns(self.columns)
            for batch in batches:
                for payload in batch.column("payload").to_pylist():
                    yield from columns.table(decode_batch(payload).values).to_batches()


@dataclass(frozen=True)
class FrameTask:
    """What is behind a DataFrame operator, over a share of the rows that it has made."""

    task: StageTask

    def run(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        context = TaskContext.get()
        assert context is not None
        with told(), ExitStack() as stack:
            work = _Work(self.task, context.partitionId(), stack)
            for table in _tables(batches):
                batch = Batch(records_of(table))
                yield from work.run(batch, [encode_batch(batch)])
            yield from work.finish()


def _tables(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.Table]:
    """Consecutive rows that are run together, bounded in number and bytes: Spark hands them over in small parts."""
    parts: list[pa.RecordBatch] = []
    rows = size = 0
    for batch in batches:
        parts.append(batch)
        rows, size = rows + batch.num_rows, size + batch.nbytes
        if rows >= _STEP_RECORDS or size >= _STEP_BYTES:
            yield pa.Table.from_batches(parts)
            parts, rows, size = [], 0, 0
    if rows:
        yield pa.Table.from_batches(parts)


def _gathered(rows: Iterator[Row]) -> Iterator[tuple[Batch, list[bytes]]]:
    """Consecutive payloads that are run together: alike in their columns, and bounded in number and bytes."""
    whole: Batch | None = None
    payloads: list[bytes] = []
    size = 0
    for row in rows:
        batch = keyed_batch(row.payload)
        if whole is not None:
            fits = len(whole) + len(batch) <= _STEP_RECORDS and size < _STEP_BYTES and are_alike(whole, batch)
            if fits:
                extend(whole, batch)
                payloads.append(row.payload)
                size += len(row.payload)
                continue
            yield whole, payloads
        whole, payloads, size = batch, [row.payload], len(row.payload)
    if whole is not None:
        yield whole, payloads


class _Fitting:
    """In the place of a DataFrame operator, which the driver runs: refuses records that are none of its columns."""

    def __init__(self, node: Transform) -> None:
        self._node = node
        self._columns = FrameColumns(node.columns)

    def __call__(self, batch: Batch) -> Batch:
        """Raises EncodingError for a record, PipelineError for a stream with event times."""
        refuse_times(self._node, batch)
        self._columns.table(batch.values)
        return Batch(batch.values)


class _Work:
    """One task at work. What it opens is closed by the stack, whatever happens."""

    def __init__(self, task: StageTask, partition: int, stack: ExitStack, first_row: int = 0) -> None:
        graph = stack.enter_context(task.definition.opened(task.job))
        settle()
        programs = Programs(graph.nodes)
        stack.callback(programs.close)
        fittings = {node.name: _Fitting(node) for node in graph.nodes if isinstance(node, Transform)}
        counted = counted_exchanges(graph)
        adds = counted.get(task.stage.name)
        kernel = StageKernel(
            graph if adds is None else with_numbers(graph, adds), task.stage, {**programs.runners, **fittings}
        )
        own = task.stage.sinks if task.selected is None else ()
        sinks = [sink for sink in task.plan.sinks if sink.name in own and sink.name not in task.handed]
        self._files = TaskFiles(task.job, sinks, task.index, partition)
        stack.callback(self._files.close)
        self.rows = RowBuffer(task.index, partition, first_row)
        self._task, self._partition, self._graph = task, partition, graph
        self._counts = Counts(task.index, partition)
        self._decode = keyed_batch if task.stage.keyed else decode_batch
        self._has_numbers = adds is not None
        self._counted = {edge: KeyCounts() for edge in task.stage.exchanges if edge in counted}
        self._encoder = BulkEncoder(task.plan, task.stage, partition, task.handed, task.selected, self._counted)
        self._stepper = BulkStepper(kernel, self._encoder, task.stage.on_error, (task.index, partition))

    def take_seed(self) -> None:
        seed, stage = self._task.seed, self._task.stage
        if seed is not None:
            for operator, key, value in seed.state(stage, self._partition):
                self._stepper.state[operator][key] = value
            self._stepper.timers.add(seed.timers(stage, self._partition))

    def take_finals(self, groups: Groups, aggregate: str, last: str) -> Iterator[pa.RecordBatch]:
        """Ends the input of these keys, of which the aggregate has these states."""
        started = perf_counter()
        node = self._graph.node(aggregate)
        assert isinstance(node, Keyed)
        assert isinstance(node.operator, Aggregate)
        results = node.operator.results
        for at in range(0, len(groups.keys), _STEP_RECORDS):
            part = slice(at, at + _STEP_RECORDS)
            states = [held[part] for held in groups.states]
            self._tell(self._stepper.end(last, groups.keys[part], partial(results, states)))
        self._counts.taken += sum(groups.records)
        self._counts.seconds += perf_counter() - started
        yield from self.rows.full()

    def drop(self, records: int) -> None:
        """Counts records that a filter in front has dropped."""
        self._counts.taken += records
        self._counts.filtered += records

    def run(self, batch: Batch, payloads: list[bytes]) -> Iterator[pa.RecordBatch]:
        """Applies the records of these payloads."""
        started = perf_counter()
        self._counts.taken += sum(batch.values) if self._has_numbers else len(batch)
        self._tell(self._stepper.run(batch, lambda: merged(payloads, self._decode)))
        self._counts.seconds += perf_counter() - started
        yield from self.rows.full()

    def finish(self) -> Iterator[pa.RecordBatch]:
        """Ends the input, and tells the facts; the counts come last."""
        started = perf_counter()
        while self._task.ends_input and self._stepper.timers:
            self._tell(self._stepper.fire(_TIMERS_PER_STEP))
            yield from self.rows.full()
        for edge in self._counted:
            self._give_counts(edge)
            yield from self.rows.full()
        if self._task.keeps_state:
            yield from self._state()
        for sink, facts in self._files.finish():
            self.rows.add_fact(FILE, facts.encode(), sink)
        self._counts.seconds += perf_counter() - started
        self.rows.add_fact(COUNTS, encode_fact(self._counts))
        yield from self.rows.rest()

    def _tell(self, outcome: Outcome) -> None:
        counts = self._counts
        for part in outcome.parts:
            for row in part.rows:
                self.rows.add(*row)
            for edge, keys, size in part.counted:
                self._counted[edge].add(keys, size)
                if self._counted[edge].is_full:
                    self._give_counts(edge)
            self._files.write(part.lines)
            counts.emitted += part.emitted
            counts.filtered += part.filtered
            for sink, records in part.sunk.items():
                counts.sunk[sink] = counts.sunk.get(sink, 0) + records
        for letter in outcome.letters:
            self.rows.add_fact(LETTER, encode_fact(letter), letter.operator)
        for payload in outcome.held:
            self.rows.add_fact(HELD, payload)
        counts.dead += len(outcome.letters)
        counts.held += len(outcome.held)
        counts.skipped += outcome.skipped
        if counts.dead + counts.held > self._task.plan.limits.dead_letters:
            most = counted(self._task.plan.limits.dead_letters, "record")
            raise RecordFailed(
                f"stage {self._task.stage.name!r} gave up more than {most}",
                hint="the last of them: " + (outcome.letters[-1].error if outcome.letters else "held behind others"),
            )

    def _give_counts(self, edge: str) -> None:
        for batch in self._counted[edge].take():
            for row in self._encoder.routed(edge, batch):
                self.rows.add(*row)

    def _state(self) -> Iterator[pa.RecordBatch]:
        for operator, held in self._stepper.state.items():
            for batch in state_rows(held):
                self.rows.add_fact(STATE, encode_batch(batch), operator, len(batch))
                yield from self.rows.full()
        by_operator: dict[str, list[Timer]] = {}
        for timer in self._stepper.timers:
            by_operator.setdefault(timer.operator, []).append(timer)
        for operator, timers in by_operator.items():
            batch = Batch([timer.due for timer in timers], [timer.key for timer in timers])
            self.rows.add_fact(TIMERS, encode_batch(batch), operator, len(batch))
            yield from self.rows.full()
