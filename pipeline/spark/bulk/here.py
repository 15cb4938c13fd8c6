"""The stages of a plan in this process, one task after the other, without Spark: for so few records that starting its
tasks costs more than their work. The tasks, and what they leave in folders, are those of `pipeline.spark.bulk.frames`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import pyarrow as pa
import pyarrow.parquet as pq

from pipeline.plan import Plan, StagePlan
from pipeline.spark.bulk.carrier import EntryTask, KeyedTask, StageTask
from pipeline.spark.bulk.portions import Portions
from pipeline.spark.bulk.rows import SCHEMA, START, STATE, Row, batch_of, rows_of

_STORED: Final = SCHEMA.remove(SCHEMA.get_field_index("edge"))


@dataclass(frozen=True)
class FramesHere:
    """`tasks`: by index of the stage, each with `keeps_state`. `portions`: by name of the source."""

    plan: Plan
    tasks: Mapping[int, StageTask]
    portions: Mapping[str, Portions]
    folder: Path
    _given: dict[str, list[Row]] = field(default_factory=dict)
    """Stage, by name -> the rows for it."""

    def compute(self, stage: StagePlan) -> Path:
        """Runs the stage; where its facts are stored. Stages must be asked for in the order of the plan.

        Raises TaskFault.
        """
        path = self.folder / f"stage-{stage.index:03d}"
        for number, batches in enumerate(self._keyed(stage) if stage.keyed else self._entry(stage)):
            told: dict[str, list[Row]] = {}
            for row in (row for batch in batches for row in rows_of(batch)):
                to = self._given if row.edge in stage.exchanges else told
                to.setdefault(row.edge, []).append(row)
            for edge, rows in told.items():
                _write(path / f"edge={edge}" / f"part-{number:05d}-0.parquet", rows)
        return path

    def _entry(self, stage: StagePlan) -> Iterator[Iterator[pa.RecordBatch]]:
        portions = self.portions[stage.name]
        for number in range(portions.count):
            batch = pa.RecordBatch.from_arrays([pa.array([number])], ["id"])
            yield EntryTask(self.tasks[stage.index], portions).run(iter([batch]))

    def _keyed(self, stage: StagePlan) -> Iterator[Iterator[pa.RecordBatch]]:
        by_partition: dict[int, list[Row]] = {}
        for row in self._given.pop(stage.name, []):
            by_partition.setdefault(row.pid, []).append(row)
        for pid in range(stage.serving):
            rows = sorted(by_partition.get(pid, []), key=lambda row: (row.stage, row.partition, row.ord))
            start = Row(START, pid, -1, pid, -1, "", 0, b"")
            yield KeyedTask(self.tasks[stage.index]).run(iter([batch_of([start, *rows])]))


def count_states(folders: Mapping[int, Path]) -> int:
    """How many states a run has kept: each that goes on from it reads them."""
    files = (path for folder in folders.values() for path in (folder / f"edge={STATE}").glob("part-*.parquet"))
    return sum(sum(pq.read_table(path, columns=["records"]).column("records").to_pylist()) for path in files)


def _write(path: Path, rows: list[Row]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    table = pa.Table.from_batches([batch_of(rows)]).drop_columns(["edge"]).cast(_STORED)
    pq.write_table(table, path)
