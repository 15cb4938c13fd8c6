"""The columns of a table that is made from rows: their names in order of first appearance, and their types.

The rules are those of Spark's reader of JSON, but for one: kinds that do not fit together are an error here
and silently text there. Both writers of Parquet are given these types, so they make the same table.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum
from typing import Any, Final, TypeAlias, assert_never

from pipeline.errors import SinkError
from pipeline.sinks.committed import CommittedFile

_SHAPES_KEPT: Final = 10_000


class Scalar(Enum):
    """The kinds of single values. NOTHING is a column that has been null so far; it ends as text."""

    NOTHING = "null"
    FLAG = "true or false"
    INTEGER = "an integer"
    NUMBER = "a number with a fraction"
    TEXT = "text"


@dataclass(frozen=True, slots=True)
class ListOf:
    item: ColumnType


@dataclass(frozen=True, slots=True)
class ObjectOf:
    fields: dict[str, ColumnType]


ColumnType: TypeAlias = Scalar | ListOf | ObjectOf

_SCALARS: Final[dict[type, Scalar]] = {
    type(None): Scalar.NOTHING,
    bool: Scalar.FLAG,
    int: Scalar.INTEGER,
    float: Scalar.NUMBER,
    str: Scalar.TEXT,
}


class _MisfitError(Exception):
    """Two kinds of one column that do not fit together."""


def column_names(files: Iterable[CommittedFile]) -> list[str]:
    """Every field of every row, in order of first appearance.

    Raises SinkError as `CommittedFile.chunks` does.
    """
    names: dict[str, None] = {}
    for file in files:
        for rows in file.rows():
            for row in rows:
                if not row.keys() <= names.keys():
                    names.update(dict.fromkeys(row))
    return list(names)


def column_types(files: Iterable[CommittedFile]) -> dict[str, ColumnType]:
    """The types that hold all values of each column; integers and fractions together are numbers.

    A field that is only ever an empty object has no type in Parquet, and is left out.
    Raises SinkError, with the column's name, when its values do not fit together (text and numbers, say).
    """
    types: dict[str, ColumnType] = {}
    seen: set[tuple[tuple[str, ...], tuple[type, ...]]] = set()
    for file in files:
        for rows in file.rows():
            for row in rows:
                shape = (tuple(row), tuple(map(type, row.values())))
                if shape in seen:
                    continue
                _widen(types, row, file)
                if list not in shape[1] and dict not in shape[1]:
                    seen.add(shape)
            if len(seen) > _SHAPES_KEPT:
                seen.clear()
    return {name: kept for name, kind in types.items() if (kept := _without_empty(kind)) is not None}


def spark_schema(types: dict[str, ColumnType]) -> str:
    """The columns as the DDL text that Spark's `schema` takes."""
    return ", ".join(f"{_quoted(name)} {_spark_type(kind)}" for name, kind in types.items())


def _widen(types: dict[str, ColumnType], row: dict[str, Any], file: CommittedFile) -> None:
    for name, value in row.items():
        try:
            types[name] = _merge(types.get(name, Scalar.NOTHING), _type_of(value))
        except _MisfitError as error:
            raise SinkError(
                f"the column {name!r} cannot be a column of a Parquet table: it holds {error} (seen in {file.path})",
                "give it one kind of value with .map before the sink, or write jsonl",
            ) from error


def _type_of(value: Any) -> ColumnType:
    if isinstance(value, dict):
        return ObjectOf({name: _type_of(inner) for name, inner in value.items()})
    if isinstance(value, list):
        item: ColumnType = Scalar.NOTHING
        for inner in value:
            item = _merge(item, _type_of(inner))
        return ListOf(item)
    return _SCALARS[type(value)]


def _merge(left: ColumnType, right: ColumnType) -> ColumnType:
    if left == right or right is Scalar.NOTHING:
        return left
    if left is Scalar.NOTHING:
        return right
    if isinstance(left, ListOf) and isinstance(right, ListOf):
        return ListOf(_merge(left.item, right.item))
    if isinstance(left, ObjectOf) and isinstance(right, ObjectOf):
        fields = dict(left.fields)
        for name, kind in right.fields.items():
            fields[name] = _merge(fields.get(name, Scalar.NOTHING), kind)
        return ObjectOf(fields)
    if {left, right} == {Scalar.INTEGER, Scalar.NUMBER}:
        return Scalar.NUMBER
    raise _MisfitError(f"{words(left)} in one row and {words(right)} in another")


def words(kind: ColumnType) -> str:
    """The type as a message names it."""
    match kind:
        case Scalar():
            return kind.value
        case ListOf():
            return "a list"
        case ObjectOf():
            return "an object"
        case _:
            assert_never(kind)


def _without_empty(kind: ColumnType) -> ColumnType | None:
    match kind:
        case Scalar():
            return kind
        case ListOf(item):
            kept = _without_empty(item)
            return None if kept is None else ListOf(kept)
        case ObjectOf(fields):
            inner = {name: kept for name, old in fields.items() if (kept := _without_empty(old)) is not None}
            return ObjectOf(inner) if inner else None
        case _:
            assert_never(kind)


def _spark_type(kind: ColumnType) -> str:
    match kind:
        case Scalar.NOTHING | Scalar.TEXT:
            return "STRING"
        case Scalar.FLAG:
            return "BOOLEAN"
        case Scalar.INTEGER:
            return "BIGINT"
        case Scalar.NUMBER:
            return "DOUBLE"
        case ListOf(item):
            return f"ARRAY<{_spark_type(item)}>"
        case ObjectOf(fields):
            inner = ", ".join(f"{_quoted(name)}: {_spark_type(field)}" for name, field in fields.items())
            return f"STRUCT<{inner}>"
        case _:
            assert_never(kind)


def _quoted(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"
