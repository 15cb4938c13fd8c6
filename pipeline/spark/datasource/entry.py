"""The format `pipeline`: finds the reader or writer for what is asked. Opens nothing itself."""

from __future__ import annotations

from typing import Any, Final

from pipeline.errors import EnvironmentFault, ProducerError, ReadingError

try:
    from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader
    from pyspark.sql.streaming.datasource import SupportsTriggerAvailableNow  # noqa: F401 - new in 4.2
    from pyspark.sql.types import StructType
except ImportError as error:
    raise EnvironmentFault("the Spark data source needs PySpark 4.2", hint="pip install 'celeriac[spark]'") from error

from pipeline.spark.datasource.columns import RESULT_SCHEMA
from pipeline.spark.datasource.faults import told
from pipeline.spark.datasource.options import FORMAT, TABLES, Use, parse, use_of
from pipeline.spark.datasource.results import ResultReader, ResultStream
from pipeline.spark.datasource.tables import PUSHING, READERS, SCHEMAS
from pipeline.spark.datasource.writing import BatchWriter, StreamWriter, plan_write
from pipeline.spark.session import make_active

PUSHDOWN_SETTING: Final = "spark.sql.python.filterPushdown.enabled"


class PipelineDataSource(DataSource):
    """For `spark.dataSource.register(PipelineDataSource)`. Conditions on keys are then checked by Spark alone."""

    _table_readers = READERS

    @classmethod
    def name(cls) -> str:
        return FORMAT

    def schema(self) -> str:
        """The columns where the user gives none. Raises ReadingError for wrong options."""
        with told():
            use = use_of(self.options)
            options = dict(self.options)
            if use is Use.RESULTS and "reader" in self.options:
                parse(options, Use.STREAM)
            else:
                parse(options, use, *((Use.STREAM,) if use is Use.RESULTS else ()))
            return SCHEMAS.get(use, RESULT_SCHEMA)

    def reader(self, schema: StructType) -> DataSourceReader:
        """Raises ReadingError, UnknownJob, SavepointError, StoreError."""
        with told():
            use = use_of(self.options)
            options = parse(dict(self.options), use)
            if use is Use.RESULTS:
                return ResultReader(options, schema)
            _check_columns(use, schema)
            return self._table_readers[use](options, schema)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802
        """Raises ReadingError, UnknownJob, StoreError."""
        with told():
            if use_of(self.options) is not Use.RESULTS:
                tables = ", ".join(name for name, use in TABLES.items() if use is not Use.RESULTS)
                raise ReadingError("spark.readStream reads results only", hint=f"spark.read has the tables {tables}")
            return ResultStream(parse(dict(self.options), Use.STREAM), schema)

    def writer(self, schema: StructType, overwrite: bool) -> BatchWriter:
        """Raises ProducerError, UnknownJob, StoreError."""
        with told():
            _check_append(overwrite)
            return BatchWriter(plan_write(parse(dict(self.options), Use.WRITE), schema))

    def streamWriter(self, schema: StructType, overwrite: bool) -> StreamWriter:  # noqa: N802
        """Raises ProducerError, UnknownJob, StoreError."""
        with told():
            _check_append(overwrite)
            return StreamWriter(plan_write(parse(dict(self.options), Use.WRITE_STREAM), schema))


class PushingDataSource(PipelineDataSource):
    """As `register` registers it: only the keys of a condition are fetched. Spark must be set to PUSHDOWN_SETTING."""

    _table_readers = PUSHING


def register_in(spark: Any) -> None:
    """Makes the format known to a session, and to this thread, and lets it hand conditions over."""
    make_active(spark)
    spark.conf.set(PUSHDOWN_SETTING, "true")
    spark.dataSource.register(PushingDataSource)


def _check_append(overwrite: bool) -> None:
    if overwrite:
        raise ProducerError("a job's input cannot be overwritten", hint='.mode("append"), or outputMode("append")')


def _check_columns(use: Use, schema: StructType) -> None:
    wanted = [tuple(column.lower().replace("`", "").split(" ")) for column in SCHEMAS[use].split(", ")]
    if [(field.name, field.dataType.simpleString()) for field in schema] != wanted:
        name = next(name for name, each in TABLES.items() if each is use)
        raise ReadingError(f"the table {name!r} has columns of its own", hint=f"leave the schema out: {SCHEMAS[use]}")
