"""The server's clock is set back under a job: leases still end, and who is silent is still missed."""

from __future__ import annotations

import time
from collections.abc import Callable

from bench import Bench

from pipeline.lifecycle import JobState
from pipeline.losses import losses_since
from pipeline.store import keys
from pipeline.store.leadership import Leadership
from pipeline.store.ownership import Ownership

MINUTE_MS = 60_000


def set_back(bench: Bench, ms: int = MINUTE_MS) -> None:
    """As if the server's clock had been set back: all that was written stands that much later by the one of now."""
    for key, fields in ((keys.job("j"), ("now", "changed_at")), (keys.leader("j"), ("until",))):
        for field in fields:
            bench.client.hincrby(key, field, ms)
    for field in bench.client.hkeys(keys.workers("j")):
        if field.startswith(b"a:"):
            bench.client.hincrby(keys.workers("j"), field, ms)


def wait_until(predicate: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + 10
    while not predicate():
        assert time.monotonic() < deadline, what


def age(bench: Bench, worker: str) -> float:
    return next(each.age_seconds for each in bench.jobs.facts("j").workers if each.name == worker)


def test_the_lease_of_a_dead_leader_ends(bench: Bench) -> None:
    bench.leadership.hold("j", 0.05)
    set_back(bench)

    other = Leadership(bench.scripts, "leader-2", "n2")
    assert other.hold("j", 60).token == ""
    wait_until(lambda: other.hold("j", 60).token == "2:n2", "the lease never ended")


def test_a_lease_that_is_renewed_is_not_stolen(bench: Bench) -> None:
    other = Leadership(bench.scripts, "leader-2", "n2")
    for ms in (MINUTE_MS, MINUTE_MS, 1):
        set_back(bench, ms)
        assert bench.leadership.hold("j", 60).token == bench.token
        assert other.hold("j", 60).token == ""


def test_a_worker_that_falls_silent_is_missed_and_one_that_beats_is_not(bench: Bench) -> None:
    silent, beating = (Ownership(bench.scripts, "j", name, "1-a") for name in ("silent", "beating"))
    silent.heartbeat("{}")
    set_back(bench)

    def is_missed() -> bool:
        beating.heartbeat("{}")
        assert age(bench, "beating") < 5
        return age(bench, "silent") > 0.1

    wait_until(is_missed, "nobody misses the silent worker")
    assert age(bench, "silent") < 5


def test_when_all_workers_are_silent_the_leader_alone_keeps_the_time(bench: Bench) -> None:
    Ownership(bench.scripts, "j", "w", "1-a").heartbeat("{}")
    set_back(bench)

    wait_until(lambda: bool(bench.leadership.hold("j", 60).token) and age(bench, "w") > 0.1, "nobody misses the worker")


def test_a_change_of_the_job_does_not_look_like_one_that_was_lost(bench: Bench) -> None:
    bench.jobs.transition("j", JobState.DRAINING)
    set_back(bench)
    before = bench.jobs.facts("j")

    bench.jobs.transition("j", JobState.CANCELLED)

    assert losses_since(before, bench.jobs.facts("j"), "the run") == []


def test_a_claim_is_as_old_as_the_facts_say(bench: Bench) -> None:
    set_back(bench)
    bench.leadership.hold("j", 60)

    claimed_ms = int(bench.jobs.claim("j", "").partition(" ")[0])

    assert 0 <= bench.jobs.facts("j").now_ms - claimed_ms < 5_000
