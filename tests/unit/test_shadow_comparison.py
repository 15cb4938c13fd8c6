"""Results of a job and its shadow are paired whichever is ahead; what has no counterpart is told, within its room."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import pytest

from pipeline.records import Batch
from pipeline.shadowing.comparing import GRACE, Comparison, Side

ROOM = 1 << 20


def give(comparison: Comparison, side: Side, results: Sequence[tuple[str, Any]]) -> None:
    comparison.add(side, "out", 0, Batch([value for _, value in results], [key for key, _ in results]))


def counted(key: str, count: int, first: int = 1) -> list[tuple[str, int]]:
    return [(key, number) for number in range(first, first + count)]


def test_a_key_that_one_side_gives_far_later_than_others_is_no_difference() -> None:
    comparison = Comparison(ROOM)
    give(comparison, Side.SHADOW, counted("late", 500))

    for start in range(0, 4 * GRACE, 100):
        for side in Side:
            give(comparison, side, counted("on time", 100, start))
    give(comparison, Side.LIVE, counted("late", 500))

    tally = comparison.tallies["out"]
    assert (tally.equal, tally.different, tally.waiting) == (4 * GRACE + 500, 0, [0, 0])
    assert comparison.held_bytes == 0


def test_what_only_one_side_has_is_waited_for_as_long_as_there_is_room() -> None:
    room = ROOM // 4
    comparison = Comparison(room)
    give(comparison, Side.LIVE, counted("dropped", 100))

    for start in range(0, 4 * GRACE, GRACE):
        give(comparison, Side.LIVE, counted("dropped", GRACE, start))
        for side in Side:
            give(comparison, side, counted("kept", GRACE, start))
        assert comparison.held_bytes <= room + GRACE * 250

    assert comparison.different > 0
    comparison.settle()
    assert (comparison.different, comparison.waiting, comparison.held_bytes) == (100 + 4 * GRACE, 0, 0)
    assert comparison.tallies["out"].equal == 4 * GRACE


def test_other_values_of_a_key_are_told_while_a_result_of_another_key_still_waits() -> None:
    comparison = Comparison(ROOM)
    give(comparison, Side.LIVE, [("dropped", 0)])

    for start in range(0, 4 * GRACE, 100):
        give(comparison, Side.LIVE, counted("changed", 100, start))
        give(comparison, Side.SHADOW, [(key, 10_000 + number) for key, number in counted("changed", 100, start)])

    assert comparison.different >= 2 * GRACE
    assert (comparison.first[0].key, comparison.first[0].live, comparison.first[0].shadow) == ("changed", "0", "10000")
    comparison.settle()
    assert comparison.different == 4 * GRACE + 1


@pytest.mark.parametrize("seed", range(10))
def test_equal_results_in_pieces_of_any_size_and_keys_in_any_order_are_equal(seed: int) -> None:
    chance, comparison = random.Random(seed), Comparison(ROOM)
    keys = [f"k{number}" for number in range(chance.randrange(1, 9))]
    left = {(side, key): counted(key, 300) for side in Side for key in keys}

    while left:
        side, _ = at = chance.choice(list(left))
        size = chance.randrange(1, 120)
        give(comparison, side, left[at][:size])
        left[at] = left[at][size:]
        if not left[at]:
            del left[at]

    tally = comparison.tallies["out"]
    assert (tally.compared, tally.different, comparison.waiting, comparison.held_bytes) == (300 * len(keys), 0, 0, 0)
