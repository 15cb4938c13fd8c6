"""Expressions over the fields of a record: functions that can be printed, pickled, compared with what they were, and
read by an engine. Pure.

An expression is a function of one value, and serves wherever an operator takes one:

    flights.filter(col("dep_delay").is_not_null() & (col("distance") > 500)).key_by(col("carrier"))

None is the absence of a value, as in SQL: what is computed of None is None, but for `is_null`, `is_not_null` and
`otherwise`; `&` and `|` know that False and anything is False, and True or anything True (S. C. Kleene's logic of
three values). A filter keeps what is True. Types are not converted: what Python cannot do with them, or would do
otherwise for texts than for numbers, is a TypeError, and so a record that fails, as it is for any function.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable
from datetime import datetime
from operator import itemgetter
from typing import Any, Final, NoReturn, TypeAlias

from pipeline.errors import PipelineError

_Compute: TypeAlias = Callable[[Any], Any]

_LITERALS: Final = (bool, int, float, str, bytes, datetime, type(None))

_MISSING: Final = object()


class Expression:
    """`op` names what is computed, `arguments` are expressions, and plain data where the op says so. Never changes.

    Raises PipelineError for an op that there is not. Calling it raises KeyError for a field that a record has not,
    TypeError for values of a wrong type, ZeroDivisionError.
    """

    __slots__ = ("_compute", "arguments", "op")

    def __init__(self, op: str, arguments: tuple[Any, ...] = ()) -> None:
        make = _MAKERS.get(op)
        if make is None:
            raise PipelineError(f"there is no expression {op!r}")
        self.op = op
        self.arguments = arguments
        self._compute: _Compute = make(*arguments)

    def __call__(self, value: Any) -> Any:
        return self._compute(value)

    def __repr__(self) -> str:
        return _SHOWN[self.op](*self.arguments)

    def __reduce__(self) -> tuple[Any, ...]:
        return Expression, (self.op, self.arguments)

    @property
    def field(self) -> str | None:
        """The name of the field that it is, and nothing more."""
        is_field = self.op == "field" and len(self.arguments) == 1
        return str(self.arguments[0]) if is_field else None

    # tests

    def is_null(self) -> Expression:
        """True for None, else False."""
        return Expression("is_null", (self,))

    def is_not_null(self) -> Expression:
        """False for None, else True."""
        return Expression("is_not_null", (self,))

    def is_in(self, values: Iterable[Any]) -> Expression:
        """Whether it equals one of these, which are plain values but None."""
        found = tuple(values)
        for each in found:
            if each is None or not isinstance(each, _LITERALS):
                raise PipelineError(f"is_in: {each!r} is no plain value that a record could be compared with")
        return Expression("is_in", (self, found))

    def between(self, low: Any, high: Any) -> Expression:
        """Whether it is neither below `low` nor above `high`."""
        return _binary("&", _binary(">=", self, low), _binary("<=", self, high))

    def __eq__(self, other: object) -> Expression:  # type: ignore[override]
        if not _is_part(other):
            return NotImplemented
        return _binary("==", self, other)

    def __ne__(self, other: object) -> Expression:  # type: ignore[override]
        if not _is_part(other):
            return NotImplemented
        return _binary("!=", self, other)

    def __lt__(self, other: Any) -> Expression:
        return _binary("<", self, other)

    def __le__(self, other: Any) -> Expression:
        return _binary("<=", self, other)

    def __gt__(self, other: Any) -> Expression:
        return _binary(">", self, other)

    def __ge__(self, other: Any) -> Expression:
        return _binary(">=", self, other)

    __hash__ = object.__hash__

    # truth values

    def __and__(self, other: Any) -> Expression:
        return _binary("&", self, other)

    def __rand__(self, other: Any) -> Expression:
        return _binary("&", other, self)

    def __or__(self, other: Any) -> Expression:
        return _binary("|", self, other)

    def __ror__(self, other: Any) -> Expression:
        return _binary("|", other, self)

    def __invert__(self) -> Expression:
        return Expression("~", (self,))

    def __bool__(self) -> NoReturn:
        raise TypeError(
            f"{self!r} has no truth value before there is a record: write & for and, | for or, ~ for not, with"
            " parentheses around comparisons, and between() for a chain of them"
        )

    # numbers

    def __add__(self, other: Any) -> Expression:
        return _binary("+", self, other)

    def __radd__(self, other: Any) -> Expression:
        return _binary("+", other, self)

    def __sub__(self, other: Any) -> Expression:
        return _binary("-", self, other)

    def __rsub__(self, other: Any) -> Expression:
        return _binary("-", other, self)

    def __mul__(self, other: Any) -> Expression:
        return _binary("*", self, other)

    def __rmul__(self, other: Any) -> Expression:
        return _binary("*", other, self)

    def __truediv__(self, other: Any) -> Expression:
        return _binary("/", self, other)

    def __rtruediv__(self, other: Any) -> Expression:
        return _binary("/", other, self)

    def __floordiv__(self, other: Any) -> Expression:
        return _binary("//", self, other)

    def __rfloordiv__(self, other: Any) -> Expression:
        return _binary("//", other, self)

    def __mod__(self, other: Any) -> Expression:
        return _binary("%", self, other)

    def __rmod__(self, other: Any) -> Expression:
        return _binary("%", other, self)

    def __neg__(self) -> Expression:
        return Expression("negative", (self,))

    def __abs__(self) -> Expression:
        return Expression("abs", (self,))

    # texts

    def lower(self) -> Expression:
        """As `str.lower`."""
        return Expression("lower", (self,))

    def upper(self) -> Expression:
        """As `str.upper`."""
        return Expression("upper", (self,))

    def strip(self) -> Expression:
        """As `str.strip`."""
        return Expression("strip", (self,))

    def length(self) -> Expression:
        """The number of code points of a text."""
        return Expression("length", (self,))

    def contains(self, text: Any) -> Expression:
        """Whether the text is in it."""
        return _binary("contains", self, text)

    def starts_with(self, text: Any) -> Expression:
        """As `str.startswith`."""
        return _binary("starts_with", self, text)

    def ends_with(self, text: Any) -> Expression:
        """As `str.endswith`."""
        return _binary("ends_with", self, text)

    # absence

    def otherwise(self, other: Any) -> Expression:
        """Itself, or `other` where it is None."""
        return _binary("otherwise", self, other)


def col(name: str, default: Any = _MISSING) -> Expression:
    """The field of that name of a dict. A record without it fails with KeyError, unless there is a `default` for it.

    Raises PipelineError for what is no name.
    """
    if not isinstance(name, str) or not name:
        raise PipelineError(f"col: {name!r} cannot be the name of a field")
    if default is _MISSING:
        return Expression("field", (name,))
    return Expression("field", (name, _plain(default)))


def itself() -> Expression:
    """The record itself, as where it is a text or a number."""
    return Expression("itself")


def record(**fields: Any) -> Expression:
    """A dict of these fields, each an expression or a plain value: for `map`."""
    if not fields:
        raise PipelineError("record: it needs a field")
    return Expression("record", tuple((name, _as_expression(each)) for name, each in fields.items()))


def together(*parts: Any) -> Expression:
    """A tuple of these, each an expression or a plain value: for a key of several parts."""
    if not parts:
        raise PipelineError("together: it needs a part")
    return Expression("together", tuple(map(_as_expression, parts)))


def _plain(value: Any) -> Any:
    if isinstance(value, _LITERALS):
        return value
    raise PipelineError(
        f"{value!r:.100} cannot be part of an expression",
        hint="it holds expressions, None, numbers, texts, bytes and datetimes",
    )


def _is_part(value: object) -> bool:
    """Whether it can be compared with an expression; Python itself asks whether one equals quite other things."""
    return isinstance(value, (Expression, *_LITERALS))


def _as_expression(value: Any) -> Expression:
    return value if isinstance(value, Expression) else Expression("literal", (_plain(value),))


def _binary(op: str, left: Any, right: Any) -> Expression:
    return Expression(op, (_as_expression(left), _as_expression(right)))


# How each is computed.


def _field(name: str, default: Any = _MISSING) -> _Compute:
    if default is _MISSING:
        return itemgetter(name)

    def get(value: Any) -> Any:
        try:
            return value[name]
        except KeyError:
            return default

    return get


def _literal(given: Any) -> _Compute:
    return lambda _value: given


def _strict(function: Callable[[Any, Any], Any]) -> Callable[[Expression, Expression], _Compute]:
    """Of two values that are not None."""

    def make(left: Expression, right: Expression) -> _Compute:
        first, second = left._compute, right._compute
        if right.op == "literal" and right.arguments[0] is not None:
            given = right.arguments[0]

            def compute_with(value: Any) -> Any:
                one = first(value)
                return None if one is None else function(one, given)

            return compute_with

        def compute(value: Any) -> Any:
            one, two = first(value), second(value)
            return None if one is None or two is None else function(one, two)

        return compute

    return make


def _single(function: Callable[[Any], Any]) -> Callable[[Expression], _Compute]:
    """Of a value that is not None."""

    def make(inner: Expression) -> _Compute:
        first = inner._compute

        def compute(value: Any) -> Any:
            one = first(value)
            return None if one is None else function(one)

        return compute

    return make


def _logic(decisive: bool) -> Callable[[Expression, Expression], _Compute]:
    """`&` is decided by a False, `|` by a True; the right side is not computed when the left one has decided."""

    def make(left: Expression, right: Expression) -> _Compute:
        first, second = left._compute, right._compute

        def compute(value: Any) -> bool | None:
            one = _truth(first(value))
            if one is decisive:
                return decisive
            two = _truth(second(value))
            if two is decisive:
                return decisive
            return None if one is None or two is None else not decisive

        return compute

    return make


def _truth(value: Any) -> bool | None:
    if value is None or value is True or value is False:
        return value
    raise TypeError(f"{value!r:.100} is no truth value")


def _numbers(function: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    def compute(one: Any, two: Any) -> Any:
        return function(_number(one), _number(two))

    return compute


def _number(value: Any) -> Any:
    if type(value) is int or type(value) is float:
        return value
    raise TypeError(f"{value!r:.100} is no number")


def _text(value: Any) -> str:
    if type(value) is str:
        return value
    raise TypeError(f"{value!r:.100} is no text")


def _ordered(function: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    """Python orders these among their like only, and True and 1 too."""

    def compute(one: Any, two: Any) -> Any:
        if type(one) is bool or type(two) is bool:
            raise TypeError("truth values have no order")
        return function(one, two)

    return compute


def _is_in(inner: Expression, values: tuple[Any, ...]) -> _Compute:
    return _single(frozenset(values).__contains__)(inner)


def _otherwise(left: Expression, right: Expression) -> _Compute:
    first, second = left._compute, right._compute

    def compute(value: Any) -> Any:
        one = first(value)
        return second(value) if one is None else one

    return compute


def _record(*fields: tuple[str, Expression]) -> _Compute:
    parts = [(name, each._compute) for name, each in fields]
    return lambda value: {name: compute(value) for name, compute in parts}


def _together(*parts: Expression) -> _Compute:
    computes = [part._compute for part in parts]
    return lambda value: tuple([compute(value) for compute in computes])


def _null(is_null: bool) -> Callable[[Expression], _Compute]:
    def make(inner: Expression) -> _Compute:
        first = inner._compute
        return (lambda value: first(value) is None) if is_null else (lambda value: first(value) is not None)

    return make


_MAKERS: Final[dict[str, Callable[..., _Compute]]] = {
    "field": _field,
    "itself": lambda: lambda value: value,
    "literal": _literal,
    "record": _record,
    "together": _together,
    "is_null": _null(True),
    "is_not_null": _null(False),
    "is_in": _is_in,
    "otherwise": _otherwise,
    "==": _strict(operator.eq),
    "!=": _strict(operator.ne),
    "<": _strict(_ordered(operator.lt)),
    "<=": _strict(_ordered(operator.le)),
    ">": _strict(_ordered(operator.gt)),
    ">=": _strict(_ordered(operator.ge)),
    "&": _logic(False),
    "|": _logic(True),
    "~": _single(lambda one: not _truth(one)),
    "+": _strict(_numbers(operator.add)),
    "-": _strict(_numbers(operator.sub)),
    "*": _strict(_numbers(operator.mul)),
    "/": _strict(_numbers(operator.truediv)),
    "//": _strict(_numbers(operator.floordiv)),
    "%": _strict(_numbers(operator.mod)),
    "negative": _single(lambda one: -_number(one)),
    "abs": _single(lambda one: abs(_number(one))),
    "lower": _single(lambda one: _text(one).lower()),
    "upper": _single(lambda one: _text(one).upper()),
    "strip": _single(lambda one: _text(one).strip()),
    "length": _single(lambda one: len(_text(one))),
    "contains": _strict(lambda one, two: _text(two) in _text(one)),
    "starts_with": _strict(lambda one, two: _text(one).startswith(_text(two))),
    "ends_with": _strict(lambda one, two: _text(one).endswith(_text(two))),
}


# How each is shown.


def _infix(op: str) -> Callable[[Expression, Expression], str]:
    return lambda left, right: f"({left!r} {op} {right!r})"


def _method(name: str) -> Callable[..., str]:
    return lambda inner, *rest: f"{inner!r}.{name}({', '.join(map(repr, rest))})"


_SHOWN: Final[dict[str, Callable[..., str]]] = {
    **{op: _method(op) for op in _MAKERS},
    **{op: _infix(op) for op in ("==", "!=", "<", "<=", ">", ">=", "&", "|", "+", "-", "*", "/", "//", "%")},
    "field": lambda *given: f"col({', '.join(map(repr, given))})",
    "itself": lambda: "itself()",
    "literal": repr,
    "record": lambda *fields: f"record({', '.join(f'{name}={each!r}' for name, each in fields)})",
    "together": lambda *parts: f"together({', '.join(map(repr, parts))})",
    "~": lambda inner: f"~{inner!r}",
    "negative": lambda inner: f"-{inner!r}",
    "abs": lambda inner: f"abs({inner!r})",
}
