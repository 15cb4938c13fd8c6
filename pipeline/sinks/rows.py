"""The form of a record in a sink: one line of a staging file for each. Never touches a disk.

text and jsonl lines are final. csv, parquet and delta rows are staged as JSON objects and get their real format when
they are published, since only then all columns are known.
"""

from __future__ import annotations

import base64
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any, Final, TypeAlias

import msgspec

from pipeline.errors import EncodingError, SinkError
from pipeline.plan import SinkPlan
from pipeline.records import Batch

_LineMaker: TypeAlias = Callable[[Batch], bytes]

_JSON: Final = msgspec.json.Encoder()
_REFUSED: Final = (TypeError, ValueError, OverflowError, RecursionError, msgspec.MsgspecError)
"""All that the JSON encoder raises for a value without a JSON form."""
_OWN_FIELDS: Final = (dict, msgspec.UnsetType)
"""Types of values that are no field of a struct: a dict brings its own, and UNSET would be left out without a word."""


def encode_rows(sink: SinkPlan, batch: Batch) -> bytes:
    """One line for each record, in order, each ended by a newline.

    Keyed stream (`sink.key_field` is set): text has `key: value`. The others have an object with the key
    first, then the fields of a dict value, or the field "value" for any other value ("value_1" where the
    key's own field is called "value"). A dict value that has the key's field keeps its own. Not keyed: text
    and jsonl have the value alone; csv, parquet and delta the dict, or an object with the field "value".

    In a text sink text stands as it is, but for line ends, which are written as JSON text would (backslash,
    n), so that a record is always one line; all else is JSON. Everywhere bytes are base64 text, NaN and
    infinities are null. A tuple key is a JSON array, in csv, parquet and delta the text of one.

    Raises EncodingError, with the record's index, for a value that has no such form; then nothing is encoded.
    Raises SinkError where the stream should be keyed and is not, and for a format that is not a file's.
    """
    if sink.key_field is not None and batch.keys is None:
        raise SinkError(f"the sink {sink.name!r} was planned for a keyed stream, and its records have no keys")
    make = _line_maker(sink)
    try:
        return make(batch)
    except _REFUSED as error:
        raise _blame(make, batch, error) from error


def _line_maker(sink: SinkPlan) -> _LineMaker:
    key_field = sink.key_field
    match sink.format:
        case "text":
            return _plain_lines if key_field is None else _keyed_lines
        case "jsonl" | "csv" | "parquet" | "delta" if key_field is not None:
            cell = _cell_key if sink.format != "jsonl" else None
            return lambda batch: _JSON.encode_lines(_keyed_objects(batch, key_field, cell))
        case "jsonl":
            return lambda batch: _JSON.encode_lines(batch.values)
        case "csv" | "parquet" | "delta":
            return lambda batch: _JSON.encode_lines([_row(value) for value in batch.values])
    raise SinkError(f"the sink {sink.name!r} has the format {sink.format!r}, which is not written to files")


def _plain_lines(batch: Batch) -> bytes:
    return "".join([f"{text}\n" for text in _plain_texts(batch.values)]).encode()


def _keyed_lines(batch: Batch) -> bytes:
    pairs = zip(_plain_texts(batch.keys or []), _plain_texts(batch.values), strict=True)
    return "".join([f"{key}: {value}\n" for key, value in pairs]).encode()


def table_rows(sink: SinkPlan, batch: Batch) -> list[dict[Any, Any]]:
    """The records as rows of a table, by the rules of csv, with values as they are but for tuple keys (JSON text).

    Raises SinkError where the stream should be keyed and is not.
    """
    if sink.key_field is None:
        return [_row(value) for value in batch.values]
    if batch.keys is None:
        raise SinkError(f"the sink {sink.name!r} was planned for a keyed stream, and its records have no keys")
    return _keyed_rows(batch, sink.key_field, _cell_key)


def _plain_texts(values: Sequence[Any]) -> list[str]:
    """`plain_text` of each."""
    if {str, bytes}.isdisjoint(map(type, values)):
        return _JSON.encode_lines(values).decode().split("\n")[:-1]
    return list(map(plain_text, values))


def plain_text(value: Any) -> str:
    """The value as one line of text: text as it is but for line ends, bytes as base64, all else as JSON."""
    if type(value) is str:
        if "\n" in value or "\r" in value:
            return value.replace("\n", "\\n").replace("\r", "\\r")
        return value
    if type(value) is bytes:
        return base64.b64encode(value).decode()
    return _JSON.encode(value).decode()


def _row(value: Any) -> dict[Any, Any]:
    return value if isinstance(value, dict) else {"value": value}


def _keyed_objects(batch: Batch, key_field: str, cell: Callable[[Any], Any] | None) -> Sequence[Any]:
    """What has the JSON form of `_keyed_rows`, and costs less where no value is a dict."""
    pair = None if any(issubclass(kind, _OWN_FIELDS) for kind in set(map(type, batch.values))) else _pair(key_field)
    if pair is None:
        return _keyed_rows(batch, key_field, cell)
    return list(map(pair, _cells(batch, cell), batch.values))


@cache
def _pair(key_field: str) -> Callable[[Any, Any], Any] | None:
    """A class of objects with the two fields of a keyed row; None where such a class cannot have that name in it."""
    names = {"key": key_field, "value": _value_field(key_field)}
    try:
        return msgspec.defstruct("_Pair", ["key", "value"], rename=names, gc=False)
    except (TypeError, ValueError):
        return None


def _cells(batch: Batch, cell: Callable[[Any], Any] | None) -> list[Any]:
    keys = batch.keys or []
    return keys if cell is None else [cell(key) for key in keys]


def _value_field(key_field: str) -> str:
    return "value_1" if key_field == "value" else "value"


def _keyed_rows(batch: Batch, key_field: str, cell: Callable[[Any], Any] | None) -> list[dict[Any, Any]]:
    keys = _cells(batch, cell)
    value_field = _value_field(key_field)
    return [
        {key_field: key, **value} if isinstance(value, dict) else {key_field: key, value_field: value}
        for key, value in zip(keys, batch.values, strict=True)
    ]


def _cell_key(key: Any) -> Any:
    return _JSON.encode(key).decode() if type(key) is tuple else key


def _blame(make: _LineMaker, batch: Batch, error: Exception) -> EncodingError:
    hint = "turn it into text, numbers, lists or dicts with .map before the sink"
    for index in range(len(batch)):
        try:
            make(batch.slice(index, index + 1))
        except _REFUSED as reason:
            return EncodingError(f"a record cannot be written: {reason}", index, hint)
    return EncodingError(f"a record cannot be written: {error}", hint=hint)
