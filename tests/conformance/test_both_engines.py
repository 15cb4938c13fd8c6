"""Every operator gives the same on every engine: outputs in order of each key, state at the end, dead letters."""

from __future__ import annotations

import inspect
import random
from pathlib import Path
from typing import Any

import pytest

import pipeline
from pipeline.aggregates import RESULTS
from pipeline.api import KeyedStream, Pipeline, Stream
from pipeline.plan import compile_plan
from pipeline.settings import Limits
from tests.conformance.cases import CASES, EXEMPT, FRAMES, Case
from tests.conformance.engines import Results, Shuffled, keyed_streams, run_live, run_on_spark

pytestmark = pytest.mark.timeout(600)


def assert_equal(case: Case, values: list[Any], live: Results, bulk: Results) -> None:
    keyed = keyed_streams(compile_plan(case.pipeline(values).graph(), case.partitions, Limits()))
    expected = live.comparable(keyed)
    assert bulk.comparable(keyed) == expected
    assert expected["outputs"], "a case without a result shows nothing"


def test_no_operator_of_the_api_is_missing_here() -> None:
    methods = {
        name
        for kind in (Pipeline, Stream, KeyedStream)
        for name, _ in inspect.getmembers(kind, inspect.isfunction)
        if not name.startswith("_")
    }
    policies = {
        name
        for name in pipeline.__all__
        if inspect.isfunction(getattr(pipeline, name)) and getattr(pipeline, name).__module__ == "pipeline.policies"
    }
    covered = frozenset[str]().union(*(case.covers for case in [*CASES, FRAMES])) | EXEMPT | {"graph"}

    assert (methods | policies | RESULTS.keys()) - covered == set()


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_tasks_give_what_workers_give(case: Case, seed: int, redis_url: str, tmp_path: Path) -> None:
    values = case.drawn(seed)
    live = run_live(redis_url, case.pipeline(values), values, case.partitions)

    bulk = Shuffled(case.pipeline(values), case.partitions, tmp_path, random.Random(seed)).run()

    assert_equal(case, values, live, bulk)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_spark_gives_what_workers_give(case: Case, spark: Any, redis_url: str) -> None:
    values = case.drawn(100)
    live = run_live(redis_url, case.pipeline(values), values, case.partitions)

    bulk = run_on_spark(spark, case.pipeline(values), case.partitions)

    assert_equal(case, values, live, bulk)
