"""Leaders on a real Redis, with workers that only beat; and a whole leader process."""

from __future__ import annotations

import json
import logging
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from leader.app import make_app
from leader.beat import TICK_SECONDS, Ring, RingingScheduler
from leader.round import ENDED_SECONDS, Duties, Round
from leader.wiring import make_round
from pipeline.embedded.redis import EmbeddedRedis
from pipeline.errors import StaleTerm
from pipeline.facts import JobFacts, PartitionFacts
from pipeline.graph import Graph, KeyBy, Sink, SinkSpec, Source, SourceSpec
from pipeline.lifecycle import JobState
from pipeline.plan import compile_plan
from pipeline.settings import Limits
from pipeline.store import keys
from pipeline.store.connection import connect
from pipeline.store.jobs import JobStore
from pipeline.store.leadership import LeaderRegistry, Leadership
from pipeline.store.moving import MovingStore
from pipeline.store.ownership import Ownership
from pipeline.store.scripts import Scripts
from pipeline.tickets import TICK, message, ticket

JOB = "job"
LEASE_SECONDS = 0.4


def wait_until(predicate: Callable[[], Any], deadline_seconds: float = 20.0) -> None:
    deadline = time.monotonic() + deadline_seconds
    while not predicate():
        assert time.monotonic() < deadline, "it did not happen in time"
        threading.Event().wait(0.005)


class Site:
    """One Redis with one job, seen from outside."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.client = connect(url)
        self.scripts = Scripts(self.client)
        self.jobs = JobStore(self.scripts)
        self.clock = 0.0
        self._incarnation = 0

    def create(self, job: str = JOB, partitions: int = 2, **limits: Any) -> None:
        graph = Graph(
            "flow",
            (
                Source("lines", SourceSpec("iterable")),
                KeyBy("words", ("lines",), str),
                Sink("out", ("words",), SinkSpec("console"), "key"),
            ),
        )
        self.jobs.create(job, compile_plan(graph, partitions, Limits(**{"lease_seconds": LEASE_SECONDS} | limits)))

    def worker(self, name: str) -> Ownership:
        """A new incarnation of a worker."""
        self._incarnation += 1
        return Ownership(self.scripts, JOB, name, f"{self._incarnation}-x")

    def round(self, name: str = "L1") -> Round:
        return make_round(Scripts(connect(self.url)), name, random.Random(name), lambda: self.clock)

    def facts(self) -> JobFacts:
        return self.jobs.facts(JOB)

    def owners(self) -> dict[str, str]:
        return {part.name: part.owner for part in self.facts().partitions}

    def partition(self, name: str = "0.0") -> PartitionFacts:
        return next(part for part in self.facts().partitions if part.name == name)

    def meta(self, field: str, stage: int = 0, partition: int = 0) -> str | None:
        value = self.client.hget(keys.meta(JOB, stage, partition), field)
        return None if value is None else value.decode()


@pytest.fixture
def site(redis_url: str) -> Iterator[Site]:
    site = Site(redis_url)
    yield site
    site.client.close()


def beat(*workers: Ownership, **report: Any) -> None:
    for worker in workers:
        worker.heartbeat(json.dumps(report))


def test_a_new_job_is_assigned_and_each_partition_gets_a_ticket(site: Site) -> None:
    site.create()
    beat(site.worker("w1"), site.worker("w2"))

    counts = site.round().run_once()

    assert counts == {"assigned": 4}
    assert sorted(site.owners().values()) == ["w1", "w1", "w2", "w2"]
    assert {(part.term, part.queued, part.ring) for part in site.facts().partitions} == {(1, 1, "1")}
    assert site.facts().leader == "L1"


def test_a_round_that_finds_all_in_order_does_nothing(site: Site) -> None:
    site.create()
    beat(site.worker("w1"))
    round_ = site.round()
    round_.run_once()

    assert round_.run_once() == {}


def test_a_worker_that_joins_gets_its_share(site: Site) -> None:
    site.create()
    first, second = site.worker("w1"), site.worker("w2")
    beat(first)
    round_ = site.round()
    round_.run_once()

    beat(first, second)

    assert round_.run_once() == {"asked": 2}
    assert round_.run_once() == {}
    rows, asked = first.table()
    assert len(asked) == 2
    for row in rows:
        first.give_away(row, ticket(JOB, row.stage, row.partition, row.term + 1), 0)
    assert round_.run_once() == {}
    assert sorted(site.owners().values()) == ["w1", "w1", "w2", "w2"]


def test_what_an_owner_does_not_give_away_in_time_is_taken_from_it(site: Site) -> None:
    site.create(partitions=1, collect_seconds=0.05, lease_seconds=60.0)
    first, second = site.worker("w1"), site.worker("w2")
    beat(first)
    round_ = site.round()
    round_.run_once()
    beat(first, second)
    assert round_.run_once() == {"asked": 1}
    (asked,) = first.table()[1]

    wait_until(lambda: round_.run_once() == {"assigned": 1})

    assert site.owners()[asked] == "w2"
    assert site.partition(asked).term == 2
    assert second.acquire(second.assigned()[0]) is not None
    (moved,) = MovingStore(site.scripts, JOB).moves()
    assert (moved.before, moved.owner, moved.why, moved.how) == ("w1", "w2", "levelling", "forced")
    assert moved.pause_ms >= 50


def test_the_partitions_of_a_silent_worker_move_under_a_higher_term_and_count_a_death(site: Site) -> None:
    site.create(partitions=1)
    silent, heard = site.worker("w1"), site.worker("w2")
    beat(silent, heard)
    round_ = site.round()
    round_.run_once()
    before = {part.name: (part.owner, part.token) for part in site.facts().partitions}
    (lost,) = [name for name, (owner, _) in before.items() if owner == "w1"]

    def is_taken_over() -> bool:
        beat(heard)
        round_.run_once()
        return site.owners()[lost] == "w2"

    wait_until(is_taken_over)

    after = site.partition(lost)
    assert (after.term, after.token != before[lost][1]) == (2, True)
    assert site.meta("deaths", after.stage, after.partition) == "1"


def test_a_worker_that_its_agent_replaced_gets_its_partitions_back_at_once(site: Site) -> None:
    site.create()
    first, other = site.worker("w1"), site.worker("w2")
    beat(first, other)
    round_ = site.round()
    round_.run_once()
    before = site.owners()
    site.scripts.run("death", [keys.workers(JOB), keys.job(JOB)], ["w1", first.incarnation])
    assert round_.run_once() == {}

    second = site.worker("w1")
    beat(second, other)

    assert round_.run_once() == {"assigned": 2}
    assert site.owners() == before
    assert {part.incarnation for part in site.facts().partitions if part.owner == "w1"} == {second.incarnation}


def test_the_partitions_of_a_stuck_worker_go_to_others_and_the_record_is_named(
    site: Site, caplog: pytest.LogCaptureFixture
) -> None:
    site.create(partitions=1)
    stuck = site.worker("w1")
    beat(stuck)
    round_ = site.round()
    round_.run_once()

    beat(stuck, hand={"1.0": {"position": "1-0/7", "since_ms": 60_001, "why": "running"}})
    beat(site.worker("w2"))
    assert round_.run_once() == {"assigned": 2}
    assert round_.run_once() == {}

    assert set(site.owners().values()) == {"w2"}
    assert (site.meta("deaths", 0, 0), site.meta("deaths", 1, 0)) == ("0", "1")
    (error,) = [record.getMessage() for record in caplog.records if record.levelno == logging.ERROR]
    assert "stage=1 partition=0 position=1-0/7 worker=w1" in error


def test_one_of_two_leaders_acts_and_the_other_takes_over_when_its_lease_ends(site: Site) -> None:
    site.create()
    first, second = site.round("L1"), site.round("L2")
    assert first.run_once() == {}
    beat(site.worker("w1"))
    assert second.run_once() == {}
    assert site.facts().leader == "L1"

    worker = site.worker("w1")

    def acts() -> bool:
        beat(worker)
        return second.run_once() == {"assigned": 4}

    wait_until(acts)

    assert site.facts().leader == "L2"
    assert first.run_once() == {}


def test_a_leader_that_resigns_leaves_no_wait_and_no_queue(site: Site) -> None:
    site.create(lease_seconds=600.0)
    first, second = site.round("L1"), site.round("L2")
    first.run_once()
    second.run_once()
    LeaderRegistry(site.scripts, "L1").ring(b"tick")

    first.resign()
    beat(site.worker("w1"))

    assert second.run_once() == {"assigned": 4}
    assert site.client.exists(keys.leader_queue("L1")) == 0
    assert [name for name, _ in site.client.zrange(keys.leaders(), 0, -1, withscores=True)] == [b"L2"]


def test_a_stale_leader_is_refused(site: Site) -> None:
    site.create()
    worker = site.worker("w1")
    old, new = Leadership(site.scripts, "L1", "a"), Leadership(site.scripts, "L2", "b")
    token = old.hold(JOB, 0.0).token
    assert new.hold(JOB, 9.0).is_new

    with pytest.raises(StaleTerm):
        old.assign(JOB, token, (0, 0), ("w1", worker.incarnation), 1, "n", ticket(JOB, 0, 0, 1), False)

    assert site.owners()["0.0"] == ""


def test_a_leader_overtaken_in_its_round_stops_quietly(site: Site, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    site.create()
    round_ = site.round("L1")
    round_.run_once()
    beat(site.worker("w1"))
    hold = round_._leadership.hold

    def hold_and_pause(job: str, lease_seconds: float) -> Any:
        lease = hold(job, lease_seconds)
        site.client.hset(keys.leader(job), "token", "9:other")
        return lease

    round_._leadership.hold = hold_and_pause  # type: ignore[method-assign]

    assert round_.run_once() == {}
    assert set(site.owners().values()) == {""}
    assert [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING] == []
    assert "lease lost, another leader acts: job=job" in caplog.messages


def test_a_restart_of_redis_gives_every_partition_a_new_term_and_is_then_adopted(site: Site) -> None:
    site.create()
    worker = site.worker("w1")
    beat(worker)
    round_ = site.round()
    round_.run_once()
    site.client.hset(keys.job(JOB), "run_id", "before")

    assert round_.run_once() == {}  # the owner has not compared what it remembers
    beat(worker, server=site.jobs.run_id())
    assert round_.run_once() == {"adopted": 1}
    assert set(site.owners().values()) == {""}
    assert round_.run_once() == {"assigned": 4}

    assert {part.term for part in site.facts().partitions} == {int(site.meta("term") or 0)}
    assert int(site.meta("term") or 0) > 2
    assert site.facts().record.run_id == site.jobs.run_id()
    assert {site.meta("deaths", *place) for place in site.facts().record.plan.partitions()} == {"0"}
    assert round_.run_once() == {}


def test_a_lost_ticket_is_rung_again_after_two_looks(site: Site) -> None:
    site.create(partitions=1)
    worker = site.worker("w1")
    beat(worker)
    round_ = site.round()
    round_.run_once()
    site.client.hset(keys.meta(JOB, 0, 0), "head", "5")  # work
    site.client.delete(keys.queue(JOB, 0, 0))  # whose ticket is lost

    beat(worker, slices=["0.0"])
    assert [round_.run_once(), round_.run_once()] == [{}, {}]
    beat(worker)

    assert [round_.run_once(), round_.run_once(), round_.run_once()] == [{}, {"rung": 1}, {}]
    assert site.partition().queued == 1


def test_a_complete_source_is_closed_once(site: Site) -> None:
    site.create()
    site.scripts.run("complete", [keys.job(JOB), keys.senders(JOB)], ["lines", 0])
    round_ = site.round()

    assert [round_.run_once(), round_.run_once()] == [{"closed": 2}, {}]
    assert [part.closed for part in site.facts().partitions] == [True, True, False, False]


def test_a_draining_job_ends_its_sources_and_is_published_when_all_is_done(site: Site) -> None:
    site.create()
    site.jobs.transition(JOB, JobState.DRAINING)
    round_ = site.round()
    assert round_.run_once() == {"closed": 2}
    for place in site.facts().record.plan.partitions():
        site.client.hset(keys.meta(JOB, *place), "done", "1")

    assert round_.run_once() == {"publishing": 1}
    assert (site.jobs.state(JOB), site.jobs.read(JOB).reason) == (JobState.PUBLISHING, "")


def test_too_many_dead_letters_fail_the_job_with_their_count(site: Site) -> None:
    site.create(dead_letters=1)
    for _ in range(2):
        site.client.xadd(keys.dead(JOB), {"stage": 0})
        site.client.hincrby(keys.meta(JOB, 0, 0), "letters", 1)

    assert site.round().run_once() == {"failed": 1}
    assert site.jobs.read(JOB).reason.startswith("2 dead letters, more than the 1 allowed")


def test_a_full_redis_closes_the_gate_and_an_emptier_one_opens_it(site: Site) -> None:
    site.create()
    round_ = site.round()
    used = site.client.info("memory")["used_memory"]
    try:
        site.client.config_set("maxmemory", int(used * 1.1))
        assert round_.run_once() == {"gate_closed": 1}
        assert round_.run_once() == {}
        site.client.config_set("maxmemory", used * 2)
        assert round_.run_once() == {"gate_open": 1}
    finally:
        site.client.config_set("maxmemory", 0)


def test_a_removal_that_was_interrupted_is_finished_after_a_while(site: Site) -> None:
    site.create("going")
    names = [keys.job("going"), keys.leader("going"), keys.removing("going"), keys.leader_queue("x"), keys.leaders()]
    Scripts(site.client).run("remove", names, ["x"])  # and no more: it was killed
    round_ = site.round()

    assert round_.run_once() == {}
    site.clock += 29
    assert round_.run_once() == {}
    site.clock += 2
    assert round_.run_once() == {"removals_finished": 1}

    assert site.client.keys("*{going}*") == []
    assert round_.run_once() == {}


def test_each_removal_of_an_id_gets_its_time(site: Site) -> None:
    names = [keys.job("going"), keys.leader("going"), keys.removing("going"), keys.leader_queue("x"), keys.leaders()]
    round_ = site.round()
    for _ in range(2):
        site.create("going")
        round_.run_once()
        Scripts(site.client).run("remove", names, ["x"])
        assert round_.run_once() == {}
        site.clock += 31


def test_a_job_of_another_version_is_left_alone_with_one_warning(site: Site, caplog: pytest.LogCaptureFixture) -> None:
    site.create("foreign")
    site.create()
    plan = json.loads(site.client.hget(keys.job("foreign"), "plan"))
    site.client.hset(keys.job("foreign"), "plan", json.dumps(plan | {"protocol": 99}))
    beat(site.worker("w1"))
    round_ = site.round()

    assert round_.run_once() == {"assigned": 4}
    assert round_.run_once() == {}

    warnings = [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]
    assert len(warnings) == 1
    assert "job=foreign" in warnings[0]
    assert site.client.exists(keys.leader("foreign")) == 0


class Broken:
    """A duty with a fault in it."""

    name = "broken"

    def run_once(self, facts: JobFacts, token: str) -> dict[str, int]:
        raise ZeroDivisionError(f"{facts.record.job} {token[0]}")


class Sound:
    """A duty that always has something to do."""

    name = "sound"

    def run_once(self, facts: JobFacts, token: str) -> dict[str, int]:
        return {f"{facts.record.job} {token[0]}": 1}


def test_a_duty_that_fails_is_logged_once_and_does_not_stop_the_others(
    site: Site, caplog: pytest.LogCaptureFixture
) -> None:
    site.create()
    leadership, registry = Leadership(site.scripts, "L1", "n"), LeaderRegistry(site.scripts, "L1")
    round_ = Round(site.jobs, leadership, registry, lambda: Duties((Broken(), Sound()), ()), time.monotonic)

    assert [round_.run_once(), round_.run_once()] == [{"job 1": 1}, {"job 1": 1}]

    (record,) = [record for record in caplog.records if record.levelno >= logging.WARNING]
    assert "job=job duty=broken" in record.getMessage()
    assert record.exc_info is not None


def test_a_job_whose_keys_are_damaged_does_not_stop_the_other_jobs(
    site: Site, caplog: pytest.LogCaptureFixture
) -> None:
    site.create("damaged")
    site.create()
    beat(site.worker("w1"))
    site.client.set(keys.workers("damaged"), "not a hash")
    round_ = site.round()

    assert [round_.run_once(), round_.run_once()] == [{"assigned": 4}, {}]

    (warning,) = [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]
    assert "job=damaged" in warning


def test_an_ended_job_is_only_tidied_and_rarely(site: Site) -> None:
    site.create()
    beat(site.worker("w1"))
    site.jobs.transition(JOB, JobState.CANCELLED)
    site.client.hset(keys.workers(JOB), "a:w1", "1")
    round_ = site.round()

    assert round_.run_once() == {"forgotten": 1}
    beat(site.worker("w2"))
    site.client.hset(keys.workers(JOB), "a:w2", "1")
    assert round_.run_once() == {}
    site.clock += ENDED_SECONDS
    assert round_.run_once() == {"forgotten": 1}
    assert set(site.owners().values()) == {""}


def test_a_leader_long_silent_is_taken_out_with_its_queue_and_comes_back_by_itself(site: Site) -> None:
    gone = LeaderRegistry(site.scripts, "gone")
    gone.announce(60.0)
    gone.ring(b"tick")
    site.client.zadd(keys.leaders(), {"gone": 1})

    assert site.round().run_once() == {"leaders_retired": 1}

    assert site.client.exists(keys.leader_queue("gone")) == 0
    assert gone.announce(60.0) == []
    assert not LeaderRegistry(site.scripts, "L2").retire("gone", 60.0)


def test_the_clock_keeps_at_most_one_tick_queued_and_it_is_as_celery_wants_it(site: Site) -> None:
    ring = Ring(site.url, "L1")

    assert [ring.ring() for _ in range(5)] == [True, False, False, False, False]

    queue = keys.leader_queue_name("L1")
    assert site.client.lrange(keys.leader_queue("L1"), 0, -1) == [message(TICK, queue, queue, [])]


def test_the_schedule_rings_through_celery_beat_and_nothing_else_is_scheduled(site: Site) -> None:
    app = make_app(site.url, "L1")
    scheduler = app.conf.beat_scheduler(app)

    assert isinstance(scheduler, RingingScheduler)
    wait_until(lambda: (scheduler.tick(), site.client.llen(keys.leader_queue("L1")))[1] == 1, 5.0)
    assert list(scheduler.schedule) == ["tick"]
    assert scheduler.tick() <= TICK_SECONDS


def test_the_clock_rings_on_while_that_of_its_host_is_set_back(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    app, queue = make_app(site.url, "L1"), keys.leader_queue("L1")
    scheduler, now = app.conf.beat_scheduler(app), app.now
    scheduler.tick()
    monkeypatch.setattr(app, "now", lambda: now() - timedelta(minutes=1))
    site.client.delete(queue)

    wait_until(lambda: (scheduler.tick(), site.client.llen(queue))[1] == 1, 5.0)


def test_a_leader_that_has_lost_its_connection_waits_for_redis_and_no_longer(tmp_path: Path) -> None:
    with EmbeddedRedis.start(tmp_path, fsync="no") as server:
        app = make_app(server.url, "L1")
        (step,) = [step for step in app.steps["consumer"] if step.__name__ == "Waiting"]
        os.kill(server.pid, signal.SIGKILL)
        waiting = threading.Thread(target=step.stop, args=(None, SimpleNamespace(app=app)))
        waiting.start()
        waiting.join(0.3)
        assert waiting.is_alive()

        server.restart()
        waiting.join(10)

        assert not waiting.is_alive()


def test_a_tick_runs_one_round(site: Site) -> None:
    site.create()
    beat(site.worker("w1"))

    make_app(site.url, "L1").tasks[TICK]()

    assert set(site.owners().values()) == {"w1"}


def test_a_redis_that_is_away_is_told_once_and_waited_out(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    with EmbeddedRedis.start(fsync="no") as server:
        site = Site(server.url)
        site.create()
        round_ = site.round()
        ring = Ring(server.url, "L1")
        round_.run_once()
        assert ring.ring()
        caplog.clear()
        server.stop()

        assert [round_.run_once(), round_.run_once()] == [{}, {}]
        assert not ring.ring()
        round_.resign()

    assert [record.name for record in caplog.records] == ["leader.round", "leader.beat", "leader.round"]


def start_leader(site: Site, name: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "leader.main"],
        env={**os.environ, "CELERIAC_REDIS": site.url, "CELERIAC_LEADER": name},
        stderr=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        text=True,
    )


def children_of(pid: int) -> list[int]:
    return [int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def test_a_leader_process_assigns_and_gives_all_back_on_sigterm(site: Site) -> None:
    site.create(lease_seconds=60.0)
    beat(site.worker("w1"))
    with start_leader(site, "L1") as process:
        try:
            wait_until(lambda: set(site.owners().values()) == {"w1"})
            process.send_signal(signal.SIGTERM)
            _, log = process.communicate(timeout=20.0)
        finally:
            process.kill()

    assert process.returncode == 0, log
    assert "leading: job=job leader=L1 term=1" in log
    assert Leadership(site.scripts, "L2", "n").hold(JOB, 1.0).is_new
    left = {key.decode() for key in site.client.keys("*")}
    assert {key for key in left if not key.startswith(keys.of_job(JOB))} == {keys.jobs()}


def test_a_killed_leader_leaves_no_clock_behind(site: Site) -> None:
    site.create()
    with start_leader(site, "L1") as process:
        try:
            wait_until(lambda: site.facts().leader == "L1")
            (clock,) = children_of(process.pid)
        finally:
            process.kill()
        process.communicate(timeout=20.0)

    wait_until(lambda: not is_running(clock))


def test_a_leader_whose_clock_died_ends_to_be_started_again(site: Site) -> None:
    site.create()
    with start_leader(site, "L1") as process:
        try:
            wait_until(lambda: site.facts().leader == "L1")
            os.kill(children_of(process.pid)[0], signal.SIGKILL)
            _, log = process.communicate(timeout=20.0)
        finally:
            process.kill()

    assert process.returncode == 1
    assert "clock has died" in log


def test_a_leader_without_an_address_says_what_to_set() -> None:
    environment = {name: value for name, value in os.environ.items() if name != "CELERIAC_REDIS"}

    done = subprocess.run(
        [sys.executable, "-m", "leader.main"], env=environment, capture_output=True, text=True, timeout=60, check=False
    )

    assert (done.returncode, done.stderr) == (
        2,
        "error: CELERIAC_REDIS is not set\nhint: set it to the address, as redis://host:6379/0\n",
    )


def is_running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except (FileNotFoundError, ProcessLookupError):
        return False
