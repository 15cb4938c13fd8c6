"""A node whose children die again and again: the job fails when nothing will come of them, and says why."""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from pipeline.cli.nodes import NodeSettings
from pipeline.lifecycle import JobState
from pipeline.store import keys
from pipeline.store.connection import connect
from pipeline.store.leadership import LeaderRegistry
from pipeline.store.scripts import Scripts
from stages.node import LEADER, LEADER_DEATHS, LED_DEATHS, ChildWatch
from stages.supervision import WORKER, ChildState, ChildStatus
from tests.runtime.harness import LocalJob, sequence_pipeline


@dataclass
class Bench:
    """A job, and a node whose children are what the test says."""

    job: LocalJob
    logs: Path
    child: ChildStatus | None = None
    started_at: float = field(default_factory=lambda: time.monotonic() - 1.0)
    """A second ago: Redis counts milliseconds."""

    def __post_init__(self) -> None:
        self.logs.mkdir()
        self.leader = LeaderRegistry(Scripts(connect(self.job.url)), keys.own_leader_name("j"))
        settings = NodeSettings(self.job.url, "j", "flow.py", 1, (), "", str(self.logs), str(self.logs))
        self.watch = ChildWatch(
            lambda: (self.child,) if self.child else (), settings, self.job.jobs, self.leader, self.started_at
        )

    def dies(self, role: str, quick_deaths: int, since: float, code: int = -signal.SIGKILL) -> bool:
        """Whether the job has been made to fail."""
        name = "leader" if role == LEADER else "w0"
        self.child = ChildStatus(name, role, ChildState.WAITING, 0, "1-a", 100, code, quick_deaths, since)
        is_failed = self.watch.run_once(time.monotonic())
        assert is_failed is (self.job.jobs.state("j") is JobState.FAILED)
        return is_failed


@pytest.fixture
def bench(redis_url: str, tmp_path: Path) -> Iterator[Bench]:
    with LocalJob(redis_url, sequence_pipeline(1)) as job:
        yield Bench(job, tmp_path / "logs")


def test_a_leader_that_dies_at_its_start_fails_the_job_which_says_how_it_died_and_its_last_words(bench: Bench) -> None:
    bench.leader.announce(60.0)  # it has led, before it began to die at its start
    (bench.logs / "leader.log").write_text("ImportError: no module\n")
    since = time.monotonic()

    assert not bench.dies(LEADER, LEADER_DEATHS - 1, since)
    assert bench.dies(LEADER, LEADER_DEATHS, since, code=1)

    assert bench.job.jobs.read("j").reason == (
        "the leader died 8 times, each soon after its start; "
        "at last it ended with exit code 1, and said: ImportError: no module"
    )


def test_a_leader_that_leads_each_time_before_it_is_killed_fails_no_job_for_minutes(bench: Bench) -> None:
    bench.leader.announce(60.0)

    assert not bench.dies(LEADER, LED_DEATHS - 1, bench.started_at)
    assert bench.dies(LEADER, LED_DEATHS, bench.started_at)

    assert "at last it was killed by SIGKILL, and said: nothing" in bench.job.jobs.read("j").reason


def test_a_worker_that_has_worked_is_not_given_up_and_one_that_never_has_fails_the_job(bench: Bench) -> None:
    bench.job.worker().ownership.heartbeat("{}")

    assert not bench.dies(WORKER, 50, bench.started_at)
    bench.job.client.delete(keys.workers("j"))
    assert bench.dies(WORKER, 50, bench.started_at)
