"""Native twins of expressions: columns by which Spark computes what an expression computes in Python.

A twin is found by the op and the types of what it takes, in one table. For single values where Python would fail, or
compute otherwise (a number beyond 64 bits, a letter whose capital differs, a division by zero), a twin has a second
column, its doubt. Where a doubt is true nothing that Spark computed may be used.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum
from functools import reduce
from itertools import product
from typing import Any, Final, TypeAlias

from pyspark.sql import Column
from pyspark.sql import functions as F  # noqa: N812

from pipeline.expressions import Expression
from pipeline.validation import is_unicode


class Kind(Enum):
    """The types of single values: of 64 bits, of double precision, and what else has one meaning in both."""

    INT = "bigint"
    FLOAT = "double"
    TEXT = "string"
    BOOL = "boolean"
    NONE = "void"


Shape: TypeAlias = "Kind | dict[str, Shape] | tuple[Shape, ...]"
"""The type of a value: a single one, that of a record by field, or that of a tuple by place. Any of it may be None."""

Columns: TypeAlias = "Column | dict[str, Columns] | tuple[Columns, ...]"
"""A value in columns, of the form of its shape."""

_Built: TypeAlias = tuple[Columns, list[Column]]
"""What was computed, and the doubts: columns that are true or false, never null."""


class NoTwin(Exception):
    """Raised when Spark has no column for it that is equal in all cases; says why."""


@dataclass(frozen=True, slots=True)
class Twin:
    """`build` gives, from the columns of the value, those of the expression, and their doubts.

    is_value: it is the value itself.
    """

    shape: Shape
    build: Callable[[Columns], _Built]
    is_value: bool = False


def twin_of(expression: object, value: Shape) -> Twin:
    """The twin for values of that shape. Starts no Spark. Raises NoTwin."""
    if not isinstance(expression, Expression):
        raise NoTwin(f"{expression!r:.80} is a function, and no expression")
    op, arguments = expression.op, expression.arguments
    match op:
        case "itself":
            return Twin(value, lambda columns: (columns, []), is_value=True)
        case "field":
            return _field(expression, value)
        case "literal":
            return _literal(arguments[0])
        case "record":
            return _record({name: twin_of(each, value) for name, each in arguments})
        case "together":
            return _together(tuple(twin_of(each, value) for each in arguments))
        case "is_in":
            return _is_in(twin_of(arguments[0], value), arguments[1])
        case "otherwise":
            return _otherwise(*(twin_of(each, value) for each in arguments))
        case "&" | "|":
            return _logic(op, *(twin_of(each, value) for each in arguments))
        case _:
            return _from_table(op, [twin_of(each, value) for each in arguments])


def single(twin: Twin) -> Kind:
    """The type of its single value. Raises NoTwin for records and tuples."""
    if isinstance(twin.shape, Kind):
        return twin.shape
    raise NoTwin("a record or a tuple is no single value")


def leaves(columns: Columns) -> list[Column]:
    """The columns of single values, in order."""
    if isinstance(columns, dict):
        return [leaf for each in columns.values() for leaf in leaves(each)]
    if isinstance(columns, tuple):
        return [leaf for each in columns for leaf in leaves(each)]
    return [columns]


def named(shape: Shape, prefix: str) -> Columns:
    """Columns for a value of that shape, each by a name that begins so, in the order of `leaves`."""
    if isinstance(shape, dict):
        return {name: named(each, f"{prefix}_{place}") for place, (name, each) in enumerate(shape.items())}
    if isinstance(shape, tuple):
        return tuple(named(each, f"{prefix}_{place}") for place, each in enumerate(shape))
    return F.col(prefix)


def names(shape: Shape, prefix: str) -> list[str]:
    """The names of these columns."""
    if isinstance(shape, Kind):
        return [prefix]
    parts = shape.values() if isinstance(shape, dict) else shape
    return [name for place, each in enumerate(parts) for name in names(each, f"{prefix}_{place}")]


def any_of(doubts: list[Column]) -> Column:
    return reduce(Column.__or__, doubts) if doubts else F.lit(False)


def magnitude(given: Column) -> Column:
    """Null for the one number whose magnitude has 64 bits itself."""
    return F.when(given < 0, F.try_subtract(F.lit(0).cast("bigint"), given)).otherwise(given)


# Ops that do not take just single values, or do not always compute both.


def _field(expression: Expression, value: Shape) -> Twin:
    name, *default = expression.arguments
    if not isinstance(value, dict):
        raise NoTwin(f"{expression!r} needs a record")
    if name in value:
        return Twin(value[name], lambda columns: (columns[name], []))
    if not default:
        raise NoTwin(f"there is no field {name!r}, so each record fails")
    return _literal(default[0])


def _literal(given: Any) -> Twin:
    match given:
        case None:
            return _constant(Kind.NONE, None)
        case bool():
            return _constant(Kind.BOOL, given)
        case int() if -(2**63) <= given < 2**63:
            return _constant(Kind.INT, given)
        case float() if not math.isnan(given):
            return _constant(Kind.FLOAT, given)
        case str() if is_unicode(given) and len(given) <= _MOST_CHARACTERS:
            return _constant(Kind.TEXT, given)
    raise NoTwin(f"{given!r:.80} has no equal in Spark")


def _constant(kind: Kind, given: Any) -> Twin:
    return Twin(kind, lambda _columns: (F.lit(given).cast(kind.value), []))


def _record(parts: dict[str, Twin]) -> Twin:
    def build(columns: Columns) -> _Built:
        built = {name: part.build(columns) for name, part in parts.items()}
        return {name: one for name, (one, _) in built.items()}, [each for _, more in built.values() for each in more]

    return Twin({name: part.shape for name, part in parts.items()}, build)


def _together(parts: tuple[Twin, ...]) -> Twin:
    def build(columns: Columns) -> _Built:
        built = [part.build(columns) for part in parts]
        return tuple(one for one, _ in built), [each for _, more in built for each in more]

    return Twin(tuple(part.shape for part in parts), build)


def _is_in(inner: Twin, values: tuple[Any, ...]) -> Twin:
    """Compared one by one: Spark's own sets tell 0.0 from -0.0."""
    kind = single(inner)
    if len(values) > _MOST_VALUES:
        raise NoTwin(f"is_in: more than {_MOST_VALUES} values")
    if any(single(_literal(each)) is not kind for each in values):
        raise NoTwin("is_in: values of another type than what is looked for")
    compare = _TABLE["==", (kind, kind)][1]

    def build(columns: Columns) -> _Built:
        one, doubts = _single(inner, columns)
        found = reduce(Column.__or__, [compare(one, F.lit(each).cast(kind.value))[0] for each in values], F.lit(False))
        return F.when(one.isNotNull(), found), doubts

    return Twin(Kind.BOOL, build)


def _otherwise(left: Twin, right: Twin) -> Twin:
    """The right side is computed where the left one is None."""
    kinds = single(left), single(right)
    if kinds[0] is Kind.NONE:
        return right
    if kinds[1] not in (kinds[0], Kind.NONE):
        raise NoTwin("otherwise: a value of another type")

    def build(columns: Columns) -> _Built:
        one, doubts = _single(left, columns)
        two, more = _single(right, columns)
        return F.coalesce(one, two), [*doubts, *(one.isNull() & each for each in more)]

    return Twin(kinds[0], build)


def _logic(op: str, left: Twin, right: Twin) -> Twin:
    """The right side is computed where the left one has not decided."""
    if (single(left), single(right)) != (Kind.BOOL, Kind.BOOL):
        raise NoTwin(f"{op}: what is no truth value")

    def build(columns: Columns) -> _Built:
        one, doubts = _single(left, columns)
        two, more = _single(right, columns)
        decided = one.eqNullSafe(F.lit(op == "|"))
        return one & two if op == "&" else one | two, [*doubts, *(~decided & each for each in more)]

    return Twin(Kind.BOOL, build)


def _from_table(op: str, parts: list[Twin]) -> Twin:
    kinds = tuple(single(part) for part in parts)
    found = _TABLE.get((op, kinds))
    if found is None:
        raise NoTwin(f"{op} of {', '.join(kind.name.lower() for kind in kinds)} is left to Python")
    kind, compute = found

    def build(columns: Columns) -> _Built:
        built = [_single(part, columns) for part in parts]
        result, doubts = compute(*(one for one, _ in built))
        return result, [*(each for _, more in built for each in more), *doubts]

    return Twin(kind, build)


def _single(twin: Twin, columns: Columns) -> tuple[Column, list[Column]]:
    one, doubts = twin.build(columns)
    assert not isinstance(one, dict | tuple)
    return one, doubts


# Ops of single values.

_Computed: TypeAlias = tuple[Column, list[Column]]

_EXACT: Final = 2**53
"""Whole numbers up to this are numbers of double precision, too."""

_MOST_VALUES: Final = 50
_MOST_CHARACTERS: Final = 250
"""Of a literal, so that it plays no part in how large a record may get."""

WHITE: Final = "".join(char for char in map(chr, range(sys.maxunicode + 1)) if char.isspace())
"""What `str.strip` takes away."""


def _sure(function: Callable[..., Column]) -> Callable[..., _Computed]:
    """Equal for all values; None of None."""
    return lambda *given: (function(*given), [])


def _unless_lost(function: Callable[..., Column]) -> Callable[..., _Computed]:
    """Spark's result is null where there is none, as beyond 64 bits."""

    def compute(*given: Column) -> _Computed:
        result = function(*given)
        return result, [reduce(Column.__and__, [each.isNotNull() for each in given], result.isNull())]

    return compute


def _as_floats(function: Callable[[Column, Column], Column]) -> Callable[[Column, Column], _Computed]:
    """Of two numbers, of which whole ones become floats."""
    return lambda one, two: (function(one.cast("double"), two.cast("double")), [])


def _too_large(given: Column) -> Column:
    return ~F.coalesce(given.between(-_EXACT, _EXACT), F.lit(True))


def _quotient(kinds: tuple[Kind, ...]) -> Callable[[Column, Column], _Computed]:
    def compute(one: Column, two: Column) -> _Computed:
        both_whole = kinds == (Kind.INT, Kind.INT)
        large = [_too_large(one), _too_large(two)] if both_whole else []
        zero = F.coalesce(one.isNotNull() & (two == 0), F.lit(False))
        return F.try_divide(one.cast("double"), two.cast("double")), [*large, zero]

    return compute


def _floored(one: Column, two: Column, wants_rest: bool) -> Column:
    """Spark rounds to zero, Python down; 0 and -1 are dealt with before Spark meets them."""
    safe = F.when(two.isin(0, -1), F.lit(1).cast("bigint")).otherwise(two)
    rest = one % safe
    differs = (rest != 0) & ((rest < 0) != (safe < 0))
    if wants_rest:
        by_minus_one, plain = F.lit(0).cast("bigint"), F.when(differs, rest + safe).otherwise(rest)
    else:
        by_minus_one = F.try_subtract(F.lit(0).cast("bigint"), one)
        whole = F.call_function("div", one, safe)
        plain = F.when(differs, whole - 1).otherwise(whole)
    return F.when(one.isNull() | two.isNull() | (two == 0), F.lit(None)).when(two == -1, by_minus_one).otherwise(plain)


def _compared(kinds: tuple[Kind, ...], compare: Callable[[Column, Column], Column], of_nan: bool) -> Any:
    """NaN equals nothing and has no order in Python; Spark has it equal to itself and above all others."""

    def compute(one: Column, two: Column) -> _Computed:
        if Kind.FLOAT not in kinds:
            return compare(one, two), []
        doubts = [_too_large(each) for each, kind in zip((one, two), kinds, strict=True) if kind is Kind.INT]
        one, two = one.cast("double"), two.cast("double")
        is_null = one.isNull() | two.isNull()
        result = F.when(is_null, F.lit(None)).when(F.isnan(one) | F.isnan(two), F.lit(of_nan))
        return result.otherwise(compare(one, two)), doubts

    return compute


def _plain_letters(function: Callable[[Column], Column]) -> Callable[[Column], _Computed]:
    """Of ASCII; capitals of others may differ between Java and Python."""
    return lambda given: (function(given), [F.coalesce(F.octet_length(given) != F.char_length(given), F.lit(False))])


def _table() -> dict[tuple[str, tuple[Kind, ...]], tuple[Kind, Callable[..., _Computed]]]:
    whole, real, text, truth = Kind.INT, Kind.FLOAT, Kind.TEXT, Kind.BOOL
    found: dict[tuple[str, tuple[Kind, ...]], tuple[Kind, Callable[..., _Computed]]] = {
        ("~", (truth,)): (truth, _sure(lambda one: ~one)),
        ("+", (whole, whole)): (whole, _unless_lost(F.try_add)),
        ("-", (whole, whole)): (whole, _unless_lost(F.try_subtract)),
        ("*", (whole, whole)): (whole, _unless_lost(F.try_multiply)),
        ("//", (whole, whole)): (whole, _unless_lost(lambda one, two: _floored(one, two, False))),
        ("%", (whole, whole)): (whole, _unless_lost(lambda one, two: _floored(one, two, True))),
        ("negative", (whole,)): (whole, _unless_lost(lambda one: F.try_subtract(F.lit(0).cast("bigint"), one))),
        ("negative", (real,)): (real, _sure(lambda one: -one)),
        ("abs", (whole,)): (whole, _unless_lost(magnitude)),
        ("abs", (real,)): (real, _sure(F.abs)),
        ("lower", (text,)): (text, _plain_letters(F.lower)),
        ("upper", (text,)): (text, _plain_letters(F.upper)),
        ("strip", (text,)): (text, _sure(lambda one: F.trim(one, F.lit(WHITE)))),
        ("length", (text,)): (whole, _sure(lambda one: F.char_length(one).cast("bigint"))),
        ("contains", (text, text)): (truth, _sure(F.contains)),
        ("starts_with", (text, text)): (truth, _sure(F.startswith)),
        ("ends_with", (text, text)): (truth, _sure(F.endswith)),
    }
    for kind in Kind:
        found["is_null", (kind,)] = truth, _sure(lambda one: one.isNull())
        found["is_not_null", (kind,)] = truth, _sure(lambda one: one.isNotNull())
    numbers = list(product((whole, real), repeat=2))
    for kinds in numbers:
        found["/", kinds] = real, _quotient(kinds)
        if real in kinds:
            found["+", kinds] = real, _as_floats(lambda one, two: one + two)
            found["-", kinds] = real, _as_floats(lambda one, two: one - two)
            found["*", kinds] = real, _as_floats(lambda one, two: one * two)
    for op, (compare, of_nan) in _COMPARISONS.items():
        for kinds in [*numbers, (text, text), *([(truth, truth)] if op in ("==", "!=") else [])]:
            found[op, kinds] = truth, _compared(kinds, compare, of_nan)
    return found


_COMPARISONS: Final[Mapping[str, tuple[Callable[[Column, Column], Column], bool]]] = {
    "==": (lambda one, two: one == two, False),
    "!=": (lambda one, two: one != two, True),
    "<": (lambda one, two: one < two, False),
    "<=": (lambda one, two: one <= two, False),
    ">": (lambda one, two: one > two, False),
    ">=": (lambda one, two: one >= two, False),
}

_TABLE: Final = _table()
"""(op, types of what it takes) -> (type of the result, how Spark computes it). What is not here is left to Python."""

TABLED: Final = tuple(_TABLE)
"""(op, types) that have a twin."""
