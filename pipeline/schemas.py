"""Columns as Spark's DDL says them, `carrier string, dep_delay double NOT NULL`, read without Spark: plain data."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum
from typing import Final, TypeAlias

from pipeline.codec import shown
from pipeline.errors import PipelineError


class Plain(Enum):
    """Types without parts, by Spark's name."""

    BOOLEAN = "boolean"
    TINYINT = "tinyint"
    SMALLINT = "smallint"
    INT = "int"
    BIGINT = "bigint"
    FLOAT = "float"
    DOUBLE = "double"
    STRING = "string"
    BINARY = "binary"
    DATE = "date"
    TIMESTAMP = "timestamp"
    TIMESTAMP_NTZ = "timestamp_ntz"


@dataclass(frozen=True, slots=True)
class DecimalOf:
    precision: int
    scale: int


@dataclass(frozen=True, slots=True)
class ArrayOf:
    item: ColumnType


@dataclass(frozen=True, slots=True)
class MapOf:
    """Its keys are text, as those of records are."""

    value: ColumnType


@dataclass(frozen=True, slots=True)
class StructOf:
    fields: tuple[Column, ...]


ColumnType: TypeAlias = Plain | DecimalOf | ArrayOf | MapOf | StructOf


@dataclass(frozen=True, slots=True)
class Column:
    name: str
    type: ColumnType
    is_nullable: bool = True


_PLAIN: Final = {
    **{kind.value: kind for kind in Plain},
    "byte": Plain.TINYINT,
    "short": Plain.SMALLINT,
    "integer": Plain.INT,
    "long": Plain.BIGINT,
    "real": Plain.FLOAT,
}
_DECIMALS: Final = ("decimal", "dec", "numeric")
_NESTED: Final = ("array", "map", "struct")
_LARGEST_PRECISION: Final = 38
_DEEPEST: Final = 32

_TOKEN: Final = re.compile(r"\s*(?:`((?:[^`]|``)+)`|([^\W\d]\w*|\d+|[<>(),:]))")
_SHOWN: Final = 200
_EXAMPLE: Final = 'write it as Spark does: "carrier string, dep_delay double"'


def parse_schema(text: object, owner: str) -> tuple[Column, ...]:
    """The columns, at least one. Raises PipelineError, with `owner` in front, for what is no such text."""
    if not isinstance(text, str):
        raise PipelineError(f"{owner}: the schema must be text, not {shown(text, _SHOWN)}", hint=_EXAMPLE)
    try:
        text.encode()
        return _Reader(text).columns()
    except ValueError as error:
        why = f"{owner}: the schema {shown(text, _SHOWN)} cannot be read: {error}"
        raise PipelineError(why, hint=_EXAMPLE) from error


class _Reader:
    """Raises ValueError with what is wrong as its argument."""

    def __init__(self, text: str) -> None:
        self._text = text.rstrip()
        self._at = 0
        self._depth = 0

    def columns(self) -> tuple[Column, ...]:
        found = self._fields(is_inside=False)
        if self._at < len(self._text):
            raise ValueError(f"{self._rest()} is not understood")
        return found

    def _fields(self, *, is_inside: bool) -> tuple[Column, ...]:
        found = [self._field(is_inside=is_inside)]
        while self._takes(","):
            found.append(self._field(is_inside=is_inside))
        _refuse_twice(column.name for column in found)
        return tuple(found)

    def _field(self, *, is_inside: bool) -> Column:
        name = self._name()
        if is_inside:
            self._takes(":")
        kind = self._type(name)
        if is_inside or not self._takes("not"):
            return Column(name, kind)
        self._must("null")
        return Column(name, kind, is_nullable=False)

    def _name(self) -> str:
        token, is_quoted = self._next("the name of a column")
        if not is_quoted and not (token[0].isalpha() or token[0] == "_"):
            raise ValueError(f"a column cannot be called {token!r}; a name with other letters stands in backticks")
        return token

    def _type(self, column: str) -> ColumnType:
        token, is_quoted = self._next(f"the type of {column!r}")
        name = token.lower()
        self._depth += 1
        if self._depth > _DEEPEST:
            raise ValueError("its types are nested too deeply")
        kind = None if is_quoted else self._kind(name, column)
        self._depth -= 1
        if kind is None:
            known = [*_PLAIN, _DECIMALS[0], *_NESTED]
            close = difflib.get_close_matches(name, known, n=1)
            meant = f"did you mean {close[0]!r}?" if close else f"there are: {', '.join(known)}"
            raise ValueError(f"column {column!r}: there is no type {token!r}; {meant}")
        return kind

    def _kind(self, name: str, column: str) -> ColumnType | None:
        if name in _DECIMALS:
            return self._decimal(column)
        if name not in _NESTED:
            return _PLAIN.get(name)
        self._must("<")
        kind: ColumnType
        if name == "array":
            kind = ArrayOf(self._type(column))
        elif name == "map":
            if self._type(column) is not Plain.STRING:
                raise ValueError(f"column {column!r}: the keys of a map must be string")
            self._must(",")
            kind = MapOf(self._type(column))
        else:
            kind = StructOf(self._fields(is_inside=True))
        self._must(">")
        return kind

    def _decimal(self, column: str) -> DecimalOf:
        if not self._takes("("):
            return DecimalOf(10, 0)
        precision, scale = self._number(), 0
        if self._takes(","):
            scale = self._number()
        self._must(")")
        if not 1 <= precision <= _LARGEST_PRECISION or scale > precision:
            raise ValueError(f"column {column!r}: there is no decimal({precision}, {scale})")
        return DecimalOf(precision, scale)

    def _number(self) -> int:
        token, is_quoted = self._next("a number")
        if is_quoted or not token.isdecimal() or len(token) > 3:
            raise ValueError(f"{token!r} stands where a number should")
        return int(token)

    def _next(self, wanted: str) -> tuple[str, bool]:
        """The next token, and whether it is a name in backticks."""
        match = _TOKEN.match(self._text, self._at)
        if match is None:
            raise ValueError(f"{self._rest()} stands where {wanted} should")
        self._at = match.end()
        return (match[1].replace("``", "`"), True) if match[1] is not None else (match[2], False)

    def _takes(self, token: str) -> bool:
        match = _TOKEN.match(self._text, self._at)
        if match is None or match[1] is not None or match[2].lower() != token:
            return False
        self._at = match.end()
        return True

    def _must(self, token: str) -> None:
        if not self._takes(token):
            raise ValueError(f"{self._rest()} stands where {token!r} should")

    def _rest(self) -> str:
        rest = self._text[self._at :].strip()
        return repr(rest[:40]) if rest else "its end"


def _refuse_twice(names: Iterable[str]) -> None:
    seen: set[str] = set()
    for name in names:
        if name in seen:
            raise ValueError(f"two columns are called {name!r}")
        seen.add(name)
