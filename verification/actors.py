"""The processes of a scenario: the production code of each, driven a little at a time and by nobody else."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Sequence
from typing import Any

from leader.round import Round
from leader.wiring import make_round
from pipeline.errors import InboxFull, JobStateError, LetterError, UnknownJob
from pipeline.graph import Graph
from pipeline.lifecycle import JobState
from pipeline.plan import Plan
from pipeline.publishing import discard_job, publish_job
from pipeline.records import Batch
from pipeline.store import keys
from pipeline.store.agents import AgentLink
from pipeline.store.connection import translated
from pipeline.store.jobs import JobStore
from pipeline.store.letters import LetterStore
from pipeline.store.operations import OperationStore
from pipeline.store.outputs import OutputReader
from pipeline.store.ownership import Ownership
from pipeline.store.scripts import Scripts
from pipeline.store.senders import Feed, FeedAddress, Lane
from stages.worker import Place
from stages.worker import Worker as StageWorker
from verification.world import JOB, Actor, World


class Submitter(Actor):
    """Creates the job, unless a life before has."""

    def __init__(self) -> None:
        super().__init__("submitter")

    def start(self, world: World, scripts: Scripts) -> None:
        self._jobs = JobStore(scripts)

    def step(self, world: World) -> None:
        try:
            self._jobs.create(JOB, world.plan)
        except JobStateError:
            self._jobs.read(JOB)  # the answer was lost, or a life before has created it
        self.is_done = True


class Source(Actor):
    """Reads splits of values and appends them; goes on where the job says that it stands.

    `by`: how many records one append has. With `seeks` a split is read on from the position stored with the job.
    `awaits`: a reader that must be known first, since what came before it need not be kept for it.
    """

    def __init__(self, splits: Sequence[Sequence[Any]], by: int = 4, *, seeks: bool = False, awaits: str = "") -> None:
        super().__init__("source")
        self._splits = splits
        self._by = by
        self._seeks = seeks
        self._awaits = awaits
        self._lanes: dict[int, Lane] = {}
        self._finished: set[int] = set()

    def start(self, world: World, scripts: Scripts) -> None:
        self._scripts = scripts
        self._feed: Feed | None = None
        self._lanes, self._finished = {}, set()

    def step(self, world: World) -> None:
        if world.state() is None or (self._awaits and self._awaits not in world.kept):
            return
        if self._feed is None:
            self._feed = _feed(world, self._scripts)
        for number, values in enumerate(self._splits):
            if number in self._finished:
                continue
            lane = self._lanes.get(number) or self._lanes.setdefault(number, self._feed.lane(f"split-{number}"))
            try:
                self._send(lane, values)
            except InboxFull:
                continue
            if lane.taken == len(values):
                lane.finish(len(values))
                self._finished.add(number)
        if len(self._finished) == len(self._splits):
            self._feed.complete(len(self._splits))
            self.is_done = True

    def _send(self, lane: Lane, values: Sequence[Any]) -> None:
        at = (lane.position or 0) if self._seeks else lane.taken
        first = lane.position_at + 1 if self._seeks else lane.taken + 1
        piece = list(values[at : at + self._by])
        if piece:
            lane.append(first, Batch(piece), position=(lambda index: at + index + 1) if self._seeks else None)


class Producer(Actor):
    """Sends everything again in each of its lives: under the same numbers, or, without a name, with the same ids."""

    def __init__(self, values: Sequence[Any], by: int = 5, *, has_ids: bool = False, drains: bool = True) -> None:
        super().__init__("producer")
        self._drains = drains
        self.values = values
        self._by = by
        self._has_ids = has_ids
        self._lane: Lane | None = None

    def start(self, world: World, scripts: Scripts) -> None:
        self._scripts = scripts
        self._lane, self._sent = None, 0

    def step(self, world: World) -> None:
        if world.state() is None:
            return
        if self._lane is None:
            name = f"run-{self.lives}" if self._has_ids else "stable"
            self._lane = _feed(world, self._scripts).lane(name, exclusive=True)
        piece = self.piece(world)
        if piece:
            ids = [f"id-{self._sent + index}" for index in range(len(piece))] if self._has_ids else None
            self._lane.append(self._sent + 1, Batch(piece), ids=ids)
            self._sent += len(piece)
            return
        if self._drains:
            world.drain()
        self.is_done = True

    def piece(self, world: World) -> list[Any]:
        """What it sends next. Another life cuts its batches in another way."""
        return list(self.values[self._sent : self._sent + self._by + self.lives - 1])


class Leader(Actor):
    """One leader process. `away`: rounds in which it is as if it were stopped, and its lease passes.

    every: of so many of its turns it uses one.
    """

    def __init__(self, name: str = "leader-1", away: range = range(0), every: int = 1) -> None:
        super().__init__(name)
        self._away = away
        self._every = every
        self._rounds = 0

    def start(self, world: World, scripts: Scripts) -> None:
        name = f"{self.name}.{self.lives}"
        self._round: Round = make_round(scripts, name, random.Random(name), world.clock)

    def after_death(self, world: World) -> None:
        world.let_lease_pass()

    @property
    def faults(self) -> list[str]:
        """What duties fail with now."""
        return self._round.faults

    def step(self, world: World) -> None:
        self._rounds += 1
        if self._rounds in self._away:
            world.let_lease_pass()
            return
        if self._rounds % self._every:
            return
        self._round.run_once()
        self.is_done = world.has_ended


class Worker(Actor):
    """One worker process and its consumer. `away`: rounds in which it does not work or look, while its heart beats."""

    def __init__(
        self,
        name: str = "w0",
        *,
        joins: int = 0,
        away: range = range(0),
        stays_dead: bool = False,
        job: str = JOB,
    ) -> None:
        super().__init__(name)
        self._job = job
        self._joins = joins
        self._away = away
        self._stays_dead = stays_dead
        self._rounds = 0

    def start(self, world: World, scripts: Scripts) -> None:
        self._scripts = scripts
        self._worker: StageWorker | None = None

    def after_death(self, world: World) -> None:
        """Its agent reports the death; unless it starts the process anew, the partitions go to others."""
        self.agent(world).report_death(self.name, self._incarnation)
        if self._stays_dead:
            self.is_done = True
            world.client.hset(keys.workers(self._job), f"a:{self.name}", 0)  # as if the time to come back had passed

    def agent(self, world: World) -> AgentLink:
        """What its node tells the leader by."""
        return world.agent

    @property
    def _incarnation(self) -> str:
        return f"{self.lives}-x"

    def step(self, world: World) -> None:
        self._rounds += 1
        if world.state() is None or self._rounds < self._joins:
            self.is_done = world.has_ended
            return
        if self._worker is None:
            self._worker = self.make(world, self._scripts)
        try:
            if not self._beats(self._worker, world.clock()):
                self.is_done = True
                return
            if self._rounds not in self._away:
                self._serve(world, self._worker)
        except UnknownJob:
            pass
        if world.has_ended:
            self._worker.close()
            self.is_done = True

    def serves(self, place: Place) -> bool:
        """Whether it works on that partition now."""
        return True

    def work(self, worker: StageWorker, place: Place) -> None:
        """What it does for a ticket."""
        worker.work(*place)

    def make(self, world: World, scripts: Scripts) -> StageWorker:
        """What runs in its process."""
        return self.of(world, scripts, world.plan, world.graph)

    def of(self, world: World, scripts: Scripts, plan: Plan, graph: Graph, code: str = "") -> StageWorker:
        """A worker of this version of the pipeline."""
        ownership = Ownership(scripts, self._job, self.name, self._incarnation)
        made = StageWorker(ownership, plan, graph, world.clock, random.Random(self._incarnation))
        made.code = code
        return made

    @property
    def is_outdated(self) -> bool:
        """It does no work any more, and its agent starts it anew."""
        return self._worker is not None and self._worker.is_outdated

    def _beats(self, worker: StageWorker, now: float) -> bool:
        """False when a newer process has this one's name, so that this one must end."""
        report = {**worker.hand.report(now), "stopping": False}
        return worker.ownership.heartbeat(json.dumps(report)) is not None

    def _serve(self, world: World, worker: StageWorker) -> None:
        for place in filter(self.serves, worker.look()):
            self.work(worker, place)
        for place in filter(self.serves, worker.places):
            if not world.may_hold(keys.queue(self._job, *place)):
                continue
            with translated():  # what Celery's consumer does
                ticket = worker.ownership.scripts.client.rpop(keys.queue(self._job, *place))
            if ticket is not None:
                self.work(worker, place)


class Postman(Actor):
    """Loses the first ticket of each queue, doubles the second, and holds the third back for some rounds."""

    def __init__(self) -> None:
        super().__init__("postman")
        self._seen: dict[bytes, int] = {}
        self._held: list[tuple[int, str, bytes]] = []
        self._rounds = 0

    def start(self, world: World, scripts: Scripts) -> None:
        """It is a fault and no process: it never dies."""

    def step(self, world: World) -> None:
        self._rounds += 1
        for due, queue, ticket in [held for held in self._held if held[0] <= self._rounds]:
            world.client.lpush(queue, ticket)
            self._held.remove((due, queue, ticket))
        for place in world.plan.partitions():
            self._meddle(world, keys.queue(JOB, *place))
        self.is_done = world.has_ended

    def _meddle(self, world: World, queue: str) -> None:
        ticket = world.client.rpop(queue)
        if ticket is None:
            return
        number = self._seen[queue.encode()] = self._seen.get(queue.encode(), 0) + 1
        if number == 2:
            world.client.lpush(queue, ticket, ticket)
        elif number == 3:
            self._held.append((self._rounds + 3, queue, ticket))
        elif number > 1:
            world.client.lpush(queue, ticket)


class Reader(Actor):
    """A named reader that hands on what it reads, and tells Redis afterwards: what comes again is the same."""

    def __init__(self, sink: str = "out", name: str = "reader") -> None:
        super().__init__("reader")
        self._sink = sink
        self._reader_name = name

    def start(self, world: World, scripts: Scripts) -> None:
        self._scripts = scripts
        self._reader: OutputReader | None = None

    def step(self, world: World) -> None:
        if world.state() is None:
            return
        ended = world.has_ended
        if self._reader is None:
            self._reader = OutputReader(self._scripts, JOB, self._sink, self._reader_name, world.plan.limits)
        handed = world.kept.setdefault(self.name, {})
        stretches = self._reader.fetch(entries=3)
        for stretch in stretches:
            batch = stretch.batch()
            for key, value in zip(batch.keys or (), batch.values, strict=True):
                handed.setdefault(repr(key), {})[repr(value)] = value
        self._reader.advance()
        self.is_done = ended and not stretches


class Publisher(Actor):
    """Publishes what the job has staged, ends it, and, with `removes`, deletes all that Redis keeps of it."""

    def __init__(self, *, removes: bool = False) -> None:
        super().__init__("publisher")
        self._removes = removes

    def start(self, world: World, scripts: Scripts) -> None:
        self._jobs = JobStore(scripts)

    def step(self, world: World) -> None:
        if world.state() in (JobState.RUNNING, JobState.DRAINING):
            return
        try:
            record = self._jobs.read(JOB)
            if record.state is JobState.PUBLISHING:
                publish_job(self._jobs, record)
                self._jobs.transition(JOB, JobState.FINISHED)
            discard_job(record)
            if self._removes:
                self._jobs.remove(JOB)
        except UnknownJob:
            if world.awaits_job:
                return
            self._jobs.finish_removal(JOB)  # a life before was at it, or only its answer was lost
        self.is_done = True


class Rescaler(Actor):
    """Changes the partitions of stage 1 to each of these numbers in turn, then drains the job."""

    def __init__(self, numbers: Sequence[int]) -> None:
        super().__init__("rescaler")
        self._numbers = numbers

    def start(self, world: World, scripts: Scripts) -> None:
        self._jobs, self._store = JobStore(scripts), OperationStore(scripts)

    def step(self, world: World) -> None:
        if world.state() is None or world.jobs.facts(JOB).operation is not None:
            return
        record = self._jobs.read(JOB)
        done = len(record.operations)
        if done < len(self._numbers):
            self._store.begin(record, record.plan.stage(1), self._numbers[done], self.name)
            return
        if self._is_sent(world):
            world.drain()
        self.is_done = world.state() is not JobState.RUNNING

    def _is_sent(self, world: World) -> bool:
        return all(actor.is_done for actor in world.actors if actor.name == "producer")


class LetterClerk(Actor):
    """Edits each dead letter into the value that `mend` has for it and replays it; drops those for which it has None.

    Drains the job when the partitions have taken `taken` records in all.
    """

    def __init__(self, mend: dict[Any, Any], taken: int) -> None:
        super().__init__("clerk")
        self._mend = mend
        self._taken = taken

    def start(self, world: World, scripts: Scripts) -> None:
        self._scripts = scripts
        self._store: LetterStore | None = None

    def step(self, world: World) -> None:
        if world.state() is None:
            return
        if self._store is None:
            self._store = LetterStore(self._scripts, JobStore(self._scripts).read(JOB))
        for letter in list(self._store.read()):
            value = letter.record().values[0]
            known = tuple(value) if isinstance(value, list) else value
            self._handle(self._store, letter.id, self._mend.get(known, value))  # a life before may have edited it
        taken = sum(part.taken for part in world.jobs.facts(JOB).partitions)
        if taken >= self._taken:
            world.drain()
            self.is_done = True

    def _handle(self, store: LetterStore, id_: str, value: Any) -> None:
        try:
            if value is None:
                store.drop([id_])
                return
            store.edit(store.get(id_), value)
            store.replay(store.get(id_))
        except (LetterError, InboxFull):
            pass  # a lost answer: it is gone already; or it waits


def _feed(world: World, scripts: Scripts) -> Feed:
    """Feeds the source `in`."""
    return Feed(
        scripts,
        FeedAddress(world.url, JOB, "in", world.full_timeout_seconds),
        world.plan,
        world.jobs.read(JOB).run,
        world.patience,
    )


class Outside(Actor):
    """Looks, when the job has ended, at what its effects have left in the world outside Redis."""

    def __init__(self, look: Callable[[World], Any]) -> None:
        super().__init__("outside")
        self._look = look

    def start(self, world: World, scripts: Scripts) -> None:
        """It is an eye and no process: it never dies."""

    def step(self, world: World) -> None:
        if world.has_ended:
            world.kept[self.name] = self._look(world)
            self.is_done = True
