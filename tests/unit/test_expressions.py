"""Expressions compute what a reference of a few lines says, print as they are written, and serve as functions do."""

from __future__ import annotations

import math
import pickle
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline import Pipeline, PipelineError, count, mean, read, write
from pipeline.expressions import Expression, col, itself, record, together

FIELDS = ("a", "b", "c")
INFIX: dict[str, Callable[[Any, Any], Any]] = {
    "==": lambda x, y: x == y,
    "!=": lambda x, y: x != y,
    "<": lambda x, y: x < y,
    "<=": lambda x, y: x <= y,
    ">": lambda x, y: x > y,
    ">=": lambda x, y: x >= y,
    "+": lambda x, y: x + y,
    "-": lambda x, y: x - y,
    "*": lambda x, y: x * y,
    "/": lambda x, y: x / y,
    "//": lambda x, y: x // y,
    "%": lambda x, y: x % y,
}


def reference(expression: Expression, value: Any) -> Any:
    """What the expression is of the value, written down once more."""
    parts = [reference(each, value) if isinstance(each, Expression) else each for each in expression.arguments]
    match expression.op, parts:
        case "field", [name]:
            return value[name]
        case "literal", [given]:
            return given
        case "is_null", [one]:
            return one is None
        case "is_not_null", [one]:
            return one is not None
        case "otherwise", [one, two]:
            return two if one is None else one
        case "&", [one, two]:
            return False if False in (one, two) else None if None in (one, two) else True
        case "|", [one, two]:
            return True if True in (one, two) else None if None in (one, two) else False
        case "~", [one]:
            return None if one is None else not one
        case op, [one, two] if op in INFIX:
            return None if one is None or two is None else INFIX[op](one, two)
    raise AssertionError(expression.op)


numbers = st.recursive(
    st.one_of(st.sampled_from(FIELDS).map(col), st.integers(-9, 9).map(lambda n: col("a") * 0 + n)),
    lambda inner: st.one_of(
        st.tuples(st.sampled_from(["+", "-", "*", "//", "%", "/"]), inner, inner).map(
            lambda parts: Expression(parts[0], parts[1:])
        ),
        st.tuples(inner, st.integers(-9, 9)).map(lambda parts: parts[0].otherwise(parts[1])),
    ),
    max_leaves=6,
)
truths = st.recursive(
    st.one_of(
        st.tuples(st.sampled_from(["==", "!=", "<", "<=", ">", ">="]), numbers, numbers).map(
            lambda parts: Expression(parts[0], parts[1:])
        ),
        numbers.map(lambda number: number.is_null()),
        numbers.map(lambda number: number.is_not_null()),
    ),
    lambda inner: st.one_of(
        st.tuples(inner, inner).map(lambda pair: pair[0] & pair[1]),
        st.tuples(inner, inner).map(lambda pair: pair[0] | pair[1]),
        inner.map(lambda one: ~one),
    ),
    max_leaves=5,
)
records = st.fixed_dictionaries({name: st.one_of(st.none(), st.integers(-20, 20)) for name in FIELDS})


def outcome(compute: Callable[[], Any]) -> Any:
    try:
        found = compute()
    except ZeroDivisionError:
        return "division by zero"
    return "nan" if isinstance(found, float) and math.isnan(found) else found


@given(expression=st.one_of(numbers, truths), value=records)
def test_an_expression_is_what_its_parts_are_together(expression: Expression, value: dict[str, Any]) -> None:
    expected = outcome(lambda: reference(expression, value))
    found = outcome(lambda: expression(value))

    # A side that does not matter is not computed, and then cannot fail.
    assert found == expected or expected == "division by zero"
    assert type(found) is type(expected) or expected == "division by zero"


@given(expression=st.one_of(numbers, truths), value=records)
def test_an_expression_survives_being_printed_and_being_pickled(expression: Expression, value: dict[str, Any]) -> None:
    found = outcome(lambda: expression(value))

    again = eval(repr(expression), {"col": col})
    assert repr(again) == repr(expression)
    assert outcome(lambda: again(value)) == found
    assert outcome(lambda: pickle.loads(pickle.dumps(expression))(value)) == found


@pytest.mark.parametrize(
    ("expression", "value", "expected"),
    [
        (itself() > 2, 3, True),
        (itself().lower(), "ÄB", "äb"),
        (itself().upper(), "straße", "STRASSE"),
        (itself().strip(), "  a ", "a"),
        (itself().length(), "a\N{GRINNING FACE}", 2),
        (itself().contains("b"), "abc", True),
        (itself().starts_with("b"), "abc", False),
        (itself().ends_with(itself()), "abc", True),
        (itself().lower(), None, None),
        (itself().is_in([1, 2]), 2, True),
        (itself().is_in([1, 2]), 3, False),
        (itself().is_in([1, 2]), None, None),
        (itself().between(1, 3), 3, True),
        (itself().between(1, 3), 4, False),
        (col("x", None), {}, None),
        (col("x", 7), {"x": 1}, 1),
        (-col("x"), {"x": 3}, -3),
        (abs(col("x")), {"x": -3}, 3),
        (2 - col("x"), {"x": 3}, -1),
        (True & (col("x") == 3), {"x": 3}, True),
        (record(double=col("x") * 2, kind="a"), {"x": 4}, {"double": 8, "kind": "a"}),
        (together(col("x"), col("y"), "z"), {"x": 1, "y": "b"}, (1, "b", "z")),
    ],
    ids=repr,
)
def test_what_each_gives(expression: Expression, value: Any, expected: Any) -> None:
    assert expression(value) == expected


@pytest.mark.parametrize(
    ("expression", "value", "error"),
    [
        (col("x"), {}, KeyError),
        (col("x"), [1], TypeError),
        (col("x", None), [1], TypeError),
        (col("x") > 2, {"x": "3"}, TypeError),
        (col("x") > 2, {"x": True}, TypeError),
        (col("x") + "s", {"x": "t"}, TypeError),
        (col("x") + 1, {"x": True}, TypeError),
        (col("x").lower(), {"x": 1}, TypeError),
        (col("x") & True, {"x": 1}, TypeError),
        (~col("x"), {"x": 1}, TypeError),
        (col("x") / 0, {"x": 1}, ZeroDivisionError),
    ],
    ids=repr,
)
def test_what_cannot_be_computed_fails_as_a_function_does(expression: Expression, value: Any, error: Any) -> None:
    with pytest.raises(error):
        expression(value)


@pytest.mark.parametrize(
    ("build", "words"),
    [
        (lambda: col(""), "cannot be the name of a field"),
        (lambda: col("x") < object(), "cannot be part of an expression"),
        (lambda: col("x").is_in([None]), "no plain value"),
        (lambda: col("x").is_in([[1]]), "no plain value"),
        (lambda: record(), "needs a field"),
        (lambda: together(), "needs a part"),
        (lambda: Expression("sqrt", (col("x"),)), "there is no expression 'sqrt'"),
    ],
)
def test_what_is_no_expression_is_refused_when_it_is_written(build: Callable[[], Any], words: str) -> None:
    with pytest.raises(PipelineError, match=words):
        build()


@pytest.mark.parametrize(
    "use", [lambda e: e and True, lambda e: not e, lambda e: 1 < e < 3, lambda e: [e][0] in [col("other")]]
)
def test_words_of_python_that_cannot_be_an_expression_say_what_to_write(use: Callable[[Expression], Any]) -> None:
    with pytest.raises(TypeError, match=r"write & for and, \| for or, ~ for not"):
        use(col("x") > 1)


def test_it_prints_as_it_is_written() -> None:
    flies = col("dep_delay").is_not_null() & (col("distance") > 500) & ~col("carrier").is_in(["UA", "AA"])

    assert (
        repr(flies)
        == "((col('dep_delay').is_not_null() & (col('distance') > 500)) & ~col('carrier').is_in(('UA', 'AA')))"
    )


def test_operators_take_expressions_as_functions() -> None:
    flow = Pipeline("expressions")
    flights = flow.source(read.iterable([{"carrier": "UA", "delay": 3}]), name="flights")
    keyed = flights.filter(col("delay").is_not_null()).key_by(col("carrier"), name="carrier")
    keyed.aggregate(delay=mean(col("delay")), flights=count()).last().sink(write.jsonl("out"), name="out")

    nodes = {node.name: node for node in flow.graph().nodes}
    assert nodes["carrier"].field == "carrier"  # type: ignore[union-attr]
    assert nodes["carrier"].fn({"carrier": "UA"}) == "UA"  # type: ignore[union-attr]
    by_both = flights.key_by(together(col("carrier"), col("delay")), name="both")
    assert by_both.key_field != "carrier"
