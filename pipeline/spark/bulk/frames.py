"""The stages of a plan as DataFrames. No RDDs and no SparkContext: one path for local, cluster and Connect.

A stage whose rows go to one other stage only stays lazy and is computed by that one. Any other is written once, to a
folder for each edge, and read from there.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import reduce
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812

from pipeline.plan import Plan, StagePlan
from pipeline.spark.bulk.carrier import EntryTask, KeyedTask, StageTask
from pipeline.spark.bulk.portions import Portions
from pipeline.spark.bulk.rows import DDL, DDL_OF_EDGE, IDENTITY, START


@dataclass(frozen=True)
class Frames:
    """`tasks`: by index of the stage. `portions`: by name of the source. `folder` is seen by all of Spark."""

    session: SparkSession
    plan: Plan
    tasks: Mapping[int, StageTask]
    portions: Mapping[str, Portions]
    folder: Path
    _lazy: dict[int, DataFrame] = field(default_factory=dict)

    def compute(self, stage: StagePlan) -> Path | None:
        """Runs the stage, and those that it waits for; where its rows are stored. None for one that stays lazy.

        Stages must be asked for in the order of the plan. Blocks until Spark is done; raises what Spark raises.
        """
        frame = self._keyed(stage) if stage.keyed else self._entry(stage)
        task = self.tasks[stage.index]
        if len(stage.exchanges) == 1 and task.handed.isdisjoint(stage.sinks) and not task.keeps_state:
            self._lazy[stage.index] = frame
            return None
        path = self._path(stage)
        frame.sortWithinPartitions("edge", *IDENTITY).write.partitionBy("edge").parquet(str(path))
        return path

    def _path(self, stage: StagePlan) -> Path:
        return self.folder / f"stage-{stage.index:03d}"

    def _entry(self, stage: StagePlan) -> DataFrame:
        portions = self.portions[stage.name]
        count = portions.count
        numbers = self.session.range(0, count, 1, max(1, count))
        return numbers.mapInArrow(EntryTask(self.tasks[stage.index], portions).run, DDL)

    def _keyed(self, stage: StagePlan) -> DataFrame:
        upstream = (self._into(self.plan.stage(index), stage) for index in stage.upstream)
        frames = [self._start_rows(stage), *(frame for frame in upstream if frame is not None)]
        rows = reduce(DataFrame.unionByName, frames)
        placed = rows.repartitionById(stage.serving, "pid").sortWithinPartitions(*IDENTITY)
        return placed.mapInArrow(KeyedTask(self.tasks[stage.index]).run, DDL)

    def _into(self, source: StagePlan, stage: StagePlan) -> DataFrame | None:
        """The rows of a stage for another one; None where it has given none."""
        if source.index in self._lazy:
            return self._lazy.pop(source.index)
        folder = self._path(source) / f"edge={stage.name}"
        if not folder.exists():
            return None
        return self.session.read.schema(DDL_OF_EDGE).parquet(str(folder)).withColumn("edge", F.lit(stage.name))

    def _start_rows(self, stage: StagePlan) -> DataFrame:
        """One row for each partition, which sorts before all others: Spark skips partitions of an empty input."""
        return self.session.range(0, stage.serving, 1, 1).select(
            F.lit(START).alias("edge"),
            F.col("id").cast("int").alias("pid"),
            F.lit(-1).cast("int").alias("stage"),
            F.col("id").cast("int").alias("partition"),
            F.lit(-1).cast("long").alias("ord"),
            F.lit("").alias("name"),
            F.lit(0).cast("int").alias("records"),
            F.lit(b"").cast("binary").alias("payload"),
        )
