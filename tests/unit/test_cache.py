"""The cache of state: it always knows what is stored, and stays within its budget."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.codec import encode_value
from pipeline.keying import group_of
from pipeline.store.ownership import LoadedState
from stages.cache import StateCache

OPERATORS = ("one", "two")


class Store:
    """What Redis holds, and how often it was asked."""

    def __init__(self, held: Mapping[tuple[str, Any], bytes] | None = None) -> None:
        self.held = dict(held or {})
        self.asked: list[set[Any]] = []
        self._groups = Counter(group_of(key) for _, key in self.held)

    def load(self, wanted: Iterable[Any], operators: Sequence[str] = OPERATORS) -> LoadedState:
        keys = set(wanted)
        self.asked.append(keys)
        rows = {operator: [(key, self.held.get((operator, key))) for key in keys] for operator in operators}
        return LoadedState(rows, frozenset(group for group in map(group_of, keys) if not self._groups[group]))

    def write(self, cache: StateCache, operator: str, key: Any) -> None:
        """As a commit does for a key that has changed."""
        if key in cache.state[operator]:
            data = encode_value(cache.state[operator][key])
            self._groups[group_of(key)] += (operator, key) not in self.held
            self.held[(operator, key)] = data
            cache.note_sizes(operator, [key], [len(data)])
        else:
            self._groups[group_of(key)] -= self.held.pop((operator, key), None) is not None
            cache.note_gone(operator, [key])


@given(
    budget=st.sampled_from([0, 500, 2000, 1 << 20]),
    steps=st.lists(
        st.lists(
            st.tuples(
                st.sampled_from(OPERATORS), st.integers(0, 12), st.sampled_from(["add", "add", "delete", "see", "big"])
            ),
            min_size=1,
            max_size=5,
        ),
        max_size=25,
    ),
)
def test_the_cache_holds_what_is_stored_whatever_its_budget(
    budget: int, steps: list[list[tuple[str, int, str]]]
) -> None:
    cache, store = StateCache(OPERATORS, budget), Store()
    expected: dict[tuple[str, int], list[int]] = {}

    for step in steps:
        cache.prepare({key for _, key, _ in step}, store.load)
        for operator, key, what in step:
            at = (operator, key)
            assert cache.state[operator].get(key) == expected.get(at)
            if what == "delete":
                cache.state[operator].pop(key, None)
                expected.pop(at, None)
            elif what != "see":
                cache.state[operator].setdefault(key, []).append(1)
                expected[at] = [*expected.get(at, []), 1]
                if what == "big":
                    cache.state[operator][key], expected[at] = [1] * 100, [1] * 100
            if what != "see":
                store.write(cache, operator, key)

    assert store.held == {at: encode_value(value) for at, value in expected.items()}


def sizes(cache: StateCache) -> int:
    """What the decoded state would have as bytes, both generations."""
    return sum(
        len(encode_value(value))
        for generation in (cache.state, cache._old)
        for held in generation.values()
        for value in held.values()
    )


@pytest.mark.parametrize("is_written", [True, False])
def test_state_stays_within_the_budget_whether_it_is_written_or_only_looked_at(is_written: bool) -> None:
    cache, store = (
        StateCache(OPERATORS, 20_000),
        Store({("one", key): encode_value("x" * 100) for key in range(800)}),
    )

    for round_ in range(2):
        for start in range(0, 800, 10):
            keys = set(range(start, start + 10)) | set(range(50))  # the latter are hot
            cache.prepare(keys, store.load)
            if is_written:
                for key in keys:
                    store.write(cache, "one", key)
            if start % 40 == 0:
                assert sizes(cache) <= 20_000 + 60 * 102, round_
            assert cache.young_bytes <= 10_000 + 60 * 302


def test_keys_that_are_only_looked_at_again_and_again_are_dropped_too() -> None:
    cache, store = StateCache(("one",), 20_000), Store({("one", key): encode_value("x" * 100) for key in range(500)})

    for newest in range(500):
        for key in (newest, *range(0, newest, 25)):
            cache.prepare({key}, partial(store.load, operators=["one"]))
            assert len(cache.state["one"]) + len(cache._old["one"]) <= 20_000 // 302 + 2


def test_keys_that_are_made_and_deleted_leave_nothing_behind() -> None:
    cache, store = StateCache(OPERATORS, 1 << 20), Store()
    for key in range(1000):
        cache.prepare({key}, store.load)
        cache.state["one"][key] = "x"
        store.write(cache, "one", key)
        del cache.state["one"][key]
        store.write(cache, "one", key)

    assert cache.young_bytes == 0
    assert cache.keys == 0
    assert sizes(cache) == 0


def test_a_key_that_is_known_is_not_loaded_again() -> None:
    cache, store = StateCache(("one",), 1 << 20), Store({("one", "k"): encode_value(1)})

    for _ in range(3):
        cache.prepare({"k"}, partial(store.load, operators=["one"]))

    assert store.asked == [{"k"}]


def test_a_new_key_of_a_group_that_was_empty_is_not_asked_for() -> None:
    cache, store = StateCache(OPERATORS, 1 << 20), Store({("two", "other"): encode_value(1)})
    first, second = [key for key in map(str, range(2_000)) if group_of(key) == group_of("0")][:2]
    filled = next(key for key in map(str, range(2_000)) if group_of(key) == group_of("other"))

    cache.prepare([first, "other"], store.load)
    cache.state["one"][first] = 1
    store.write(cache, "one", first)
    cache.prepare([first, second, filled], store.load)

    assert store.asked == [{first, "other"}, {filled}]


def test_a_stage_without_state_loads_nothing() -> None:
    store = Store()

    StateCache((), 0).prepare({"k"}, store.load)

    assert store.asked == []


def test_clear_forgets_both_generations() -> None:
    cache, store = StateCache(OPERATORS, 0), Store()
    for key in "abc":
        cache.prepare({key}, store.load)
        cache.state["one"][key] = key
        cache.note_sizes("one", [key], [1])

    cache.clear()

    assert sizes(cache) == cache.young_bytes == 0


def test_it_tells_how_much_it_holds_in_both_generations() -> None:
    cache = StateCache(["op"], 3000)
    stored = {key: encode_value("x" * 11 * key) for key in range(20)}

    def load(wanted: Any) -> Any:
        return LoadedState({"op": [(key, stored[key]) for key in wanted]})

    def expected() -> int:
        held = (*cache.state["op"], *cache._old["op"])
        return sum(264 + max(0, len(stored[key]) - 64) for key in held)

    assert (cache.keys, cache.size_bytes) == (0, 0)
    for key in range(20):
        cache.prepare({key}, load)
        assert cache.keys == len(cache.state["op"]) + len(cache._old["op"])
        assert cache.size_bytes == expected()
        cache.prepare({max(0, key - 2)}, load)
        assert cache.size_bytes == expected()
    for key, size in [(19, 300), (18, 3), (17, 0)]:
        cache.prepare({key}, load)
        stored[key] = encode_value("y" * size)
        cache.note_sizes("op", [key], [len(stored[key])])
        assert cache.size_bytes == expected()
    cache.prepare({19}, load)
    del cache.state["op"][19]
    cache.note_gone("op", [19])
    assert cache.size_bytes == expected()
    cache.clear()
    assert (cache.keys, cache.size_bytes) == (0, 0)
