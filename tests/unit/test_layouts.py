"""Which partitions give key groups to which, against a reference that goes key group by key group."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from pipeline.keying import GROUPS, groups_of_partition
from pipeline.layouts import layout

COUNTS = st.integers(1, GROUPS)


@given(COUNTS, COUNTS)
def test_a_giver_tells_those_that_get_keys_of_it_and_a_receiver_waits_for_all_its_givers(
    before: int, after: int
) -> None:
    change = layout(before, after)

    old = [set(groups_of_partition(number, before)) for number in range(before)]
    new = [set(groups_of_partition(number, after)) for number in range(after)]
    for giver in range(before):
        told = {other for other in range(after) if other != giver and old[giver] & new[other]}
        assert set(change.tells.get(giver, ())) == told
    for receiver in range(after):
        givers = [other for other in range(before) if other != receiver and new[receiver] & old[other]]
        assert change.givers.get(receiver, 0) == len(givers)
    assert list(change.fresh) == list(range(before, after))
    assert list(change.removed) == list(range(after, before))


@given(COUNTS, COUNTS)
def test_every_new_partition_has_a_giver_and_every_removed_one_gives_all(before: int, after: int) -> None:
    change = layout(before, after)

    assert all(change.givers[number] for number in change.fresh)
    for number in change.removed:
        assert set(groups_of_partition(number, before)) <= {
            group for other in change.tells[number] for group in groups_of_partition(other, after)
        }


def test_the_same_number_changes_nothing() -> None:
    assert (layout(7, 7).tells, layout(7, 7).givers) == ({}, {})
