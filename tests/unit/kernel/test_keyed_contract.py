"""What every keyed operator must satisfy, and each against a reference of a few lines."""

from __future__ import annotations

from collections import Counter, defaultdict
from functools import reduce
from itertools import accumulate, pairwise
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.aggregates import Aggregation, count, maximum, mean, minimum, total
from pipeline.errors import EncodingError, PipelineError
from pipeline.kernel.contract import KeyedOperator
from pipeline.kernel.faults import OperatorError
from pipeline.kernel.operators import Aggregate, Last, Reduce, StatefulMap
from pipeline.kernel.testing import Harness, run
from pipeline.records import MAX_TIME, Batch, Timer
from tests.examples import OF_EACH_CASE

Records = list[tuple[str, int]]


def _append_in_place(so_far: Any, value: Any) -> list[Any]:
    items = so_far if isinstance(so_far, list) else [so_far]
    items.append(value)
    return items


def _history_in_place(_key: Any, value: Any, state: Any) -> tuple[Any, Any]:
    state = [] if state is None else state
    state.append(value)
    return state, state


def _pair_of_last_two(_key: Any, value: Any, state: Any) -> tuple[Any, Any]:
    before = None if state is None else state[1]
    return (before, value), (before, value)


def _forget_each_third(_key: Any, value: Any, state: Any) -> tuple[Any, Any]:
    seen = (state or 0) + 1
    return [value, seen], None if seen == 3 else seen


LISTED = Aggregation("listed", list, _append_in_place, lambda state: state)

OPERATORS: dict[str, KeyedOperator] = {
    "reduce": Reduce(lambda so_far, value: so_far * 31 % 1009 + value),
    "reduce in place": Reduce(_append_in_place),
    "reduce to the newest": Reduce(lambda _so_far, value: value),
    "count": Aggregate(count()),
    "total": Aggregate(total()),
    "mean": Aggregate(mean()),
    "minimum": Aggregate(minimum()),
    "maximum of tuples": Aggregate(maximum(lambda value: (value % 7, value))),
    "listed": Aggregate(LISTED),
    "several": Aggregate({"n": count(), "mean": mean(), "all": LISTED, "low": minimum()}),
    "stateful map": StatefulMap(lambda key, value, state: ((key, value, state), (state or 0) + value)),
    "stateful map in place": StatefulMap(_history_in_place),
    "stateful map of tuples": StatefulMap(_pair_of_last_two),
    "stateful map that deletes": StatefulMap(_forget_each_third),
    "last": Last(),
}

every_operator = pytest.mark.parametrize("operator", OPERATORS.values(), ids=OPERATORS.keys())

records_of = st.lists(st.tuples(st.sampled_from("abcd"), st.integers(-9, 9)), max_size=30)


def a_batch(records: Records) -> Batch:
    return Batch([value for _, value in records], [key for key, _ in records])


def outputs(harness: Harness) -> list[tuple[Any, Any]]:
    """(key, value) of all outputs so far, in plain data as a sink would store them."""
    pairs = [
        (key, value)
        for batch in harness.outputs["out"]
        for key, value in zip(batch.keys or [], batch.values, strict=True)
    ]
    return [(key, msgspec.msgpack.decode(msgspec.msgpack.encode(value))) for key, value in pairs]


def played(operator: KeyedOperator, parts: list[Records], reload: bool = False) -> Harness:
    harness = Harness(operator)
    for part in parts:
        harness.push(a_batch(part))
        if reload:
            harness.state = msgspec.msgpack.decode(msgspec.msgpack.encode(harness.state))
    return harness


def split(records: Records, cuts: list[int]) -> list[Records]:
    places = [0, *sorted(cut % (len(records) + 1) for cut in cuts), len(records)]
    return [records[start:stop] for start, stop in pairwise(places)]


def by_key(pairs: list[tuple[Any, Any]]) -> dict[Any, list[Any]]:
    grouped = defaultdict(list)
    for key, value in pairs:
        grouped[key].append(value)
    return dict(grouped)


@every_operator
def test_an_empty_batch_changes_and_emits_nothing(operator: KeyedOperator) -> None:
    harness = Harness(operator)

    step = harness.push(a_batch([]))

    assert (step.outputs, step.changed, step.timers_set, step.timers_cleared) == ({}, {}, [], [])
    assert harness.state == {"op": {}}


@every_operator
def test_one_record_marks_its_key_as_changed(operator: KeyedOperator) -> None:
    harness = Harness(operator)

    step = harness.push(a_batch([("a", 3)]))

    assert step.changed == {"op": {"a"}}
    assert set(harness.state["op"]) == {"a"}
    harness.fire()
    assert [key for key, _ in outputs(harness)] == ["a"]


@every_operator
@OF_EACH_CASE
@given(records=records_of, cuts=st.lists(st.integers(0, 30), max_size=6), reload=st.booleans())
def test_no_splitting_into_batches_and_no_reload_of_state_shows(
    operator: KeyedOperator, records: Records, cuts: list[int], reload: bool
) -> None:
    whole = played(operator, [records])
    pieces = played(operator, split(records, cuts), reload)

    assert pieces.state == whole.state
    assert pieces.timers == whole.timers
    assert outputs(pieces) == outputs(whole)
    whole.fire()
    pieces.fire()
    assert by_key(outputs(pieces)) == by_key(outputs(whole))
    assert pieces.state == whole.state


@every_operator
@OF_EACH_CASE
@given(records=records_of)
def test_other_keys_never_change_what_a_key_gets(operator: KeyedOperator, records: Records) -> None:
    together = played(operator, [records])
    together.fire()

    for key in {key for key, _ in records}:
        alone = played(operator, [[record for record in records if record[0] == key]])
        alone.fire()
        assert by_key(outputs(together))[key] == by_key(outputs(alone))[key]


@every_operator
@OF_EACH_CASE
@given(records=records_of)
def test_the_input_is_left_as_it_was(operator: KeyedOperator, records: Records) -> None:
    batch = Batch([[value] for _, value in records], [key for key, _ in records])
    numbers = a_batch(records)
    harness = Harness(operator)

    harness.push(numbers)

    assert numbers == a_batch(records)
    if operator is OPERATORS["reduce in place"]:
        Harness(operator).push(batch)
        assert batch.values == [[value] for _, value in records]


def _newest_in_place(_key: Any, value: Any, state: Any) -> tuple[Any, Any]:
    if state is not None:
        state.append("old")
    return 0, value


IN_PLACE: dict[str, tuple[KeyedOperator, list[Any]]] = {
    "reduce": (Reduce(_append_in_place), [[1], [1, [2]], [1, [2], [3]]]),
    "stateful map": (StatefulMap(_history_in_place), [[[1]], [[1], [2]], [[1], [2], [3]]]),
    "listed": (Aggregate(LISTED), [[[1]], [[1], [2]], [[1], [2], [3]]]),
    "several": (Aggregate({"n": LISTED}), [{"n": [[1]]}, {"n": [[1], [2]]}, {"n": [[1], [2], [3]]}]),
}


@pytest.mark.parametrize(("operator", "expected"), IN_PLACE.values(), ids=IN_PLACE.keys())
def test_state_that_is_changed_in_place_does_not_change_what_was_emitted(
    operator: KeyedOperator, expected: list[Any]
) -> None:
    assert run(operator, [Batch([[1], [2], [3]], ["a"] * 3)])["out"].values == expected


def test_a_value_that_becomes_the_state_is_not_changed_with_it() -> None:
    harness = Harness(StatefulMap(_newest_in_place))
    batch = Batch([[1], [2], [3]], ["a", "a", "a"])

    harness.push(batch)

    assert batch.values == [[1], [2], [3]]
    assert harness.state["op"] == {"a": [3]}


TUPLES = Aggregation("newest", list, lambda _state, value: value, lambda state: state)


@pytest.mark.parametrize(
    ("operator", "expected"),
    [
        (Reduce(lambda _so_far, value: value), [2, 3]),
        (StatefulMap(lambda _key, value, _state: (0, value)), [2, 3]),
        (Last(), [2, 3]),
        (Aggregate(TUPLES), [2, 3]),
        (Aggregate({"newest": TUPLES}), [[2, 3]]),
    ],
)
@pytest.mark.parametrize("values", [[(2, 3)], [(0, 1), (2, 3)]])
def test_state_is_plain_data_before_it_was_ever_stored(
    operator: KeyedOperator, expected: list[Any], values: list[Any]
) -> None:
    harness = Harness(operator)

    harness.push(Batch(values, ["a"] * len(values)))

    assert harness.state["op"] == {"a": expected}


def test_a_set_in_a_state_fails_at_the_next_record_and_not_only_after_a_restart() -> None:
    def seen(_key: Any, value: Any, state: Any) -> tuple[Any, Any]:
        state = {"seen": set()} if state is None else state
        state["seen"].add(value)
        return value, state

    with pytest.raises(OperatorError, match="'list' object has no attribute 'add'"):
        Harness(StatefulMap(seen)).push(a_batch([("a", 1), ("a", 2)]))


@given(records=records_of)
def test_count_equals_a_counter(records: Records) -> None:
    harness = played(OPERATORS["count"], [records])

    assert harness.state["op"] == dict(Counter(key for key, _ in records))


@given(records=records_of)
def test_reduce_equals_functools_reduce(records: Records) -> None:
    operator = OPERATORS["reduce"]
    assert isinstance(operator, Reduce)

    harness = played(operator, [records])

    for key, values in by_key(list(records)).items():
        assert harness.state["op"][key] == reduce(operator.fn, values)
        assert by_key(outputs(harness))[key] == list(accumulate(values, operator.fn))


@given(records=records_of)
def test_several_aggregations_equal_each_alone_at_every_record(records: Records) -> None:
    harness = played(OPERATORS["several"], [records])

    for key, values in by_key(list(records)).items():
        expected = [
            {
                "n": end,
                "mean": sum(values[:end]) / end,
                "all": values[:end],
                "low": min(values[:end]),
            }
            for end in range(1, len(values) + 1)
        ]
        assert by_key(outputs(harness))[key] == expected


@given(records=records_of)
def test_last_emits_the_newest_value_of_each_key_at_the_end_only(records: Records) -> None:
    harness = played(Last(), [records])

    assert outputs(harness) == []
    assert harness.timers == {Timer("op", key, MAX_TIME) for key, _ in records}
    harness.fire()
    assert dict(outputs(harness)) == dict(records)
    assert len(outputs(harness)) == len(dict(records))
    assert harness.state == {"op": {}}


def test_last_sets_its_timer_for_a_new_key_only() -> None:
    harness = Harness(Last())

    first = harness.push(a_batch([("a", 1), ("a", 2)]))
    second = harness.push(a_batch([("a", 3), ("b", 4)]))

    assert first.timers_set == [Timer("op", "a", MAX_TIME)]
    assert second.timers_set == [Timer("op", "b", MAX_TIME)]


def test_none_is_a_value_like_any_other() -> None:
    nothing = Batch([None, None], ["a", "a"])

    assert run(Last(), [nothing])["out"].values == [None]
    assert run(Reduce(lambda so_far, value: [so_far, value]), [nothing])["out"].values == [None, [None, None]]
    assert run(Aggregate(count()), [nothing])["out"].values == [1, 2]


@pytest.mark.parametrize("came", [7, None, "ab", ["output", "state"], (1, 2, 3)])
def test_a_stateful_map_must_return_a_pair(came: Any) -> None:
    harness = Harness(StatefulMap(lambda _key, _value, _state: came))

    with pytest.raises(OperatorError, match="'op' failed: TypeError: the function must return a pair") as caught:
        harness.push(a_batch([("a", 1)]))

    assert type(came).__name__ in str(caught.value)


def test_state_that_cannot_be_stored_is_refused_at_its_first_record() -> None:
    harness = Harness(StatefulMap(lambda _key, _value, _state: (0, {"held": object()})))

    with pytest.raises(OperatorError, match="'op'") as caught:
        harness.push(a_batch([("a", 1)]))

    assert isinstance(caught.value.__cause__, EncodingError)
    assert caught.value.hint == caught.value.__cause__.hint


@pytest.mark.parametrize("wrong", [count, {"n": count}, {}, "count"])
def test_aggregate_takes_aggregations_only(wrong: Any) -> None:
    with pytest.raises(PipelineError) as caught:
        Aggregate(wrong)

    assert caught.value.hint


@pytest.mark.parametrize("operator", [Reduce(lambda a, b: a / b), StatefulMap(lambda _k, v, _s: (1 / v, 0))])
def test_an_error_of_user_code_names_the_operator_and_keeps_its_cause(operator: KeyedOperator) -> None:
    with pytest.raises(OperatorError, match="the operator 'op' failed: ZeroDivisionError") as caught:
        Harness(operator).push(a_batch([("a", 0), ("a", 0)]))

    assert caught.value.operator == "op"
    assert caught.value.cause is caught.value.__cause__
