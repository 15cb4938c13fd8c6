"""Where inboxes stand, for whoever plans a worker's batches in another process; and numbers for its staging files."""

from __future__ import annotations

import json

import pytest

from pipeline.errors import ForeignData, UnknownJob
from pipeline.lifecycle import JobState
from pipeline.positions import Position
from pipeline.store import keys
from pipeline.store.backlogs import hands_of, read_backlogs
from pipeline.store.ownership import Ownership
from tests.runtime.harness import LocalJob, numbered, sequence_pipeline


def test_a_backlog_goes_from_the_position_to_behind_the_last_entry(redis_url: str) -> None:
    with LocalJob(redis_url, sequence_pipeline(), partitions=1) as job:
        job.assign()
        job.send(numbered(["a"], 7), entry_records=3)

        state, found = read_backlogs(job._scripts, job.job, [(0, 0), (1, 0), (5, 5)])

        assert state is JobState.RUNNING
        assert found.keys() == {(0, 0), (1, 0)}
        full, empty = found[0, 0], found[1, 0]
        assert (full.position, full.end, full.ring, full.is_empty) == (Position("1-0"), Position("8-0"), "1", False)
        assert (full.token, empty.is_empty, empty.ring) == (job.meta((0, 0))["token"], True, "")


def test_a_job_that_is_gone_and_what_another_program_wrote_are_told(redis_url: str) -> None:
    with LocalJob(redis_url, sequence_pipeline(), partitions=1) as job:
        with pytest.raises(UnknownJob):
            read_backlogs(job._scripts, "nobody", [])
        job.client.hset(keys.meta("j", 0, 0), "head", "many")
        with pytest.raises(ForeignData, match=r"meta:0\.0 holds what we did not write: the field 'head'"):
            read_backlogs(job._scripts, "j", [(0, 0)])
        job.client.hset(keys.meta("j", 0, 0), "head", "0")


def test_a_worker_is_heard_by_what_it_has_in_hand(redis_url: str) -> None:
    with LocalJob(redis_url, sequence_pipeline()) as job:
        worker = Ownership(job._scripts, "j", "w", "1-a")
        assert hands_of(job._scripts, "j", "w") == {}

        worker.heartbeat(json.dumps({"hand": {"1.0": {"why": "backoff"}, "1.1": "?"}}))
        assert hands_of(job._scripts, "j", "w") == {"1.0": "backoff"}
        worker.heartbeat("no report")
        assert hands_of(job._scripts, "j", "w") == {}


def test_numbers_of_staging_files_grow_for_all_that_ask(redis_url: str) -> None:
    with LocalJob(redis_url, sequence_pipeline()) as job:
        job.assign(is_told=False)
        one, other = (Ownership(job._scripts, "j", "w0", "1-a") for _ in range(2))
        row = one.assigned()[0]

        assert [each.next_file(row) for each in (one, other, one)] == [1, 2, 3]


def test_a_number_that_another_program_has_spoilt_is_refused_and_one_of_no_job_is_not_given(redis_url: str) -> None:
    with LocalJob(redis_url, sequence_pipeline()) as job:
        job.assign(is_told=False)
        worker = Ownership(job._scripts, "j", "w0", "1-a")
        row = worker.assigned()[0]
        name = keys.meta("j", row.stage, row.partition)
        job.client.hset(name, "numbered", "x")
        with pytest.raises(ForeignData, match="numbered"):
            worker.next_file(row)
        assert job.client.hget(name, "numbered") == b"x"
        with pytest.raises(UnknownJob):
            Ownership(job._scripts, "gone", "w0", "1-a").next_file(row)
        assert not job.client.exists(keys.meta("gone", row.stage, row.partition))
