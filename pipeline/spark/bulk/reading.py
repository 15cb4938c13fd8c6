"""Reads on the driver what tasks have written: rows of an edge in the order of their tasks, and all facts."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pyarrow.parquet as pq

from pipeline.codec import decode_batch
from pipeline.records import Timer
from pipeline.sinks.staging import StagedFacts
from pipeline.spark.bulk.facts import Counts, NativeFact, SplitCount, decode_fact
from pipeline.spark.bulk.letters import Letter
from pipeline.spark.bulk.rows import COUNTS, FILE, HELD, LETTER, NATIVE, SCHEMA, SPLIT, STATE, TIMERS, Row


@dataclass(slots=True)
class Facts:
    """What all tasks have told, but for state. `counts` by stage, `files` by sink, `splits` by source."""

    counts: dict[int, list[Counts]] = field(default_factory=dict)
    letters: list[Letter] = field(default_factory=list)
    held: list[tuple[int, int, bytes]] = field(default_factory=list)
    """(stage, partition, payload of one record), in the order in which they came."""
    files: dict[str, list[StagedFacts]] = field(default_factory=dict)
    splits: dict[str, dict[str, int]] = field(default_factory=dict)

    def of_stage(self, index: int) -> Counts:
        """The sum over its tasks."""
        total = Counts(index, -1)
        for counts in self.counts.get(index, []):
            for name in ("taken", "emitted", "filtered", "dead", "skipped", "held", "seconds"):
                setattr(total, name, getattr(total, name) + getattr(counts, name))
            for sink, records in counts.sunk.items():
                total.sunk[sink] = total.sunk.get(sink, 0) + records
        return total


def read_edge(folders: Iterable[Path], edge: str, partition: int | None = None) -> Iterator[Row]:
    """The rows of an edge, by task and then in the order in which the task gave them. Memory is bounded.

    `partition`: those that the task of that number has made.
    """
    columns = SCHEMA.names[1:]
    for folder in folders:
        # Spark names files by the number of the task, which is that of the partition.
        for path in sorted((folder / f"edge={edge}").glob("part-*.parquet")):
            with pq.ParquetFile(path) as file:
                if partition is not None and not _may_hold(file, partition):
                    continue
                for batch in file.iter_batches(batch_size=64, columns=columns):
                    lists = [batch.column(name).to_pylist() for name in columns]
                    rows = (Row(edge, *values) for values in zip(*lists, strict=True))
                    yield from (row for row in rows if partition is None or row.partition == partition)


def _may_hold(file: pq.ParquetFile, partition: int) -> bool:
    """By what the file says of its column: all rows of a task are in files of their own."""
    column = SCHEMA.names.index("partition") - 1
    for number in range(file.metadata.num_row_groups):
        known = file.metadata.row_group(number).column(column).statistics
        if known is None or not known.has_min_max or known.min <= partition <= known.max:
            return True
    return False


def read_facts(folders: list[Path]) -> Facts:
    """All facts but state, from the folders of the stages that were written."""
    facts = Facts()
    for row in read_edge(folders, COUNTS):
        counts = decode_fact(row.payload, Counts)
        facts.counts.setdefault(counts.stage, []).append(counts)
    facts.letters = [decode_fact(row.payload, Letter) for row in read_edge(folders, LETTER)]
    facts.held = [(row.stage, row.partition, row.payload) for row in read_edge(folders, HELD)]
    for row in read_edge(folders, FILE):
        facts.files.setdefault(row.name, []).append(StagedFacts.decode(row.payload))
    for row in read_edge(folders, SPLIT):
        split = decode_fact(row.payload, SplitCount)
        facts.splits.setdefault(split.source, {})[split.split] = split.records
    return facts


def read_native(folder: Path) -> NativeFact:
    """What the tasks have told of rows that Spark computed: one of them, or none where there were no rows."""
    return next((decode_fact(row.payload, NativeFact) for row in read_edge([folder], NATIVE)), NativeFact())


def read_state(folders: list[Path], partition: int | None = None) -> Iterator[tuple[int, str, object, object]]:
    """(stage, operator, key, state) of all keys, or of those of a partition, where the run keeps state."""
    for row in read_edge(folders, STATE, partition):
        batch = decode_batch(row.payload)
        for key, state in zip(batch.keys or (), batch.values, strict=True):
            yield row.stage, row.name, key, state


def read_timers(folders: list[Path], partition: int | None = None) -> Iterator[tuple[int, Timer]]:
    """(stage, timer) of those that are open, all or those of a partition, where the run keeps state."""
    for row in read_edge(folders, TIMERS, partition):
        batch = decode_batch(row.payload)
        for key, due in zip(batch.keys or (), batch.values, strict=True):
            yield row.stage, Timer(row.name, key, due)
