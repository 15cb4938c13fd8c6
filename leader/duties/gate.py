"""Closes the job to external appends while Redis is nearly full, so that commits, which free memory, find room."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Final, Literal

from pipeline.facts import JobFacts
from pipeline.store.leadership import Leadership

logger = logging.getLogger(__name__)

CLOSE_ABOVE: Final = 0.8
OPEN_BELOW: Final = 0.7
"""Shares of maxmemory. The gap keeps the gate from swinging."""


def wanted_gate(gate: str, used_bytes: int, max_bytes: int, has_backlog: bool) -> Literal["open", "closed"] | None:
    """What the gate must become, or None to leave it. `max_bytes` 0 means that there is no bound.

    Without a backlog nothing more will be freed: then there is no waiting for OPEN_BELOW.
    """
    if gate != "closed" and max_bytes and used_bytes > CLOSE_ABOVE * max_bytes:
        return "closed"
    room = OPEN_BELOW if has_backlog else CLOSE_ABOVE
    if gate == "closed" and (not max_bytes or used_bytes < room * max_bytes):
        return "open"
    return None


class Gate:
    """Works the gate of one job."""

    name = "gate"

    def __init__(self, leadership: Leadership, memory: Callable[[], tuple[int, int]]) -> None:
        self._leadership = leadership
        self._memory = memory

    def run_once(self, facts: JobFacts, token: str) -> dict[str, int]:
        used_bytes, max_bytes = self._memory()
        has_backlog = any(part.backlog for part in facts.partitions)
        wanted = wanted_gate(facts.record.gate, used_bytes, max_bytes, has_backlog)
        if wanted is None:
            return {}
        self._leadership.set_gate(facts.record.job, token, wanted)
        share = f"{used_bytes >> 20} of {max_bytes >> 20} MiB"
        if wanted == "closed":
            logger.warning("Redis is nearly full, new input is held back: job=%s used=%s", facts.record.job, share)
        else:
            logger.info("Redis has room again, input flows: job=%s used=%s", facts.record.job, share)
        return {f"gate_{wanted}": 1}
