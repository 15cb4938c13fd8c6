"""What befalls tickets: lost, doubled, and brought only later. A ticket is never more than a hint."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from verification.simulation.fates import MILLISECOND, SECOND, Fates
from verification.simulation.timeline import Timeline
from verification.simulation.trace import Trace

_NAME: Final = "postman"


class Postman:
    """Looks at a queue now and then while there are faults, and does something to its ticket."""

    def __init__(self, client: Any, queues: Sequence[str], fates: Fates, timeline: Timeline, trace: Trace) -> None:
        self._client = client
        self._queues = queues
        self._fates = fates
        self._timeline = timeline
        self._trace = trace

    def run(self) -> None:
        while self._timeline.now < self._fates.until:
            self._timeline.sleep(self._fates.rng.randint(MILLISECOND, 200 * MILLISECOND))
            self._meddle(self._fates.rng.choice(self._queues))

    def _meddle(self, queue: str) -> None:
        ticket = self._client.rpop(queue)
        if ticket is None:
            return
        what = self._fates.rng.choice(("lost", "doubled", "late"))
        self._trace.befell(self._timeline.now, _NAME, f"a ticket of {queue} is {what}")
        if what == "doubled":
            self._client.lpush(queue, ticket, ticket)
        elif what == "late":
            due = self._fates.rng.randint(MILLISECOND, 3 * SECOND)
            self._timeline.after(due, lambda: self._client.lpush(queue, ticket))
