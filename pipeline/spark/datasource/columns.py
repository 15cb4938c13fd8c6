"""Records as columns of a frame: JSON and MessagePack by default, or the columns of a schema that the user gives.

By default a value is JSON text in `value`, since the values of one stream need not be alike; one that JSON does not
give back exactly (bytes, times, numbers that are none) is MessagePack in `packed` instead, as in a savepoint's tables.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import chain
from math import isfinite
from operator import attrgetter
from sys import float_info
from typing import Annotated, Any, Final, TypeAlias

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pipeline.codec import decoder_of, encode_value, shown
from pipeline.errors import DecodingError, ReadingError
from pipeline.reading.keytext import key_text
from pipeline.records import Batch
from pipeline.spark.datasource.fitting import exact_type, fitted
from pipeline.store.ranges import Piece

RESULT_SCHEMA: Final = "key STRING, value STRING, packed BINARY, time TIMESTAMP, partition INT, position BIGINT"

_OWN: Final = frozenset({"key", "value", "packed", "time", "partition", "position"})
"""Columns of the record itself; any other is a field of its value."""

_KEYS_KEPT: Final = 100_000
_EXACT: Final = frozenset({str, int, bool, type(None)})
"""Types whose values JSON always gives back as they are."""
_Finite: TypeAlias = Annotated[float, msgspec.Meta(ge=-float_info.max, le=float_info.max)]
_Leaf: TypeAlias = str | int | bool | _Finite | None
_Inner: TypeAlias = _Leaf | list[_Leaf] | dict[str, _Leaf]
_PlainValue: TypeAlias = _Leaf | list[_Inner] | dict[str, _Inner]
"""What JSON always gives back as it is: decoded as this, a value needs no second look. Most are no deeper."""

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
        self._key_texts = _KeyTexts()
        for name in ("partition", "position"):
            if name in schema.names and not pa.types.is_integer(schema.field(name).type):
                raise ReadingError(f"column {name!r} of the schema must be INT or BIGINT")
        if "packed" in schema.names and not pa.types.is_binary(schema.field("packed").type):
            raise ReadingError("column 'packed' of the schema must be BINARY")
        if "time" in schema.names and not pa.types.is_timestamp(schema.field("time").type):
            raise ReadingError("column 'time' of the schema must be TIMESTAMP")
        self._fields = [name for name in schema.names if name not in _OWN]
        self._shows_text = "value" in schema.names and pa.types.is_string(schema.field("value").type)
        self._shows_value = self._shows_text or "packed" in schema.names
        self._decode = self._sooner()

    def _sooner(self) -> Callable[[bytes], Batch] | None:
        """Decodes what most streams hold, and refuses what it does not know. None where nothing is won."""
        if self._shows_value:
            return None if self._fields else decoder_of(_PlainValue)
        if not self._fields or "value" in self._schema.names:
            return None
        names = {f"field_{number}": name for number, name in enumerate(self._fields)}
        try:
            kinds = (exact_type(self._schema.field(name).type) for name in self._fields)
            fields = [(name, kind, None) for name, kind in zip(names, kinds, strict=True)]
            kind = msgspec.defstruct("_Fields", fields, rename=names, gc=False)
        except ValueError:  # a name with quotes in it
            return None
        return decoder_of(kind)

    def batch(self, pieces: Sequence[Piece]) -> Any:
        """Raises ReadingError that names result and column for a value that does not fit, DecodingError."""
        rows = self._rows(pieces)
        made: dict[str, Any] = {}
        if self._shows_value:
            made["value"], made["packed"] = self._value_columns(rows)
        if self._fields and not rows.is_known:
            self._check_objects(rows)
        arrays = [
            made[field.name] if made.get(field.name) is not None else self._column(field, rows)
            for field in self._schema
        ]
        return pa.RecordBatch.from_arrays(arrays, schema=self._schema)

    def _rows(self, pieces: Sequence[Piece]) -> _Rows:
        if self._decode is not None:
            try:
                return _rows_of(pieces, [piece.batch(self._decode) for piece in pieces], is_known=True)
            except DecodingError:
                pass  # a value of another kind; or it cannot be read at all, which is found just below
        return _rows_of(pieces, [piece.batch() for piece in pieces], is_known=False)

    def _value_columns(self, rows: _Rows) -> tuple[Any, Any]:
        values = rows.values
        if rows.is_known and self._value_as != "text":
            return (_json_column(values) if self._shows_text else None), pa.nulls(len(values), pa.binary())
        found, packed = exact_json(values)
        texts: list[Any] = found
        if self._value_as == "text":
            texts = [value if type(value) is str else text for value, text in zip(values, found, strict=True)]
        rest = pa.nulls(len(values), pa.binary()) if packed is None else pa.array(packed, pa.binary())
        return (pa.array(texts, pa.string()) if self._shows_text else None), rest

    def _column(self, field: Any, rows: _Rows) -> Any:
        match field.name:
            case "key":
                return self._key_column(field.type, rows)
            case "time":
                times = rows.times or [None] * len(rows.values)
                return pa.array(times, pa.timestamp("ms")).cast(pa.timestamp("us")).cast(field.type)
            case "partition":
                return pa.array(rows.partitions()).cast(field.type)
            case "position":
                return pa.array(rows.positions()).cast(field.type)
            case "value":
                return _fitted(rows.values, field, rows)
        if rows.is_known:
            place = attrgetter(f"field_{self._fields.index(field.name)}")
            return _fitted(list(map(place, rows.values)), field, rows, is_exact=True)
        return _fitted([value.get(field.name) for value in rows.values], field, rows)

    def _key_column(self, kind: Any, rows: _Rows) -> Any:
        if rows.keys is None:
            return pa.nulls(len(rows.values), kind)
        if not pa.types.is_string(kind):
            return _fitted(rows.keys, pa.field("key", kind), rows)
        if set(map(type, rows.keys)) == {str}:
            if len(self._key_texts) > _KEYS_KEPT:
                self._key_texts.clear()
            return pa.array(list(map(self._key_texts.__getitem__, rows.keys)), kind)
        return pa.array([None if key is None else key_text(key) for key in rows.keys], kind)

    def _check_objects(self, rows: _Rows) -> None:
        if set(map(type, rows.values)) <= {dict}:
            return
        for index, value in enumerate(rows.values):
            if type(value) is not dict:
                raise ReadingError(
                    f"result {rows.position(index)} is {shown(value, 80)}, which has no columns"
                    f" {', '.join(self._fields)}",
                    hint="a schema with a column `value` of its type takes values that are no objects",
                )


class _KeyTexts(dict[str, str]):
    """Of keys that are text; others could be equal to them and another key."""

    def __missing__(self, key: str) -> str:
        text = self[key] = key_text(key)
        return text


@dataclass(frozen=True, slots=True)
class _Rows:
    """Columns of the records of some pieces. is_known: the values are of the kind that was hoped for."""

    pieces: Sequence[Piece]
    values: list[Any]
    keys: list[Any] | None
    times: list[int | None] | None
    is_known: bool

    def position(self, index: int) -> int:
        return int(self.positions()[index])

    def positions(self) -> Any:
        """Of each record its number in the stream."""
        return np.concatenate(
            [np.arange(piece.first, piece.first + piece.count, dtype=np.int64) for piece in self.pieces]
        )

    def partitions(self) -> Any:
        """Of each record the partition that made it."""
        return np.repeat([piece.partition for piece in self.pieces], [piece.count for piece in self.pieces])


def _rows_of(pieces: Sequence[Piece], batches: list[Batch], *, is_known: bool) -> _Rows:
    counts = [len(batch) for batch in batches]
    values = list(chain.from_iterable(batch.values for batch in batches))
    keys = _joined([batch.keys for batch in batches], counts)
    return _Rows(pieces, values, keys, _joined([batch.times for batch in batches], counts), is_known)


def _joined(columns: Sequence[list[Any] | None], counts: Sequence[int]) -> list[Any] | None:
    if all(column is None for column in columns):
        return None
    filled = (column or [None] * count for column, count in zip(columns, counts, strict=True))
    return list(chain.from_iterable(filled))


def _json_column(values: list[Any]) -> Any:
    """Of plain values. A line end in JSON is always the end of a value."""
    return pc.split_pattern(pa.array([_encoder.encode_lines(values)], pa.string()), "\n").flatten()[: len(values)]


def _fitted(values: list[Any], field: Any, rows: _Rows, *, is_exact: bool = False) -> Any:
    """The column. Raises ReadingError, naming the first result whose value is not of the column's type."""
    try:
        return fitted(values, field.type, is_exact=is_exact)
    except ValueError as error:
        index = error.args[0]
        raise ReadingError(
            f"result {rows.position(index)}: column {field.name!r} is {field.type}, and the value is"
            f" {shown(values[index], 80)}",
            hint="correct the schema, or leave it out and take the JSON in `value`",
        ) from error
