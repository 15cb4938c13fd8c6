"""How a run gets hold of its job: whatever is lost on the way to Redis and back, it goes on as it should."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

import pytest

from pipeline import Pipeline, read, write
from pipeline.cli.finishing import Finish
from pipeline.cli.interrupts import Interrupts
from pipeline.cli.link import Link
from pipeline.cli.main import run_command
from pipeline.cli.openings import open_job, still_held
from pipeline.cli.screen import Screen
from pipeline.cli.services import NodeProcess, Server
from pipeline.embedded.redis import EmbeddedRedis
from pipeline.errors import JobStateError, JobTaken, StoreError
from pipeline.facts import JobRecord
from pipeline.lifecycle import JobState
from pipeline.plan import compile_plan
from pipeline.settings import Limits
from pipeline.store import keys
from pipeline.store.connection import connect
from pipeline.store.jobs import JobStore
from pipeline.store.leadership import Leadership
from pipeline.store.scripts import Scripts
from pipeline.store.versions import VersionStore
from tests import cutting
from tests.runtime.harness import FlakyScripts, Moment

TEXT: Final = """
from pipeline import Pipeline, read, write

flow = Pipeline("lines")
flow.source(read.iterable([1, 2, 3]), name="lines").sink(write.jsonl("out"), name="out")
"""
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


class Dies(Exception):
    """The process ends here."""


class DyingScripts(Scripts):
    """Ends its process behind so many scripts; None: never. `calls`: how many there were."""

    def __init__(self, url: str, behind: int | None = None) -> None:
        super().__init__(connect(url))
        self._behind = behind
        self.calls = 0

    def run(self, name: str, keys: Sequence[str], args: Sequence[Any]) -> list[Any]:
        answer = super().run(name, keys, args)
        self.calls += 1
        if self.calls == self._behind:
            raise Dies
        return answer


@pytest.mark.parametrize("found", CASES, ids=lambda found: found.__name__)
def test_whatever_request_a_run_was_killed_behind_the_next_one_goes_on_as_it_should(
    redis_url: str, found: Callable[[str], None]
) -> None:
    found(redis_url)
    whole = DyingScripts(redis_url)
    opened(whole, redis_url, accepts_loss=found is halted)
    for behind in range(1, whole.calls + 1):
        client = connect(redis_url)
        client.flushdb()
        found(redis_url)
        with pytest.raises(Dies):
            opened(DyingScripts(redis_url, behind), redis_url, accepts_loss=found is halted)
        client.hset(keys.job("j"), "claim", "1 of-the-dead-one")  # its claim has grown old
        is_lossy = bool(JobStore(Scripts(client)).read("j").losses)

        record = opened(Scripts(client), redis_url, accepts_loss=is_lossy)

        check(record, CASES[found], accepted=found is halted)


class Overtaken(JobStore):
    """Another run has had the job, and done this, until just before it is claimed."""

    def __init__(self, url: str, done: Callable[[JobStore], None]) -> None:
        super().__init__(Scripts(connect(url)))
        self._done = done

    def claim(self, job: str, before: str, nonce: str = "") -> str:
        self._done(self)
        return super().claim(job, before, nonce)


def suspends(store: JobStore) -> None:
    store.pause(store.read("j"), "lines", is_paused=True, holder="savepoint")
    store.transition("j", JobState.SUSPENDED)


def finishes(store: JobStore) -> None:
    store.transition("j", JobState.PUBLISHING)
    store.transition("j", JobState.FINISHED)


def loses(store: JobStore) -> None:
    store.losses("j").report(store.read("j").run, ["stage 0 partition 0: a test has lost it"])


def opened_behind(url: str, done: Callable[[JobStore], None]) -> JobRecord:
    running(url)
    with Screen(True) as screen, Interrupts() as interrupts:
        return open_job(Overtaken(url, done), "j", PLAN, Link(Server(url), screen, interrupts))


@pytest.mark.parametrize(("done", "state"), [(suspends, JobState.RUNNING), (finishes, JobState.FINISHED)])
def test_what_another_run_has_made_of_the_job_until_it_is_claimed_counts(
    redis_url: str, done: Callable[[JobStore], None], state: JobState
) -> None:
    record = opened_behind(redis_url, done)

    assert (record.state, record.paused) == (state, {})


def test_a_loss_that_is_noticed_until_the_job_is_claimed_is_not_gone_over(redis_url: str) -> None:
    with pytest.raises(JobStateError, match="has halted"):
        opened_behind(redis_url, loses)


def test_a_run_has_its_own_claim_and_hears_when_that_is_lost(redis_url: str) -> None:
    running(redis_url)
    store = JobStore(Scripts(connect(redis_url)))

    record = opened(Scripts(connect(redis_url)), redis_url)
    assert still_held("j", store.hold_claim("j", record.claim)) != record.claim, "it was said again"
    store.claim("j", store.read("j").claim)

    with pytest.raises(JobTaken, match="'j' was taken by another run"):
        still_held("j", store.hold_claim("j", record.claim))


TAKEN: Final = {"before it starts its node": (VersionStore, "add"), "behind that": (NodeProcess, "start")}


@pytest.mark.parametrize("moment", TAKEN)
def test_a_run_whose_claim_was_lost_ends_and_leaves_the_job_to_the_other_one(
    redis_url: str, moment: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """As when Redis was away for longer than a claim counts."""
    store = JobStore(Scripts(connect(redis_url)))

    def taken(*_: Any, **__: Any) -> None:
        store.claim("x", store.read("x").claim)

    monkeypatch.setattr(*TAKEN[moment], taken)
    monkeypatch.chdir(tmp_path)
    Path("flow.py").write_text(TEXT)

    code = run_command(["run", "flow.py", "--redis", redis_url, "--job-id", "x"])

    assert (code, store.state("x")) == (2, JobState.RUNNING)
    assert "error: the job 'x' was taken by another run while Redis was away" in capsys.readouterr().err


def test_a_finished_job_stays_finished_when_it_cannot_be_read_any_more(
    redis_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def broken(*_: Any) -> None:
        raise StoreError("Redis has gone (by the test)")

    monkeypatch.setattr(Finish, "_read_all", broken)
    monkeypatch.chdir(tmp_path)
    Path("flow.py").write_text(TEXT)

    code = run_command(["run", "flow.py", "--redis", redis_url, "--job-id", "x", "--workers", "1"])

    assert (code, JobStore(Scripts(connect(redis_url))).state("x")) == (3, JobState.FINISHED)
    said = capsys.readouterr().err
    assert f"job x finished, and its results stand\n  result: {tmp_path}/out\n" in said
    assert "could not be read: Redis has gone (by the test)" in said
    assert (tmp_path / "out").is_dir()


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
