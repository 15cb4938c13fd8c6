"""`celeriac produce` as a user meets it: lines in, one message and an exit code out, nothing silently lost."""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from pipeline import Pipeline, read, write
from pipeline.errors import StoreError
from pipeline.lifecycle import JobState
from pipeline.settings import Limits
from pipeline.store.connection import connect
from pipeline.store.jobs import JobStore
from pipeline.store.scripts import Scripts
from tests.e2e.chaos import wait_until
from tests.runtime.harness import LocalJob

ROOT = Path(__file__).parents[2]

Produce = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def produce(redis_url: str) -> Produce:
    """Runs `celeriac produce j` with this text as standard input."""

    def run(text: str, *arguments: str, seconds: float = 60.0) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            command(*arguments), env=environment(redis_url), input=text, capture_output=True, text=True, timeout=seconds
        )

    return run


def command(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "pipeline.cli.main", "produce", "j", *arguments]


def environment(redis_url: str) -> dict[str, str]:
    return {**os.environ, "CELERIAC_REDIS": redis_url, "PYTHONPATH": str(ROOT)}


@pytest.fixture
def job(redis_url: str) -> Iterator[LocalJob]:
    with a_job(redis_url) as made:
        yield made


def a_job(redis_url: str, **options: Any) -> LocalJob:
    flow = Pipeline("plain")
    flow.source(read.producer(with_keys=True), name="in").sink(write.stream("out"), name="out")
    job = LocalJob(redis_url, flow, **options)
    job.assign()
    return job


def lines(*records: Any) -> str:
    return "".join(json.dumps(record) + "\n" for record in records)


def test_every_line_becomes_a_record_and_ids_are_honoured(job: LocalJob, produce: Produce) -> None:
    text = lines(
        {"key": "a", "value": {"n": 1}, "id": "evt-1", "timestamp": 1700000000000},
        {"key": "a", "value": "again", "id": "evt-1"},
        {"key": ["t", 1], "value": None, "timestamp": "2024-01-31T12:00:00Z"},
        {"value": 4},
    )

    done = produce(text.replace("\n", "\n\n"))

    assert (done.returncode, done.stdout) == (0, "")
    assert "4 records taken by job j (durability: " in done.stderr
    job.run_until_idle()
    assert sorted(map(str, job.values())) == sorted(
        map(str, [{"key": "a", "value": {"n": 1}}, {"key": ["t", 1], "value": None}, {"key": None, "value": 4}])
    )


def test_quiet_says_nothing_and_an_input_without_a_line_is_none(job: LocalJob, produce: Produce) -> None:
    done = produce("", "--quiet")

    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert job.run_until_idle() is None


BAD: dict[str, tuple[str, str]] = {
    "no JSON": ("{value: 1}", "it is no JSON"),
    "no object": ("[1, 2]", "it is no JSON object but [1, 2]"),
    "an unknown field": ('{"value": 1, "ky": "a"}', "there is no field 'ky'"),
    "no value": ('{"key": "a"}', "the field 'value' is missing"),
    "a key that is none": ('{"key": 1.5, "value": 1}', "key: a key must be text"),
    "an id that is none": ('{"id": 1, "value": 1}', "id: it must be text"),
    "a timestamp that is none": ('{"timestamp": "noon", "value": 1}', "timestamp: 'noon' is no time"),
    "a large value": (json.dumps({"value": "x" * (1 << 20)}), "value: the record has 1,048,"),
    "half a character": ('{"value": "\\ud800"}', "it is no JSON"),
}


@pytest.mark.parametrize(("line", "message"), BAD.values(), ids=BAD.keys())
def test_a_bad_line_is_named_and_those_before_it_are_taken(
    job: LocalJob, produce: Produce, line: str, message: str
) -> None:
    done = produce(lines({"value": 1}, {"value": 2}) + line + "\n" + lines({"value": 3}))

    assert done.returncode == 1
    assert f"error: line 3: {message}" in done.stderr
    assert "all lines before it were taken" in done.stderr
    assert "Traceback" not in done.stderr
    job.run_until_idle()
    assert sorted(record["value"] for record in job.values()) == [1, 2]


@pytest.mark.usefixtures("job")
def test_a_line_that_never_ends_is_refused_before_it_fills_the_memory(produce: Produce) -> None:
    done = produce('{"value": "' + "x" * (17 << 20))

    assert done.returncode == 1
    assert "error: line 1: it is longer than 16,777,216 bytes" in done.stderr


def test_a_job_that_is_not_there_takes_no_input_or_reads_files_is_a_wrong_use(redis_url: str, produce: Produce) -> None:
    missing = produce(lines({"value": 1}))
    with a_job(redis_url) as job:
        wrong = produce(lines({"value": 1}), "--source", "inn")
        job.jobs.transition("j", JobState.DRAINING)
        drained = produce(lines({"value": 1}))

    assert (missing.returncode, wrong.returncode, drained.returncode) == (2, 2, 2)
    assert "there is no job 'j'" in missing.stderr
    assert "did you mean 'in'?" in wrong.stderr
    assert "takes no new input" in drained.stderr
    assert all(done.stderr.count("error: ") == 1 for done in (missing, wrong, drained))


def test_a_job_that_stays_full_is_told_after_the_wait(redis_url: str, produce: Produce) -> None:
    with a_job(redis_url, partitions=1, limits=Limits(inbox_records=10)):
        done = produce(lines(*({"value": number} for number in range(1_000))), "--wait", "0.5")

    assert done.returncode == 1
    assert "not taken within 0.5 s: the inbox is full" in done.stderr
    assert "Traceback" not in done.stderr


def test_records_typed_slowly_arrive_while_the_input_is_still_open(job: LocalJob, redis_url: str) -> None:
    with subprocess.Popen(command(), env=environment(redis_url), stdin=subprocess.PIPE, text=True) as process:
        assert process.stdin is not None
        process.stdin.write(lines({"key": "a", "value": 1}))
        process.stdin.flush()

        def has_come() -> bool:
            job.run_until_idle()
            return bool(job.values())

        wait_until(has_come, "the record has come")
        process.stdin.close()
        assert process.wait(30) == 0


def test_ctrl_c_sends_what_was_read(job: LocalJob, redis_url: str) -> None:
    with subprocess.Popen(
        command(), env=environment(redis_url), stdin=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdin is not None
        process.stdin.write(lines(*({"key": "a", "value": number} for number in range(100))))
        process.stdin.flush()

        def has_begun() -> bool:
            job.run_until_idle()
            return bool(job.values())

        wait_until(has_begun, "the first record has come")
        process.send_signal(signal.SIGINT)
        assert process.wait(30) == 130
        assert process.stderr is not None
        assert process.stderr.read() == ""
    job.run_until_idle()
    values = [record["value"] for record in job.values()]
    assert values == list(range(len(values)))


def test_a_reader_of_its_messages_that_goes_away_costs_no_record(job: LocalJob, redis_url: str) -> None:
    read_end, write_end = os.pipe()
    os.close(read_end)
    try:
        done = subprocess.run(
            command(),
            env=environment(redis_url),
            input=lines({"value": 1}, {"value": 2}),
            stderr=write_end,
            text=True,
            timeout=60,
        )
    finally:
        os.close(write_end)

    assert done.returncode == 141
    job.run_until_idle()
    assert len(job.values()) == 2


FLOW = """
from pipeline import Pipeline, count, read, write

flow = Pipeline("shop")
paid = flow.source(read.producer(with_keys=True), name="payments")
users = paid.key_by("key", name="by_user").aggregate(count(), name="n").last(name="last")
users.sink(write.jsonl("out"), name="result")
"""


def test_a_running_pipeline_takes_records_until_it_is_drained(tmp_path: Path, redis_url: str) -> None:
    (tmp_path / "flow.py").write_text(FLOW)
    environ = {**environment(redis_url), "TMPDIR": str(tmp_path)}
    run = subprocess.Popen(
        [sys.executable, "-m", "pipeline.cli.main", "run", "flow.py", "--workers", "1", "--job-id", "j"],
        cwd=tmp_path,
        env=environ,
        stderr=subprocess.PIPE,
        text=True,
    )
    jobs = JobStore(Scripts(connect(redis_url)))
    try:
        wait_until(lambda: is_there(jobs), "the job is registered")
        text = lines(*({"key": f"user-{number % 7}", "value": 1, "id": f"e{number}"} for number in range(700)))
        for _ in range(2):
            done = subprocess.run(command(), env=environ, input=text, capture_output=True, text=True, timeout=60)
            assert done.returncode == 0, done.stderr
        run.send_signal(signal.SIGINT)
        _, errors = run.communicate(timeout=60)
    finally:
        run.kill()
        run.communicate()

    assert run.returncode == 130, errors
    said = next(line for line in errors.splitlines() if "takes records until Ctrl-C: " in line)
    assert shlex.split(said.partition(": ")[2])[:5] == ["celeriac", "produce", "j", "--source", "payments"]
    assert f"--redis '{redis_url}'" in said
    rows = [json.loads(line) for path in (tmp_path / "out").glob("part-*") for line in path.read_text().splitlines()]
    assert sorted((row["key"], row["value"]) for row in rows) == [(f"user-{number}", 100) for number in range(7)]


def is_there(jobs: JobStore) -> bool:
    try:
        return jobs.state("j") is JobState.RUNNING
    except StoreError:
        return False
