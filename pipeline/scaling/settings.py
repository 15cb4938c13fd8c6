"""How a job is scaled: stored with the job, so that every leader and every agent of it agree."""

from __future__ import annotations

from typing import Final, Literal

import msgspec

from pipeline.errors import PipelineError

MOST_WORKERS: Final = 1000

PolicyName = Literal["ds2", "watermarks"]
POLICIES: Final[tuple[PolicyName, ...]] = ("ds2", "watermarks")


class Scaling(msgspec.Struct, frozen=True):
    """Bounds and times of one pool.

    minimum, maximum: of the workers that agents start; those that run by themselves come on top.
    catch_up_seconds: within this time a backlog is to be gone.
    cooldown_seconds: at most one change in this time.
    warm_up_seconds: so long after any change of the workers, or of the leader, nothing is measured.
    measure_seconds, window_seconds: the least and the most that is measured before it is judged.
    busy_target: the share of its time that the busiest worker should work. More than busy_high calls for more workers;
        fewer are enough when none of them would work more than busy_low.
    age_high_seconds, age_low_seconds: the two watermarks of the age of the oldest record.
    burst_behind_seconds: partitions that need longer with the most workers are worked off by Spark; None for never.
    """

    minimum: int
    maximum: int
    policy: PolicyName = "ds2"
    catch_up_seconds: float = 60.0
    cooldown_seconds: float = 30.0
    warm_up_seconds: float = 5.0
    measure_seconds: float = 5.0
    window_seconds: float = 20.0
    busy_target: float = 0.8
    busy_high: float = 0.9
    busy_low: float = 0.6
    age_high_seconds: float = 10.0
    age_low_seconds: float = 1.0
    burst_behind_seconds: float | None = None

    def clamp(self, workers: int) -> int:
        return max(self.minimum, min(self.maximum, workers))


def parse_range(text: str) -> tuple[int, int]:
    """`MIN..MAX`, or `N` for both. Raises PipelineError."""
    first, dots, last = text.partition("..")
    bounds = (first, last if dots else first)
    if all(each.isascii() and each.isdecimal() for each in bounds):
        minimum, maximum = map(int, bounds)
        if 1 <= minimum <= maximum <= MOST_WORKERS:
            return minimum, maximum
    raise PipelineError(
        f"{text!r} is no range of workers",
        hint=f"write MIN..MAX, as 1..8: from 1 to {MOST_WORKERS}, the lower one first",
    )
