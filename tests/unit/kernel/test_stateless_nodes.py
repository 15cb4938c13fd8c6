"""What every stateless node must satisfy, with every combination of columns."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise, product
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.errors import EncodingError, PipelineError
from pipeline.graph import Filter, FlatMap, Graph, KeyBy, Map, MapWithKey, Sink, SinkSpec, Source, SourceSpec, Union
from pipeline.kernel.chain import Stateless, apply, concatenate, inherit
from pipeline.kernel.contract import Emitted
from pipeline.kernel.faults import OperatorError
from pipeline.kernel.testing import Harness
from pipeline.records import MAX_TIME, Batch
from tests.examples import OF_EACH_CASE

Row = tuple[Any, Any, Any, Any]

NODES: dict[str, Stateless] = {
    "map": Map("node", ("in",), lambda value: value * 2),
    "map_with_key": MapWithKey("node", ("in",), lambda key, value: (key, value)),
    "filter": Filter("node", ("in",), lambda value: value % 3),
    "flat_map": FlatMap("node", ("in",), lambda value: range(value % 4)),
    "key_by": KeyBy("node", ("in",), lambda value: f"k{value}"),
    "union": Union("node", ("in",)),
}

REFERENCES: dict[str, Callable[[Row], list[Row]]] = {
    "map": lambda row: [(row[0] * 2, *row[1:])],
    "map_with_key": lambda row: [((row[1], row[0]), *row[1:])],
    "filter": lambda row: [row] if row[0] % 3 else [],
    "flat_map": lambda row: [
        (index, row[1], row[2], None if row[3] is None else f"{row[3]}/node/{index}") for index in range(row[0] % 4)
    ],
    "key_by": lambda row: [(row[0], f"k{row[0]}", row[2], row[3])],
    "union": lambda row: [(row[0], None, row[2], row[3])],
}

COLUMNS = list(product([False, True], [False, True], [False, True]))


def a_batch(values: list[int], keys: bool, times: bool, ids: bool) -> Batch:
    return Batch(
        list(values),
        [f"key{value % 2}" for value in values] if keys else None,
        [1000 + index for index in range(len(values))] if times else None,
        [f"id{index}" for index in range(len(values))] if ids else None,
    )


def rows(batch: Batch) -> list[Row]:
    absent = [None] * len(batch)
    columns = (batch.keys, batch.times, batch.ids)
    return list(zip(batch.values, *(absent if column is None else column for column in columns), strict=True))


def combinations(kind: str) -> list[tuple[bool, bool, bool]]:
    return [columns for columns in COLUMNS if columns[0] or kind != "map_with_key"]


every_case = pytest.mark.parametrize(("kind", "columns"), [(kind, one) for kind in NODES for one in combinations(kind)])


@every_case
@OF_EACH_CASE
@given(values=st.lists(st.integers(0, 20), max_size=12), cuts=st.lists(st.integers(0, 12), max_size=3))
def test_a_node_equals_its_reference_however_the_input_is_split(
    kind: str, columns: tuple[bool, bool, bool], values: list[int], cuts: list[int]
) -> None:
    batch = a_batch(values, *columns)
    places = [0, *sorted(min(cut, len(values)) for cut in cuts), len(values)]

    whole = apply(NODES[kind], batch)
    pieces = [apply(NODES[kind], batch.slice(start, stop)) for start, stop in pairwise(places)]

    assert rows(whole) == [row for given_row in rows(batch) for row in REFERENCES[kind](given_row)]
    assert rows(concatenate(pieces)) == rows(whole)
    assert batch == a_batch(values, *columns)


@every_case
def test_a_column_is_absent_after_a_node_exactly_if_it_was_before(kind: str, columns: tuple[bool, bool, bool]) -> None:
    out = apply(NODES[kind], a_batch([3, 6, 7], *columns))

    has_keys = {"key_by": True, "union": False}.get(kind, columns[0])
    assert (out.keys is not None, out.times is not None, out.ids is not None) == (has_keys, *columns[1:])


FAULTY: list[Any] = [
    Map("node", ("in",), lambda value: 1 // value),
    Filter("node", ("in",), lambda value: 1 // value),
    FlatMap("node", ("in",), lambda value: [1 // value]),
    KeyBy("node", ("in",), lambda value: 1 // value),
]


def a_job(node: Any) -> Harness:
    spec = SinkSpec("console")
    return Harness(Graph("g", (Source("in", SourceSpec("text")), node, Sink("out", ("node",), spec, None))))


@pytest.mark.parametrize("node", FAULTY)
def test_an_error_of_user_code_names_the_node(node: Any) -> None:
    with pytest.raises(OperatorError, match="the operator 'node' failed: ZeroDivisionError") as caught:
        a_job(node).push(Batch([1, 0]))

    assert isinstance(caught.value.__cause__, ZeroDivisionError)


@pytest.mark.parametrize("kind", [Map, Filter, FlatMap, KeyBy])
@pytest.mark.parametrize("times", [None, [1, 2, 3]])
def test_a_stop_iteration_of_user_code_never_ends_the_batch_silently(kind: Any, times: list[int] | None) -> None:
    def first(value: list[str]) -> Any:
        return next(iter(value))

    with pytest.raises(OperatorError, match="StopIteration"):
        a_job(kind("node", ("in",), first)).push(Batch([["a"], [], ["b"]], times=times))


def test_a_bad_key_is_named_with_its_place() -> None:
    with pytest.raises(OperatorError, match="'node' failed: EncodingError: a key must be text") as caught:
        a_job(KeyBy("node", ("in",), lambda value: value)).push(Batch(["a", 1.5]))

    assert isinstance(caught.value.cause, EncodingError)
    assert caught.value.cause.index == 1
    assert caught.value.hint == caught.value.cause.hint


def test_map_with_key_refuses_a_stream_without_keys() -> None:
    with pytest.raises(PipelineError, match="'node' needs a keyed stream"):
        apply(NODES["map_with_key"], Batch([1]))


def test_a_flat_map_result_that_is_not_iterable_is_refused() -> None:
    with pytest.raises(OperatorError, match="'node' failed: TypeError: 'int' object is not iterable"):
        a_job(FlatMap("node", ("in",), lambda value: value)).push(Batch([1]))


def test_outputs_inherit_the_columns_of_their_records() -> None:
    batch = Batch([1, 2, 3], ["a", "b", "c"], [10, 20, 30], ["x", "y", "z"])

    out = inherit("op", batch, Emitted(["one", "two", "two again"], [0, 2, 2]))

    assert out == Batch(["one", "two", "two again"], ["a", "c", "c"], [10, 30, 30], ["x", "z/op/0", "z/op/1"])


@pytest.mark.parametrize("emitted", [Emitted([1]), Emitted([1], [0, 1])])
def test_outputs_that_do_not_line_up_with_their_origins_are_refused(emitted: Emitted) -> None:
    with pytest.raises(TypeError, match="1 output emitted for 2 origins"):
        inherit("op", Batch([1, 2], ["a", "b"]), emitted)


def test_batches_without_times_get_the_end_of_time_among_others() -> None:
    timed, untimed = Batch([1], ["a"], [5]), Batch([2, 3], ["b", "c"])

    assert concatenate([timed, untimed]) == Batch([1, 2, 3], ["a", "b", "c"], [5, MAX_TIME, MAX_TIME])
    assert concatenate([untimed, untimed]).times is None
