"""Files as frames of typed columns, read by Spark itself: the records that the readers in Python make of them.

What a reader would make something else of is in doubt, row by row: a quoted field, a number that is none, bytes that
are no UTF-8, a record too large. JSON Lines have no types, and compressed files are left to Python.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql import types as T  # noqa: N812

from pipeline.sources.csvrows import CsvFormat
from pipeline.sources.formats import TextFormat, first_records
from pipeline.sources.layout import FileInput
from pipeline.sources.lines import split_lines
from pipeline.sources.parquetrows import ParquetFormat
from pipeline.sources.splits import HIDDEN
from pipeline.spark.bulk.twins import Kind, NoTwin, Shape, any_of

DOUBT: Final = "doubt"
HEADER: Final = "header"
VALUE: Final = "v"
"""What the names of the columns of a value begin with; see `twins.named`."""

PATH: Final = "path"
START: Final = "start"
NUMBER: Final = "number"
_TASK_BITS: Final = 33
"""Above them `monotonically_increasing_id` has the number of the task."""

_COPYING: Final = "._COPYING_"
_BLANK: Final = " \t\n\r\x0b\x0c"
"""What `bytes.isspace` takes for white space."""

_FIELD_CHARACTERS: Final = 131_072
"""Python's csv module takes no longer fields."""

_NUMBERS: Final = {
    "int": r"[+-]?[0-9]{1,18}+",
    "float": r"[+-]?(?:[0-9]++(?:\.[0-9]*+)?|\.[0-9]++)(?:[eE][+-]?[0-9]++)?",
}
_META: Final = re.compile(r"[.$|()\[\]{}^?*+\\]")
_GLOB_MARKS: Final = re.compile(r"([\\*?\[\]{}])")

_CSV_KINDS: Final = {"int": Kind.INT, "float": Kind.FLOAT, "text": Kind.TEXT}

_PARQUET: Final[tuple[tuple[Callable[[Any], bool], T.DataType, Kind], ...]] = (
    (pa.types.is_int8, T.ByteType(), Kind.INT),
    (pa.types.is_int16, T.ShortType(), Kind.INT),
    (pa.types.is_int32, T.IntegerType(), Kind.INT),
    (pa.types.is_int64, T.LongType(), Kind.INT),
    (pa.types.is_float32, T.FloatType(), Kind.FLOAT),
    (pa.types.is_float64, T.DoubleType(), Kind.FLOAT),
    (pa.types.is_boolean, T.BooleanType(), Kind.BOOL),
    (pa.types.is_string, T.StringType(), Kind.TEXT),
    (pa.types.is_large_string, T.StringType(), Kind.TEXT),
)


@dataclass(frozen=True, slots=True)
class Scan:
    """`frame` has the columns of the records' shape, DOUBT, and HEADER: whether the row is the head of a file.

    headers: how many rows are. places: further columns, where they were asked for: the file, the block of it, and the
    number of the row among those that Spark reads there, blank lines and heads included.
    """

    frame: DataFrame
    headers: int
    places: tuple[str, ...] = ()


def shape_of(source: FileInput) -> Shape:
    """The types of the records of the files. Raises NoTwin where Spark does not read them as Python does."""
    for split in source.splits:
        name = split.path.rpartition("/")[2]
        if split.is_compressed:
            raise NoTwin(f"{name} is compressed")
        if name.startswith(HIDDEN) or name.endswith(_COPYING):
            raise NoTwin(f"Spark passes over {name}")
    if source.pin:
        raise NoTwin("Spark does not know the log of its table")
    match source.form:
        case TextFormat():
            return Kind.TEXT
        case CsvFormat() as form:
            return {name: _CSV_KINDS[kind] for name, kind in zip(form.columns, form.types, strict=True)}
        case ParquetFormat() as form:
            return {field.name: _parquet_type(field)[1] for field in form.schema}
    raise NoTwin("the fields of JSON have no declared types")


def scan(session: SparkSession, source: FileInput, most_bytes: int, *, has_places: bool = False) -> Scan:
    """All records of the files, in no order. One whose texts have more bytes is in doubt. Reads the heads of CSV files.

    With `has_places` the first row of each block stays, also when it is blank.

    Raises InputError for a file that cannot be read.
    """
    # Without that option the folders a=1/b=2 above a file would become columns, and hide those of the file.
    reader = session.read.option("recursiveFileLookup", "true")
    paths = _urls({split.path for split in source.splits})
    places = (PATH, START, NUMBER) if has_places else ()
    if isinstance(source.form, ParquetFormat):
        return Scan(_of_parquet(reader, source.form, paths, most_bytes, places), 0, places)
    lines = _placed(reader.schema("value string").format("text").load(paths), places)
    if isinstance(source.form, CsvFormat):
        return _of_csv(lines, source, source.form, most_bytes, places)
    line = F.col("value")
    doubt = any_of(text_doubts(line, most_bytes))
    frame = lines.select(line.alias(VALUE), doubt.alias(DOUBT), F.lit(False).alias(HEADER), *places)
    return Scan(frame, 0, places)


def is_first() -> Column:
    """Whether a row is the first one of its block, where each block is a task of its own."""
    return F.col(NUMBER).bitwiseAND(F.lit((1 << _TASK_BITS) - 1)) == 0


def _placed(frame: DataFrame, places: tuple[str, ...]) -> DataFrame:
    if not places:
        return frame
    # The task's number and that of the row in it; nothing that comes later changes it.
    columns = F.input_file_name(), F.input_file_block_start(), F.monotonically_increasing_id()
    return frame.select("*", *(column.alias(name) for column, name in zip(columns, places, strict=True)))


def text_doubts(line: Column, most_bytes: int) -> list[Column]:
    """Those of a line of text."""
    return [~F.is_valid_utf8(line), F.octet_length(line) > most_bytes]


def _of_csv(lines: DataFrame, source: FileInput, form: CsvFormat, most_bytes: int, places: tuple[str, ...]) -> Scan:
    heads = [first_records(split_lines(split), 1) for split in source.splits if split.start == 0]
    heads = [head for head in heads if head]
    line = F.col("value")
    is_record = F.ltrim(line, F.lit(_BLANK)) != ""
    parts = F.split(line, re.sub(_META, r"\\\g<0>", form.delimiter), -1).alias("parts")
    cut = lines.filter(is_record | is_first() if places else is_record).select(line, parts, *places)
    too_long = F.octet_length(line) > min(most_bytes, _FIELD_CHARACTERS)
    fields = [
        _csv_field(F.get("parts", F.lit(form.header.index(name))), kind, form.nulls).alias(f"{VALUE}_{place}")
        for place, (name, kind) in enumerate(zip(form.columns, form.types, strict=True))
    ]
    is_header = line.isin(sorted({head[0].decode() for head in heads}))
    doubt = any_of([~line.rlike(_line_pattern(form)), ~F.is_valid_utf8(line), too_long])
    frame = cut.select(*fields, (~is_header & doubt).alias(DOUBT), is_header.alias(HEADER), *places)
    return Scan(frame, len(heads), places)


def _line_pattern(form: CsvFormat) -> str:
    """What lines match whose fields Spark reads as Python does. One pattern for all fields costs less than one each."""
    mark = re.escape(form.delimiter)
    whole = (null for null in form.nulls if '"' not in null and form.delimiter not in null)
    nulls = [re.escape(null) for null in sorted(whole, reverse=True)]
    kinds = dict(zip(form.columns, form.types, strict=True))
    patterns = {kind: f"(?:{'|'.join([number, *nulls])})" for kind, number in _NUMBERS.items()}
    fields = (patterns.get(kinds.get(name, "text"), f'[^"{mark}]*+') for name in form.header)
    return rf"\A{mark.join(fields)}\z"


def _csv_field(field: Column, kind: str, nulls: frozenset[str]) -> Column:
    is_null = field.isin(sorted(nulls)) if nulls else F.lit(False)
    return F.when(is_null, F.lit(None)).otherwise(field if kind == "text" else field.try_cast(_CSV_KINDS[kind].value))


def _urls(paths: Iterable[str]) -> list[str]:
    """These absolute paths in order, as Spark reads exactly them."""
    return ["file://" + _GLOB_MARKS.sub(r"\\\1", path) for path in sorted(paths)]


def _of_parquet(
    reader: Any, form: ParquetFormat, paths: list[str], most_bytes: int, places: tuple[str, ...]
) -> DataFrame:
    types = [_parquet_type(field) for field in form.schema]
    schema = T.StructType([T.StructField(name, kind) for name, (kind, _) in zip(form.columns, types, strict=True)])
    # By place, as Spark cannot address every name.
    frame = reader.schema(schema).parquet(*paths).toDF(*(f"{VALUE}_{place}" for place in range(len(types))))
    frame = _placed(frame, places)
    kinds = [kind for _, kind in types]
    columns = [F.col(f"{VALUE}_{place}").cast(kind.value) for place, kind in enumerate(kinds)]
    texts = [column for column, kind in zip(columns, kinds, strict=True) if kind is Kind.TEXT]
    doubts = [F.coalesce(~F.is_valid_utf8(text), F.lit(False)) for text in texts]
    if texts:
        sizes = [F.coalesce(F.octet_length(text), F.lit(0)) for text in texts]
        doubts.append(sum(sizes[1:], sizes[0]) > most_bytes)
    fields = [column.alias(f"{VALUE}_{place}") for place, column in enumerate(columns)]
    return frame.select(*fields, any_of(doubts).alias(DOUBT), F.lit(False).alias(HEADER), *places)


def _parquet_type(field: Any) -> tuple[T.DataType, Kind]:
    kind = field.type.value_type if pa.types.is_dictionary(field.type) else field.type
    for test, spark_type, found in _PARQUET:
        if test(kind):
            return spark_type, found
    raise NoTwin(f"the column {field.name!r} is of the type {field.type}, and columns=[...] does not leave it out")
