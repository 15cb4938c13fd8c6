"""What befalls the commands of processes, drawn from the chance of one seed."""

from __future__ import annotations

import random
from dataclasses import dataclass
from enum import Enum
from typing import Final

MILLISECOND: Final = 1_000
SECOND: Final = 1_000_000


class Fate(Enum):
    """What befalls one command, or its process around it."""

    DIES_BEFORE = "dies before it is sent"
    DIES_APPLIED = "dies before the reply"
    LOST_REQUEST = "request lost"
    LOST_REPLY = "reply lost"
    LATE_REQUEST = "given up by its sender, and applied later"
    SLOW = "slow"
    STOPPED_BEFORE = "stopped before it is sent, for longer than leases"
    STOPPED_AFTER = "stopped with its reply, for longer than leases"
    REPLACED_BEFORE = "stopped before it is sent, while another process takes its name"
    REPLACED_AFTER = "stopped with its reply, while another process takes its name"


STOPS: Final = frozenset({Fate.STOPPED_BEFORE, Fate.STOPPED_AFTER, Fate.REPLACED_BEFORE, Fate.REPLACED_AFTER})
REPLACED: Final = frozenset({Fate.REPLACED_BEFORE, Fate.REPLACED_AFTER})
_RATES: Final = (0.003, 0.01, 0.02, 0.04)
_DECISIVE: Final = 6
"""So much likelier is a fault around a command that decides something."""
_MOST_STOPS: Final = 8


@dataclass(slots=True)
class Fates:
    """One seed's chance. Faults come until `until`, and no more than `most`.

    Each seed leaves some kinds of faults out, so that the others meet each other in all combinations.
    """

    rng: random.Random
    kinds: tuple[Fate, ...] = ()
    rate: float = 0.0
    until: int = 0
    most: int = 0
    stops: int = 0
    has_restarts: bool = False
    has_postman: bool = False
    has_clock_steps: bool = False

    @classmethod
    def drawn(cls, rng: random.Random) -> Fates:
        kinds = tuple(rng.sample(list(Fate), rng.randint(2, len(Fate))))
        return cls(
            rng,
            kinds,
            rate=rng.choice(_RATES),
            until=rng.randint(SECOND, 6 * SECOND),
            most=rng.choice((1, 2, 3, 5, 8, 13, 20)),
            has_restarts=rng.random() < 0.25,
            has_postman=rng.random() < 0.5,
            has_clock_steps=rng.random() < 0.2,
        )

    @classmethod
    def none(cls) -> Fates:
        """Nothing happens, and still not all at the same time."""
        return cls(random.Random(0))

    def of_command(self, now: int, *, is_lasting: bool, is_decisive: bool) -> Fate | None:
        """`is_lasting`: the process is one that another may replace meanwhile."""
        rate = self.rate * _DECISIVE if is_decisive else self.rate
        if now >= self.until or self.most <= 0 or self.rng.random() >= rate:
            return None
        fate = self.rng.choice(self.kinds)
        if fate in STOPS and (self.stops >= _MOST_STOPS or (fate in REPLACED and not is_lasting)):
            return None
        self.stops += fate in STOPS
        self.most -= 1
        return fate

    def latency(self) -> int:
        return self.rng.randint(20, 400)

    def slowness(self) -> int:
        return self.rng.randint(5 * MILLISECOND, 700 * MILLISECOND)

    def lateness(self) -> int:
        return int(10 ** self.rng.uniform(2.5, 6.7))

    def stop(self) -> int:
        """Longer than the leases of a simulated job, most often."""
        return self.rng.randint(800 * MILLISECOND, 4 * SECOND)

    def start_delay(self) -> int:
        return self.rng.randint(MILLISECOND, SECOND)

    def rest(self, most: int) -> int:
        return self.rng.randint(most // 4, most)
