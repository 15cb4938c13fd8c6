"""How many records the next step takes."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.settings import Limits
from stages.pace import Pace


def test_the_first_step_takes_one_record() -> None:
    assert Pace(Limits()).allowance() == 1


def test_fast_records_let_the_steps_grow_to_the_bound() -> None:
    pace = Pace(Limits(step_records=1000))
    seen = []
    for _ in range(7):
        pace.note(pace.allowance(), 0, 0.0)
        seen.append(pace.allowance())

    assert seen == [4, 16, 64, 256, 1000, 1000, 1000]


def test_slow_records_make_the_next_step_small_at_once() -> None:
    pace = Pace(Limits(slice_seconds=0.02))
    for _ in range(6):
        pace.note(pace.allowance(), 0, 0.0)
    pace.note(100, 0, 1.0)

    assert pace.allowance() == 2


def test_records_with_many_outputs_make_the_next_step_small() -> None:
    pace = Pace(Limits(step_outputs=1000))
    for _ in range(6):
        pace.note(pace.allowance(), 0, 0.0)
    pace.note(10, 500, 0.0)

    assert pace.allowance() == 20


def test_a_step_takes_about_a_slice() -> None:
    pace = Pace(Limits(slice_seconds=0.02))
    for _ in range(8):
        pace.note(pace.allowance(), 0, pace.allowance() * 0.0001)

    assert pace.allowance() == 200


def test_a_step_looks_at_the_clock_several_times_but_not_for_every_record() -> None:
    pace = Pace(Limits(step_records=8000))
    seen = []
    for _ in range(8):
        seen.append(pace.part())
        pace.note(pace.allowance(), 0, 0.0)

    assert seen == [1, 1, 2, 8, 32, 128, 512, 512]


@given(
    notes=st.lists(st.tuples(st.integers(0, 10_000), st.integers(0, 10**6), st.floats(0, 100))),
    step_records=st.integers(1, 8000),
)
def test_the_allowance_is_never_nothing_and_never_over_the_bound(
    notes: list[tuple[int, int, float]], step_records: int
) -> None:
    pace = Pace(Limits(step_records=step_records))
    for records, outputs, seconds in notes:
        pace.note(records, outputs, seconds)
        assert 1 <= pace.allowance() <= step_records


@pytest.mark.parametrize("seconds", [0.0, 5.0])
def test_a_step_without_records_teaches_nothing(seconds: float) -> None:
    pace = Pace(Limits())
    pace.note(0, 5, seconds)

    assert pace.allowance() == 1


def test_a_fixed_cost_of_each_step_does_not_make_the_steps_small() -> None:
    pace = Pace(Limits(step_records=1000), has_fixed_cost=True)
    for _ in range(7):
        pace.note(pace.allowance(), 0, 1.0 + 1e-5 * pace.allowance())

    assert pace.allowance() == 1000


def test_slow_records_make_the_next_step_small_with_a_fixed_cost_too() -> None:
    pace = Pace(Limits(step_records=1000), has_fixed_cost=True)
    for _ in range(7):
        pace.note(pace.allowance(), 0, 1.0)
    pace.note(1000, 0, 2.0)

    assert pace.allowance() == 100


def test_jobs_of_spark_that_take_now_more_and_now_less_do_not_make_the_steps_small() -> None:
    pace = Pace(Limits(step_records=1000), has_frames=True)

    for seconds in (9.0, 0.1, 0.6, 0.3, 0.9, 0.2, 0.7, 0.9):
        pace.note(pace.allowance(), pace.allowance(), seconds)

    assert pace.allowance() == 1000


def test_frames_that_take_long_make_the_next_step_small() -> None:
    pace = Pace(Limits(step_records=1000), has_frames=True)

    pace.note(1, 1, 0.5)
    pace.note(100, 100, 20.5)

    assert pace.allowance() == 10
