"""Which processes a node keeps for which pool, what they are told, and how the leader sizes each pool on a real job."""

from __future__ import annotations

import logging
import random
from collections.abc import Iterator
from dataclasses import replace

import pytest

from leader.duties.autoscale import Autoscale
from leader.duties.placement import PATIENCE_MS, Placement
from pipeline import Pipeline, read, write
from pipeline.cli.nodes import NodeSettings
from pipeline.errors import EnvironmentFault
from pipeline.facts import JobFacts, WorkerFacts
from pipeline.plan import compile_plan
from pipeline.positions import Position
from pipeline.scaling.settings import Scaling
from pipeline.settings import Limits
from pipeline.store.connection import connect
from pipeline.store.jobs import JobStore
from pipeline.store.leadership import Leadership
from pipeline.store.operations import OperationStore
from pipeline.store.scaling import ScalingStore
from pipeline.store.scripts import Scripts
from stages.app import WorkerSettings
from stages.member import MemberSettings
from stages.member import worker_spec as member_spec
from stages.node import child_specs, named_spec

JOB = "j"
REDIS = "redis://127.0.0.1:1/0"


@pytest.fixture
def scripts(redis_url: str) -> Iterator[Scripts]:
    flow = Pipeline("two")
    keyed = flow.source(read.producer(), name="in").key_by(str, name="heavy", pool="gpu")
    keyed.sink(write.console(), name="out")
    with connect(redis_url) as client:
        scripts = Scripts(client)
        JobStore(scripts).create(JOB, compile_plan(flow.graph(), 4, Limits()))
        yield scripts
        JobStore(scripts).erase(JOB)


def a_node(**pools: int) -> NodeSettings:
    return NodeSettings(REDIS, JOB, "flow.py", 2, (), "", "/logs", "/tmp/x", pools=pools, scaled_pools=("gpu",))


def told(env: dict[str, str]) -> tuple[str, bool]:
    """As the worker reads it."""
    settings = WorkerSettings.from_environment(env)
    return settings.pool, settings.is_sized


# processes


def test_a_node_keeps_workers_of_each_pool_under_names_of_their_own() -> None:
    specs = child_specs(a_node(gpu=2, io=1), {"gpu-w1": 7})

    workers = {spec.name: spec for spec in specs if spec.name != "leader"}
    assert {name: told(dict(spec.env)) for name, spec in workers.items()} == {
        "w0": ("main", False),
        "w1": ("main", False),
        "gpu-w0": ("gpu", True),
        "gpu-w1": ("gpu", True),
        "io-w0": ("io", False),
    }
    assert (workers["gpu-w1"].earlier, workers["gpu-w0"].earlier) == (7, 0)
    assert NodeSettings.decode(a_node(gpu=2).encode()) == a_node(gpu=2)


def test_a_worker_that_changes_its_version_stays_in_its_pool() -> None:
    settings = a_node(gpu=2)

    for spec in child_specs(settings):
        if spec.name != "leader":
            again = named_spec(settings, spec.name, None)
            assert (again.name, told(dict(again.env))) == (spec.name, told(dict(spec.env)))


def test_a_node_without_workers_of_the_pool_main_has_a_leader_all_the_same() -> None:
    settings = NodeSettings(REDIS, JOB, "flow.py", 0, (), "", "/logs", "/tmp/x", pools={"gpu": 1})

    assert [spec.name for spec in child_specs(settings)] == ["leader", "gpu-w0"]


def test_a_node_that_joins_is_of_one_pool_and_nobody_changes_its_size() -> None:
    environment = {"CELERIAC_REDIS": REDIS, "CELERIAC_JOB": JOB, "CELERIAC_PIPELINE": "flow.py", "CELERIAC_WORKER": "m"}

    for pool, found in (("gpu", "gpu"), ("", "main")):
        settings = MemberSettings.from_environment({**environment, "CELERIAC_POOL": pool})
        assert told(dict(member_spec(settings, "m", 0).env)) == (found, False)
    with pytest.raises(EnvironmentFault, match="CELERIAC_POOL is no name: 'a b'"):
        MemberSettings.from_environment({**environment, "CELERIAC_POOL": "a b"})


# the leader


def busy_at(scripts: Scripts, second: float) -> JobFacts:
    """Records come to the stage of pool `gpu` at twice the rate at which its worker, which never rests, takes them."""
    facts = JobStore(scripts).facts(JOB)
    taken = int(100 * second)
    parts = [
        replace(part, position=Position(f"{taken + 1}-0"), backlog=taken, taken=taken) if part.stage == 1 else part
        for part in facts.partitions
    ]
    workers = (
        WorkerFacts("w0", "1-a", 0.1, False, {"pool": "main", "sized": True, "busy": {"0": 0.01 * second}}),
        WorkerFacts("gpu-w0", "1-a", 0.1, False, {"pool": "gpu", "sized": True, "busy": {"1": second}}),
    )
    return replace(facts, now_ms=facts.now_ms + int(1000 * second), partitions=tuple(parts), workers=workers)


def test_the_leader_changes_the_number_of_the_pool_that_needs_it_and_no_other(scripts: Scripts) -> None:
    scaling = ScalingStore(scripts)
    scaling.configure(JOB, Scaling(1, 4))
    scaling.configure(JOB, Scaling(1, 4), pool="gpu")
    token = Leadership(scripts, "L", "n").hold(JOB, 60).token
    duty = Autoscale(scaling, OperationStore(scripts))

    counts = [duty.run_once(busy_at(scripts, second), token) for second in range(1, 13)]

    assert [each for each in counts if each] == [{"scaled": 1}]
    scaled = JobStore(scripts).read(JOB).scaled
    assert {pool: size.workers_wanted for pool, size in scaled.items()} == {"main": 1, "gpu": 4}
    (decision,) = scaling.decisions(JOB)
    assert (decision.pool, decision.before, decision.wanted) == ("gpu", 1, 4)
    assert [need.stage for need in decision.needs] == ["heavy"]


def test_the_leader_says_once_which_pool_a_stage_waits_for(scripts: Scripts, caplog: pytest.LogCaptureFixture) -> None:
    leadership = Leadership(scripts, "L", "n")
    token = leadership.hold(JOB, 60).token
    placement = Placement(scripts, leadership, lambda: leadership.server, random.Random(1))
    facts = JobStore(scripts).facts(JOB)
    worker = WorkerFacts("w0", "1-a", 0.1, False, {})

    with caplog.at_level(logging.WARNING, "leader.duties.placement"):
        for at_ms in (0, PATIENCE_MS - 1, PATIENCE_MS, 2 * PATIENCE_MS):
            placement.run_once(replace(facts, now_ms=facts.now_ms + at_ms, workers=(worker,)), token)

    said = "nobody can run a stage: job=j stage=heavy waits for a worker of pool gpu"
    assert [said in record.getMessage() for record in caplog.records] == [True]
