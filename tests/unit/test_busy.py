"""The busy time that a worker reports."""

from __future__ import annotations

import pytest

from stages.busy import WINDOW_SECONDS, Busy, Shares


class Hand:
    """A clock that is set by hand."""

    now = 100.0

    def __call__(self) -> float:
        return self.now


def test_slices_add_up_by_stage() -> None:
    clock = Hand()
    busy = Busy(clock)

    for place, seconds in (((0, 0), 1.0), ((1, 0), 2.0), ((0, 1), 0.5), ((0, 0), 0.25)):
        with busy.at(*place):
            clock.now += seconds
        clock.now += 10.0

    assert busy.report(clock.now) == {"0": 1.75, "1": 2.0}
    assert busy.places(clock.now) == {(0, 0): 1.25, (1, 0): 2.0, (0, 1): 0.5}


def test_a_slice_that_goes_on_counts_as_far_as_it_has_got() -> None:
    clock = Hand()
    busy = Busy(clock)

    with busy.at(2, 0):
        clock.now += 3.0
        assert busy.report(clock.now + 4.0) == {"2": 7.0}
        assert busy.report(clock.now - 30.0) == {"2": 0.0}


def test_a_slice_that_ends_with_an_error_was_work_too() -> None:
    clock = Hand()
    busy = Busy(clock)

    def fails() -> None:
        with busy.at(1, 0):
            clock.now += 2.0
            raise ValueError

    with pytest.raises(ValueError):
        fails()

    assert busy.report(clock.now + 5.0) == {"1": 2.0}


def test_shares_are_those_of_the_last_seconds() -> None:
    shares = Shares()

    shares.note(0.0, {})
    assert (shares.of((0, 0)), shares.total()) == (0.0, 0.0)

    shares.note(4.0, {(0, 0): 1.0, (1, 0): 2.0})
    assert (shares.of((0, 0)), shares.of((1, 0)), shares.of((9, 9)), shares.total()) == (0.25, 0.5, 0.0, 0.75)

    for number in range(1, 40):
        shares.note(4.0 + number, {(0, 0): 1.0 + 0.1 * number, (1, 0): 2.0})
    assert (shares.of((0, 0)), shares.of((1, 0))) == (0.1, 0.0)
    assert len(shares._sums) <= WINDOW_SECONDS + 2
