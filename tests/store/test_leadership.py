"""The lease and the terms of leaders; every write of a leader is fenced. Assignments, deaths, workers."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest
from bench import ENTRY, KEYED, Bench, Hand, a_batch

from pipeline.errors import JobStateError, StaleTerm, UnknownJob
from pipeline.lifecycle import BEFORE, ENDED, JobState
from pipeline.positions import START, Position
from pipeline.store import keys
from pipeline.store.agents import AgentLink
from pipeline.store.leadership import LeaderRegistry, Leadership


def another(bench: Bench, name: str = "leader-2", nonce: str = "n2") -> Leadership:
    return Leadership(bench.scripts, name, nonce)


def end_lease(bench: Bench) -> None:
    bench.client.hset(keys.leader("j"), "until", 1)


# The lease.


def test_one_leader_holds_the_lease_and_renews_it_in_the_same_term(bench: Bench) -> None:
    again = bench.leadership.hold("j", 60)
    refused = another(bench).hold("j", 60)

    assert (again.token, again.is_new) == ("1:n1", False)
    assert (refused.token, refused.holder) == ("", "leader-1")


def test_an_expired_lease_changes_hands_under_a_new_term(bench: Bench) -> None:
    end_lease(bench)

    lease = another(bench).hold("j", 60)

    assert (lease.token, lease.holder, lease.is_new) == ("2:n2", "leader-2", True)
    assert bench.leadership.hold("j", 60).token == ""


def test_a_lease_ends_by_the_servers_clock(bench: Bench) -> None:
    bench.leadership.hold("j", 0.03)
    deadline = time.monotonic() + 5
    while not (lease := another(bench).hold("j", 60)).token:
        assert time.monotonic() < deadline, "the lease never ended"

    assert lease.token == "2:n2"


def test_a_leader_of_the_same_name_in_another_process_is_another_leader(bench: Bench) -> None:
    assert another(bench, "leader-1").hold("j", 60).token == ""
    assert another(bench, "leader-2", "n1").hold("j", 60).token == ""
    end_lease(bench)
    assert another(bench, "leader-1").hold("j", 60).token == "2:n2"


def test_a_lease_that_was_given_back_is_free_at_once(bench: Bench) -> None:
    bench.leadership.release("j", bench.token)

    assert another(bench).hold("j", 60).is_new


def test_a_stale_leader_cannot_give_back_the_lease_of_another(bench: Bench) -> None:
    end_lease(bench)
    other = another(bench)
    other.hold("j", 60)

    bench.leadership.release("j", bench.token)

    assert another(bench, "leader-3", "n3").hold("j", 60).token == ""
    assert not other.hold("j", 60).is_new


def test_a_lease_on_a_job_that_does_not_exist_is_refused(bench: Bench) -> None:
    with pytest.raises(UnknownJob):
        bench.leadership.hold("nobody", 1)


def test_the_lease_does_not_end_early_when_the_servers_clock_goes_back(bench: Bench) -> None:
    """B5: time only grows."""
    future = int(time.time() * 1000) + 3_600_000
    bench.client.hset(keys.job("j"), "now", future)
    bench.client.hset(keys.leader("j"), "until", future + 60_000)

    assert another(bench).hold("j", 60).token == ""
    bench.leadership.hold("j", 60)
    assert int(bench.client.hget(keys.leader("j"), "until")) >= future + 60_000


# A stale leader.

WRITES: dict[str, Callable[[Bench, str], Any]] = {
    "assign": lambda b, t: b.leadership.assign("j", t, ENTRY, ("w", "1-a"), 1, "x", b"ticket", False),
    "sweep": lambda b, t: b.leadership.sweep("j", t, ENTRY, False),
    "close": lambda b, t: b.leadership.close_source("j", t, b.plan, "lines"),
    "gate": lambda b, t: b.leadership.set_gate("j", t, "closed"),
    "forget": lambda b, t: b.leadership.forget_worker("j", t, "w", "1-a"),
    "visitors": lambda b, t: b.leadership.forget_visitors("j", t, 1.0, 10),
    "adopt": lambda b, t: b.leadership.adopt_server("j", t, b.plan),
    "transition": lambda b, t: b.jobs.transition("j", JobState.FAILED, "why", t),
}


@pytest.mark.parametrize("write", WRITES)
def test_a_stale_leader_changes_nothing(bench: Bench, write: str) -> None:
    """A4: terms are compared for equality, whoever wakes up late."""
    bench.lane().append(1, a_batch("a"))
    bench.owner().heartbeat("{}")
    end_lease(bench)
    another(bench).hold("j", 60)
    before = bench.snapshot()

    for token in (bench.token, "2:n1", "", "1:"):
        if token or write != "transition":
            with pytest.raises(StaleTerm):
                WRITES[write](bench, token)

    assert bench.snapshot() == before


@pytest.mark.parametrize("write", WRITES)
def test_a_leader_of_a_removed_job_creates_nothing(bench: Bench, write: str) -> None:
    bench.jobs.erase("j")

    try:
        done = WRITES[write](bench, bench.token)
    except (StaleTerm, UnknownJob):
        done = None

    assert not done
    assert bench.snapshot() == {}


# Assignments.


def test_an_assignment_names_worker_incarnation_and_token(bench: Bench) -> None:
    row = bench.assign(ENTRY, worker="w", incarnation="3-x", nonce="n")

    assert bench.owner("w", "3-x").assigned() == [row]
    assert bench.owner("w", "4-x").assigned() == []
    assert row.term == 1
    facts = bench.facts()
    assert (facts.owner, facts.incarnation, facts.token, facts.term) == ("w", "3-x", "1:n", 1)


def test_only_the_next_term_is_assigned(bench: Bench) -> None:
    bench.assign()
    before = bench.snapshot()

    for term in (1, 3):
        assert not bench.leadership.assign("j", bench.token, ENTRY, ("v", "1-a"), term, "y", b"t", False)

    assert bench.snapshot() == before


@pytest.mark.parametrize("state", sorted(ENDED | {JobState.PUBLISHING}))
def test_a_job_that_does_not_work_gives_nothing_out(bench: Bench, state: JobState) -> None:
    row = bench.assign()
    bench.client.hset(keys.job("j"), "state", state.value)

    assert not bench.leadership.assign("j", bench.token, ENTRY, ("v", "1-a"), 2, "y", b"t", False)
    assert bench.acquire(row) is None


def test_an_owner_starts_from_what_was_committed(bench: Bench) -> None:
    bench.lane().append(1, a_batch("a", "b"))
    bench.worker().commit(Position("1-0", 1), meta={"watermark": 70, "done": 1}, log={"w:1": 80, "w:2": 90})

    acquired = bench.acquire(bench.assign(nonce="y"))

    assert acquired is not None
    assert acquired.position == Position("1-0", 1)
    assert (acquired.watermark, acquired.done, acquired.table) == (70, True, 1)
    assert acquired.watermarks == {"1": 80, "2": 90}


def test_a_row_that_is_out_of_date_acquires_nothing(bench: Bench) -> None:
    row = bench.assign()
    bench.assign(nonce="y")
    before = bench.snapshot()

    assert bench.acquire(row) is None
    assert not bench.owner().declare_trial(row, START)
    assert bench.snapshot() == before


# Deaths.


def deaths(bench: Bench) -> int:
    row = bench.assign(nonce=str(time.monotonic_ns()), is_unclean=True)
    acquired = bench.acquire(row)
    assert acquired is not None
    return acquired.deaths


def test_each_unclean_end_counts_against_the_position_until_records_run_alone(bench: Bench) -> None:
    """A9: from the second death on only a record that was in hand counts."""
    bench.lane().append(1, a_batch("a", "b"))
    bench.assign()

    assert deaths(bench) == 1
    assert deaths(bench) == 2
    assert deaths(bench) == 2

    row = bench.assign(nonce="t")
    assert bench.owner().declare_trial(row, START)
    assert deaths(bench) == 3


def test_progress_forgets_the_deaths(bench: Bench) -> None:
    """A9: they belong to a position."""
    bench.lane().append(1, a_batch("a", "b"))
    bench.assign()
    assert deaths(bench) == 1
    row = bench.assign(nonce="t")
    Hand(bench, row).commit(Position("1-0", 1))

    assert deaths(bench) == 1


def test_a_trial_counts_once(bench: Bench) -> None:
    bench.lane().append(1, a_batch("a"))
    bench.assign()
    assert deaths(bench) == 1
    assert deaths(bench) == 2
    row = bench.assign(nonce="t")
    bench.owner().declare_trial(row, START)
    assert deaths(bench) == 3

    assert deaths(bench) == 3


def test_a_clean_change_of_owner_counts_nothing(bench: Bench) -> None:
    """A9."""
    bench.assign()
    acquired = bench.acquire(bench.assign(nonce="y"))

    assert acquired is not None
    assert acquired.deaths == 0


# Workers.


def test_a_heartbeat_tells_the_state_and_the_last_control_message(bench: Bench) -> None:
    first = bench.owner().heartbeat('{"x": 1}')
    bench.assign()
    second = bench.owner().heartbeat('{"x": 2}')

    assert first is not None
    assert second is not None
    assert first.state is JobState.RUNNING
    assert first.control != second.control
    (worker,) = bench.jobs.facts("j").workers
    assert (worker.name, worker.incarnation, worker.report) == ("w", "1-a", {"x": 2})
    assert 0 <= worker.age_seconds < 5
    assert not worker.is_reported_dead


def test_an_older_process_of_the_same_name_is_told_to_end(bench: Bench) -> None:
    assert bench.owner("w", "9-a").heartbeat("{}") is not None
    assert bench.owner("w", "10-a").heartbeat("{}") is not None

    assert bench.owner("w", "9-a").heartbeat("{}") is None
    assert bench.owner("w", "10-b").heartbeat("{}") is None
    assert bench.owner("w", "10-a").heartbeat("{}") is not None


def test_a_death_is_reported_for_the_incarnation_that_died(bench: Bench) -> None:
    agent = AgentLink(bench.scripts, "j")
    bench.owner("w", "1-a").heartbeat("{}")

    before = bench.snapshot()
    agent.report_death("w", "0-z")
    assert bench.snapshot() == before
    agent.report_death("w", "1-a")
    assert bench.jobs.facts("j").workers[0].is_reported_dead

    bench.owner("w", "2-a").heartbeat("{}")
    assert not bench.jobs.facts("j").workers[0].is_reported_dead
    assert agent.is_up()
    assert agent.heard_from("nobody") is None
    assert 0 <= (agent.heard_from("w") or 0) < 5


def test_a_worker_is_forgotten_unless_a_new_one_took_its_name(bench: Bench) -> None:
    bench.owner("w", "1-a").heartbeat("{}")
    bench.owner("w", "2-a").heartbeat("{}")

    assert not bench.leadership.forget_worker("j", bench.token, "w", "1-a")
    assert bench.leadership.forget_worker("j", bench.token, "w", "2-a")
    assert bench.jobs.facts("j").workers == ()


def test_a_heartbeat_for_a_removed_job_is_refused_and_creates_nothing(bench: Bench) -> None:
    bench.jobs.erase("j")

    with pytest.raises(UnknownJob):
        bench.owner().heartbeat("{}")
    AgentLink(bench.scripts, "j").report_death("w", "1-a")

    assert bench.snapshot() == {}


# States.


@pytest.mark.parametrize("before", JobState)
@pytest.mark.parametrize("after", JobState)
def test_only_the_states_of_the_table_follow_each_other(bench: Bench, before: JobState, after: JobState) -> None:
    bench.client.hset(keys.job("j"), "state", before.value)

    if before in BEFORE[after]:
        bench.jobs.transition("j", after, "because")
        record = bench.jobs.read("j")
        assert (record.state, record.reason) == (after, "because")
        assert record.changed_at_ms >= record.made_at_ms
    else:
        with pytest.raises(JobStateError, match=before.value):
            bench.jobs.transition("j", after, "because")
        assert bench.jobs.state("j") is before


def test_a_leader_may_change_the_state_under_its_token(bench: Bench) -> None:
    bench.jobs.transition("j", JobState.DRAINING, "", bench.token)

    assert bench.jobs.state("j") is JobState.DRAINING


def test_the_gate_holds_external_appends_back_and_lets_them_in_again(bench: Bench) -> None:
    bench.leadership.set_gate("j", bench.token, "closed")
    assert bench.jobs.read("j").gate == "closed"
    bench.leadership.set_gate("j", bench.token, "open")

    bench.lane().append(1, a_batch("a"))

    assert bench.values() == ["a"]


def test_the_new_run_of_a_server_is_adopted_once_and_ends_every_ownership(bench: Bench) -> None:
    """A4."""
    row = bench.assign()
    bench.client.hset(keys.job("j"), "run_id", "another")

    assert bench.leadership.adopt_server("j", bench.token, bench.plan)
    assert not bench.leadership.adopt_server("j", bench.token, bench.plan)

    assert bench.jobs.read("j").run_id == bench.jobs.run_id()
    assert bench.acquire(row) is None
    assert bench.owner().assigned() == []
    assert "token" not in bench.meta()
    assert bench.meta()["restored"] == "1-0/0"
    assert bench.acquire(bench.assign()) is not None


# Without memory.


def test_without_memory_leaders_and_workers_go_on(bench: Bench, full_memory: Callable[[], None]) -> None:
    """A6: control begins with a command that shrinks, so nobody is declared dead."""
    lane = bench.lane()
    lane.append(1, a_batch("a"))
    full_memory()

    assert bench.leadership.hold("j", 60).token == bench.token
    row = bench.assign(is_unclean=True)
    assert bench.owner().heartbeat('{"y": 1}') is not None
    assert bench.acquire(row) is not None
    assert bench.owner().declare_trial(row, START)
    AgentLink(bench.scripts, "j").report_death("w", "1-a")
    bench.pop_ticket()
    assert bench.leadership.sweep("j", bench.token, ENTRY, False)
    bench.leadership.set_gate("j", bench.token, "closed")
    assert bench.lane("late").taken == 0
    lane.finish(1)
    bench.lane("late").finish(0)
    bench.feed().complete(2)
    assert bench.leadership.close_source("j", bench.token, bench.plan, "lines") == 1
    bench.client.config_set("maxmemory", 0)
    bench.client.hset(keys.job("j"), "run_id", "another")
    full_memory()
    assert bench.leadership.adopt_server("j", bench.token, bench.plan)
    assert bench.leadership.forget_worker("j", bench.token, "w", "1-a")
    bench.jobs.transition("j", JobState.CANCELLED, "enough", bench.token)
    bench.leadership.release("j", bench.token)
    assert another(bench).hold("j", 60).is_new
    assert bench.jobs.remove("j") > 0


def test_partitions_of_both_stages_are_assigned_apart(bench: Bench) -> None:
    bench.assign(ENTRY, worker="a")
    bench.assign(KEYED, worker="b")

    assert [row.stage for row in bench.owner("a").assigned()] == [0]
    assert [row.stage for row in bench.owner("b").assigned()] == [1]


# Leader processes.


def test_a_leader_has_at_most_one_tick_queued(bench: Bench) -> None:
    """B5."""
    registry = LeaderRegistry(bench.scripts, "l1")

    assert registry.ring(b"tick")
    assert not registry.ring(b"tock")
    assert bench.client.lrange(keys.leader_queue("l1"), 0, -1) == [b"tick"]


def test_a_silent_leader_is_named_and_taken_out_with_its_queue(bench: Bench) -> None:
    one, two = LeaderRegistry(bench.scripts, "l1"), LeaderRegistry(bench.scripts, "l2")
    one.announce(60)
    one.ring(b"tick")
    assert two.announce(60) == []
    assert not two.retire("l1", 60)

    bench.client.zadd(keys.leaders(), {"l1": 1})

    assert two.announce(60) == ["l1"]
    assert two.retire("l1", 60)
    assert not two.retire("nobody", 60)
    assert not bench.client.exists(keys.leader_queue("l1"))
    assert two.announce(60) == []


def test_a_leader_that_leaves_is_gone_at_once(bench: Bench) -> None:
    registry = LeaderRegistry(bench.scripts, "l1")
    registry.announce(60)
    registry.ring(b"tick")

    registry.leave()

    assert not bench.client.exists(keys.leader_queue("l1"), keys.leaders())


def test_without_memory_leaders_still_tick(bench: Bench, full_memory: Callable[[], None]) -> None:
    """A6."""
    registry = LeaderRegistry(bench.scripts, "l1")
    full_memory()

    assert registry.ring(b"tick")
    assert registry.announce(60) == []
    registry.leave()
