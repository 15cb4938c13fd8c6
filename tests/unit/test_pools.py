"""Stages and workers of several pools: who may have what, who is missed, and how many workers there are of each."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.simulated import a_plan
from leader.duties.balance import WARM_UP_MS, is_uneven
from leader.duties.moves import How, Move, Why, decide
from leader.duties.outlook import Outlook
from pipeline import Pipeline, read, write
from pipeline.cli.holdups import PATIENCE_MS, Holdups
from pipeline.cli.pools import PoolWorkers, all_pools, kept_pools
from pipeline.cli.reports import status_json, status_lines, undrained
from pipeline.errors import PipelineError
from pipeline.facts import Aim, JobFacts, JobRecord, PartitionFacts, Scaled, WorkerFacts
from pipeline.lifecycle import JobState
from pipeline.nodes import has_pools, pool_rows, unserved_stages
from pipeline.plan import Plan, compile_plan, fingerprint
from pipeline.scaling.decision import decide as decide_size
from pipeline.scaling.history import History
from pipeline.scaling.load import Load, StageLoad
from pipeline.scaling.policies import Kind, ds2, watermarks
from pipeline.scaling.settings import Scaling
from pipeline.settings import Limits
from tests.unit.test_moves_decided import a_part

NOW_MS = 1_000_000
RUN = "run-1"


def plan_of(*pools: str, limits: Limits | None = None) -> Plan:
    """A chain of stages, each of two partitions and of that pool."""
    chain = [(f"s{at}", (at - 1,) if at else (), 2) for at in range(len(pools))]
    plan = a_plan(chain, limits)
    stages = tuple(msgspec.structs.replace(stage, pool=pool) for stage, pool in zip(plan.stages, pools, strict=True))
    return msgspec.structs.replace(plan, stages=stages)


def a_worker(name: str, pool: str = "main", age: float = 0.1, *, leaving: bool = False, **report: Any) -> WorkerFacts:
    return WorkerFacts(name, "1", age, False, {"pool": pool, "node": f"node of {name}", **report}, leaving)


def a_job(
    plan: Plan, parts: list[PartitionFacts], workers: list[WorkerFacts], *drained: str, now_ms: int = NOW_MS
) -> JobFacts:
    record = JobRecord("job", plan, JobState.RUNNING, "", 1, 1, 0, 1, RUN, "open", frozenset())
    return JobFacts(record, now_ms, tuple(parts), tuple(workers), "L", 0, {}, drained=frozenset(drained))


def all_parts(plan: Plan, **owners: str) -> list[PartitionFacts]:
    """`s0`: the owner of stage 0."""
    return [a_part(number, owners.get(f"s{stage}", ""), stage=stage) for stage, number in plan.partitions()]


def decided(facts: JobFacts) -> list[Move]:
    return decide(facts, RUN, Outlook().after(facts))


# the plan


def a_flow(pool: str = "gpu") -> Pipeline:
    flow = Pipeline("flow")
    words = flow.source(read.iterable(["a"]), name="words", pool="io")
    words.key_by(str, name="plain").key_by(str, name="heavy", pool=pool).sink(write.console(), name="out")
    return flow


def test_a_stage_has_the_pool_of_the_operator_that_it_begins_with() -> None:
    plan = compile_plan(a_flow().graph(), 2, Limits())

    assert {stage.name: stage.pool for stage in plan.stages} == {"words": "io", "plain": "main", "heavy": "gpu"}
    assert plan.pools() == ["io", "main", "gpu"]
    assert Plan.decode(plan.encode()) == plan


def test_a_pool_is_no_part_of_what_a_pipeline_is() -> None:
    assert fingerprint(a_flow("gpu").graph()) == fingerprint(a_flow("cpu").graph())


def test_a_plan_that_knows_no_pools_is_read_as_one_of_the_pool_main() -> None:
    raw = json.loads(plan_of("gpu").encode())
    for stage in raw["stages"]:
        del stage["pool"]

    assert Plan.decode(json.dumps(raw).encode()) == plan_of("main")


@pytest.mark.parametrize("pool", ["", "two words", "a.b", "1st", None, 5])
def test_what_is_no_name_of_a_pool_is_refused_with_the_operator(pool: Any) -> None:
    flow = Pipeline("flow")
    stream = flow.source(read.iterable(["a"]), name="words")

    with pytest.raises(PipelineError, match="the pool of operator 'by_word'"):
        stream.key_by(str, name="by_word", pool=pool)
    with pytest.raises(PipelineError, match="the pool of operator 'more'"):
        flow.source(read.iterable(["a"]), name="more", pool=pool)


# who gets what


def test_a_partition_goes_to_workers_of_its_pool_only() -> None:
    plan = plan_of("main", "gpu")
    facts = a_job(plan, all_parts(plan), [a_worker("w0"), a_worker("w1"), a_worker("g0", "gpu")])

    moves = decided(facts)

    assert {move.place: move.worker for move in moves} == {(0, 0): "w0", (0, 1): "w1", (1, 0): "g0", (1, 1): "g0"}


def test_stages_of_a_pool_without_workers_wait_and_the_others_do_not() -> None:
    plan = plan_of("main", "gpu")

    moves = decided(a_job(plan, all_parts(plan), [a_worker("w0")]))

    assert {move.place for move in moves} == {(0, 0), (0, 1)}


def test_a_worker_that_joins_is_given_partitions_of_its_pool_only() -> None:
    plan = plan_of("main", "gpu")
    parts = all_parts(plan, s0="w0", s1="g0")

    moves = decided(a_job(plan, parts, [a_worker("w0"), a_worker("g0", "gpu"), a_worker("g1", "gpu")]))

    assert [(move.place[0], move.worker, move.why) for move in moves] == [(1, "g1", Why.LEVELLED)]


def test_partitions_of_a_worker_of_another_pool_are_asked_of_it_and_stay_while_nobody_else_is_there() -> None:
    plan = plan_of("gpu", limits=Limits(moves_at_once=2))
    parts = all_parts(plan, s0="w0")

    assert decided(a_job(plan, parts, [a_worker("w0")])) == []
    moves = decided(a_job(plan, parts, [a_worker("w0"), a_worker("g0", "gpu")]))

    assert {(move.worker, move.why, move.how) for move in moves} == {("g0", Why.POOL, How.ASK)}
    assert len(moves) == 2


def test_of_a_drained_node_nothing_goes_to_another_pool() -> None:
    plan = plan_of("main", "gpu")
    parts = all_parts(plan, s0="w0", s1="g0")

    moves = decided(a_job(plan, parts, [a_worker("w0"), a_worker("w1"), a_worker("g0", "gpu")], "node of g0"))

    assert {move.place[0] for move in moves} == {0}


def test_a_move_towards_a_worker_that_came_back_in_another_pool_is_taken_back() -> None:
    plan = plan_of("main")
    aim = Aim("3:0.0", "w1", "1", 0, "levelling")
    parts = [a_part(0, "w0", aim), a_part(1, "w0")]

    moves = decided(a_job(plan, parts, [a_worker("w0"), a_worker("w1", "gpu")]))

    assert [(move.place, move.how) for move in moves] == [((0, 0), How.STAY)]


def test_load_is_evened_out_within_a_pool_only() -> None:
    plan = plan_of("main", "gpu")
    parts = [a_part(0, "w0"), a_part(1, "w0"), a_part(2, "w1"), a_part(0, "g0", stage=1)]
    busy = a_worker("w0", share=0.95, parts={"0.0": [1, 1, 0.5], "0.1": [1, 1, 0.45]})
    others = a_worker("w1", share=0.8), a_worker("g0", "gpu", share=0.1)

    def after_a_while(*workers: WorkerFacts) -> list[Move]:
        first = a_job(plan, parts, list(workers))
        later = replace(first, now_ms=NOW_MS + WARM_UP_MS)
        return decide(later, RUN, Outlook().after(first).after(later))

    assert after_a_while(busy, *others) == []
    moves = after_a_while(busy, a_worker("w1", share=0.1), others[1])
    assert [(move.place, move.worker, move.why) for move in moves] == [((0, 1), "w1", Why.BALANCED)]


def test_load_is_uneven_where_a_pool_has_both_a_busy_worker_and_one_at_rest() -> None:
    plan = plan_of("main", "gpu")
    busy, rested = a_worker("w0", share=0.95), a_worker("g0", "gpu", share=0.1)

    assert not is_uneven(a_job(plan, [], [busy, rested]))
    assert is_uneven(a_job(plan, [], [busy, rested, a_worker("w1", share=0.1)]))


names = st.sampled_from(["main", "gpu", "io"])


@given(
    st.lists(names, min_size=1, max_size=4),
    st.lists(st.tuples(names, st.booleans(), st.booleans()), max_size=6),
    st.lists(st.integers(-1, 5), min_size=8, max_size=8),
)
def test_no_partition_ever_goes_to_a_worker_of_another_pool(
    pools: list[str], crew: list[tuple[str, bool, bool]], owners: list[int]
) -> None:
    plan = plan_of(*pools)
    workers = [
        a_worker(f"w{number}", pool, 0.1 if is_live else 60.0, leaving=is_leaving)
        for number, (pool, is_live, is_leaving) in enumerate(crew)
    ]
    parts = [
        a_part(number, f"w{owner}" if owner >= 0 else "", stage=stage)
        for (stage, number), owner in zip(plan.partitions(), owners, strict=False)
    ]

    moves = decided(a_job(plan, parts, workers))

    pool_of = {worker.name: worker.pool for worker in workers}
    assert all(pool_of[move.worker] == plan.pool_of(move.place[0]) for move in moves if move.how is not How.STAY)
    able = {one.pool for one in workers if one.age_seconds < 1 and not one.is_leaving}
    homeless = {(part.stage, part.partition) for part in parts if not part.owner and plan.pool_of(part.stage) in able}
    assert homeless <= {move.place for move in moves if move.how is How.ASSIGN}


# what is said of a pool without workers


def test_a_stage_that_nobody_can_run_says_which_pool_it_waits_for() -> None:
    plan = plan_of("main", "gpu")
    facts = a_job(plan, all_parts(plan, s0="w0"), [a_worker("w0")])

    said = "waits for a worker of pool gpu: start one with `celeriac worker job FILE.py --pool gpu`"
    assert unserved_stages(facts) == {"s1": said}
    assert f"no owner  stage s1 {said}" in status_lines(facts, [])
    assert "pools     main (1 worker, 2 partitions), gpu (0 workers, 2 partitions)" in status_lines(facts, [])
    assert status_json(facts, [])["unserved_stages"] == {"s1": said}
    assert undrained(facts).endswith(f"; stage 's1' {said}")


def test_a_stage_whose_owner_lives_or_that_is_about_to_get_one_waits_for_nobody() -> None:
    plan = plan_of("gpu")

    assert unserved_stages(a_job(plan, all_parts(plan, s0="w0"), [a_worker("w0")])) == {}
    assert unserved_stages(a_job(plan, all_parts(plan), [a_worker("g0", "gpu")])) == {}
    dead = a_job(plan, all_parts(plan, s0="g0"), [a_worker("g0", "gpu", age=60.0)])
    assert list(unserved_stages(dead)) == ["s0"]
    ended = replace(dead, record=replace(dead.record, state=JobState.CANCELLED))
    assert unserved_stages(ended) == {}


def test_a_run_says_once_that_a_stage_has_stood_still_for_want_of_a_worker() -> None:
    plan, holdups = plan_of("gpu"), Holdups()

    def look(at_ms: int, *workers: WorkerFacts) -> int:
        return len(holdups.look(a_job(plan, all_parts(plan), list(workers), now_ms=NOW_MS + at_ms)))

    assert [look(0), look(PATIENCE_MS - 1), look(PATIENCE_MS), look(2 * PATIENCE_MS)] == [0, 0, 1, 0]
    assert look(3 * PATIENCE_MS, a_worker("g0", "gpu")) == 0
    assert [look(3 * PATIENCE_MS + 1), look(4 * PATIENCE_MS + 1)] == [0, 1]


def test_a_run_does_not_ask_for_workers_that_it_starts_itself() -> None:
    plan, own, others = plan_of("gpu"), Holdups(["gpu"]), Holdups(["main"])

    def look(holdups: Holdups, at_ms: int, *workers: WorkerFacts) -> int:
        return len(holdups.look(a_job(plan, all_parts(plan), list(workers), now_ms=NOW_MS + at_ms)))

    assert [look(others, 0), look(others, PATIENCE_MS)] == [0, 1]
    assert [look(own, 0), look(own, 10 * PATIENCE_MS)] == [0, 0]
    dead = a_worker("g0", "gpu", age=60.0)  # it was there: now others may be needed
    assert [look(own, 11 * PATIENCE_MS, dead), look(own, 12 * PATIENCE_MS, dead)] == [0, 1]


def test_a_job_of_one_pool_is_shown_without_a_word_of_pools() -> None:
    plan = plan_of("main")
    facts = a_job(plan, all_parts(plan, s0="w0"), [a_worker("w0")])

    assert not has_pools(facts)
    assert not any(line.startswith(("pools", "no owner")) for line in status_lines(facts, []))


def test_a_pool_of_workers_that_no_stage_needs_is_shown_too() -> None:
    plan = plan_of("main")
    facts = a_job(plan, all_parts(plan, s0="w0"), [a_worker("w0"), a_worker("x0", "spare")])

    assert [(row.name, row.live, row.stages) for row in pool_rows(facts)] == [("main", 1, ("s0",)), ("spare", 1, ())]


# how many workers


def test_a_pool_of_which_nothing_is_said_has_one_worker_or_is_scaled_as_the_others() -> None:
    plan, scaling = plan_of("main", "gpu"), Scaling(1, 8, catch_up_seconds=9.0)

    assert all_pools(plan, PoolWorkers(3), {}) == {"main": PoolWorkers(3), "gpu": PoolWorkers(1)}
    scaled = PoolWorkers(None, scaling)
    assert all_pools(plan, scaled, {}) == {"main": scaled, "gpu": scaled}
    assert all_pools(plan, scaled, {"gpu": PoolWorkers(0)})["gpu"] == PoolWorkers(0)
    bounds = PoolWorkers(None, Scaling(2, 4))
    assert all_pools(plan, scaled, {"gpu": bounds})["gpu"].scaling == Scaling(2, 4, catch_up_seconds=9.0)
    assert all_pools(plan, PoolWorkers(3), {"gpu": bounds})["gpu"] == bounds


def test_where_all_stages_have_pools_of_their_own_main_has_no_workers() -> None:
    assert list(all_pools(plan_of("io", "gpu"), PoolWorkers(4), {})) == ["io", "gpu"]


def test_workers_of_a_pool_that_no_stage_needs_are_refused_with_the_nearest_name() -> None:
    with pytest.raises(PipelineError, match="no stage of the pipeline 'simulated' has the pool 'gpus'") as caught:
        all_pools(plan_of("main", "gpu"), PoolWorkers(1), {"gpus": PoolWorkers(2)})

    assert caught.value.hint == "did you mean 'gpu'?"


def test_a_job_that_goes_on_keeps_its_pools_and_says_so() -> None:
    assert kept_pools(plan_of("main", "gpu"), plan_of("main", "gpu")) == []
    assert kept_pools(plan_of("main", "gpu"), plan_of("main", "cpu")) == [
        "warning: stage s1 stays in the pool gpu, with which the job was made; the file says cpu"
    ]


# scaling


def a_load(pool: str, **changes: Any) -> Load:
    stages = (
        StageLoad(0, "s0", (), 16, 300.0, 100.0, 1.0, 0),
        StageLoad(1, "s1", (0,), 16, 100.0, 100.0, 0.5, 0, pool="gpu"),
    )
    return replace(Load(10.0, stages, 1, 1, pool=pool), **changes)


def test_each_pool_is_solved_for_its_own_stages_by_what_all_of_them_will_send() -> None:
    main, gpu = ds2(a_load("main"), Scaling(1, 8)), ds2(a_load("gpu"), Scaling(1, 8))

    # Stage s0 is to triple, and so will s1 behind it: 300/s at 200/s each is the time of one and a half.
    assert [(need.stage, need.workers) for need in main.needs] == [("s0", pytest.approx(3.0))]
    assert [(need.stage, need.workers) for need in gpu.needs] == [("s1", pytest.approx(1.5))]
    assert (main.wanted, gpu.wanted) == (4, 2)


def test_a_backlog_of_another_pool_asks_for_no_worker_of_this_one() -> None:
    stages = a_load("main").stages
    waiting = (replace(stages[0], arrival_rate=100.0), replace(stages[1], backlog=1_000_000, oldest_seconds=900.0))

    assert ds2(a_load("main", stages=waiting), Scaling(1, 8)).kind is Kind.UP
    assert ds2(a_load("main", stages=waiting, wanted=2, workers=2), Scaling(1, 8)).kind is Kind.STEADY
    assert watermarks(a_load("main", stages=waiting, wanted=2, workers=2), Scaling(1, 8)).kind is Kind.STEADY
    assert watermarks(a_load("gpu", stages=waiting), Scaling(1, 8)).kind is Kind.UP


def test_the_workers_of_each_pool_are_counted_by_themselves() -> None:
    plan = plan_of("main", "gpu")
    history = History()
    workers = [
        a_worker("w0", sized=True),
        a_worker("w1", sized=True),
        a_worker("g0", "gpu", sized=True),
        a_worker("g1", "gpu"),
    ]
    for second in range(12):
        facts = a_job(plan, all_parts(plan), workers, now_ms=NOW_MS + 1000 * second)
        facts = replace(facts, record=replace(facts.record, pools={"gpu": Scaled(Scaling(1, 4), 1)}))
        history.add(facts)

    main, gpu = (history.load(facts, Scaling(1, 4), pool) for pool in ("main", "gpu"))

    assert main is not None
    assert gpu is not None
    assert (main.workers, main.others, [stage.name for stage in main.own]) == (2, 0, ["s0"])
    assert (gpu.workers, gpu.others, gpu.wanted, [stage.name for stage in gpu.own]) == (1, 1, 1, ["s1"])


def test_each_pool_has_a_cooldown_of_its_own() -> None:
    facts = a_job(plan_of("main", "gpu"), [], [])
    sizes = {"gpu": Scaled(Scaling(1, 8), 1, NOW_MS - 1_000)}
    record = replace(facts.record, scaling=Scaling(1, 8), workers_wanted=1, pools=sizes)
    facts = replace(facts, record=record)

    main = decide_size(facts, Scaling(1, 8), a_load("main"), "main")
    gpu = decide_size(facts, Scaling(1, 8), a_load("gpu"), "gpu")

    assert (main.kind, main.wanted, main.pool) == (Kind.UP, 4, "main")
    assert (gpu.kind, gpu.wanted, gpu.pool) == (Kind.WAITING, 1, "gpu")
