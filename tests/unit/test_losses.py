"""What the leader and the run have seen of a job against what Redis has of it now. Pure."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from pipeline.facts import JobFacts, JobRecord, PartitionFacts
from pipeline.lifecycle import JobState
from pipeline.losses import losses_since
from pipeline.plan import PROTOCOL, Plan, StagePlan
from pipeline.positions import Position
from pipeline.settings import Limits


def a_record(**changes: Any) -> JobRecord:
    plan = Plan(PROTOCOL, "p", "f", (StagePlan(0, "in", False, 1, ("in",), {}, (), ()),), (), Limits())
    return replace(JobRecord("j", plan, JobState.RUNNING, "", 1, 5, 0, 1, "run", "open", frozenset()), **changes)


def some_facts(record: JobRecord | None = None, finished: int = 0, **part: Any) -> JobFacts:
    blank = dict.fromkeys(("taken", "emitted", "filtered", "duplicate", "late", "dead", "backlog", "queued"), 0)
    known: dict[str, Any] = {
        **blank, "stage": 0, "partition": 0, "owner": "w", "incarnation": "1", "token": "", "term": 1,
        "position": Position("5-0"), "at_end": False, "backlog_bytes": 0, "ring": "", "closed": False, "done": False,
        "head": 9,
    }  # fmt: skip
    return JobFacts(record or a_record(), 0, (PartitionFacts(**{**known, **part}),), (), "L", 0, {"in": finished})


NOW = some_facts()


@pytest.mark.parametrize(
    ("before", "line"),
    [
        (
            some_facts(position=Position("8-0", 2)),
            "stage 0 partition 0: who had seen commits up to 8-0/2, Redis has 5-0/0 (5 records)",
        ),
        (some_facts(head=10), "stage 0 partition 0: who had seen records up to 10, Redis has 9 (1 record)"),
        (some_facts(closed=True), "stage 0 partition 0: who had seen the end of its input, Redis has not"),
        (some_facts(finished=2), "source 'in': who had seen 2 finished splits, Redis has 0"),
        (
            some_facts(a_record(completed_sources=frozenset({"in"}))),
            "source 'in': who had seen that all of it was read, Redis has not",
        ),
        (
            some_facts(a_record(state=JobState.DRAINING, changed_at_ms=9)),
            "state: who had seen that the job was made draining, in Redis it is running from before",
        ),
    ],
)
def test_whatever_only_grows_and_is_less_now_was_lost(before: JobFacts, line: str) -> None:
    assert losses_since(before, NOW, "who") == [line]


def test_a_job_that_went_on_has_lost_nothing() -> None:
    later = some_facts(a_record(changed_at_ms=9), 1, position=Position("9-0"), head=20, closed=True)

    assert losses_since(NOW, later, "who") == []
    assert losses_since(NOW, NOW, "who") == []


def test_another_generation_or_job_is_not_compared() -> None:
    before = some_facts(position=Position("8-0"))

    assert losses_since(before, some_facts(a_record(generation=1)), "who") == []
    assert losses_since(before, some_facts(a_record(made_at_ms=2)), "who") == []
