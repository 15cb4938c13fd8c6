"""Aggregations against the standard library."""

from __future__ import annotations

import math
import random
import statistics
from copy import copy
from fractions import Fraction
from functools import reduce
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.aggregates import Aggregation, count, maximum, mean, minimum, total
from pipeline.kernel import operators
from pipeline.kernel.operators import Aggregate
from pipeline.kernel.testing import Harness
from pipeline.records import Batch

NUMBERS = [total, mean]
ALL = [total, mean, minimum, maximum]

finite = st.floats(allow_nan=False, allow_infinity=False, min_value=-1e150, max_value=1e150)


def fold(aggregation: Aggregation, values: list[Any]) -> Any:
    """The result, with the state encoded and decoded after each value."""
    state = aggregation.create()
    for value in values:
        state = msgspec.msgpack.decode(msgspec.msgpack.encode(aggregation.add(state, value)))
    return aggregation.result(state)


@given(st.lists(st.integers(-(10**6), 10**6), min_size=1))
def test_aggregations_of_integers_are_exact(values: list[int]) -> None:
    assert fold(count(), values) == len(values)
    assert fold(total(), values) == sum(values)
    assert type(fold(total(), values)) is int
    assert fold(mean(), values) == float(Fraction(sum(values), len(values)))
    assert fold(minimum(), values) == min(values)
    assert fold(maximum(), values) == max(values)


@given(st.lists(finite, min_size=1))
def test_the_error_of_a_float_sum_is_second_order_in_the_size_of_its_numbers(values: list[float]) -> None:
    magnitude = math.fsum(map(abs, values))

    assert abs(fold(total(), values) - math.fsum(values)) <= 4e-16 * (abs(math.fsum(values)) + 1e-12 * magnitude)


def test_the_mean_of_30_000_floats_equals_the_exact_one_within_a_few_ulps() -> None:
    source = random.Random(7)
    values = [source.uniform(-50, 1e6) for _ in range(30_000)]
    aggregation = mean()

    state = reduce(aggregation.add, values, aggregation.create())

    assert aggregation.result(state) == pytest.approx(statistics.fmean(values), rel=4e-16)


def test_a_small_number_survives_between_large_ones_that_cancel() -> None:
    assert fold(total(), [1.0, 1e100, 1.0, -1e100]) == 2.0


def test_integers_stay_exact_among_floats() -> None:
    assert fold(total(), [2**53, 1, 0.0, -(2**53)]) == 1.0
    assert type(fold(total(), [1, 0.0])) is float


def test_an_infinity_stays_an_infinity() -> None:
    assert fold(total(), [1.0, math.inf, 1.0]) == math.inf
    assert fold(mean(), [-math.inf, 1]) == -math.inf
    assert math.isnan(fold(mean(), [math.inf, -math.inf]))


@pytest.mark.parametrize("make", ALL)
def test_a_field_may_be_a_name_a_function_or_nothing(make: Any) -> None:
    plain = fold(make(), [3, 5])

    assert fold(make("delay"), [{"delay": 3}, {"delay": 5}]) == plain
    assert fold(make(len), ["abc", "abcde"]) == plain


@pytest.mark.parametrize("make", ALL)
@pytest.mark.parametrize(("field", "value"), [("delay", {"delay": None}), (None, None)])
def test_none_is_refused_by_name(make: Any, field: str | None, value: Any) -> None:
    aggregation = make(field)

    with pytest.raises(TypeError) as caught:
        aggregation.add(aggregation.create(), value)

    assert make.__name__ in str(caught.value)
    assert "None" in str(caught.value)
    assert field is None or repr(field) in str(caught.value)


@pytest.mark.parametrize("make", NUMBERS)
def test_text_is_no_number(make: Any) -> None:
    aggregation = make("delay")

    with pytest.raises(TypeError, match="needs a number, got '12' \\(str\\)"):
        aggregation.add(aggregation.create(), {"delay": "12"})


def test_tuples_are_compared_and_come_out_as_the_lists_that_are_stored() -> None:
    smallest = minimum(lambda row: (row["a"], row["b"]))

    assert fold(smallest, [{"a": 2, "b": 1}, {"a": 1, "b": 9}, {"a": 1, "b": 3}]) == [1, 3]


def test_text_can_be_the_smallest_and_the_largest() -> None:
    assert fold(minimum(), ["b", "a"]) == "a"
    assert fold(maximum(), ["b", "a"]) == "b"


@pytest.mark.parametrize("aggregation", [total(), mean()])
def test_no_two_keys_share_a_state(aggregation: Aggregation) -> None:
    first, second = aggregation.create(), aggregation.create()

    aggregation.add(first, 1)

    assert second == aggregation.create()


def test_a_count_that_was_carried_to_another_process_is_counted_as_fast(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(operators, "_aggregate", None)  # the slow way, for any aggregation
    carried = Harness(Aggregate(copy(count())))

    carried.push(Batch([7, 7, 7], ["a", "b", "a"]))

    assert carried.outputs["out"][0].values == [1, 1, 2]
