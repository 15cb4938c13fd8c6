"""Positions and the entry ids that count records."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from pipeline.positions import START, Position, entry_after


def test_data_moves_the_count_and_control_the_second_number() -> None:
    assert entry_after("1-0", 5) == "6-0"
    assert entry_after("6-0", 0) == "6-1"
    assert entry_after("6-1", 0) == "6-2"
    assert entry_after("6-2", 1) == "7-0"


@given(counts=st.lists(st.integers(0, 1000), max_size=30))
def test_the_id_of_an_entry_counts_the_records_before_it(counts: list[int]) -> None:
    entry = START.entry
    seen = [entry]
    for count in counts:
        entry = entry_after(entry, count)
        seen.append(entry)

    assert int(entry.partition("-")[0]) == 1 + sum(counts)
    pairs = [tuple(int(part) for part in one.split("-")) for one in seen]
    assert pairs == sorted(set(pairs))


def test_a_position_reads_as_entry_and_record() -> None:
    assert str(START) == "1-0/0"
    assert str(Position("7-2", 3)) == "7-2/3"
    assert Position("7-2", 3) == Position("7-2", 3) != Position("7-2")
