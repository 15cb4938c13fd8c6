"""The command of a shadow in a scenario, and who works beside it: versions are put in the job's place, or dropped.

At which record that happens depends on the run. So what came out is looked at for what must be so at any: each number
once and in order, of one version after the other, and each version went on with what its shadow had seen.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from itertools import groupby
from typing import Any, Final, Literal

import msgspec

from pipeline import Pipeline, read, write
from pipeline.cli.shadowing import Shadowed
from pipeline.embedded.folders import OwnFolder
from pipeline.errors import Busy, JobStateError, OperationLost, SavepointError, ShadowLost
from pipeline.plan import fingerprint
from pipeline.shadowing.carrying import Beside, Candidate, Shadowing
from pipeline.shadowing.course import Wish
from pipeline.shadowing.holding import held_back, shadow_of
from pipeline.shadowing.reading import Listener
from pipeline.store import keys
from pipeline.store.agents import AgentLink
from pipeline.store.jobs import JobStore
from pipeline.store.scripts import Scripts
from pipeline.store.shadows import ShadowStore
from pipeline.store.versions import VersionStore
from pipeline.versions import Version, wanted_for
from stages.worker import Worker as StageWorker
from verification.actors import Leader, Submitter, Worker
from verification.commands import Command, Stepped, spread
from verification.exporter import let_export_pass, warm_up
from verification.world import JOB, Actor, Stalled, World

SHADOW: Final = shadow_of(JOB)
OLD, NEW = "c0de00000001", "c0de00000002"
"""Versions. A job begins with the old one."""

_ROOM: Final = 1 << 20
_EVERY: Final = 8
"""After so many pages of a cut the others do something."""


def versioned(code: str) -> Pipeline:
    """[key, number] becomes what is kept of the key: version, first number that this version has seen, number."""
    flow = Pipeline("verified")
    pairs = flow.source(read.producer(), name="in").key_by(lambda pair: pair[0], name="by_key")
    pairs.stateful_map(partial(_next, code), name="oracle").sink(write.stream("out"), name="out")
    return flow


def _next(code: str, key: Any, pair: Any, last: Any) -> tuple[Any, Any]:
    version, since, before = last or ("", 0, 0)
    number = pair[1]
    if number != before + 1:
        raise AssertionError(f"{key!r}: {number} came after {before}")
    found = [code, since if version == code else number, number]
    return found, found


def told_by(seen: dict[str, Any]) -> dict[str, Any]:
    """What must be so wherever versions have changed."""
    outputs = {key: _told(values) for key, values in seen["outputs"]["out"].items()}
    last = {key: values[-1] for key, values in seen["outputs"]["out"].items()}
    state = sorted(seen["state"].values(), key=repr) == sorted(last.values(), key=repr)
    return {**seen, "outputs": outputs, "state": state or seen["state"]}


def _told(values: Sequence[Any]) -> Any:
    """Numbers, then for each version whether it has seen all along what it has not given out; or what is wrong."""
    turns = [(code, list(turn)) for code, turn in groupby(values, key=lambda value: value[0])]
    for _, turn in turns[1:]:
        if len({since for _, since, _ in turn}) != 1 or turn[0][1] >= turn[0][2]:
            return values
    return [number for _, _, number in values], [code for code, _ in turns]


class Shadower(Command):
    """Puts versions in the job's place, one after the other: each has run beside it. `drops` them instead.

    `node`: whose worker is the shadow's.
    """

    def __init__(self, versions: Sequence[str], node: ShadowWorker, *, drops: bool = False) -> None:
        super().__init__("shadower")
        warm_up()
        self._versions = versions
        self._node = node
        self._outcome = "dropped" if drops else "promoted"
        self._denied, self._done = "", 0

    def start(self, world: World, scripts: Scripts) -> None:
        super().start(world, scripts)
        self._pages = 0

    def end(self, world: World) -> None:
        self._node.switch(None)
        super().end(world)
        let_export_pass(world)

    def has_begun(self, world: World) -> bool:
        return bool(world.client.hexists(keys.job(JOB), "tee"))

    def step(self, world: World) -> None:
        if world.state() is None:
            return
        record = JobStore(self.scripts).read(JOB)
        if record.shadow:
            return  # what a life before has left: the leader takes it away
        done = sum(past.outcome == self._outcome for past in record.operations)
        if self._denied and done > self._done:
            raise Stalled(f"the command said that its shadow was not {self._outcome}, and it was: {self._denied}")
        self._denied, self._done = "", done
        if done == len(self._versions):
            world.kept["left of shadows"] = sorted(map(bytes.decode, world.client.scan_iter(keys.of_job(SHADOW) + "*")))
            world.kept["held back"] = sorted(record.paused)
            self.is_done = True
            return
        try:
            self._shadow(world, self._versions[done])
        except (Busy, JobStateError, OperationLost, SavepointError):
            pass
        except ShadowLost as error:
            self._denied = str(error)
        finally:
            self.end(world)

    def _shadow(self, world: World, code: str) -> None:
        graph = versioned(code).graph()
        version = Version("shadow", code, fingerprint(graph), f"{code}.py", "me@here")
        beside = Beside(partial(self._page, world), lambda: self.seconds, partial(self.look, world), _Present)
        with Shadowed(self.scripts, JOB, version, beside) as shadowed:
            self.begin()
            shadowed.carry(Candidate(graph, version, _ROOM), f"/{code}.py", partial(self._run_node, code))

    @contextmanager
    def _run_node(self, code: str, one: Shadowing, _: OwnFolder) -> Iterator[Callable[[], None]]:
        self._node.switch(code)
        try:
            yield lambda: None
        finally:
            self._node.switch(None)

    def _page(self, world: World) -> None:
        self._pages += 1
        if self._pages % _EVERY == 0:
            world.step_others(self)


class _Present(Listener):
    """Hears at the end what a thread would have heard before."""

    def start(self) -> None:
        """It is one process, stepped by hand."""

    def end(self) -> list[Any]:
        self.hear()
        return super().end()


class ShadowWorker(Worker):
    """The worker of the shadow's node, while that is there."""

    def __init__(self) -> None:
        super().__init__("s0", job=SHADOW)
        self._code: str | None = None

    @property
    def is_on(self) -> bool:
        return self._code is not None

    def switch(self, code: str | None) -> None:
        """Its node runs this version, or ends."""
        if code != self._code:
            self._code, self.is_up = code, False

    def step(self, world: World) -> None:
        if self._code is None:
            self.is_done = world.has_ended
            return
        super().step(world)

    def agent(self, world: World) -> AgentLink:
        return AgentLink(world.scripts, SHADOW)

    def make(self, world: World, scripts: Scripts) -> StageWorker:
        assert self._code is not None
        plan = JobStore(scripts).read(SHADOW).plan
        return self.of(world, scripts, plan, held_back(versioned(self._code).graph()), self._code)


class VersionedWorker(Worker):
    """A worker that runs the version which is wanted when it starts, and is started anew when that is another one."""

    def make(self, world: World, scripts: Scripts) -> StageWorker:
        plan = JobStore(scripts).read(JOB).plan
        wanted = wanted_for(VersionStore(scripts).rollout(JOB), self.name)
        code = wanted.code if wanted is not None else OLD
        return self.of(world, scripts, plan, versioned(code).graph(), code)

    def step(self, world: World) -> None:
        super().step(world)
        if self.is_outdated:
            self.is_up = False


class Promoter(Actor):
    """Asks for the promotion of each shadow, when the job has what was sent beside it; until none is to come."""

    def __init__(self, producer: Stepped, shadower: Shadower, wish: Wish) -> None:
        super().__init__("promoter")
        self._producer = producer
        self._shadower = shadower
        self._wish = wish

    def start(self, world: World, scripts: Scripts) -> None:
        self.scripts = scripts
        self._asked = 0

    def step(self, world: World) -> None:
        shadower = self._shadower
        if shadower.is_done:
            self.is_done = True
        elif shadower.is_at_work and self._asked < shadower.attempts and self._is_sent(world):
            with suppress(JobStateError):  # it is gone just now
                ShadowStore(self.scripts, JOB).want(msgspec.json.encode(self._wish).decode())
                self._asked = shadower.attempts

    def _is_sent(self, world: World) -> bool:
        if not self._shadower.has_begun(world):
            return False
        sent = sum(part.head for part in world.jobs.facts(JOB).partitions if part.stage == 0)
        return sent >= self._producer.due(world)


def shadowed(versions: Sequence[str], verb: Literal["promote", "drop"]) -> Sequence[Actor]:
    """Those who take part: what becomes of a shadow of each of these versions is `verb`."""
    node = ShadowWorker()
    shadower = Shadower(versions, node, drops=verb == "drop")
    producer = Stepped(spread("ab", len(versions)), shadower)
    promoter = Promoter(producer, shadower, Wish(verb, accepts=True, wait_seconds=1e9))
    return Submitter(), producer, VersionedWorker(), shadower, node, Leader(every=2), promoter
