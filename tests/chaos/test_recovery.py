"""The benchmark of recovery in short: whoever is killed, the job goes on, and in the end nothing is lost or doubled."""

from __future__ import annotations

import pytest

from benchmarks.recovery import KINDS, measure


@pytest.mark.timeout(300)
def test_a_job_recovers_from_kills_of_a_worker_the_leader_and_redis() -> None:
    found = measure(list(KINDS), kills=3, healthy_seconds=0.0)

    assert {kind: len(seconds) for kind, seconds in found.items()} == dict.fromkeys(KINDS, 3)
