"""The stages of a plan as DataFrames. No RDDs and no SparkContext: one path for local, cluster and Connect.

A stage whose rows go to one keyed stage only stays lazy and is computed by that one. Any other is written once, to a
folder for each edge, and read from there. What a DataFrame operator makes is written, too: so its rows have an order
that stays, whatever it has done, and tasks that are run again see the same.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import reduce
from pathlib import Path

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.types import NullType

from pipeline.errors import FrameError
from pipeline.graph import Transform
from pipeline.kernel.faults import is_of_user_code
from pipeline.plan import Plan, StagePlan
from pipeline.sources.splits import check_unchanged
from pipeline.spark.bulk.carrier import EntryTask, FinalTask, FrameTask, FrontTask, KeyedTask, StageTask, UnpackTask
from pipeline.spark.bulk.connecting import COMPUTING, tuned
from pipeline.spark.bulk.faults import translated
from pipeline.spark.bulk.finals import Finals, grouped, levelled, placed, rows_of
from pipeline.spark.bulk.fronts import Front, kept
from pipeline.spark.bulk.portions import FilePortions, Portions
from pipeline.spark.bulk.reading import read_native
from pipeline.spark.bulk.rows import DDL, DDL_OF_EDGE, IDENTITY, START
from pipeline.spark.frames import applied, spark_schema, words_of_any


@dataclass(frozen=True)
class Frames:
    """`tasks`: by index of the stage. `portions`: by name of the source. `folder` is seen by all of Spark.

    planning: settings of the session for what Spark computes itself, and functions of the user's.
    transforms: the DataFrame operators, by the name of the stage that each begins. natives: what Spark computes itself,
    by index of the entry stage. fronts: the filters in front that Spark computes, by the same.
    """

    session: SparkSession
    plan: Plan
    tasks: Mapping[int, StageTask]
    portions: Mapping[str, Portions]
    folder: Path
    planning: Mapping[str, str | None]
    transforms: Mapping[str, Transform] = field(default_factory=dict)
    natives: Mapping[int, Finals] = field(default_factory=dict)
    fronts: Mapping[int, Front] = field(default_factory=dict)
    _native: dict[int, Path | None] = field(default_factory=dict)
    """Stages that were computed so: where the rows of the keyed one are; the entry stage has none of its own."""
    _lazy: dict[int, DataFrame] = field(default_factory=dict)

    def compute(self, stage: StagePlan) -> Path | None:
        """Runs the stage, and those that it waits for; where its rows are stored. None for one that stays lazy.

        Stages must be asked for in the order of the plan. Blocks until Spark is done; raises what Spark raises.
        """
        if stage.index in self._native:
            return self._native[stage.index]
        if stage.name in self.transforms:
            frame = self._transformed(stage, self.transforms[stage.name])
        else:
            frame = self._keyed(stage) if stage.keyed else self._entry(stage)
        task = self.tasks[stage.index]
        goes_on = len(stage.exchanges) == 1 and stage.exchanges.keys().isdisjoint(self.transforms)
        has_state = stage.keyed and task.keeps_state
        if goes_on and task.handed.isdisjoint(stage.sinks) and not has_state:
            self._lazy[stage.index] = frame
            return None
        path = self._path(stage)
        frame.sortWithinPartitions("edge", *IDENTITY).write.partitionBy("edge").parquet(str(path))
        return path

    def compute_natively(self, stage: StagePlan) -> int:
        """Runs an entry stage of `natives`, and the keyed one behind it, in one job. How many of its rows are in doubt:
        with any the two must be computed. Raises InputError where a file has changed, and what Spark raises.
        """
        finals, portions = self.natives[stage.index], self.portions[stage.name]
        assert isinstance(portions, FilePortions)
        keyed = self.plan.stage(finals.keyed)
        path = self.folder / f"native-{stage.index:03d}"
        settings = {**COMPUTING, **self.planning, "spark.sql.shuffle.partitions": str(keyed.serving)}
        with tuned(self.session, settings):
            frame, headers = levelled(self.session, finals, portions.source)
            rows = rows_of(finals, headers)
            groups = placed(grouped(frame, finals), finals, keyed.serving)
            told = groups.mapInArrow(FinalTask(self.tasks[keyed.index], rows).run, DDL)
            told.sortWithinPartitions("edge", *IDENTITY).write.partitionBy("edge").parquet(str(path))
        for split in portions.source.splits:
            check_unchanged(split)
        doubts = rows.doubts(read_native(path))
        if not doubts:
            self._native.update({stage.index: None, keyed.index: path})
        return doubts

    def _path(self, stage: StagePlan) -> Path:
        return self.folder / f"stage-{stage.index:03d}"

    def _entry(self, stage: StagePlan) -> DataFrame:
        portions, front = self.portions[stage.name], self.fronts.get(stage.index)
        if front is not None:
            assert isinstance(portions, FilePortions)
            rows = kept(self.session, front, portions.source)
            return rows.mapInArrow(FrontTask(self.tasks[stage.index], portions).run, DDL)
        count = portions.count
        numbers = self.session.range(0, count, 1, max(1, count))
        return numbers.mapInArrow(EntryTask(self.tasks[stage.index], portions).run, DDL)

    def _keyed(self, stage: StagePlan) -> DataFrame:
        upstream = (self._into(self.plan.stage(index), stage) for index in stage.upstream)
        frames = [self._start_rows(stage), *(frame for frame in upstream if frame is not None)]
        rows = reduce(DataFrame.unionByName, frames)
        sorted_rows = rows.repartitionById(stage.serving, "pid").sortWithinPartitions(*IDENTITY)
        return sorted_rows.mapInArrow(KeyedTask(self.tasks[stage.index]).run, DDL)

    def _transformed(self, stage: StagePlan, node: Transform) -> DataFrame:
        """Applies the operator to all records that reach it, once. Raises FrameError when that fails."""
        upstream = (self._into(self.plan.stage(index), stage) for index in stage.upstream)
        frames = [frame for frame in upstream if frame is not None]
        schema, path = spark_schema(node.columns), str(self.folder / f"frame-{stage.index:03d}")
        given = self.session.createDataFrame([], schema)
        if frames:
            given = (
                reduce(DataFrame.unionByName, frames).select("payload").mapInArrow(UnpackTask(node.columns).run, schema)
            )
        try:
            with tuned(self.session, self.planning):
                made = _with_types(applied(node, given))
                made.write.parquet(path)
        except BaseException as error:
            if not is_of_user_code(error):
                raise
            is_of_spark = isinstance(error, PySparkException | Py4JError)
            told = translated(error) if is_of_spark and isinstance(error, Exception) else None
            raise told or FrameError(
                f"the operator {node.name!r} failed: {error if isinstance(error, FrameError) else words_of_any(error)}",
                hint="in bulk it is called once, for all records: correct it, or filter out what it cannot take",
            ) from error
        rows = self.session.read.schema(made.schema).parquet(path)
        return rows.mapInArrow(FrameTask(self.tasks[stage.index]).run, DDL)

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


def _with_types(frame: DataFrame) -> DataFrame:
    """A column of nothing but nulls has no type, and Parquet none for it."""
    nothing = [field.name for field in frame.schema if isinstance(field.dataType, NullType)]
    quoted = {name: "`" + name.replace("`", "``") + "`" for name in nothing}
    return frame.withColumns({name: F.col(quoted[name]).cast("string") for name in nothing}) if nothing else frame
