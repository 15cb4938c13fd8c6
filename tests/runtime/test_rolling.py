"""An agent's workers change to another version when they own nothing, and results of submitted jobs are published."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from pipeline import Pipeline, read, write
from pipeline.cli.exits import JobFailed
from pipeline.cli.upgrading import RENEW_SECONDS, Holding
from pipeline.errors import OperationLost, SinkError
from pipeline.lifecycle import JobState
from pipeline.operations import Phase
from pipeline.store import keys
from pipeline.store.agents import AgentLink
from pipeline.store.claims import ClaimStore
from pipeline.store.connection import connect
from pipeline.store.jobs import JobStore
from pipeline.store.scripts import Scripts
from pipeline.store.versions import VersionStore
from pipeline.versions import Version, Wanted
from stages import publishing
from stages.publishing import ResultPublisher
from stages.rolling import LEAVE_SECONDS, Rolling
from stages.supervision import ChildSpec, ChildState, ChildStatus
from tests.runtime.harness import FlakyScripts, HandClock, LocalJob


class FakeAgent:
    """One worker `w0`, which is changed at once. `replaced`: the versions that it was given."""

    def __init__(self) -> None:
        self.version = ""
        self.replaced: list[str] = []

    def children(self) -> tuple[ChildStatus, ...]:
        return (ChildStatus("w0", "worker", ChildState.RUNNING, 1, "1-a", 0, None, 0, 0.0, self.version),)

    def replace(self, spec: ChildSpec, deadline_seconds: float) -> None:
        self.version = spec.version
        self.replaced.append(spec.version)


def a_spec(name: str, wanted: Wanted | None) -> ChildSpec:
    return ChildSpec(name, ("true",), {}, "worker", True, Path("log"), 0, wanted.encode() if wanted else "")


class Bench:
    """A job with two workers of which the agent has the first."""

    def __init__(self, job: LocalJob) -> None:
        self.job, self.agent, self.clock = job, FakeAgent(), HandClock()
        self.versions = VersionStore(job._scripts)
        link: Any = AgentLink(job._scripts, "j")
        agent: Any = self.agent
        self.rolling = Rolling(agent, link, a_spec, clock=self.clock)

    def beat(self, *names: str) -> None:
        for name in names:
            assert self.job.worker(name).ownership.heartbeat(json.dumps({}))

    def leaving(self) -> bool:
        return any(each.is_leaving for each in self.job.jobs.facts("j").workers)


@pytest.fixture
def bench(redis_url: str) -> Iterator[Bench]:
    flow = Pipeline("flow")
    flow.source(read.producer(), name="in").sink(write.stream("out"), name="out")
    with LocalJob(redis_url, flow) as job:
        job.assign("w0")
        yield Bench(job)


def test_a_worker_changes_when_others_have_what_it_owned(bench: Bench) -> None:
    bench.beat("w0", "w1")
    bench.rolling.run_once()
    assert (bench.agent.replaced, bench.leaving()) == ([], False)

    bench.versions.want("j", "w0", Wanted("c2", "/b.py"))
    bench.rolling.run_once()
    assert (bench.agent.replaced, bench.leaving()) == ([], True)

    bench.job.assign("w1")
    bench.rolling.run_once()
    bench.rolling.run_once()
    assert bench.agent.replaced == ["c2 /b.py"]
    bench.versions.want("j", "*", Wanted("c2", "/b.py"))
    bench.rolling.run_once()
    assert bench.agent.replaced == ["c2 /b.py"]


def test_a_worker_without_others_changes_at_once(bench: Bench) -> None:
    bench.beat("w0")
    bench.versions.want("j", "*", Wanted("c2"))

    bench.rolling.run_once()

    assert bench.agent.replaced == ["c2 "]


def test_a_worker_whose_partitions_nobody_takes_changes_when_its_time_is_over(bench: Bench) -> None:
    bench.beat("w0", "w1")
    bench.versions.want("j", "w0", Wanted("c2"))
    bench.rolling.run_once()
    bench.clock.now = LEAVE_SECONDS - 1
    bench.rolling.run_once()
    assert bench.agent.replaced == []

    bench.clock.now = LEAVE_SECONDS
    bench.rolling.run_once()

    assert bench.agent.replaced == ["c2 "]


def test_a_worker_stays_when_the_change_is_called_off_in_time(bench: Bench) -> None:
    bench.beat("w0", "w1")
    bench.versions.want("j", "w0", Wanted("c2"))
    bench.rolling.run_once()
    assert bench.leaving()

    bench.versions.want("j", "w0", None)
    bench.rolling.run_once()

    assert (bench.agent.replaced, bench.leaving()) == ([], False)


# the operation that an upgrade is

NEW = Version("upgraded", "c2", "f", "b.py", "me@here")


def outcomes(bench: Bench) -> list[str]:
    return [past.outcome for past in bench.job.jobs.read("j").operations]


def test_how_an_upgrade_ends_is_written_down(bench: Bench) -> None:
    claims = ClaimStore(bench.job._scripts)
    with Holding(claims, "j", NEW):
        assert outcomes(bench) == []
    with suppress(KeyboardInterrupt), Holding(claims, "j", NEW):
        raise KeyboardInterrupt
    with suppress(JobFailed), Holding(claims, "j", NEW):
        raise JobFailed("worker w0 has not come back")

    assert outcomes(bench) == ["done", "interrupted", "halted: worker w0 has not come back"]
    assert bench.job.jobs.facts("j").operation is None


def test_a_command_says_that_it_is_at_work_also_after_an_outage(bench: Bench) -> None:
    scripts = FlakyScripts(bench.job.client)

    def told() -> tuple[int, int]:
        operation = bench.job.jobs.facts("j").operation
        assert operation is not None
        return operation.done, operation.total

    with Holding(ClaimStore(scripts), "j", NEW, bench.clock) as holding:
        scripts.break_call("before")
        holding.say(Phase.ROLLING, 1, 3)
        assert told() == (0, 0)
        bench.clock.now += RENEW_SECONDS
        holding.keep()
        assert told() == (1, 3)
        calls = len(scripts.calls)
        holding.keep()
        assert len(scripts.calls) == calls


def test_a_command_that_was_taken_for_gone_stops_and_ends_nothing(bench: Bench) -> None:
    claims = ClaimStore(bench.job._scripts)
    old = Holding(claims, "j", NEW)
    bench.job.client.hset(keys.operation("j"), "until", 1)
    new = Holding(claims, "j", NEW)

    with pytest.raises(OperationLost, match="was given up"):
        old.say(Phase.ROLLING, 1, 3)
    with suppress(OperationLost), old:
        raise OperationLost("it was given up")
    assert outcomes(bench) == ["given up: its command is gone"]
    assert bench.job.jobs.facts("j").operation is not None
    with new:
        pass
    assert outcomes(bench) == ["given up: its command is gone", "done"]


# publishing


def a_publisher(job: LocalJob) -> ResultPublisher:
    beside = JobStore(Scripts(connect(job.url)))
    return ResultPublisher(job.jobs, beside, "j")


@pytest.fixture
def ended(redis_url: str, tmp_path: Path) -> Iterator[LocalJob]:
    """A submitted job whose records are all processed, and not published."""
    flow = Pipeline("flow")
    flow.source(read.producer(), name="in").sink(write.jsonl(str(tmp_path / "out")), name="out")
    with LocalJob(redis_url, flow) as job:
        VersionStore(job._scripts).add("j", Version("submitted", "c", "f", "flow.py", "me"), submitted=True)
        job.assign()
        job.send([1, 2, 3])
        job.run_to_the_end()
        job.jobs.transition("j", JobState.PUBLISHING)
        yield job


def rows(folder: Path) -> list[int]:
    return sorted(int(line) for path in folder.glob("part-*") for line in path.read_text().split())


def test_a_member_publishes_a_submitted_job_once(ended: LocalJob, tmp_path: Path) -> None:
    one, other = a_publisher(ended), a_publisher(ended)

    assert [one.run_once(), other.run_once()] == [True, False]

    assert ended.jobs.state("j") is JobState.FINISHED
    assert rows(tmp_path / "out") == [1, 2, 3]
    assert {path.name for path in tmp_path.iterdir()} == {"out"}


def test_a_job_that_a_run_has_is_left_to_it(ended: LocalJob) -> None:
    VersionStore(ended._scripts).add("j", Version("run", "c", "f", "flow.py", "me"), submitted=False)

    assert not a_publisher(ended).run_once()

    assert ended.jobs.state("j") is JobState.PUBLISHING


def test_who_publishes_is_waited_for_while_it_is_heard_and_then_another_goes_on(
    ended: LocalJob, tmp_path: Path
) -> None:
    assert ended.jobs.claim("j", "")  # one that is killed now
    assert not a_publisher(ended).run_once()

    before = int(time.time() * 1000) - 60_000
    ended.client.hset(keys.job("j"), "claim", f"{before} gone")
    assert a_publisher(ended).run_once()

    assert rows(tmp_path / "out") == [1, 2, 3]


@pytest.mark.parametrize("fails", [True, False])
def test_who_was_taken_for_gone_while_it_published_leaves_the_end_of_the_job_to_the_other(
    ended: LocalJob, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, fails: bool
) -> None:
    right = publishing.publish_job

    def stand_still(*arguments: Any) -> Any:
        record = ended.jobs.read("j")
        ended.client.hset(keys.job("j"), "claim", f"{int(time.time() * 1000) - 60_000} {record.claim.split()[1]}")
        assert ended.jobs.claim("j", ended.jobs.read("j").claim)
        if fails:
            raise SinkError("the folder was cleared away")
        return right(*arguments)

    with monkeypatch.context() as patch:
        patch.setattr(publishing, "publish_job", stand_still)
        assert not a_publisher(ended).run_once()

    assert ended.jobs.state("j") is JobState.PUBLISHING
    ended.client.hset(keys.job("j"), "claim", f"{int(time.time() * 1000) - 60_000} gone")
    assert a_publisher(ended).run_once()
    assert rows(tmp_path / "out") == [1, 2, 3]
    assert ended.jobs.state("j") is JobState.FINISHED


def test_a_sink_that_refuses_fails_the_job_with_its_reason(ended: LocalJob, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise SinkError("the disk is full", "make room")

    monkeypatch.setattr(publishing, "publish_job", refuse)

    assert a_publisher(ended).run_once()

    record = ended.jobs.read("j")
    assert (record.state, record.reason) == (
        JobState.FAILED,
        "its results cannot be published: the disk is full (make room)",
    )
