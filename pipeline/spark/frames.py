"""Records as the columns of a DataFrame, and its rows as records: what a DataFrame operator is given, and gives."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any, Final, assert_never

import pyarrow as pa
from py4j.protocol import Py4JError
from pyspark.errors import PySparkException, PythonException
from pyspark.sql import DataFrame
from pyspark.sql import types as spark
from pyspark.sql.pandas.types import to_arrow_schema

from pipeline.codec import shown
from pipeline.errors import EncodingError, FrameError, PipelineError
from pipeline.graph import Transform
from pipeline.records import Batch
from pipeline.schemas import ArrayOf, Column, ColumnType, DecimalOf, MapOf, Plain, StructOf
from pipeline.sources.parquetrows import plain_column
from pipeline.spark.bulk.faults import words_of
from pipeline.spark.datasource.fitting import fitted

_SHOWN: Final = 80

_PLAIN: Final[dict[Plain, spark.DataType]] = {
    Plain.BOOLEAN: spark.BooleanType(),
    Plain.TINYINT: spark.ByteType(),
    Plain.SMALLINT: spark.ShortType(),
    Plain.INT: spark.IntegerType(),
    Plain.BIGINT: spark.LongType(),
    Plain.FLOAT: spark.FloatType(),
    Plain.DOUBLE: spark.DoubleType(),
    Plain.STRING: spark.StringType(),
    Plain.BINARY: spark.BinaryType(),
    Plain.DATE: spark.DateType(),
    Plain.TIMESTAMP: spark.TimestampType(),
    Plain.TIMESTAMP_NTZ: spark.TimestampNTZType(),
}

_CARRIED: Final = (*map(type, _PLAIN.values()), spark.DecimalType)


def spark_schema(columns: Sequence[Column]) -> spark.StructType:
    """The columns as Spark knows them."""
    return spark.StructType(
        [spark.StructField(column.name, _spark_type(column.type), column.is_nullable) for column in columns]
    )


def _spark_type(kind: ColumnType) -> spark.DataType:
    match kind:
        case Plain():
            return _PLAIN[kind]
        case DecimalOf(precision, scale):
            return spark.DecimalType(precision, scale)
        case ArrayOf(item):
            return spark.ArrayType(_spark_type(item))
        case MapOf(value):
            return spark.MapType(spark.StringType(), _spark_type(value))
        case StructOf(fields):
            return spark_schema(fields)
        case _:
            assert_never(kind)


class FrameColumns:
    """Makes the Arrow table of the frame that an operator's function gets."""

    def __init__(self, columns: Sequence[Column]) -> None:
        self.schema = spark_schema(columns)
        self._arrow = to_arrow_schema(self.schema, timezone="UTC")

    def table(self, values: Sequence[Any]) -> Any:
        """Raises EncodingError, with its index, for a record that is no dict or whose field is of another type."""
        if set(map(type, values)) - {dict}:
            index = next(index for index, value in enumerate(values) if type(value) is not dict)
            names = ", ".join(self._arrow.names)
            raise EncodingError(
                f"the record is {shown(values[index], _SHOWN)}, which has no columns {names}",
                index,
                hint="make it a dict with .map before the operator",
            )
        return pa.Table.from_arrays([self._column(field, values) for field in self._arrow], schema=self._arrow)

    def _column(self, field: Any, values: Sequence[Any]) -> Any:
        name = field.name
        column = [value.get(name) for value in values]
        try:
            array = fitted(column, field.type)
        except ValueError as error:
            index = error.args[0]
            raise EncodingError(
                f"column {name!r} is {field.type}, and the value is {shown(column[index], _SHOWN)}",
                index,
                hint="correct the schema, or the values with .map before the operator",
            ) from error
        if array.null_count and not field.nullable:
            raise EncodingError(f"column {name!r} is NOT NULL, and the record has no value there", column.index(None))
        return array


def check_columns(schema: Any) -> None:
    """Raises FrameError for columns that are no fields of a record: none, two of one name, or of a type that none has.

    `schema` is Spark's, of what a function has returned.
    """
    if not schema.names:
        raise FrameError("it returned no column", "select at least one")
    twice = _twice(schema)
    if twice:
        raise FrameError(
            f"it returned two columns called {twice!r}", 'leave one out: .drop(...), or .join(..., "column")'
        )
    for field in schema:
        if not (_is_carried(field.dataType) or isinstance(field.dataType, spark.NullType)):
            raise FrameError(
                f"it returned the column {field.name!r} of the type {field.dataType.simpleString()}, "
                "which no record can hold",
                f"cast it, or leave it out: .drop({field.name!r})",
            )


def _twice(schema: Any) -> str:
    """A name that two fields have, or nothing."""
    return next((name for name, count in Counter(schema.names).items() if count > 1), "")


def _is_carried(kind: spark.DataType) -> bool:
    match kind:
        case spark.ArrayType():
            return _is_carried(kind.elementType)
        case spark.MapType():
            return isinstance(kind.keyType, spark.StringType) and _is_carried(kind.valueType)
        case spark.StructType():
            return not _twice(kind) and all(_is_carried(field.dataType) for field in kind)
        case _:
            return isinstance(kind, _CARRIED)


def rows_of(table: Any) -> list[dict[str, Any]]:
    """The rows of an Arrow table, in order, as dicts of plain values: as those of a source of Parquet."""
    names = table.schema.names
    columns = [
        plain_column(chunked.combine_chunks(), field.type)
        for chunked, field in zip(table.columns, table.schema, strict=True)
    ]
    return [dict(zip(names, row, strict=True)) for row in zip(*columns, strict=True)] if names else []


def applied(node: Transform, frame: DataFrame) -> DataFrame:
    """What the function makes of the frame. Raises what that raises, and FrameError for what is no frame of records."""
    made = node.fn(frame)
    if not isinstance(made, DataFrame):
        raise FrameError(f"it returned {type(made).__name__}, not a DataFrame", "return the frame that it made")
    check_columns(made.schema)
    return made


def refuse_times(node: Transform, batch: Batch) -> None:
    """Raises PipelineError for a batch with event times."""
    if batch.times is not None:
        raise PipelineError(
            f"operator {node.name!r} works on DataFrames, and its stream has event times, which it loses",
            hint="take the event time behind it",
        )


def words_of_any(error: BaseException) -> str:
    """What an exception of Spark, or of the user's own code, says to a person."""
    if isinstance(error, PythonException):  # of a UDF: a traceback, whose end says it
        lines = [line for line in str(error).partition("JVM stacktrace:")[0].splitlines() if line.strip()]
        return f"PythonException: {lines[-1].strip()}" if lines else "PythonException"
    if isinstance(error, PySparkException | Py4JError):
        return f"{type(error).__name__}: {words_of(error)}"
    return f"{type(error).__name__}: {error}"
