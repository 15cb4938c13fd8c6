"""Each operation of a running job, its leader or its command killed at each of its phases: it ends the same.

Leaders and commands are stepped by hand, two by turns, so that a kill comes exactly there: who is dead sends
nothing more.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
import pytest

from leader.wiring import make_round
from pipeline.cli.nodecommands import mark_drained, until_empty
from pipeline.cli.openings import go_on
from pipeline.cli.suspending import suspend_job
from pipeline.cli.upgrading import Holding, Upgrade
from pipeline.errors import StoreUnavailable
from pipeline.facts import JobFacts
from pipeline.lifecycle import JobState
from pipeline.operations import About, Phase
from pipeline.recomputing.computed import Computed, Given
from pipeline.recomputing.course import Course
from pipeline.recomputing.course import Wanted as Recomputed
from pipeline.savepoints.export import take_savepoint
from pipeline.savepoints.places import Draft, LocalPlace
from pipeline.savepoints.reading import Savepoint
from pipeline.settings import Limits
from pipeline.shadowing.course import Course as ShadowCourse
from pipeline.shadowing.course import Wish
from pipeline.store import keys
from pipeline.store.agents import AgentLink
from pipeline.store.claims import ClaimStore
from pipeline.store.connection import connect
from pipeline.store.jobs import JobStore
from pipeline.store.moving import MovingStore
from pipeline.store.operations import OperationStore
from pipeline.store.ownership import Ownership
from pipeline.store.scripts import Scripts
from pipeline.store.versions import VersionStore
from pipeline.versions import Version, Wanted
from stages.rolling import Rolling
from stages.supervision import ChildSpec, ChildState, ChildStatus
from tests.runtime.harness import LocalJob, assert_sequence, numbered, sequence_pipeline
from tests.runtime.shadows import CODE, Pair
from tests.runtime.test_moves import KEYS, Led

NUMBERS = 12
SLOW = Limits(lease_seconds=600.0, collect_seconds=600.0, moves_at_once=1)
"""Nobody is missed, nobody is hurried, and partitions move one by one."""

OLD, NEW = Wanted("c1"), Wanted("c2", "/b.py")
VERSION = Version("upgraded", "c2", "f", "b.py", "me@here")


class Killed(BaseException):
    """What a process sees of its own SIGKILL: nothing behind it is done."""


class Mortal(Scripts):
    """Who has these dies at a script, before or after that was applied, or when it is told to."""

    def __init__(self, url: str) -> None:
        super().__init__(connect(url))
        self.fatal: tuple[str, str, int] | None = None
        self.is_dead = False

    def run(self, name: str, keys: Any, args: Any) -> list[Any]:
        moment = self._moment(name)
        if self.is_dead or moment == "before":
            self.is_dead = True
            raise StoreUnavailable("it is dead")
        answer = super().run(name, keys, args)
        if moment == "after":
            self.is_dead = True
            raise StoreUnavailable("it is dead")
        return answer

    def _moment(self, name: str) -> str:
        if self.fatal is None or self.fatal[0] != name:
            return ""
        script, moment, calls = self.fatal
        self.fatal = (script, moment, calls - 1)
        return moment if calls == 1 else ""


class Watched(LocalPlace):
    """A place that says when a savepoint is about to appear."""

    publishes: Callable[[], None] = staticmethod(lambda: None)

    def begin(self, name: str, job: str) -> Draft:
        draft = super().begin(name, job)
        publish = draft.publish

        def watched(manifest: bytes) -> None:
            self.publishes()
            publish(manifest)

        draft.publish = watched  # type: ignore[method-assign]
        return draft


class Agent:
    """One worker of a crew, which is changed at once."""

    def __init__(self, crew: Crew, name: str) -> None:
        self._crew, self._name = crew, name

    def children(self) -> tuple[ChildStatus, ...]:
        incarnation = self._crew.job.workers[self._name].ownership.incarnation
        version = self._crew.told.get(self._name, "")
        return (ChildStatus(self._name, "worker", ChildState.RUNNING, 1, incarnation, 0, None, 0, 0.0, version),)

    def replace(self, spec: ChildSpec, deadline_seconds: float) -> None:
        number = int(self._crew.job.workers.pop(self._name).ownership.incarnation.partition("-")[0])
        self._crew.told[self._name] = spec.version
        self._crew.join(self._name, f"{number + 1}-a", self._crew.nodes[self._name])


@dataclass
class Strike:
    """Who dies, and where: in a phase, or before or after its nth call of a script. target: "leader" or "command"."""

    target: str
    where: str
    script: tuple[str, str, int] | None = None
    is_done: bool = False


class Crew(Led):
    """A led job whose workers say their versions, on three nodes; and a command beside it."""

    def __init__(self, job: LocalJob, folder: Path, strike: Strike) -> None:
        self.told: dict[str, str] = {}
        self.strike, self.folder, self.sent = strike, folder, 0
        self.met: list[str] = []
        self.ended: dict[str, Any] = {}
        self.watches_moves = False
        super().__init__(job)
        self.command = Mortal(job.url)
        self.place = Watched(folder)
        self.agents = {name: self._rolling(name) for name in ("w0", "w1", "w2")}

    def _rolling(self, name: str) -> Rolling:
        def spec(worker: str, wanted: Wanted | None) -> ChildSpec:
            return ChildSpec(worker, ("true",), {}, "worker", True, Path("log"), 0, wanted.encode() if wanted else "")

        agent: Any = Agent(self, name)
        return Rolling(agent, AgentLink(self._scripts, "j"), spec, clock=lambda: 0.0)

    def lead_anew(self) -> None:
        super().lead_anew()
        mortal = Mortal(self.job.url)
        if self.strike.target == "leader" and not self.strike.is_done:
            mortal.fatal = self.strike.script
        self.mortal = mortal
        name = f"leader-{self._leaders}"
        self.round = make_round(mortal, name, random.Random(name), lambda: 0.0)

    def join(self, name: str, incarnation: str = "1-a", node: str = "") -> None:
        self.told.setdefault(name, OLD.encode())
        super().join(name, incarnation, node)

    def beat(self, *names: str) -> None:
        for name in names or self.job.workers:
            worker = self.job.workers[name]
            code = self.told[name].partition(" ")[0]
            report = {**worker.hand.report(0.0), "node": self.nodes[name], "code": code}
            mine = worker.ownership
            Ownership(self._scripts, mine.job, mine.worker, mine.incarnation).heartbeat(json.dumps(report))

    def facts(self) -> JobFacts:
        return self.job.jobs.facts("j")

    # time goes on

    def turn(self) -> None:
        """Something comes, the leader has its round, agents look, workers serve; and a dead leader has a successor."""
        if self.sent < NUMBERS and self.facts().record.state is JobState.RUNNING and not self.facts().record.paused:
            self.sent += 1
            self.job.send(numbered(KEYS, 1, self.sent))
        self.lead()
        if self.mortal.is_dead:
            self.strike.is_done = True
            self.lead_anew()
            self.lead()
        if self.asked() and self.watches_moves:
            self.meet("asked")
        for agent in self.agents.values():
            agent.run_once()
        self.job.plan = self.facts().record.plan
        self.job.look()
        self.job.run_until_idle()

    def meet(self, phase: str) -> None:
        """The operation is in this phase, as Redis has it: whoever is to die here does."""
        if phase not in self.met:
            self.met.append(phase)
        if self.strike.where != phase or self.strike.is_done:
            return
        self.strike.is_done = True
        if self.strike.target == "leader":
            self.mortal.is_dead = True
            self.lead_anew()
        else:
            self.command.is_dead = True
            raise Killed

    def commands(self, call: Callable[[Scripts], Any]) -> None:
        """A command; when it was killed, its claim runs out, and it is given again."""
        try:
            call(self.command)
            if not self.command.is_dead:
                return
        except (Killed, StoreUnavailable):
            if not self.command.is_dead:
                raise
        self.strike.is_done = True
        for key in (keys.operation("j"), keys.savepoint("j")):
            if self.job.client.hexists(key, "until"):
                self.job.client.hset(key, "until", 1)
        self.command = Mortal(self.job.url)
        call(self.command)

    def until(self, is_so: Callable[[], bool], phase: Callable[[], str], most: int = 200) -> None:
        for _ in range(most):
            if is_so():
                return
            self.meet(phase())
            self.turn()
        raise AssertionError(f"not after {most} turns: {self.facts().operation}")


# The operations.


def rescale(crew: Crew) -> None:
    def command(scripts: Scripts) -> None:
        store, jobs = OperationStore(scripts), JobStore(scripts)
        record = jobs.read("j")
        if not record.operations and jobs.facts("j").operation is None:
            store.begin(record, record.plan.stage(1), 7, "me")
        crew.until(lambda: jobs.facts("j").operation is None, lambda: str(_operation(crew)))

    crew.commands(command)


def _operation(crew: Crew) -> str:
    operation = crew.facts().operation
    return operation.phase.value if operation is not None else ""


def upgrade(crew: Crew) -> None:
    now = [0.0]

    def tick(_: float) -> None:
        operation = crew.facts().operation
        assert operation is not None
        if operation.phase is Phase.FINISHING:
            crew.meet("before the end")
        elif operation.done:
            crew.meet("between workers")
        now[0] += 1.1
        crew.turn()

    def command(scripts: Scripts) -> None:
        store = JobStore(scripts)
        with Holding(ClaimStore(scripts), "j", VERSION, lambda: now[0]) as holding:
            crew.meet("before want")
            versions = VersionStore(scripts)
            made = Upgrade(store, versions, store.read("j"), NEW, lambda _: None, holding, lambda: now[0], tick)
            made.run(VERSION, 200.0)

    crew.commands(command)
    assert VersionStore(crew._scripts).rollout("j") == {"*": NEW}
    assert set(crew.told.values()) == {NEW.encode()}


def drain(crew: Crew) -> None:
    crew.watches_moves = True

    def tick(_: float) -> None:
        crew.meet("collected" if crew.moving.moves() else "marked")
        crew.turn()

    def command(scripts: Scripts) -> None:
        store = JobStore(scripts)
        mark_drained(lambda: store.facts("j"), MovingStore(scripts, "j"), "n0", stops=False)
        crew.meet("marked")
        assert until_empty(lambda: store.facts("j"), "n0", 1e9, lambda _: None, sleep=tick) == []

    crew.commands(command)
    crew.turns(crew.settled)
    assert crew.owned("w0") == 0


def move(crew: Crew) -> None:
    """A worker joins, and is given its share, one partition after the other."""
    crew.watches_moves = True
    crew.join("w3", node="n3")
    phase = lambda: "collected" if crew.moving.moves() else "joined"  # noqa: E731
    crew.until(lambda: crew.settled() and crew.owned("w3") >= 2, phase)


def _export(crew: Crew, take: Callable[[Callable[[], None]], Any]) -> None:
    pages = [0]

    def between() -> None:
        pages[0] += 1
        crew.meet("cut" if pages[0] == 1 else "exporting")
        if pages[0] % 50 == 1:
            crew.turn()

    crew.place.publishes = lambda: crew.meet("publishing")
    take(between)


def savepoint(crew: Crew) -> None:
    def command(scripts: Scripts) -> None:
        record = JobStore(scripts).read("j")
        _export(crew, lambda between: take_savepoint(scripts, record, crew.place, "j-1", between=between))

    crew.commands(command)
    assert crew.place.names() == ["j-1"]
    assert Savepoint(crew.place, "j-1").manifest.keys == {"oracle": len(KEYS)}


def suspend(crew: Crew) -> None:
    def command(scripts: Scripts) -> None:
        def tick(_: float) -> None:
            crew.meet("quieting")
            crew.turn()

        crew.place.publishes = lambda: crew.meet("cut")
        suspend_job(scripts, JobStore(scripts).read("j"), crew.place, "j-1", 1e9, tick)

    crew.job.send(numbered(KEYS, 1, crew.sent + 1))
    crew.sent += 1
    crew.commands(command)
    assert crew.facts().record.state is JobState.SUSPENDED
    assert Savepoint(crew.place, "j-1").manifest.in_flight == 0
    go_on(crew.job.jobs, crew.facts().record, "celeriac resume")


def shadow(crew: Crew) -> None:
    """A version beside the job is compared with it, then put in its place."""

    def command(scripts: Scripts) -> None:
        crew.turns(lambda: not crew.facts().record.shadow)  # the leader takes away what one that was killed has left
        pair = Pair(crew.job, sequence_pipeline(2), crew.folder, scripts=scripts)
        pair.shadow.leader.release(pair.shadow.job, pair.shadow.token)  # its leader is that of the job
        beats = Ownership(crew._scripts, pair.shadow.job, "w0", "1-a")

        def tick(_: float) -> None:
            crew.meet(_operation(crew))
            beats.heartbeat(json.dumps({"code": CODE}))
            crew.turn()
            pair.shadow.look()
            pair.shadow.run_until_idle()
            if not crew.facts().record.paused:
                assert pair.store.want(msgspec.json.encode(Wish("promote")).decode())

        now = iter(range(10_000))
        course = ShadowCourse(pair.one, "/new.py", clock=lambda: float(next(now)), sleep=tick)
        assert course.run() == "promoted"
        pair.close("promoted")

    crew.commands(command)
    crew.turns(lambda: set(crew.told.values()) == {Wanted(CODE, "/new.py").encode()})
    assert crew.job.jobs.list_ids() == ["j"]


def backfill(crew: Crew) -> None:
    """The state of two keys is computed anew, here in Python, and swapped for what there is."""
    wanted = frozenset(KEYS[:2])

    def command(scripts: Scripts) -> None:
        crew.turns(lambda: not crew.facts().record.held_back)  # the leader lets go what one that was killed has left
        about = About("backfill", "oracle_key", by="me@here", file="flow.py", keys=len(wanted))
        claim = ClaimStore(scripts).undertake("j", about, Phase.RECOMPUTING)

        def tick(_: float = 0.0) -> None:
            crew.meet(_operation(crew))
            crew.turn()

        def recompute(given: Given) -> Computed:
            records = given["in"]["a"].records
            tick()
            return Computed({("oracle", key): records // len(KEYS) for key in wanted}, records=records, seconds=1.0)

        now = iter(range(10_000))
        course = Course(
            scripts,
            JobStore(scripts).read("j"),
            claim,
            Recomputed(crew.job.plan.stage(2), ("oracle",), wanted),
            recompute,
            1e9,
            lambda phase, done, total: ClaimStore(scripts).renew(claim, phase, done, total),
            clock=lambda: float(next(now)),
            sleep=tick,
        )
        assert course.run().same == len(wanted)
        ClaimStore(scripts).end(claim, "done")

    crew.commands(command)


@dataclass(frozen=True)
class Case:
    """phases: all that a run meets, in this order. scripts: at whose nth call its leader is killed besides."""

    run: Callable[[Crew], None]
    phases: tuple[str, ...]
    scripts: tuple[tuple[str, int], ...] = ()
    by_command: tuple[str, ...] = ()
    """The phases in which there is a command that can be killed."""
    history: list[str] = field(default_factory=list)


CASES = {
    "rescale": Case(
        rescale,
        ("waiting", "settling"),
        (("rescale", 1), ("assign", 1), ("settled", 1)),
        ("waiting", "settling"),
        ["rescale of hop_1 from 4 to 7 partitions: done"],
    ),
    "upgrade": Case(
        upgrade,
        ("before want", "between workers", "before the end"),
        (("collect", 1),),
        ("before want", "between workers", "before the end"),
        ["upgrade to version c2 of b.py: done"],
    ),
    "node drain": Case(
        drain, ("marked", "asked", "collected"), (("collect", 1), ("collect", 3)), ("marked", "asked", "collected")
    ),
    "moves": Case(move, ("joined", "asked", "collected"), (("collect", 1), ("collect", 2), ("collect", 4))),
    "savepoint": Case(savepoint, ("cut", "exporting", "publishing"), by_command=("cut", "exporting", "publishing")),
    "shadow": Case(
        shadow,
        ("comparing", "promoting"),
        by_command=("comparing", "promoting"),
        history=["shadow of version c0de00000002 of new.py: promoted"],
    ),
    "backfill": Case(
        backfill,
        ("recomputing", "swapping"),
        by_command=("recomputing", "swapping"),
        history=["backfill of 2 keys of oracle_key by flow.py: done"],
    ),
    "suspend": Case(suspend, ("quieting", "cut"), by_command=("quieting", "cut")),
}


def strikes() -> Iterator[Any]:
    for name, case in CASES.items():
        for where in case.phases:
            yield pytest.param(name, Strike("leader", where), id=f"{name}-leader-{where}")
        for script, call in case.scripts:
            for moment in ("before", "after"):
                strike = Strike("leader", "", (script, moment, call))
                yield pytest.param(name, strike, id=f"{name}-leader-{moment} {script}.lua {call}")
        for where in case.by_command:
            yield pytest.param(name, Strike("command", where), id=f"{name}-command-{where}")


def play(url: str, folder: Path, case: Case, strike: Strike) -> Crew:
    """The story to its end: every key's numbers have come once and in order. What is left to compare is in the crew."""
    with LocalJob(url, sequence_pipeline(2), partitions=4, limits=SLOW) as job:
        crew = Crew(job, folder, strike)
        for number in range(3):
            crew.join(f"w{number}", node=f"n{number}")
        for _ in range(3):
            crew.turn()
        case.run(crew)
        while crew.sent < NUMBERS:
            crew.turn()
        crew.turns(crew.settled)
        crew.ended = ending(crew)
        crew.finish(NUMBERS)
        assert_sequence(job, KEYS, NUMBERS)
    return crew


def ending(crew: Crew) -> dict[str, Any]:
    """What must not depend on who died."""
    facts = crew.facts()
    return {
        "operations": [
            f"{each.about.change}: {each.outcome}" for each in facts.record.operations if not _is_gone(each)
        ],
        "under way": facts.operation,
        "serving": [stage.serving for stage in facts.record.plan.stages],
        "state": facts.record.state,
        "saving": facts.record.saving,
        "paused": facts.record.paused,
        "codes": {each.name: each.report.get("code") for each in facts.workers},
        "leaving": [each.name for each in facts.workers if each.is_leaving],
        "drained": facts.drained,
        "savepoints": crew.place.names(),
        "owned": sorted(part.name for part in facts.partitions if part.owner),
    }


def _is_gone(past: Any) -> bool:
    return bool(past.outcome == "given up: its command is gone")


@pytest.mark.parametrize("name", CASES)
def test_an_undisturbed_operation_meets_all_its_phases(redis_url: str, tmp_path: Path, name: str) -> None:
    crew = play(redis_url, tmp_path, CASES[name], Strike("", ""))

    assert [phase for phase in crew.met if phase] == list(CASES[name].phases)
    assert crew.ended["operations"] == CASES[name].history


@pytest.mark.parametrize(("name", "strike"), list(strikes()))
def test_who_dies_in_a_phase_changes_nothing_of_the_end(
    redis_url: str, tmp_path: Path, name: str, strike: Strike, undisturbed: dict[str, Any]
) -> None:
    if name not in undisturbed:
        undisturbed[name] = play(redis_url, tmp_path / "calm", CASES[name], Strike("", "")).ended
        connect(redis_url).flushdb()

    crew = play(redis_url, tmp_path / "struck", CASES[name], strike)

    assert strike.is_done, f"nobody died: {crew.met}"
    assert crew.ended == undisturbed[name]


@pytest.fixture(scope="module")
def undisturbed() -> dict[str, Any]:
    return {}
