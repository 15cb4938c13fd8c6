"""Scaling on a real Redis: the leader decides and moves partitions, the node starts and ends processes."""

from __future__ import annotations

import json
import os
import random
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from leader.duties.autoscale import Autoscale
from leader.wiring import make_round
from pipeline.errors import StaleTerm
from pipeline.facts import JobFacts, WorkerFacts
from pipeline.graph import Graph, KeyBy, Sink, SinkSpec, Source, SourceSpec
from pipeline.plan import compile_plan
from pipeline.positions import Position
from pipeline.scaling.policies import Kind, Repartition
from pipeline.scaling.settings import Scaling
from pipeline.settings import Limits
from pipeline.store.agents import AgentLink
from pipeline.store.connection import connect
from pipeline.store.jobs import JobStore
from pipeline.store.leadership import Leadership
from pipeline.store.operations import OperationStore
from pipeline.store.ownership import Ownership
from pipeline.store.scaling import ScalingStore
from pipeline.store.scripts import Scripts
from pipeline.tickets import ticket
from stages.agent import Agent
from stages.sizing import LEAVE_SECONDS, Sizing
from stages.supervision import ChildSpec, ChildState

JOB = "job"
SCALING = Scaling(1, 4, cooldown_seconds=10, warm_up_seconds=1)
GOING = ("ending", "done")
"""It was asked to end: by the next look it may be gone."""

SLEEPS = "import time; time.sleep(600)"


def wait_until(predicate: Callable[[], bool], seconds: float = 20.0) -> None:
    deadline = time.monotonic() + seconds
    while not predicate():
        assert time.monotonic() < deadline, "the condition did not come true in time"
        threading.Event().wait(0.01)


class Site:
    """One Redis with one job that is scaled, its leader by hand, and a node whose workers only sleep."""

    def __init__(self, url: str, folder: Path) -> None:
        self.client = connect(url)
        scripts = Scripts(self.client)
        graph = Graph(
            "flow",
            (
                Source("lines", SourceSpec("iterable")),
                KeyBy("words", ("lines",), str),
                Sink("out", ("words",), SinkSpec("console"), "key"),
            ),
        )
        self.jobs, self.scaling = JobStore(scripts), ScalingStore(scripts)
        self.jobs.create(JOB, compile_plan(graph, 2, Limits(lease_seconds=60.0)))
        self.scaling.configure(JOB, SCALING)
        self.round = make_round(Scripts(connect(url)), "L1", random.Random(1))
        self.scripts = scripts
        self.folder, self.now = folder, 0.0
        self.link = AgentLink(scripts, JOB)
        self.agent = Agent([self.spec(0, {})], self.link, clock=lambda: self.now)
        self.sizing = Sizing(self.agent, self.link, self.spec, clock=lambda: self.now)
        self.agent.start()

    def close(self) -> None:
        self.agent.stop(0.0)
        self.round.resign()
        self.client.close()

    def spec(self, number: int, earlier: Mapping[str, int]) -> ChildSpec:
        name = f"w{number}"
        argv = (sys.executable, "-S", "-c", SLEEPS)
        return ChildSpec(name, argv, {}, "worker", True, self.folder / f"{name}.log", earlier.get(name, 0))

    def want(self, workers: int) -> None:
        self.scaling.configure(JOB, SCALING, workers)

    def node(self) -> dict[str, str]:
        """One look of the node, and what its workers are then: name -> state."""
        self.sizing.run_once()
        self.agent.run_once(self.now)
        return self.states()

    def states(self) -> dict[str, str]:
        return {child.name: child.state.value for child in self.agent.children()}

    def beat(self) -> None:
        """The heartbeats of all that run."""
        for child in self.agent.children():
            if child.state is ChildState.RUNNING:
                report = json.dumps({"sized": True})
                Ownership(self.scripts, JOB, child.name, child.incarnation).heartbeat(report)

    def lead(self) -> None:
        """A round, and each worker gives away what it is asked for."""
        self.beat()
        self.round.run_once()
        for child in self.agent.children():
            worker = Ownership(self.scripts, JOB, child.name, child.incarnation)
            rows, asked = worker.table()
            for row in rows if asked else ():
                worker.give_away(row, ticket(JOB, row.stage, row.partition, row.term + 1), 0)

    def owners(self) -> set[str]:
        return {part.owner for part in self.jobs.facts(JOB).partitions}

    def until_ended(self, name: str) -> None:
        def is_done() -> bool:
            self.agent.run_once(self.now)
            return self.states()[name] == "done"

        wait_until(is_done)


@pytest.fixture
def site(redis_url: str, tmp_path: Path) -> Iterator[Site]:
    site = Site(redis_url, tmp_path)
    yield site
    site.close()


# the node


def test_a_node_starts_the_next_numbers(site: Site) -> None:
    assert site.node() == {"w0": "running"}

    site.want(3)

    assert site.node() == {"w0": "running", "w1": "running", "w2": "running"}


def test_a_job_whose_number_is_fixed_is_left_alone(site: Site) -> None:
    site.want(2)
    site.scaling.fix(JOB)

    assert site.node() == {"w0": "running"}


def test_the_highest_worker_owns_nothing_before_it_is_asked_to_end(site: Site) -> None:
    site.want(3)
    site.node()
    site.lead()
    assert site.owners() == {"w0", "w1", "w2"}

    site.want(2)
    for _ in range(3):
        assert site.node()["w2"] == "running"
    site.lead()
    assert site.owners() == {"w0", "w1"}
    assert {part.name for part in site.jobs.facts(JOB).partitions if part.term == 2}
    assert site.node()["w2"] in GOING

    site.until_ended("w2")
    assert site.node() == {"w0": "running", "w1": "running", "w2": "done"}


def test_a_worker_that_leaves_in_good_order_counts_as_no_death_and_gets_nothing_back(site: Site) -> None:
    site.want(2)
    site.node()
    site.lead()
    site.want(1)
    site.node()

    site.lead()
    site.lead()

    assert site.owners() == {"w0"}
    meta = [
        site.client.hget(f"celeriac:{{{JOB}}}:meta:{stage}.{part}", "deaths") for stage in (0, 1) for part in (0, 1)
    ]
    assert set(meta) == {b"0"}


def test_nobody_leaves_while_there_is_nobody_to_take_over_but_not_for_ever(site: Site) -> None:
    site.want(2)
    site.node()
    child = {child.name: child for child in site.agent.children()}
    Ownership(site.scripts, JOB, "w1", child["w1"].incarnation).heartbeat("{}")
    site.round.run_once()  # w0 has not come yet: w1 gets all
    site.want(1)

    site.node()
    site.round.run_once()
    site.now += LEAVE_SECONDS - 0.1
    assert site.node()["w1"] == "running"
    assert site.owners() == {"w1"}

    site.now += 0.2
    assert site.node()["w1"] in GOING


def test_a_worker_that_is_wanted_again_stays_and_gets_partitions_again(site: Site) -> None:
    site.want(2)
    site.node()
    site.lead()
    site.want(1)
    site.node()
    assert [each.is_leaving for each in site.jobs.facts(JOB).workers] == [False, True]

    site.want(2)

    assert site.node()["w1"] == "running"
    assert [each.is_leaving for each in site.jobs.facts(JOB).workers] == [False, False]


def test_a_worker_that_comes_back_after_its_end_has_a_higher_number(site: Site) -> None:
    site.want(2)
    site.node()
    site.beat()
    before = next(child.incarnation for child in site.agent.children() if child.name == "w1")
    site.want(1)
    site.node()
    site.until_ended("w1")

    site.want(2)
    site.node()

    after = next(child.incarnation for child in site.agent.children() if child.name == "w1")
    assert (before.partition("-")[0], after.partition("-")[0]) == ("1", "2")


def test_a_worker_that_dies_while_it_is_to_leave_is_not_kept(site: Site) -> None:
    site.want(2)
    site.node()
    site.lead()
    site.want(1)
    site.node()
    os.kill(next(child.pid for child in site.agent.children() if child.name == "w1"), signal.SIGKILL)

    def is_gone() -> bool:
        site.now += 0.5
        site.node()
        return site.states()["w1"] == "done"

    wait_until(is_gone)


# the leader


def seen(site: Site, second: float, stage: int = 0, **changes: Any) -> JobFacts:
    """The job as it is, at another time, with 200 records a second at a stage that one worker cannot keep up with."""
    facts = site.jobs.facts(JOB)
    taken = int(100 * second)
    first, *rest = sorted(facts.partitions, key=lambda part: (part.stage != stage, part.stage, part.partition))
    busy = replace(first, position=Position(f"{taken + 1}-0"), backlog=taken, taken=taken)
    workers = tuple(
        WorkerFacts(f"w{number}", "1-a", 0.1, False, {"sized": True, "busy": {str(stage): second}})
        for number in range(facts.record.workers_wanted)
    )
    return replace(
        facts,
        now_ms=facts.now_ms + int(1000 * second),
        partitions=tuple(sorted((busy, *rest), key=lambda part: (part.stage, part.partition))),
        workers=workers,
        **changes,
    )


def test_the_leader_writes_down_how_many_workers_it_wants_and_why(site: Site) -> None:
    leadership = Leadership(site.scripts, "L2", "n")
    token = leadership.hold(JOB, 60).token
    duty = Autoscale(site.scaling, OperationStore(site.scripts))

    counts = [duty.run_once(seen(site, second), token) for second in range(1, 9)]

    assert [each for each in counts if each] == [{"scaled": 1}]
    record = site.jobs.read(JOB)
    assert record.workers_wanted == 2  # there are two partitions of that stage
    (decision,) = site.scaling.decisions(JOB)
    assert (decision.kind, decision.before, decision.wanted) == (Kind.UP, 1, 2)
    assert decision.load is not None
    assert decision.load.stages[0].arrival_rate == pytest.approx(200, rel=0.1)
    assert decision.load.stages[0].true_rate == pytest.approx(100, rel=0.1)


def test_the_leader_gives_a_stage_more_partitions_where_more_workers_could_not_share_it(site: Site) -> None:
    token = Leadership(site.scripts, "L2", "n").hold(JOB, 60).token
    duty = Autoscale(site.scaling, OperationStore(site.scripts))

    counts = [duty.run_once(seen(site, second, stage=1), token) for second in range(1, 9)]

    assert sum(each.get("repartitions", 0) for each in counts) == 1
    operation = site.jobs.facts(JOB).operation
    assert operation is not None
    assert (operation.about.stage, operation.about.before, operation.about.to) == ("words", 2, 4)
    assert (operation.about.by, operation.is_urgent) == ("the autoscaler", True)
    decision = site.scaling.decisions(JOB)[-1]
    assert decision.repartition == Repartition("words", 2, 4)


def test_a_leader_that_has_lost_its_lease_begins_no_operation(site: Site) -> None:
    record = site.jobs.read(JOB)
    Leadership(site.scripts, "L2", "n").hold(JOB, 60)

    with pytest.raises(StaleTerm):
        OperationStore(site.scripts).begin(record, record.plan.stages[1], 4, "me", token="9:stale")

    assert site.jobs.facts(JOB).operation is None


def test_the_next_leader_keeps_to_the_cooldown_of_the_one_before(site: Site) -> None:
    token = Leadership(site.scripts, "L2", "n").hold(JOB, 60).token
    first = Autoscale(site.scaling, OperationStore(site.scripts))
    for second in range(1, 9):
        first.run_once(seen(site, second), token)
    scaled = site.jobs.read(JOB)
    assert scaled.workers_wanted == 2

    second_leader, kinds = Autoscale(site.scaling, OperationStore(site.scripts)), []
    for second in range(1, 10):
        facts = seen(site, second)
        # An idle job: one worker would do.
        idle = replace(facts, partitions=tuple(replace(part, backlog=0) for part in facts.partitions))
        idle = replace(idle, now_ms=scaled.scaled_at_ms + 1000 * second)
        kinds.append(second_leader.run_once(idle, token))

    assert kinds == [{}] * 9
    assert site.jobs.read(JOB).workers_wanted == 2


def test_a_leader_that_has_lost_its_lease_scales_nothing(site: Site) -> None:
    Leadership(site.scripts, "L2", "n").hold(JOB, 60)
    duty = Autoscale(site.scaling, OperationStore(site.scripts))

    def lead() -> None:
        for second in range(1, 9):
            duty.run_once(seen(site, second), "9:stale")

    with pytest.raises(StaleTerm):
        lead()

    assert site.jobs.read(JOB).workers_wanted == 1
