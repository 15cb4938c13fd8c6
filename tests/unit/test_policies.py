"""Error policies: what is refused, how long the pauses are, and what of them the plan holds."""

from __future__ import annotations

import random
from typing import Any

import pytest

from pipeline import ErrorPolicy, Pipeline, dead_letter, fail, hold_key, read, retry, skip, write
from pipeline.errors import PipelineError
from pipeline.plan import Plan, compile_plan
from pipeline.settings import Limits


def plan_of(policy: ErrorPolicy | None, default: ErrorPolicy | None = None) -> Plan:
    flow = Pipeline("flow", on_error=default)
    keyed = flow.source(read.iterable([1]), name="in").key_by(lambda v: v, name="by", on_error=policy)
    keyed.sink(write.stream("out"), name="out")
    return compile_plan(flow.graph(), 2, Limits())


@pytest.mark.parametrize(
    "arguments",
    [
        {"attempts": 1},
        {"attempts": True},
        {"attempts": 2.0},
        {"attempts": 1001},
        {"first_seconds": -1},
        {"first_seconds": float("nan")},
        {"first_seconds": 31},
        {"most_seconds": 3601},
        {"most_seconds": "1"},
        {"then": retry(2)},
        {"then": "skip"},
    ],
)
def test_a_retry_out_of_range_is_refused_by_the_name_of_its_argument(arguments: dict[str, Any]) -> None:
    with pytest.raises(PipelineError, match=r"retry: (attempts|first_seconds|most_seconds|then) "):
        retry(**arguments)


@pytest.mark.parametrize("policy", ["retry", retry, 3])
def test_what_is_no_policy_is_refused_with_the_operators_name(policy: Any) -> None:
    with pytest.raises(PipelineError, match="operator 'by'"):
        plan_of(policy)
    with pytest.raises(PipelineError, match="the pipeline 'p'"):
        Pipeline("p", on_error=policy)
    with pytest.raises(PipelineError, match="the source 's'"):
        Pipeline("p").source(read.iterable([1]), name="s", on_error=policy)


@pytest.mark.parametrize("policy", [hold_key(), retry(3, then=hold_key())])
def test_keys_are_held_behind_a_key_by_only(policy: ErrorPolicy) -> None:
    assert plan_of(policy).stages[1].on_error.holds_keys
    with pytest.raises(PipelineError, match=r"the source 's' cannot have hold_key\(\)") as caught:
        Pipeline("p").source(read.iterable([1]), name="s", on_error=policy)
    assert "key_by" in caught.value.hint
    with pytest.raises(PipelineError, match="the source 'in'"):
        plan_of(None, default=policy)


def test_pauses_double_up_to_their_bound_with_jitter() -> None:
    policy = retry(50, first_seconds=0.1, most_seconds=5)

    for attempt in range(1, 50):
        longest = min(5.0, 0.1 * 2 ** (attempt - 1))
        pauses = [policy.pause_seconds(attempt, random.Random(seed)) for seed in range(20)]
        assert all(longest / 2 <= pause <= longest for pause in pauses)
        assert len(set(pauses)) > 1


def test_the_plan_holds_the_policy_of_each_stage() -> None:
    plan = plan_of(retry(3, then=fail()), default=skip())

    assert [stage.on_error for stage in plan.stages] == [skip(), ErrorPolicy(3, 0.1, 30.0, "fail")]
    assert Plan.decode(plan.encode()) == plan


def test_another_policy_is_another_pipeline_and_the_default_is_none() -> None:
    assert plan_of(None).fingerprint == plan_of(dead_letter()).fingerprint
    assert len({plan_of(each).fingerprint for each in (None, skip(), fail(), retry(3), retry(4))}) == 5
