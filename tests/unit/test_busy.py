"""The busy time that a worker reports."""

from __future__ import annotations

import pytest

from stages.busy import Busy


class Hand:
    """A clock that is set by hand."""

    now = 100.0

    def __call__(self) -> float:
        return self.now


def test_slices_add_up_by_stage() -> None:
    clock = Hand()
    busy = Busy(clock)

    for stage, seconds in ((0, 1.0), (1, 2.0), (0, 0.5)):
        with busy.at(stage):
            clock.now += seconds
        clock.now += 10.0

    assert busy.report(clock.now) == {"0": 1.5, "1": 2.0}


def test_a_slice_that_goes_on_counts_as_far_as_it_has_got() -> None:
    clock = Hand()
    busy = Busy(clock)

    with busy.at(2):
        clock.now += 3.0
        assert busy.report(clock.now + 4.0) == {"2": 7.0}
        assert busy.report(clock.now - 30.0) == {"2": 0.0}


def test_a_slice_that_ends_with_an_error_was_work_too() -> None:
    clock = Hand()
    busy = Busy(clock)

    def fails() -> None:
        with busy.at(1):
            clock.now += 2.0
            raise ValueError

    with pytest.raises(ValueError):
        fails()

    assert busy.report(clock.now + 5.0) == {"1": 2.0}
