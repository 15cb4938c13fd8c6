"""Whether a series of samples grows: its slope, with the noise around it, judged against what it may grow by. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean, median
from typing import Final

BLOCKS: Final = 12
"""Samples follow each other closely, so they are not independent; the medians of blocks of them nearly are."""

SURE: Final = 4.0
"""A slope of so many standard errors is no noise: with ten degrees of freedom less than one in 700 by chance."""


@dataclass(frozen=True, slots=True)
class Trend:
    """One series after its warm-up. `growth` and `noise` (one standard error) are over the whole time of it."""

    name: str
    level: float
    growth: float
    noise: float
    allowed: float

    @property
    def is_bounded(self) -> bool:
        """Whether it does not grow, or by less than is worth a word."""
        return self.growth <= max(self.allowed, SURE * self.noise)


def trend(name: str, samples: Sequence[tuple[float, float]], allowed: float) -> Trend:
    """The trend of (time, value) samples; at least three of them. Raises ValueError."""
    blocks = _blocks(samples)
    if len(blocks) < 3:
        raise ValueError(f"{len(samples)} samples of {name} are too few for a trend")
    times, values = [time for time, _ in blocks], [value for _, value in blocks]
    middle, mean = fmean(times), fmean(values)
    spread = sum((time - middle) ** 2 for time in times)
    slope = sum((time - middle) * (value - mean) for time, value in blocks) / spread
    rest = sum((value - mean - slope * (time - middle)) ** 2 for time, value in blocks)
    error = (rest / (len(blocks) - 2) / spread) ** 0.5
    seconds = samples[-1][0] - samples[0][0]
    return Trend(name, mean, slope * seconds, error * seconds, allowed)


def _blocks(samples: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """The middle time and the median of each block."""
    count = min(BLOCKS, len(samples))
    found = []
    for number in range(count):
        block = samples[number * len(samples) // count : (number + 1) * len(samples) // count]
        found.append((fmean(time for time, _ in block), median(value for _, value in block)))
    return found
