"""A burst in a scenario: its command, the node that works a partition off up to its cut, and a worker that is too slow.

The node has no Spark. It runs what the driver and the tasks of the streaming query run, in one process: they plan, work
and commit as ever.
"""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any, Final, cast

from pipeline.bursts import burst_pool, lags, open_places
from pipeline.cli.burstcourse import Course
from pipeline.cli.bursting import Undertaken, about_burst, cut
from pipeline.cli.exits import JobFailed
from pipeline.errors import JobStateError, StoreError
from pipeline.positions import Position
from pipeline.spark.streaming.planning import read_standing
from pipeline.spark.streaming.slices import NOTHING, Place, next_offset, planned, read_cuts, slices_in
from pipeline.store import keys
from pipeline.store.claims import ClaimStore
from pipeline.store.jobs import JobStore
from pipeline.store.ownership import Ownership
from pipeline.store.scripts import Scripts
from stages.streaming.member import StreamMember
from stages.streaming.task import Desk, TaskOwnership
from stages.worker import Worker as StageWorker
from verification.actors import Leader, Submitter, Worker
from verification.commands import Command, Stepped, spread
from verification.world import JOB, Actor, Stalled, World

_STAGE: Final = "by_key"
_NODE: Final = "here.burst-1"
_MOST_RECORDS: Final = 3
"""Of one slice: a backlog takes several batches."""


class Burster(Command):
    """Has the node work off the backlog of the stage `by_key`, until one burst is done."""

    def __init__(self, node: BurstNode) -> None:
        super().__init__("burster")
        self._node = node
        self.count = 0
        """Interrupts: none."""

    def has_begun(self, world: World) -> bool:
        return self._node.is_on

    def end(self, world: World) -> None:
        self._node.switch(world, {})
        super().end(world)

    def step(self, world: World) -> None:
        if world.state() is None:
            return
        facts = JobStore(self.scripts).facts(JOB)
        if any(past.outcome == "done" for past in facts.record.operations):
            world.kept["worked off by the node"] = self._node.has_worked
            self.is_done = True
            return
        places = [each.place for each in lags(facts, open_places(facts, _STAGE, None)) if each.backlog]
        if not places:
            return
        try:
            self._burst(world, places)
        except (JobFailed, JobStateError, StoreError):
            pass
        finally:
            self.end(world)

    def _burst(self, world: World, places: Sequence[Place]) -> None:
        starts, cuts = cut(self.scripts, JOB, places)
        claims = ClaimStore(self.scripts)
        with (
            Undertaken(claims, JOB, about_burst("me@here", "flow.py", _NODE, cuts)) as undertaken,
            ExitStack() as stack,
        ):
            self.begin()
            stack.callback(self._node.switch, world, {})
            self._node.switch(world, cuts)
            course = Course(
                JobStore(self.scripts),
                claims,
                undertaken.claim,
                _NODE,
                starts,
                cuts,
                cast(Any, self._node),
                cast(Any, self),
                say=lambda _: None,
                clock=lambda: self.seconds,
                sleep=partial(self.look, world),
            )
            undertaken.course = course
            course.run()


class BurstNode(Actor):
    """The one worker of the node, while that is there: started anew when it dies."""

    def __init__(self) -> None:
        super().__init__("spark")
        self._cuts: dict[str, Position] = {}
        self.has_worked = False
        self.log = Path("/nonexistent")

    @property
    def is_on(self) -> bool:
        return bool(self._cuts)

    def exit_code(self) -> None:
        """Its agent lives."""

    def switch(self, world: World, cuts: dict[str, Position]) -> None:
        """Its node begins with these cuts, or ends."""
        if self._cuts and not cuts:
            self._leave(world)
            world.client.hset(keys.workers(JOB), f"a:{self.name}", 0)  # as if the time to come back had passed
        self._cuts, self.is_up = cuts, False

    def after_death(self, world: World) -> None:
        self._leave(world)

    def _leave(self, world: World) -> None:
        world.agent.report_death(self.name, self._incarnation)

    @property
    def _incarnation(self) -> str:
        return f"{self.lives}-x"

    def start(self, world: World, scripts: Scripts) -> None:
        self._scripts = scripts
        self._member: StreamMember | None = None
        self._offset = NOTHING
        self._seconds = 0.0

    def step(self, world: World) -> None:
        if not self._cuts:
            self.is_done = world.has_ended
            return
        self._seconds += 1.0
        member = self._member or self._open(world)
        self._beat(member)
        member.look()
        standing = read_standing(self._ownership, {stage.name: stage.index for stage in world.plan.stages}.__getitem__)
        cuts = read_cuts(json.dumps({name: str(end) for name, end in self._cuts.items()}))
        slices = planned(standing, frozenset(self._offset["known"]), _MOST_RECORDS, cuts)
        if not slices:
            return
        self._offset = next_offset(self._offset, slices, standing.rows)
        member.begin(slices)
        served = []
        for part in slices_in(self._offset):
            served.append(self._desk.serve(part, 60.0))
            if Position.parse(served[-1].position).order > self._cuts[part.name].order:
                raise Stalled(f"the burst has gone to {served[-1].position}, and its cut is {self._cuts[part.name]}")
            self.has_worked |= served[-1].position != str(part.reach.start)
        member.end(served)

    def _open(self, world: World) -> StreamMember:
        names = (JOB, self.name, self._incarnation)
        self._ownership = Ownership(self._scripts, *names)
        told = {"pool": burst_pool(_NODE), "sized": False, "node": _NODE, "engine": "spark"}
        member = self._member = StreamMember(self._ownership, told, lambda: self._seconds)
        member.on_batch_end = partial(self._beat, member)
        tasks = TaskOwnership(self._scripts, *names)
        self._desk = Desk(tasks, world.plan, world.graph, world.clock, random.Random(self._incarnation), _nothing)
        return member

    def _beat(self, member: StreamMember) -> None:
        report = {**member.report(self._ownership), "consuming": True, "stopping": False}
        self._ownership.heartbeat(json.dumps(report))


def _nothing() -> None:
    """Whoever is killed here ends by the exception."""


class SlowWorker(Worker):
    """Does nothing in stage 1 until the burst is done, and gives away what it is asked for."""

    def __init__(self, burster: Burster) -> None:
        super().__init__()
        self._burster = burster

    def serves(self, place: Place) -> bool:
        return place[0] == 0 or self._burster.is_done

    def work(self, worker: StageWorker, place: Place) -> None:
        """Without tickets of other partitions that it could take besides."""
        worker.slice(*place)


def bursting() -> Sequence[Actor]:
    """Those who take part."""
    node = BurstNode()
    burster = Burster(node)
    first, second, *more = spread("ab", 1)
    producer = Stepped([[*first, *second], *more], burster)
    return Submitter(), producer, SlowWorker(burster), Leader(), burster, node
