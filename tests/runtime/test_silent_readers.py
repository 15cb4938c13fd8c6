"""The leader's duty for readers: it forgets those that have expired, and the job that they held up goes on."""

from __future__ import annotations

import random

import pytest

from leader.wiring import make_round
from pipeline import Pipeline, read, write
from pipeline.client import Client
from pipeline.lifecycle import JobState
from pipeline.settings import Limits
from pipeline.store import keys
from pipeline.store.connection import connect
from pipeline.store.scripts import Scripts
from tests.runtime.harness import LocalJob


def a_job(redis_url: str) -> LocalJob:
    flow = Pipeline("plain")
    flow.source(read.iterable([0]), name="in").sink(write.stream("out"), name="out")
    job = LocalJob(redis_url, flow, partitions=1, limits=Limits(inbox_records=10))
    job.assign()
    return job


def silence(job: LocalJob, seconds: int) -> None:
    """All readers were heard of so much earlier."""
    meta = keys.out_meta("j", "out")
    for field in job.client.hkeys(meta):
        if field.startswith(b"h:"):
            job.client.hincrby(meta, field, -seconds * 1000)


def look(job: LocalJob, redis_url: str) -> dict[str, int]:
    """A leader's first round. The lease that the job's harness has is given up."""
    job.leader.release("j", job.token)
    leader = make_round(Scripts(connect(redis_url)), "L1", random.Random(1), lambda: 0.0)
    counts = leader.run_once()
    leader.resign()
    return counts


def names(client: Client) -> list[str]:
    return [reader.name for reader in client.outputs("j")[0].readers]


def test_a_viewer_that_died_lets_the_job_go_on(redis_url: str) -> None:
    with a_job(redis_url) as job, Client(redis_url) as client:
        results = client.results("j")
        results._finalizer.detach()  # as when it is killed
        for number in range(40):
            job.send([number])
            job.run_until_idle()
            if client.outputs("j")[0].waiting:
                break
        assert client.outputs("j")[0].slowest.is_temporary
        silence(job, 59)
        assert "readers_expired" not in look(job, redis_url)

        silence(job, 2)
        assert look(job, redis_url)["readers_expired"] == 1

        assert names(client) == ["test"]
        job.look()
        job.run_until_idle()
        assert client.outputs("j")[0].waiting == 0
        job.assert_drained()


def test_a_named_reader_expires_only_if_it_said_so(redis_url: str) -> None:
    with a_job(redis_url) as job, Client(redis_url) as client:
        client.results("j", reader="for-ever")
        client.results("j", reader="for-a-day", expire_seconds=86_400)
        silence(job, 86_401)

        assert look(job, redis_url)["readers_expired"] == 1

        assert names(client) == ["for-ever", "test"]


@pytest.mark.parametrize("state", [JobState.CANCELLED, JobState.FAILED])
def test_readers_of_a_job_that_does_not_work_expire_too(redis_url: str, state: JobState) -> None:
    with a_job(redis_url) as job, Client(redis_url) as client:
        client.results("j", reader="r", expire_seconds=5)
        job.jobs.transition("j", state, "the test")
        silence(job, 6)

        assert look(job, redis_url)["readers_expired"] == 1

        assert names(client) == ["test"]
