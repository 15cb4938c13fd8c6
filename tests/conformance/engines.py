"""Runs one pipeline on each engine and gives what it has done, in a form in which engines can be compared."""

from __future__ import annotations

import random
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa

from pipeline import Pipeline
from pipeline.codec import decode_batch
from pipeline.plan import Plan, compile_plan, stream_name
from pipeline.records import Batch
from pipeline.settings import Limits
from pipeline.spark.bulk.carrier import EntryTask, KeyedTask, StageTask
from pipeline.spark.bulk.definition import define
from pipeline.spark.bulk.engine import BulkOptions, BulkRun
from pipeline.spark.bulk.facts import Counts, decode_fact
from pipeline.spark.bulk.letters import Letter
from pipeline.spark.bulk.rows import COUNTS, HELD, LETTER, SCHEMA, START, STATE, TIMERS, Row, is_fact, rows_of
from pipeline.spark.bulk.sources import open_sources
from tests.runtime.harness import LocalJob

_NO_KEY = object()


@dataclass
class Results:
    """outputs: stream -> its records, in the order in which they came. held: records behind dead letters."""

    outputs: dict[str, list[tuple[Any, Any]]] = field(default_factory=lambda: defaultdict(list))
    state: dict[tuple[str, Any], Any] = field(default_factory=dict)
    letters: list[tuple[str, str, str, str]] = field(default_factory=list)
    held: int = 0
    timers: int = 0

    def comparable(self, keyed: Iterable[str]) -> dict[str, Any]:
        """Streams with keys by key and in order, the others as bags."""
        return {
            "outputs": {
                name: _by_key(records) if name in keyed else Counter(repr(value) for _, value in records)
                for name, records in sorted(self.outputs.items())
                if records
            },
            "state": self.state,
            "letters": Counter(self.letters),
            "held": self.held,
            "timers": self.timers,
        }


def _by_key(records: Iterable[tuple[Any, Any]]) -> dict[Any, list[Any]]:
    found: dict[Any, list[Any]] = defaultdict(list)
    for key, value in records:
        found[key].append(value)
    return dict(found)


def keyed_streams(plan: Plan) -> frozenset[str]:
    return frozenset(stream_name(sink) for sink in plan.sinks if sink.key_field is not None)


def run_live(
    redis_url: str, pipeline: Pipeline, values: Sequence[Any], partitions: int, transforms: Any = None
) -> Results:
    """In one process: leader, worker, Redis. All values come from one sender."""
    with LocalJob(redis_url, pipeline, partitions=partitions, transforms=transforms) as job:
        job.assign()
        job.send(values, entry_records=37)
        job.end_input()
        job.run_through_pauses()
        job.assert_done()
        job.drain_outputs()
        found = Results(held=job.jobs.facts(job.job).held)
        for name, records in job.outputs.items():
            found.outputs[name] = list(records)
        for stage in job.plan.stages:
            found.state.update(job.state(stage.index) if stage.keyed else {})
        found.letters = [_letter(each.operator, each.kind, each.error, each.payload) for each in job.letters()]
        return found


def _letter(operator: str, kind: str, error: str, payload: bytes) -> tuple[str, str, str, str]:
    batch = decode_batch(payload)
    return operator, kind, error, repr((batch.keys, batch.values))


def run_on_spark(spark: Any, pipeline: Pipeline, partitions: int, **options: Any) -> Results:
    """On a session: as `run_bulk` does, with all that it has told."""
    found = Results()

    def taker(stream: str) -> Any:
        return lambda batch: found.outputs[stream].extend(_records(batch))

    plan = compile_plan(pipeline.graph(), partitions, Limits())
    takers = {sink.name: taker(stream_name(sink)) for sink in plan.sinks}
    given = BulkOptions(partitions=partitions, takers=takers, keeps_state=True, **options)
    with BulkRun(pipeline, given) as run:
        run.prepare()
        run.compute(spark)
        run.publish()
        found.state = {(operator, key): value for _, operator, key, value in run.states()}
        found.timers = sum(1 for _ in run.timers())
        found.letters = [_letter(each.operator, each.kind, each.error, each.payload) for each in run.facts.letters]
        found.held = len(run.facts.held)
    return found


def _records(batch: Batch) -> Iterator[tuple[Any, Any]]:
    return zip(batch.keys or [None] * len(batch), batch.values, strict=True)


@dataclass
class Shuffled:
    """What Spark does with tasks, in this process: rows arrive in any order, cut anywhere, and each task runs twice.

    A second attempt must give the rows of the first one.
    """

    pipeline: Pipeline
    partitions: int
    folder: Path
    rng: random.Random
    options: dict[str, Any] = field(default_factory=dict)

    def run(self) -> Results:
        graph, definition = define(self.pipeline)
        plan = compile_plan(graph, self.partitions, Limits())
        portions, _ = open_sources(graph, self.folder, plan.limits, {})
        handed = frozenset(sink.name for sink in plan.sinks)
        told: list[Row] = []
        for stage in plan.stages:
            task = StageTask(definition, plan, stage.index, "shuffled", handed, keeps_state=True, **self.options)
            if stage.keyed:
                told = [*self._keyed(task, told)]
            else:
                entry = EntryTask(task, portions[stage.name])
                for number in range(portions[stage.name].count):
                    batch = pa.RecordBatch.from_pydict({"id": [number]})
                    told += self._attempts(lambda task=entry, given=batch: task.run(iter([given])))  # type: ignore[misc]
        return self._results(plan, told)

    def _keyed(self, task: StageTask, rows: list[Row]) -> Iterator[Row]:
        """The rows for the stage go through it, all others stay as they are."""
        stage = task.stage
        yield from (row for row in rows if row.edge != stage.name and not is_fact(row.edge))
        mine = [row for row in rows if row.edge == stage.name or is_fact(row.edge)]
        for partition in range(stage.serving):
            start = Row(START, partition, -1, partition, -1, "", 0, b"")
            given = [start, *(row for row in mine if row.pid % stage.serving == partition)]
            self.rng.shuffle(given)
            given.sort(key=lambda row: (row.stage, row.partition, row.ord))
            yield from self._attempts(lambda given=given: KeyedTask(task).run(self._batches(given)))  # type: ignore[misc]

    def _batches(self, rows: list[Row]) -> Iterator[pa.RecordBatch]:
        at = 0
        while at < len(rows):
            size = self.rng.randrange(1, 9)
            columns = zip(zip(*rows[at : at + size], strict=True), SCHEMA, strict=True)
            yield pa.RecordBatch.from_arrays([pa.array(column, kind.type) for column, kind in columns], schema=SCHEMA)
            at += size

    def _attempts(self, run: Any) -> list[Row]:
        first, second = ([row for batch in run() for row in rows_of(batch)] for _ in range(2))
        assert [_timeless(row) for row in first] == [_timeless(row) for row in second]
        return first

    def _results(self, plan: Plan, rows: list[Row]) -> Results:
        found = Results()
        streams = {sink.name: stream_name(sink) for sink in plan.sinks}
        for row in sorted(rows, key=lambda row: (row.stage, row.partition, row.ord)):
            match row.edge:
                case "_letter":
                    each = decode_fact(row.payload, Letter)
                    found.letters.append(_letter(each.operator, each.kind, each.error, each.payload))
                case "_held":
                    found.held += 1
                case "_state":
                    found.state.update({(row.name, key): state for key, state in _records(row.batch())})
                case "_timers":
                    found.timers += row.records
                case edge if edge in streams:
                    found.outputs[streams[edge]].extend(_records(row.batch()))
        assert {LETTER, HELD, STATE, TIMERS} == {"_letter", "_held", "_state", "_timers"}
        return found


def _timeless(row: Row) -> Any:
    """Without what may differ between attempts: seconds, and the times in a letter's attempts."""
    if row.edge == COUNTS:
        counts = decode_fact(row.payload, Counts)
        counts.seconds = 0.0
        return row[:-1], counts
    if row.edge == LETTER:
        letter = decode_fact(row.payload, Letter)
        return row[:-1], letter.error, letter.payload, len(letter.tried)
    return row
