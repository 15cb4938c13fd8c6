"""How a run gets hold of its job: whatever is lost on the way to Redis and back, it goes on as it should."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Final

import pytest

from pipeline import Pipeline, read, write
from pipeline.cli.interrupts import Interrupts
from pipeline.cli.link import Link
from pipeline.cli.openings import open_job
from pipeline.cli.screen import Screen
from pipeline.cli.services import Server
from pipeline.embedded.redis import EmbeddedRedis
from pipeline.facts import JobRecord
from pipeline.lifecycle import JobState
from pipeline.plan import compile_plan
from pipeline.settings import Limits
from pipeline.store.connection import connect
from pipeline.store.jobs import JobStore
from pipeline.store.leadership import Leadership
from pipeline.store.scripts import Scripts
from tests import cutting
from tests.runtime.harness import FlakyScripts, Moment

FLOW: Final = Pipeline("lines")
FLOW.source(read.iterable(list), name="lines").sink(write.stream("out"), name="out")
PLAN: Final = compile_plan(FLOW.graph(), 2, Limits())


def none(url: str) -> None:
    """There is no job yet."""


def running(url: str) -> None:
    JobStore(Scripts(connect(url))).create("j", PLAN)


def cancelled(url: str) -> None:
    running(url)
    JobStore(Scripts(connect(url))).transition("j", JobState.CANCELLED)


def cancelled_while_it_was_draining(url: str) -> None:
    running(url)
    scripts = Scripts(connect(url))
    leader = Leadership(scripts, "leader-1", "n1")
    JobStore(scripts).transition("j", JobState.DRAINING)
    leader.close_source("j", leader.hold("j", 600).token, PLAN, "lines")
    JobStore(scripts).transition("j", JobState.CANCELLED)


def suspended(url: str) -> None:
    running(url)
    store = JobStore(Scripts(connect(url)))
    store.pause(store.read("j"), "lines", is_paused=True)
    store.transition("j", JobState.SUSPENDED)


def halted(url: str) -> None:
    running(url)
    store = JobStore(Scripts(connect(url)))
    store.losses("j").report(store.read("j").run, ["stage 0 partition 0: a test has lost it"])


CASES: Final[dict[Callable[[str], None], JobState]] = {
    none: JobState.RUNNING,
    running: JobState.RUNNING,
    cancelled: JobState.RUNNING,
    cancelled_while_it_was_draining: JobState.DRAINING,
    suspended: JobState.RUNNING,
    halted: JobState.RUNNING,
}


def opened(scripts: Scripts, url: str, *, accepts_loss: bool = False) -> JobRecord:
    with Screen(True) as screen, Interrupts() as interrupts:
        link = Link(Server(url), screen, interrupts)
        return open_job(JobStore(scripts), "j", PLAN, link, accepts_loss=accepts_loss)


def check(record: JobRecord, state: JobState, *, accepted: bool) -> None:
    assert record.state is state
    assert record.paused == {}
    assert record.losses == ()
    assert record.generation == int(accepted)
    assert record.claim


@pytest.mark.parametrize("moment", ["before", "after"])
@pytest.mark.parametrize("found", CASES, ids=lambda found: found.__name__)
def test_each_request_and_each_answer_that_is_lost_is_made_up_for(
    redis_url: str, found: Callable[[str], None], moment: Moment
) -> None:
    accepted = found is halted
    calls = broken = 0
    while broken <= calls:
        connect(redis_url).flushdb()
        found(redis_url)
        scripts = FlakyScripts(connect(redis_url))
        if broken:
            scripts.break_call(moment, broken)

        record = opened(scripts, redis_url, accepts_loss=accepted)

        check(record, CASES[found], accepted=accepted)
        calls = calls or len(scripts.calls)
        broken += 1
    assert broken > 1


def test_a_run_that_was_killed_between_the_two_states_of_a_job_that_was_draining_leaves_it_draining(
    redis_url: str,
) -> None:
    cancelled_while_it_was_draining(redis_url)
    JobStore(Scripts(connect(redis_url))).transition("j", JobState.RUNNING)

    assert opened(Scripts(connect(redis_url)), redis_url).state is JobState.DRAINING


def test_ctrl_c_is_heard_while_redis_is_away(tmp_path: Path) -> None:
    with EmbeddedRedis.start(tmp_path) as server, Screen(True) as screen, Interrupts() as interrupts:
        store = JobStore(Scripts(connect(server.url)))
        cutting.kill(server)
        interrupts.count = 1

        with pytest.raises(KeyboardInterrupt):
            open_job(store, "j", PLAN, Link(Server(server.url), screen, interrupts))


def test_ctrl_c_is_heard_while_another_run_has_the_job(redis_url: str) -> None:
    store = JobStore(Scripts(connect(redis_url)))
    store.create("j", PLAN)
    store.claim("j", "")
    with Screen(True) as screen, Interrupts() as interrupts:
        interrupts.count = 1

        with pytest.raises(KeyboardInterrupt):
            open_job(store, "j", PLAN, Link(Server(redis_url), screen, interrupts))
