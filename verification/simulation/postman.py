"""What befalls tickets: lost, doubled, and brought only later. A ticket is never more than a hint."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from pipeline.store import keys
from verification.simulation.fates import MILLISECOND, SECOND
from verification.world import JOB

if TYPE_CHECKING:
    from verification.simulation.world import SimulatedWorld

_NAME: Final = "postman"


class Postman:
    """Looks at a queue now and then while there are faults, and does something to its ticket."""

    def __init__(self, world: SimulatedWorld) -> None:
        self._world = world

    def run(self) -> None:
        fates, timeline = self._world.fates, self._world.timeline
        places = self._world.plan.partitions()
        while timeline.now < fates.until:
            timeline.sleep(fates.rng.randint(MILLISECOND, 200 * MILLISECOND))
            self._meddle(keys.queue(JOB, *fates.rng.choice(places)))

    def _meddle(self, queue: str) -> None:
        world = self._world
        ticket = world.client.rpop(queue)
        if ticket is None:
            return
        what = world.fates.rng.choice(("lost", "doubled", "late"))
        world.trace.befell(world.timeline.now, _NAME, f"a ticket of {queue} is {what}")
        if what == "doubled":
            world.client.lpush(queue, ticket, ticket)
        elif what == "late":
            world.timeline.after(world.fates.rng.randint(MILLISECOND, 3 * SECOND), lambda: self._bring(queue, ticket))

    def _bring(self, queue: str, ticket: bytes) -> None:
        self._world.client.lpush(queue, ticket)
