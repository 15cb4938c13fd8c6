"""Spark's columns compute what expressions compute in Python, in value and type, or say that they are in doubt."""

from __future__ import annotations

import math
import struct
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pipeline import col, itself, record, together
from pipeline.expressions import Expression
from pipeline.spark.bulk.twins import TABLED, WHITE, Kind, NoTwin, any_of, leaves, named, names, twin_of

pytestmark = pytest.mark.timeout(300)

SHAPE = {
    "i": Kind.INT, "j": Kind.INT, "f": Kind.FLOAT, "g": Kind.FLOAT,
    "s": Kind.TEXT, "t": Kind.TEXT, "b": Kind.BOOL, "c": Kind.BOOL,
}  # fmt: skip
FIELDS = {Kind.INT: ("i", "j"), Kind.FLOAT: ("f", "g"), Kind.TEXT: ("s", "t"), Kind.BOOL: ("b", "c")}

INTS = st.one_of(
    st.integers(-3, 3),
    st.integers(-(2**63), 2**63 - 1),
    st.sampled_from([-(2**63), 2**63 - 1, 2**53, 2**53 + 1, -(2**53) - 1, 10**9]),
)
FLOATS = st.one_of(
    st.floats(width=64),
    st.sampled_from([0.0, -0.0, math.nan, math.inf, -math.inf, 1e308, 5e-324, 2.0**53, 1.5]),
    st.integers(-3, 3).map(float),
)
TEXTS = st.one_of(
    st.text(st.characters(exclude_categories=["Cs"]), max_size=6),
    st.text("abAB \t\n\x1c\x85\xa0\u2003ßéİ\U0001f600", max_size=5),
)
ROWS = st.lists(
    st.fixed_dictionaries(
        {
            name: st.one_of(st.none(), values)
            for kind, values in (
                (Kind.INT, INTS),
                (Kind.FLOAT, FLOATS),
                (Kind.TEXT, TEXTS),
                (Kind.BOOL, st.booleans()),
            )
            for name in FIELDS[kind]
        }
    ),
    min_size=100,
    max_size=400,
)


def every_op() -> Iterator[Expression]:
    """Each op of the table on fields of its types, and the ops that stand beside it."""
    for op, kinds in TABLED:
        if Kind.NONE not in kinds:
            yield Expression(op, tuple(col(FIELDS[kind][place]) for place, kind in enumerate(kinds)))
    yield from (col("i") == 2, col("f") < 1, 1 - col("i"), col("s") == "a")
    yield from (col("b") & col("c"), col("b") | col("c"), (col("i") == 0) | (col("j") / col("i") > 1))
    yield from (col("b") & (col("i") // col("j") > 0), col("i").is_in([1, 2, 2**63 - 1]), col("s").is_in(["a", ""]))
    yield from (col("f").is_in([0.0, 1.5, math.inf]), col("b").is_in([True]), col("i").is_in([]))
    yield from (col("i").otherwise(col("j")), col("i").otherwise(1 // col("j")), col("f").otherwise(0.0))
    yield from (col("none", None).is_null(), col("none", 3) + col("i"), col("s", "x").length(), col("i").between(-1, 2))


REAL_NUMBERS = st.recursive(
    st.one_of(st.sampled_from(["i", "j", "f", "g"]).map(col), st.integers(-9, 9).map(lambda n: col("i") * 0 + n)),
    lambda inner: st.tuples(st.sampled_from(["+", "-", "*", "/", "//", "%"]), inner, inner).map(
        lambda parts: Expression(parts[0], parts[1:])
    ),
    max_leaves=4,
)
TRUTHS = st.recursive(
    st.tuples(st.sampled_from(["==", "!=", "<", "<=", ">", ">="]), REAL_NUMBERS, REAL_NUMBERS).map(
        lambda parts: Expression(parts[0], parts[1:])
    ),
    lambda inner: st.one_of(
        st.tuples(st.sampled_from(["&", "|"]), inner, inner).map(lambda parts: Expression(parts[0], parts[1:])),
        inner.map(lambda one: ~one),
    ),
    max_leaves=3,
)


def by_spark(spark: Any, expressions: list[Expression], rows: list[dict[str, Any]]) -> list[list[tuple[Any, bool]]]:
    """For each row, of each expression the value and whether it is in doubt."""
    import pyarrow as pa

    types = {Kind.INT: pa.int64(), Kind.FLOAT: pa.float64(), Kind.TEXT: pa.string(), Kind.BOOL: pa.bool_()}
    given = names(SHAPE, "v")
    columns = [pa.array([row[name] for row in rows], types[kind]) for name, kind in SHAPE.items()]
    frame = spark.createDataFrame(pa.Table.from_arrays(columns, names=given))
    wanted = []
    for place, expression in enumerate(expressions):
        built, doubts = twin_of(expression, SHAPE).build(named(SHAPE, "v"))
        assert not isinstance(built, dict | tuple)
        wanted += [built.alias(f"value_{place}"), any_of(doubts).alias(f"doubt_{place}")]
    table = frame.select(*wanted).toArrow()
    lists = [column.to_pylist() for column in table.columns]
    pairs = [list(zip(lists[at], lists[at + 1], strict=True)) for at in range(0, len(lists), 2)]
    return [list(each) for each in zip(*pairs, strict=True)]


def exact(value: Any) -> Any:
    """So that equal means the same type, the same sign of zero, and NaN is NaN."""
    if isinstance(value, float):
        return "float", "nan" if math.isnan(value) else struct.pack(">d", value)
    return type(value).__name__, value


def agree(expressions: list[Expression], rows: list[dict[str, Any]], found: list[list[tuple[Any, bool]]]) -> int:
    """How many were sure. Fails for one that is sure and differs."""
    sure = 0
    for row, pairs in zip(rows, found, strict=True):
        for expression, (value, doubt) in zip(expressions, pairs, strict=True):
            assert doubt in (True, False)
            if doubt:
                continue
            sure += 1
            try:
                expected = expression(row)
            except (ZeroDivisionError, OverflowError, TypeError) as error:
                pytest.fail(f"{expression!r} of {row} fails, {error}, and Spark says {value!r}")
            assert exact(value) == exact(expected), f"{expression!r} of {row}"
    return sure


@given(rows=ROWS)
@settings(max_examples=2, deadline=None, suppress_health_check=list(HealthCheck))
def test_each_op_with_a_twin_is_equal_where_it_is_sure(spark: Any, rows: list[dict[str, Any]]) -> None:
    expressions = list(every_op())

    assert agree(expressions, rows, by_spark(spark, expressions, rows)) > 0


@given(rows=ROWS, expressions=st.lists(st.one_of(REAL_NUMBERS, TRUTHS), min_size=12, max_size=20))
@settings(max_examples=2, deadline=None, suppress_health_check=list(HealthCheck))
def test_expressions_of_several_ops_are_equal_where_they_are_sure(
    spark: Any, rows: list[dict[str, Any]], expressions: list[Expression]
) -> None:
    typed = []
    for expression in expressions:
        try:
            twin_of(expression, SHAPE)
        except NoTwin:
            continue
        typed.append(expression)

    agree(typed, rows, by_spark(spark, typed, rows))


def test_usual_values_are_never_in_doubt(spark: Any) -> None:
    """A twin that always doubts would be right, and of no use."""
    rows = [
        {"i": i, "j": j, "f": i / 4, "g": -j * 1.5, "s": f"Key {i} ", "t": "e", "b": i > j, "c": j > 0}
        for i in (-7, 0, 5, 10**12)
        for j in (-3, -1, 2, 10**6)
    ] + [dict.fromkeys(SHAPE)]
    expressions = [each for each in every_op() if repr(each) not in ("(col('i') / col('f'))",)]

    found = by_spark(spark, expressions, rows)

    agree(expressions, rows, found)
    doubtful = {
        repr(expression) for pairs in found for expression, (_, doubt) in zip(expressions, pairs, strict=True) if doubt
    }
    assert {each for each in doubtful if " / " not in each and " // " not in each and " % " not in each} == set()


def test_white_space_is_what_python_strips() -> None:
    assert f"{WHITE}a{WHITE}".strip() == "a"
    assert len(WHITE) > 20


@pytest.mark.parametrize(
    "expression",
    [
        col("x"),
        col("f") // 2.0,
        col("f") % 2.0,
        col("s") + "a",
        col("s") < 1,
        col("b") < True,
        col("b") == 1,
        col("i") == "1",
        col("i") + 2**63,
        col("i").is_in([True]),
        col("i").is_in(range(1000)),
        col("f") == math.nan,
        col("s") == "\ud800",
        col("i") & col("b"),
        ~col("i"),
        col("s").otherwise(0),
        col("i") == b"1",
        itself() == 1,
        itself().lower(),
        record(a=col("i")) == 1,
    ],
    ids=repr,
)
def test_what_is_not_equal_in_all_cases_has_no_twin(expression: Expression) -> None:
    with pytest.raises(NoTwin):
        twin_of(expression, SHAPE)


def test_records_and_tuples_are_columns_by_field_and_place() -> None:
    twin = twin_of(record(a=col("i") + 1, b=together(col("s"), 2)), SHAPE)

    assert twin.shape == {"a": Kind.INT, "b": (Kind.TEXT, Kind.INT)}
    assert names(twin.shape, "v") == ["v_0", "v_1_0", "v_1_1"]
    assert twin_of(col("b"), twin.shape).shape == (Kind.TEXT, Kind.INT)


def test_the_columns_of_a_shape_come_in_the_order_of_their_names(spark: Any) -> None:
    shape = {"a": Kind.INT, "b": (Kind.TEXT, Kind.INT)}

    frame = spark.range(1).selectExpr(*(f"'{name}' as {name}" for name in names(shape, "v")))

    assert list(frame.select(*leaves(named(shape, "v"))).first()) == names(shape, "v")
