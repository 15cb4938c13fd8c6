"""Whether a series grows: leaks are found, noise and steps of an allocator are not taken for one."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest

from benchmarks.trend import Trend, trend


def series(value: Callable[[float], float], seconds: int = 300, noise: float = 0.0) -> list[tuple[float, float]]:
    dice = random.Random(3)
    return [(float(at), value(float(at)) + dice.gauss(0, noise)) for at in range(0, seconds, 2)]


def test_a_steady_leak_is_found_with_its_size() -> None:
    found = trend("rss", series(lambda at: 50e6 + 40e3 * at, noise=1e6), allowed=3e6)

    assert not found.is_bounded
    assert found.growth == pytest.approx(12e6, rel=0.1)


def test_a_file_that_is_left_open_now_and_then_is_found() -> None:
    assert not trend("fds", series(lambda at: 20 + at // 60), allowed=2).is_bounded


def test_noise_is_no_growth() -> None:
    assert trend("backlog", series(lambda _: 5_000, noise=3_000), allowed=100).is_bounded


def test_what_shrinks_is_bounded() -> None:
    assert trend("keys", series(lambda at: 900 - at), allowed=0).is_bounded


def test_one_spike_is_no_growth() -> None:
    assert trend("backlog", series(lambda at: 90_000 if at > 296 else 10), allowed=10).is_bounded


def test_too_few_samples_are_no_trend() -> None:
    with pytest.raises(ValueError, match="2 samples of rss are too few"):
        trend("rss", [(0.0, 1.0), (1.0, 1.0)], allowed=0)


def test_a_series_may_grow_by_what_is_allowed() -> None:
    assert Trend("rss", 1.0, 2.0, 0.0, 2.0).is_bounded
    assert not Trend("rss", 1.0, 2.1, 0.0, 2.0).is_bounded
