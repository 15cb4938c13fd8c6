"""How a sender waits: through outages of Redis and before a full inbox. Clock, pauses and chance are arguments."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from pipeline.errors import StoreUnavailable

if TYPE_CHECKING:
    from tenacity import RetryCallState


@dataclass(frozen=True, slots=True)
class Patience:
    """`outage_seconds`: how long a Redis that is away is waited for. `full_pause_seconds`: the pause at a full inbox.

    `clock` gives seconds that only grow, `sleep` takes seconds.
    """

    outage_seconds: float = 120.0
    full_pause_seconds: float = 0.01
    clock: Callable[[], float] = time.monotonic
    sleep: Callable[[float], None] = time.sleep
    rng: random.Random = field(default_factory=random.Random)

    def through_outages(self, call: Callable[[], list[Any]]) -> list[Any]:
        """Runs a call that may safely be repeated until Redis answers. Raises StoreUnavailable in the end."""
        # Not at the top: it takes each process a tenth of a second, and most of them have nothing to wait for.
        from tenacity import Retrying, retry_if_exception_type

        until = self.clock() + self.outage_seconds
        return Retrying(
            retry=retry_if_exception_type(StoreUnavailable),
            wait=self._backoff,
            stop=lambda _: self.clock() >= until,
            sleep=self.sleep,
            reraise=True,
        )(call)

    def pause_while_full(self) -> None:
        self.sleep(self.full_pause_seconds * self.rng.uniform(0.5, 1.5))

    def _backoff(self, state: RetryCallState) -> float:
        """Exponential with full jitter, at most a second."""
        return self.rng.uniform(0, min(1.0, 0.05 * 2 ** min(state.attempt_number, 10)))
