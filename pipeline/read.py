"""What a source reads, as data. Nothing is opened here: a missing file is found when the pipeline runs."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

from pipeline.errors import PipelineError
from pipeline.graph import SourceSpec
from pipeline.validation import absolute_path, check_function, is_unicode, suggestion

READERS: Final = ("auto", "local", "spark")
TYPES: Final = ("int", "float", "text")


def text(path: str | os.PathLike[str], reader: str = "auto") -> SourceSpec:
    """The lines of a file, of the files of a folder, or of all files that a glob matches, as text.

    `reader` is "local" (plain Python), "spark", or "auto": Spark where there is much to read.
    A relative path counts from the current folder of this call. Raises PipelineError for a bad argument.
    """
    return SourceSpec("text", absolute_path(path, "read.text"), {"reader": _reader(reader, "read.text")})


def csv(
    path: str | os.PathLike[str],
    columns: Sequence[str] | None = None,
    delimiter: str = ",",
    null_values: Sequence[str] = ("", "NA"),
    types: Mapping[str, str] | None = None,
    reader: str = "auto",
) -> SourceSpec:
    """The rows of CSV files with a header line, as dicts. `path` and `reader` are as for `text`.

    columns: the columns to keep, all by default.
    null_values: texts that are read as None.
    types: column -> "int", "float" or "text", for columns whose type must not be inferred.
    """
    wanted = _columns(columns, "read.csv")
    options = {
        "columns": wanted,
        "delimiter": _delimiter(delimiter),
        "null_values": _texts(null_values, "null_values", "read.csv"),
        "types": _types(types, wanted),
        "reader": _reader(reader, "read.csv"),
    }
    return SourceSpec("csv", absolute_path(path, "read.csv"), options)


def json(path: str | os.PathLike[str], reader: str = "auto") -> SourceSpec:
    """The values of JSON Lines files: one JSON value a line. `path` and `reader` are as for `text`."""
    return SourceSpec("json", absolute_path(path, "read.json"), {"reader": _reader(reader, "read.json")})


def parquet(path: str | os.PathLike[str], columns: Sequence[str] | None = None, reader: str = "auto") -> SourceSpec:
    """The rows of Parquet files, as dicts of the chosen columns. `path` and `reader` are as for `text`."""
    options = {"columns": _columns(columns, "read.parquet"), "reader": _reader(reader, "read.parquet")}
    return SourceSpec("parquet", absolute_path(path, "read.parquet"), options)


def iterable(items: list[Any] | tuple[Any, ...] | range | Callable[[], Iterable[Any]]) -> SourceSpec:
    """The values of a list, tuple or range, or of the fresh iterable that a function makes at each call.

        read.iterable(range(10))
        read.iterable(lambda: (n * n for n in range(10)))

    A retry reads again and must meet the same values in the same order.
    Raises PipelineError for what can be read only once, or has no order.
    """
    if isinstance(items, list | tuple | range):
        fixed = tuple(items) if isinstance(items, list) else items
        return SourceSpec("iterable", items=lambda: fixed)
    if isinstance(items, Iterator):
        raise PipelineError(
            f"read.iterable: a {type(items).__name__} can be read only once, and a retry reads again",
            hint="give a list, or a function without parameters that makes a fresh iterable at each call",
        )
    if not callable(items):
        raise PipelineError(
            f"read.iterable: cannot read a {type(items).__name__} again in the same order",
            hint="give a list, tuple or range, or a function without parameters that makes an iterable",
        )
    check_function(items, (), "read.iterable")
    return SourceSpec("iterable", items=items)


def _reader(reader: object, owner: str) -> str:
    if isinstance(reader, str) and reader in READERS:
        return reader
    raise PipelineError(f"{owner}: reader must be one of {', '.join(READERS)}, not {reader!r}")


def _delimiter(delimiter: object) -> str:
    if isinstance(delimiter, str) and re.fullmatch(r'[^\r\n"\0\ud800-\udfff]', delimiter):
        return delimiter
    raise PipelineError(f"read.csv: delimiter must be one character, no quote or line end, not {delimiter!r}")


def _columns(columns: object, owner: str) -> list[str] | None:
    if columns is None:
        return None
    names = _texts(columns, "columns", owner)
    if not names or "" in names or len(set(names)) < len(names):
        raise PipelineError(f"{owner}: columns must name one or more columns, each once, not {columns!r}")
    return names


def _texts(values: object, field: str, owner: str) -> list[str]:
    """The values as a list. A single text is refused too: it is a sequence of its letters."""
    if isinstance(values, list | tuple) and all(isinstance(each, str) and is_unicode(each) for each in values):
        return list(values)
    raise PipelineError(f"{owner}: {field} must be a list of text, not {values!r}", hint=f"{field}=['a', 'b']")


def _types(types: object, columns: list[str] | None) -> dict[str, str] | None:
    if types is None:
        return None
    if not isinstance(types, Mapping):
        raise PipelineError(f"read.csv: types must be a dict, not {types!r}", hint="types={'distance': 'float'}")
    for column, kind in types.items():
        if not isinstance(column, str) or not is_unicode(column):
            raise PipelineError(f"read.csv: types names the column {column!r}; a column's name is text")
        if not isinstance(kind, str) or kind not in TYPES:
            raise PipelineError(f"read.csv: types must be of {', '.join(TYPES)}; {column!r} has {kind!r}")
        if columns is not None and column not in columns:
            raise PipelineError(
                f"read.csv: types names the column {column!r}, which is not among columns",
                hint=suggestion(column, columns),
            )
    return dict(sorted(types.items()))  # the order is part of the plan's fingerprint
