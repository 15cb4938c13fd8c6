"""CSV lines to dicts: the header, the types of the columns, and the conversion that both readers share."""

from __future__ import annotations

import csv
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from pipeline.errors import InputError
from pipeline.records import Batch
from pipeline.sources.formats import LinePlaces, as_text, first_records
from pipeline.sources.lines import split_lines
from pipeline.sources.splits import plan_splits
from pipeline.wording import counted

INFERENCE_ROWS: Final = 1_000
"""Data rows of the first file that the types are inferred from."""

DEFAULT_NULLS: Final = ("", "NA")

_DELIMITERS: Final = (",", ";", "\t", "|")

_SAFE_DIGITS: Final = 18
"""A number of this many characters always fits 64 bits."""

_INTEGER = re.compile(r"[+-]?[0-9]+")
_NUMBER = re.compile(r"[+-]?([0-9]+(\.[0-9]*)?|\.[0-9]+)([eE][+-]?[0-9]+)?")


@dataclass(frozen=True, slots=True)
class CsvFormat:
    """Each line is a row and each row a dict of the chosen columns.

    A quoted field may hold the delimiter and doubled quotes, but no line break: every line of the file is a
    row. A field that is one of `nulls` is None. Types are int (64 bits), float and text. Faults are a value that
    does not fit its column's type, a row with another number of fields than the header, and wrong quotes.

    header: the names of all columns. columns, types: those that are read, in order, and the type of each.
    """

    header: tuple[str, ...]
    columns: tuple[str, ...]
    types: tuple[str, ...]
    nulls: frozenset[str] = frozenset(DEFAULT_NULLS)
    delimiter: str = ","
    skips_blank: bool = True
    has_header: bool = True

    def describe(self) -> str:
        return ", ".join(f"{column}: {kind}" for column, kind in zip(self.columns, self.types, strict=True))

    def doubt(self) -> str:
        """A sentence when the delimiter looks wrong, or nothing."""
        only = self.header[0] if len(self.header) == 1 else ""
        other = next((mark for mark in _DELIMITERS if mark in only), "")
        return f"the only column is {only!r}; is its delimiter {other!r}?" if other else ""

    def decode(self, lines: Sequence[bytes], places: LinePlaces) -> Batch:
        if not lines:
            return Batch([])
        try:
            rows = parse([as_text(line) for line in lines], self.delimiter)
            # Fewer rows than lines: an open quote joined some. A ragged row makes zip unequal.
            if len(rows) != len(lines) or set(map(len, rows)) != {len(self.header)}:
                return self._decode_one_by_one(lines, places)
            return Batch(self._dicts(rows))
        except (ValueError, csv.Error):
            return self._decode_one_by_one(lines, places)

    def _dicts(self, rows: list[list[str]]) -> list[dict[str, Any]]:
        """Raises ValueError when one value does not fit."""
        fields = list(zip(*rows, strict=True))
        read = [
            _CONVERSIONS[kind](fields[self.header.index(column)], self.nulls)
            for column, kind in zip(self.columns, self.types, strict=True)
        ]
        names = self.columns
        return [dict(zip(names, row, strict=True)) for row in zip(*read, strict=True)]

    def _decode_one_by_one(self, lines: Sequence[bytes], places: LinePlaces) -> Batch:
        batch = Batch([])
        for index, line in enumerate(lines):
            text = as_text(line)
            try:
                batch.values.append(self._row(text))
            except (ValueError, csv.Error) as error:
                batch.faults[index] = f"{places[index]}: {error}"
                batch.values.append(text)
        return batch

    def _row(self, text: str) -> dict[str, Any]:
        """Raises ValueError or csv.Error, which say what is wrong with the row."""
        fields = parse([text], self.delimiter)[0]
        if len(fields) != len(self.header):
            count = counted(len(fields), "field")
            raise ValueError(f"{count}, but the header names {len(self.header)}")
        row = {}
        for column, kind in zip(self.columns, self.types, strict=True):
            field = fields[self.header.index(column)]
            try:
                row[column] = _CONVERSIONS[kind]((field,), self.nulls)[0]
            except ValueError as error:
                raise ValueError(f"column {column!r}: {field!r} is no {kind}") from error
        return row


def csv_format(files: Sequence[Path], options: dict[str, Any]) -> CsvFormat:
    """The format of files with the same header; types are given, or inferred from the first file's rows.

    `options` are those of `read.csv`. Raises InputError for a bad header, for a column that it does not name,
    and when two files differ in their headers.
    """
    delimiter = options.get("delimiter") or ","
    given_nulls = options.get("null_values")
    nulls = frozenset(DEFAULT_NULLS if given_nulls is None else given_nulls)
    header: tuple[str, ...] = ()
    sample: list[bytes] = []
    for file in files:
        lines = _head(file, INFERENCE_ROWS + 1 if not header else 1)
        if not lines:
            continue
        found = _header(file, lines[0], delimiter)
        if header and found != header:
            raise InputError(
                f"{file} has the columns {', '.join(found)}, but {files[0]} has {', '.join(header)}",
                hint="read files with different columns as different sources",
            )
        if not header:
            header, sample = found, lines[1:]
    if not header:
        raise InputError(f"{files[0]} has no header: it is empty", hint="the first line must name the columns")
    columns = tuple(options.get("columns") or header)
    given = dict(options.get("types") or {})
    _check_names(header, columns, given)
    inferred = infer_types(header, sample, nulls, delimiter)
    return CsvFormat(header, columns, tuple(given.get(c) or inferred[c] for c in columns), nulls, delimiter)


def growing_format(file: Path, header_line: bytes, options: dict[str, Any]) -> CsvFormat:
    """The format of a file that grows: columns whose type is not given are text, since its rows are not there yet.

    Raises InputError as `csv_format` does.
    """
    delimiter = options.get("delimiter") or ","
    given_nulls = options.get("null_values")
    nulls = frozenset(DEFAULT_NULLS if given_nulls is None else given_nulls)
    header = _header(file, header_line, delimiter)
    columns = tuple(options.get("columns") or header)
    given = dict(options.get("types") or {})
    _check_names(header, columns, given, f"{file}: ")
    return CsvFormat(header, columns, tuple(given.get(column, "text") for column in columns), nulls, delimiter)


def infer_types(
    header: tuple[str, ...], lines: Sequence[bytes], nulls: frozenset[str], delimiter: str
) -> dict[str, str]:
    """Column -> int, float or text, the narrowest that all given rows fit. Without any value: text."""
    seen: dict[str, set[str]] = {name: set() for name in header}
    for line in lines:
        try:
            fields = parse([as_text(line)], delimiter)[0]
        except csv.Error:
            continue
        if len(fields) == len(header):
            for name, field in zip(header, fields, strict=True):
                if field not in nulls:
                    seen[name].add(_kind(field))
    return {name: _widest(kinds) for name, kinds in seen.items()}


def parse(lines: list[str], delimiter: str) -> list[list[str]]:
    """The fields of the lines. Raises csv.Error for wrong quotes."""
    return list(csv.reader(lines, delimiter=delimiter, strict=True))


def _head(file: Path, count: int) -> list[bytes]:
    splits = plan_splits([file], max(file.stat().st_size, 1))
    return first_records(split_lines(splits[0]), count) if splits else []


def _header(file: Path, line: bytes, delimiter: str) -> tuple[str, ...]:
    hint = "the first line must name the columns, as UTF-8 text; is this a CSV file?"
    try:
        names = tuple(name.strip() for name in parse([line.decode()], delimiter)[0])
    except UnicodeDecodeError as error:
        raise InputError(f"{file}: the header is not UTF-8 text", hint=hint) from error
    except csv.Error as error:
        raise InputError(f"{file}: the header cannot be read: {error}", hint=hint) from error
    if any(not char.isprintable() for name in names for char in name):
        raise InputError(f"{file}: the header holds bytes that are no text", hint=hint)
    if "" in names:
        raise InputError(
            f"{file}: column {names.index('') + 1} has no name", hint="the first line must name every column"
        )
    doubled = sorted({name for name in names if names.count(name) > 1})
    if doubled:
        raise InputError(f"{file}: two columns are named {doubled[0]!r}", hint="rename one of them")
    return names


def _check_names(header: tuple[str, ...], columns: tuple[str, ...], types: dict[str, str], file: str = "") -> None:
    for name in (*columns, *types):
        if name not in header:
            raise InputError(f"{file}there is no column {name!r}", hint=f"the header names: {', '.join(header)}")
    for name, kind in types.items():
        if kind not in _CONVERSIONS:
            raise InputError(f"column {name!r}: {kind!r} is no type", hint="types are int, float and text")


def _kind(field: str) -> str:
    if _INTEGER.fullmatch(field):
        return "int" if len(field) <= _SAFE_DIGITS or -(2**63) <= int(field) < 2**63 else "text"
    return "float" if _NUMBER.fullmatch(field) else "text"


def _widest(kinds: set[str]) -> str:
    return next((kind for kind in ("text", "float", "int") if kind in kinds), "text")


def _integers(fields: Sequence[str], nulls: frozenset[str]) -> list[int | None]:
    if _has_underscore(fields) or len(max(fields, key=len)) > _SAFE_DIGITS:
        return [None if field in nulls else _integer(field) for field in fields]
    return [None if field in nulls else int(field) for field in fields]


def _integer(field: str) -> int:
    """As int(), but without 1_000 and within 64 bits, which is what can be stored."""
    if "_" in field or not -(2**63) <= (number := int(field)) < 2**63:
        raise ValueError(field)
    return number


def _floats(fields: Sequence[str], nulls: frozenset[str]) -> list[float | None]:
    if _has_underscore(fields):
        return [None if field in nulls else _float(field) for field in fields]
    return [None if field in nulls else float(field) for field in fields]


def _float(field: str) -> float:
    if "_" in field:
        raise ValueError(field)
    return float(field)


def _has_underscore(fields: Sequence[str]) -> bool:
    return "_" in "".join(fields)


def _texts(fields: Sequence[str], nulls: frozenset[str]) -> list[str | None]:
    return [None if field in nulls else field for field in fields]


_CONVERSIONS: Final[dict[str, Callable[[Sequence[str], frozenset[str]], Sequence[Any]]]] = {
    "int": _integers,
    "float": _floats,
    "text": _texts,
}
