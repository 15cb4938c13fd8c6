"""Records as columns of a frame: JSON and MessagePack by default, or the columns of a schema that the user gives.

By default a value is JSON text in `value`, since the values of one stream need not be alike; one that JSON does not
give back exactly (bytes, times, numbers that are none) is MessagePack in `packed` instead, as in a savepoint's tables.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from math import isfinite
from typing import Any, Final

import msgspec
import pyarrow as pa

from pipeline.codec import encode_value, shown
from pipeline.errors import ReadingError
from pipeline.reading.keytext import key_text
from pipeline.spark.datasource.fitting import fitted

RESULT_SCHEMA: Final = "key STRING, value STRING, packed BINARY, time TIMESTAMP, partition INT, position BIGINT"

_OWN: Final = frozenset({"key", "value", "packed", "time", "partition", "position"})
"""Columns of the record itself; any other is a field of its value."""

_KEYS_KEPT: Final = 100_000
_EXACT: Final = frozenset({str, int, bool, type(None)})
"""Types whose values JSON always gives back as they are."""
_encoder: Final = msgspec.json.Encoder()
_decoder: Final = msgspec.json.Decoder()


def exact_json(values: Sequence[Any]) -> tuple[list[bytes | None], list[bytes | None] | None]:
    """(JSON or None, MessagePack where there is no JSON) for each value; no second column when JSON does for all."""
    try:
        lines = _encoder.encode_lines(values)
        if _is_plain(values) or _are_equal(_decoder.decode_lines(lines), values):
            texts: list[bytes | None] = list(lines.split(b"\n"))
            return texts[:-1], None  # each line is ended
    except (msgspec.MsgspecError, TypeError, ValueError, RecursionError):
        pass
    found = [_exact(value) for value in values]
    return found, [None if text is not None else encode_value(value) for text, value in zip(found, values, strict=True)]


def _is_plain(values: Sequence[Any]) -> bool:
    """Whether a look at types is enough to know that JSON gives all of them back; nested ones are not looked into."""
    leaves, kinds = values, set(map(type, values))
    if kinds == {dict}:
        if set(map(type, set(chain.from_iterable(values)))) - {str}:
            return False
        leaves = list(chain.from_iterable(map(dict.values, values)))
        kinds = set(map(type, leaves))
    if float in kinds:
        kinds.remove(float)
        # What is no number, or infinite, makes the sum so.
        return kinds <= _EXACT and isfinite(sum([leaf for leaf in leaves if type(leaf) is float]))
    return kinds <= _EXACT


def _exact(value: Any) -> bytes | None:
    try:
        text = _encoder.encode(value)
        return text if _are_equal(msgspec.json.decode(text), value) else None
    except (msgspec.MsgspecError, TypeError, ValueError, RecursionError):
        return None


def _are_equal(again: Any, value: Any) -> bool:
    """What JSON confuses (bytes and text, numbers that are none, keys that are no text) is unequal in Python."""
    return bool(again == value)


class ResultColumns:
    """Makes the Arrow batches of one frame of results. Remembers keys, which come again and again."""

    def __init__(self, schema: Any, value_as: str) -> None:
        """`schema` is Arrow's. Raises ReadingError for a column of the record that cannot be of its type."""
        self._schema = schema
        self._value_as = value_as
        self._keys: dict[str, str] = {}
        for name in ("partition", "position"):
            if name in schema.names and not pa.types.is_integer(schema.field(name).type):
                raise ReadingError(f"column {name!r} of the schema must be INT or BIGINT")
        if "packed" in schema.names and not pa.types.is_binary(schema.field("packed").type):
            raise ReadingError("column 'packed' of the schema must be BINARY")
        if "time" in schema.names and not pa.types.is_timestamp(schema.field("time").type):
            raise ReadingError("column 'time' of the schema must be TIMESTAMP")
        self._fields = [name for name in schema.names if name not in _OWN]
        self._shows_text = "value" in schema.names and pa.types.is_string(schema.field("value").type)

    def batch(self, rows: Rows) -> Any:
        """Raises ReadingError that names result and column for a value that does not fit."""
        made: dict[str, Any] = {}
        if self._shows_text or "packed" in self._schema.names:
            made["value"], made["packed"] = self._value_columns(rows.values)
        if self._fields:
            self._check_objects(rows)
        arrays = [
            made[field.name] if made.get(field.name) is not None else self._column(field, rows)
            for field in self._schema
        ]
        return pa.RecordBatch.from_arrays(arrays, schema=self._schema)

    def _value_columns(self, values: list[Any]) -> tuple[Any, Any]:
        found, packed = exact_json(values)
        texts: list[Any] = found
        if self._value_as == "text":
            texts = [value if type(value) is str else text for value, text in zip(values, found, strict=True)]
        rest = pa.nulls(len(values), pa.binary()) if packed is None else pa.array(packed, pa.binary())
        return (pa.array(texts, pa.string()) if self._shows_text else None), rest

    def _column(self, field: Any, rows: Rows) -> Any:
        count = len(rows.values)
        match field.name:
            case "key":
                return self._key_column(field.type, rows)
            case "time":
                times = rows.times or [None] * count
                return pa.array(times, pa.timestamp("ms")).cast(pa.timestamp("us")).cast(field.type)
            case "partition":
                return pa.array(rows.partitions, field.type)
            case "position":
                return pa.array(rows.positions, field.type)
            case "value":
                return _fitted(rows.values, field, rows)
        return _fitted([value.get(field.name) for value in rows.values], field, rows)

    def _key_column(self, kind: Any, rows: Rows) -> Any:
        if rows.keys is None:
            return pa.nulls(len(rows.values), kind)
        if not pa.types.is_string(kind):
            return _fitted(rows.keys, pa.field("key", kind), rows)
        known = self._keys
        if len(known) > _KEYS_KEPT:
            known.clear()
        if set(map(type, rows.keys)) == {str}:
            for key in set(rows.keys) - known.keys():
                known[key] = key_text(key)
            return pa.array([known[key] for key in rows.keys], kind)
        return pa.array([None if key is None else key_text(key) for key in rows.keys], kind)

    def _check_objects(self, rows: Rows) -> None:
        if set(map(type, rows.values)) <= {dict}:
            return
        for index, value in enumerate(rows.values):
            if type(value) is not dict:
                raise ReadingError(
                    f"result {rows.positions[index]} is {shown(value, 80)}, which has no columns"
                    f" {', '.join(self._fields)}",
                    hint="a schema with a column `value` of its type takes values that are no objects",
                )


class Rows:
    """Columns of records. positions and partitions say of each where it stands in the stream, and who made it."""

    def __init__(self) -> None:
        self.values: list[Any] = []
        self.keys: list[Any] | None = None
        self.times: list[int | None] | None = None
        self.partitions: list[int] = []
        self.positions: list[int] = []

    def add(self, batch: Any, first: int, partition: int) -> None:
        count = len(self.values)
        self.keys = _joined(self.keys, batch.keys, count, len(batch))
        self.times = _joined(self.times, batch.times, count, len(batch))
        self.values += batch.values
        self.partitions += [partition] * len(batch)
        self.positions += range(first, first + len(batch))


def _joined(column: list[Any] | None, more: list[Any] | None, count: int, added: int) -> list[Any] | None:
    if column is None and more is None:
        return None
    return [*(column or [None] * count), *(more or [None] * added)] if column is None or more is None else column + more


def _fitted(values: list[Any], field: Any, rows: Rows) -> Any:
    """The column. Raises ReadingError, naming the first result whose value is not of the column's type."""
    try:
        return fitted(values, field.type)
    except ValueError as error:
        index = error.args[0]
        raise ReadingError(
            f"result {rows.positions[index]}: column {field.name!r} is {field.type}, and the value is"
            f" {shown(values[index], 80)}",
            hint="correct the schema, or leave it out and take the JSON in `value`",
        ) from error
