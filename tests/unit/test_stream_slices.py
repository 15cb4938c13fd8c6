"""Which slices a batch of the streaming engine takes, and how they are written into Spark's log."""

from __future__ import annotations

import json
import sys
from dataclasses import replace

import pytest

from pipeline.errors import DecodingError
from pipeline.positions import Position, Reach
from pipeline.spark.streaming.slices import NOTHING, Standing, next_offset, planned, slices_in
from pipeline.store.backlogs import Backlog
from pipeline.store.ownership import Assigned

ROW = Assigned(1, 2, "spark", "1-a", "4:n")
BUSY = Backlog("4:n", Position("5-0", 1), Position("9-2"), "1")
STANDING = Standing([ROW], {}, {}, {(1, 2): BUSY})


def test_an_owned_partition_with_a_backlog_is_taken_to_its_end() -> None:
    (found,) = planned(STANDING, {"1.2 4:n"}, 1000)

    assert (found.name, found.token) == ("1.2", "4:n")
    assert found.reach == Reach(Position("5-0", 1), Position("9-2"), sys.maxsize)


@pytest.mark.parametrize(
    "changed",
    [
        replace(STANDING, asked={"1.2": "4:n"}),
        replace(STANDING, hands={"1.2": "backoff"}),
        replace(STANDING, still=[1]),
        replace(STANDING, backlogs={}),
        replace(STANDING, backlogs={(1, 2): replace(BUSY, token="5:m")}),
        replace(STANDING, backlogs={(1, 2): replace(BUSY, ring="w")}),
        replace(STANDING, backlogs={(1, 2): replace(BUSY, ring="g")}),
        replace(STANDING, backlogs={(1, 2): replace(BUSY, position=BUSY.end)}),
        replace(STANDING, rows=[]),
    ],
)
def test_what_may_not_or_cannot_go_on_is_left_out(changed: Standing) -> None:
    assert planned(changed, {"1.2 4:n"}, 1000) == []


def test_a_partition_under_a_new_token_is_taken_though_it_is_empty() -> None:
    empty = replace(STANDING, backlogs={(1, 2): replace(BUSY, position=BUSY.end)})

    assert [each.name for each in planned(empty, {"1.2 3:o"}, 1000)] == ["1.2"]


def test_what_is_asked_of_an_owner_before_means_nothing() -> None:
    assert len(planned(replace(STANDING, asked={"1.2": "3:o"}), {"1.2 4:n"}, 1000)) == 1


def test_more_than_the_bound_is_cut() -> None:
    (found,) = planned(STANDING, {"1.2 4:n"}, 2)

    assert found.reach.records == 2
    assert not found.reach.is_at(Position("5-0", 2))
    assert found.reach.is_at(Position("5-0", 3))
    assert found.reach.is_at(Position("8-0"))
    assert found.reach.most_from(Position("5-0", 2)) == 1


def test_an_end_behind_control_entries_is_not_reached_in_front_of_them() -> None:
    reach = Reach(Position("5-0"), Position("9-2"), sys.maxsize)

    assert [reach.is_at(Position(*at)) for at in (("5-0", 4), ("9-0", 0), ("9-1", 7), ("9-2", 0))] == [
        False,
        False,
        False,
        True,
    ]
    assert reach.most_from(Position("9-1", 7)) == 1


def test_an_offset_gives_back_the_slices_it_was_made_of() -> None:
    slices = planned(STANDING, set(), 2)

    offset = json.loads(json.dumps(next_offset(NOTHING, slices, [ROW])))

    assert slices_in(offset) == slices
    assert (offset["batch"], offset["known"]) == (1, ["1.2 4:n"])
    assert next_offset(offset, slices, [ROW]) != offset
    assert slices_in(NOTHING) == []


@pytest.mark.parametrize("text", ['{"slices": {"x": 1}}', "{}", '{"slices": {"1.2": ["t", "5", "6-0/0", 1]}}'])
def test_an_offset_of_another_source_is_refused(text: str) -> None:
    with pytest.raises(DecodingError, match="none of ours"):
        slices_in(json.loads(text))
