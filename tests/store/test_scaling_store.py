"""What Redis keeps of a job's scaling: settings, the wanted number, decisions, and workers that are to leave."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace

import pytest
from bench import Bench

from pipeline.errors import DecodingError, ForeignData, StaleTerm, UnknownJob
from pipeline.scaling.decision import MOST_DECISIONS, Decision
from pipeline.scaling.load import Load, StageLoad
from pipeline.scaling.policies import Kind, Need
from pipeline.scaling.settings import Scaling
from pipeline.store import keys
from pipeline.store.agents import AgentLink
from pipeline.store.ownership import Ownership
from pipeline.store.scaling import ScalingStore

SCALING = Scaling(2, 6)
LOAD = Load(5.0, (StageLoad(0, "lines", (), 1, 1.5, 1.0, 0.5, 7, 2.5),), 2, 2)


def a_decision(before: int = 2, wanted: int = 4, at_ms: int = 1) -> Decision:
    return Decision(at_ms, Kind.UP, before, wanted, "why", "ds2", LOAD, (Need("lines", 1.5, 2.0, 0.75),))


@pytest.fixture
def store(bench: Bench) -> ScalingStore:
    return ScalingStore(bench.scripts)


def test_a_job_has_a_fixed_number_until_it_is_configured_and_again_when_it_is_fixed(
    bench: Bench, store: ScalingStore
) -> None:
    assert bench.jobs.read("j").scaling is None

    store.configure("j", SCALING)
    record = bench.jobs.read("j")
    store.fix("j")

    assert (record.scaling, record.workers_wanted, record.scaled_at_ms) == (SCALING, 2, 0)
    assert bench.jobs.read("j").scaling is None
    assert AgentLink(bench.scripts, "j").workers_wanted() is None


@pytest.mark.parametrize(("asked", "found"), [(None, 2), (1, 2), (4, 4), (9, 6)])
def test_a_job_begins_with_the_number_that_is_asked_for_within_its_bounds(
    store: ScalingStore, asked: int | None, found: int
) -> None:
    assert store.configure("j", SCALING, asked) == found


def test_a_run_that_goes_on_begins_with_as_many_as_there_were(bench: Bench, store: ScalingStore) -> None:
    store.configure("j", SCALING)
    store.decide("j", bench.token, a_decision())

    assert store.configure("j", SCALING) == 4
    assert store.configure("j", Scaling(1, 3)) == 3
    assert bench.jobs.read("j").scaled_at_ms == 0


def test_a_decision_changes_the_number_and_says_when(bench: Bench, store: ScalingStore) -> None:
    store.configure("j", SCALING)
    before_ms = bench.jobs.facts("j").now_ms

    assert store.decide("j", bench.token, a_decision())

    record = bench.jobs.read("j")
    assert record.workers_wanted == 4
    assert before_ms <= record.scaled_at_ms <= bench.jobs.facts("j").now_ms
    assert AgentLink(bench.scripts, "j").workers_wanted() == 4
    assert store.decisions("j") == [a_decision()]


def test_a_decision_that_changes_nothing_is_kept_and_is_no_change(bench: Bench, store: ScalingStore) -> None:
    store.configure("j", SCALING)

    assert store.decide("j", bench.token, a_decision(wanted=2))

    assert bench.jobs.read("j").scaled_at_ms == 0
    assert [each.wanted for each in store.decisions("j")] == [2]


def test_a_leader_that_knows_another_number_or_has_lost_its_lease_changes_nothing(
    bench: Bench, store: ScalingStore
) -> None:
    store.configure("j", SCALING)

    assert not store.decide("j", bench.token, a_decision(before=3))
    with pytest.raises(StaleTerm):
        store.decide("j", "0:x", a_decision())
    store.fix("j")
    assert not store.decide("j", bench.token, a_decision())

    assert bench.client.exists(keys.decisions("j")) == 0
    assert bench.jobs.read("j").workers_wanted == 0


def test_only_the_newest_decisions_are_kept(bench: Bench, store: ScalingStore) -> None:
    store.configure("j", SCALING)
    for number in range(MOST_DECISIONS + 5):
        store.decide("j", bench.token, a_decision(wanted=2, at_ms=number))

    kept = [each.at_ms for each in store.decisions("j")]

    assert kept == list(range(MOST_DECISIONS + 4, 4, -1))
    assert [each.at_ms for each in store.decisions("j", 2)] == kept[:2]
    assert bench.client.llen(keys.decisions("j")) == MOST_DECISIONS


def test_decisions_go_with_the_job(bench: Bench, store: ScalingStore) -> None:
    store.configure("j", SCALING)
    store.decide("j", bench.token, a_decision())

    bench.jobs.erase("j")

    assert list(bench.client.scan_iter("*{j}*")) == []


def test_a_job_that_is_not_there_is_told(store: ScalingStore) -> None:
    with pytest.raises(UnknownJob):
        store.configure("other", SCALING)
    with pytest.raises(UnknownJob):
        store.fix("other")


def test_a_decision_is_made_while_redis_is_full(
    bench: Bench, store: ScalingStore, full_memory: Callable[[], None]
) -> None:
    store.configure("j", SCALING)
    full_memory()

    assert store.decide("j", bench.token, a_decision())

    assert bench.jobs.read("j").workers_wanted == 4


def test_what_another_program_has_put_there_is_told_and_nothing_is_changed(bench: Bench, store: ScalingStore) -> None:
    store.configure("j", SCALING)
    bench.client.set(keys.decisions("j"), "x")

    with pytest.raises(ForeignData):
        store.decide("j", bench.token, a_decision())
    bench.client.delete(keys.decisions("j"))
    bench.client.lpush(keys.decisions("j"), "x")
    with pytest.raises(DecodingError):
        store.decisions("j")

    assert bench.jobs.read("j").workers_wanted == 2


def test_settings_that_cannot_be_read_make_the_record_unreadable(bench: Bench) -> None:
    bench.client.hset(keys.job("j"), "scaling", json.dumps({"minimum": "x"}))

    with pytest.raises(DecodingError):
        bench.jobs.read("j")


def test_a_worker_leaves_by_its_incarnation_and_stays_when_that_is_taken_back(bench: Bench) -> None:
    link = AgentLink(bench.scripts, "j")
    worker = Ownership(bench.scripts, "j", "w1", "2-b")

    assert not link.mark_leaving("w1", "2-b", is_leaving=True)
    worker.heartbeat("{}")
    assert not link.mark_leaving("w1", "1-a", is_leaving=True)
    assert link.mark_leaving("w1", "2-b", is_leaving=True)
    worker.heartbeat("{}")
    assert [each.is_leaving for each in bench.jobs.facts("j").workers] == [True]

    Ownership(bench.scripts, "j", "w1", "3-c").heartbeat("{}")
    assert [each.is_leaving for each in bench.jobs.facts("j").workers] == [False]
    assert link.mark_leaving("w1", "3-c", is_leaving=True)
    assert link.mark_leaving("w1", "3-c", is_leaving=False)
    assert [each.is_leaving for each in bench.jobs.facts("j").workers] == [False]


def test_a_worker_that_is_forgotten_leaves_no_mark(bench: Bench) -> None:
    link = AgentLink(bench.scripts, "j")
    Ownership(bench.scripts, "j", "w1", "1-a").heartbeat("{}")
    link.mark_leaving("w1", "1-a", is_leaving=True)

    assert bench.leadership.forget_worker("j", bench.token, "w1", "1-a")

    left = {field.decode() for field in bench.client.hkeys(keys.workers("j"))}
    assert left == set()


def test_an_owner_owns_until_its_partitions_have_another(bench: Bench) -> None:
    link = AgentLink(bench.scripts, "j")
    assert not link.owns("w0", "1-a")

    for place in ((0, 0), (1, 0)):
        assert bench.leadership.assign("j", bench.token, place, ("w0", "1-a"), 1, "n", b"t", False)
    assert link.owns("w0", "1-a")
    assert not link.owns("w0", "2-b")
    for place in ((0, 0), (1, 0)):
        assert bench.leadership.assign("j", bench.token, place, ("w1", "1-a"), 2, "n", b"t", False)

    assert not link.owns("w0", "1-a")


def test_a_decision_reads_as_it_was_written_with_all_its_facts(bench: Bench, store: ScalingStore) -> None:
    store.configure("j", SCALING)
    without = replace(a_decision(wanted=2), load=None, needs=())
    store.decide("j", bench.token, without)

    assert store.decisions("j") == [without]


def test_each_pool_has_settings_and_a_number_of_its_own(bench: Bench, store: ScalingStore) -> None:
    assert store.configure("j", Scaling(1, 4), 3, "gpu") == 3
    store.configure("j", SCALING)
    link = AgentLink(bench.scripts, "j")

    assert store.decide("j", bench.token, replace(a_decision(before=3, wanted=4), pool="gpu"))
    assert not store.decide("j", bench.token, a_decision(before=3))

    record = bench.jobs.read("j")
    assert (record.scaled["main"].workers_wanted, record.scaled["main"].scaled_at_ms) == (2, 0)
    assert (record.scaled["gpu"].scaling, record.scaled["gpu"].workers_wanted) == (Scaling(1, 4), 4)
    assert record.scaled["gpu"].scaled_at_ms > 0
    assert (link.workers_wanted(), link.workers_wanted("gpu"), link.workers_wanted("io")) == (2, 4, None)
    assert [(each.pool, each.wanted) for each in store.decisions("j")] == [("gpu", 4)]

    store.fix("j")
    assert list(bench.jobs.read("j").scaled) == ["gpu"]
    store.fix("j", "gpu")
    assert bench.jobs.read("j").scaled == {}
    assert not [name for name in bench.client.hkeys(keys.job("j")) if b"gpu" in name]


def test_a_worker_has_others_in_its_own_pool_only(bench: Bench) -> None:
    link = AgentLink(bench.scripts, "j")
    for name, pool in (("w0", "main"), ("g0", "gpu"), ("g1", "gpu")):
        Ownership(bench.scripts, "j", name, "1-a").heartbeat(json.dumps({"pool": pool}))

    assert [link.has_others(name) for name in ("w0", "g0", "g1", "nobody")] == [False, True, True, False]
