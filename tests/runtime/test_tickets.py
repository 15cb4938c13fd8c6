"""Tickets are what the installed Celery would publish, and a real worker process serves them."""

from __future__ import annotations

import base64
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from time import monotonic
from typing import Any

import pytest
from celery import Celery

from pipeline import tickets
from pipeline.loader import load_pipeline
from pipeline.plan import PROTOCOL
from pipeline.settings import Limits
from pipeline.store import keys
from pipeline.store.connection import connect
from tests.runtime.harness import LocalJob, assert_sequence, numbered

ROOT = Path(__file__).resolve().parents[2]
DEADLINE_SECONDS = 30.0

FLOW = """
from pipeline import Pipeline, read, write

flow = Pipeline("sequence")
(
    flow.source(read.iterable([0]), name="in")
    .key_by(lambda pair: pair[0], name="k")
    .map(lambda pair: pair[1], name="number")
    .stateful_map(lambda key, n, last: (n if n == (last or 0) + 1 else 1 / 0, n), name="oracle")
    .sink(write.stream("out"), name="out")
)
"""


def wait_until(is_true: Callable[[], Any], what: str) -> None:
    end, pause = monotonic() + DEADLINE_SECONDS, threading.Event()
    while not is_true():
        assert monotonic() < end, f"never: {what}"
        pause.wait(0.02)


# The message.


def published(redis_url: str, send: Callable[[Celery, str], Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """(what Celery publishes, our ticket) as parsed JSON."""
    queue = keys.queue_name("j", 1, 0)
    with Celery("test", set_as_current=False) as app, connect(redis_url) as client:
        app.conf.update(tickets.celery_settings(redis_url))
        send(app, queue)
        [theirs] = client.lrange(keys.queue("j", 1, 0), 0, -1)
    return json.loads(theirs), json.loads(tickets.ticket("j", 1, 0, 7))


def without_names(message: dict[str, Any]) -> dict[str, Any]:
    """The message without what differs from one message to the next."""
    body = json.loads(base64.b64decode(message.pop("body")))
    for name in ("id", "root_id", "origin"):
        assert isinstance(message["headers"].pop(name), str)
    for name in ("correlation_id", "delivery_tag"):
        assert isinstance(message["properties"].pop(name), str)
    message["properties"].pop("reply_to")
    return {**message, "body": body}


@pytest.mark.foreign_keys(r"celeriac:\{j\}\.1\.0")
def test_a_ticket_is_field_by_field_what_send_task_publishes(redis_url: str) -> None:
    theirs, ours = published(
        redis_url, lambda app, queue: app.send_task(tickets.TASK, (1, 0), queue=queue, ignore_result=True)
    )

    assert without_names(ours) == without_names(theirs)


@pytest.mark.foreign_keys(r"celeriac:\{j\}\.1\.0")
def test_a_ticket_is_field_by_field_what_apply_async_publishes(redis_url: str) -> None:
    def send(app: Celery, queue: str) -> None:
        def serve(*_: int) -> None: ...

        task = app.task(name=tickets.TASK, ignore_result=True)(serve)
        task.apply_async(args=(1, 0), queue=queue)

    theirs, ours = published(redis_url, send)

    assert without_names(ours) == without_names(theirs)


def test_a_ticket_names_its_term_so_that_a_revoked_one_comes_back_with_the_next_owner() -> None:
    assert json.loads(tickets.ticket("j", 1, 0, 7))["headers"]["id"] == "{j}.1.0.7"
    assert tickets.ticket("j", 1, 0, 7) != tickets.ticket("j", 1, 0, 8)


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("redis://host:6379/2", "redis://host:6379/2"),
        ("rediss://me:secret@host/0", "rediss://me:secret@host/0"),
        ("unix:///tmp/r.sock", "redis+socket:///tmp/r.sock?virtual_host=0"),
        ("unix:///tmp/r.sock?db=3", "redis+socket:///tmp/r.sock?virtual_host=3"),
        ("unix://:secret@/tmp/r.sock?db=3", "redis+socket://:secret@/tmp/r.sock?virtual_host=3"),
    ],
)
def test_the_broker_has_the_same_address_as_the_store(given: str, expected: str) -> None:
    assert tickets.broker_url(given) == expected


# A worker process.


@pytest.fixture
def flow_file(tmp_path: Path) -> Path:
    path = tmp_path / "flow.py"
    path.write_text(FLOW)
    return path


@pytest.fixture
def job(redis_url: str, flow_file: Path) -> Iterator[LocalJob]:
    with LocalJob(redis_url, load_pipeline(str(flow_file)), limits=Limits(slice_seconds=0.005)) as made:
        yield made


def environment(job: LocalJob, flow_file: Path, worker: str = "w0") -> dict[str, str]:
    return {
        **os.environ,
        "PYTHONPATH": str(ROOT),
        "CELERIAC_REDIS": job.url,
        "CELERIAC_JOB": job.job,
        "CELERIAC_WORKER": worker,
        "CELERIAC_INCARNATION": "1-a",
        "CELERIAC_PIPELINE": str(flow_file),
    }


@contextmanager
def worker_process(job: LocalJob, flow_file: Path, log: Path) -> Iterator[subprocess.Popen[bytes]]:
    with open(log, "wb") as out:
        process = subprocess.Popen(
            [sys.executable, "-m", "stages.main"], env=environment(job, flow_file), stdout=out, stderr=out
        )
    try:
        wait_until(lambda: process.poll() is not None or job.jobs.facts(job.job).workers, "the worker's heartbeat")
        assert process.poll() is None, log.read_text()
        yield process
    finally:
        process.kill()
        process.wait()


def test_a_worker_process_serves_tickets_and_ends_cleanly(job: LocalJob, flow_file: Path, tmp_path: Path) -> None:
    log = tmp_path / "log"
    with worker_process(job, flow_file, log) as process:
        job.assign("w0", is_told=False)
        for number in range(1, 31):
            job.send(numbered(["a", "b", "c"], 1, first=number))
        wait_until(lambda: len(job.read()) == 90, "all records came out")
        job.end_input()
        # A slice whose time is over may have rung for the next one, which finds nothing.
        wait_until(lambda: all(p.done and not p.ring for p in job.jobs.facts(job.job).partitions), "the end of input")

        [facts] = job.jobs.facts(job.job).workers
        assert (facts.name, facts.report["consuming"], facts.report["pid"]) == ("w0", True, process.pid)
        process.send_signal(signal.SIGTERM)
        assert process.wait(10) == 0, log.read_text()

    assert_sequence(job, "abc", 30)
    job.assert_done()
    assert job.jobs.facts(job.job).workers[0].report["stopping"] is True
    lists = {key.decode() for key in job.client.keys("*") if job.client.type(key) == b"list"}
    assert lists <= {keys.queue("j", *place) for place in job.places}
    foreign = [key for key in job.client.keys("*") if not key.startswith(b"celeriac:")]
    assert foreign == []
    assert "Traceback" not in log.read_text()


def test_a_worker_process_goes_on_when_all_its_connections_are_cut(
    job: LocalJob, flow_file: Path, tmp_path: Path
) -> None:
    log = tmp_path / "log"
    with worker_process(job, flow_file, log) as process:
        job.assign("w0", is_told=False)
        sent = 0
        for _ in range(2):
            for _ in range(10):
                sent += 1
                job.send(numbered(["a", "b", "c"], 1, first=sent))
            job.client.execute_command("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
            sent += 1
            job.send(numbered(["a", "b", "c"], 1, first=sent))

            def is_through() -> bool:
                job.sweep()
                return len(job.read()) == 3 * sent  # noqa: B023

            wait_until(is_through, f"the records behind the cut; the log:\n{log.read_text()}")
        process.send_signal(signal.SIGTERM)
        assert process.wait(10) == 0

    assert_sequence(job, "abc", sent)


def test_a_partition_that_is_taken_away_is_no_longer_consumed(job: LocalJob, flow_file: Path, tmp_path: Path) -> None:
    with worker_process(job, flow_file, tmp_path / "log"):
        job.assign("w0", is_told=False)
        job.send(numbered(["a", "b"], 5))
        wait_until(lambda: len(job.read()) == 10, "the first records")

        job.assign("here", job.places)
        job.send(numbered(["a", "b"], 5, first=6))
        job.run_until_idle()
        wait_until(lambda: job.sweep() == 0 and not job.serve() and len(job.read()) == 20, "the others, taken over")

    assert_sequence(job, "ab", 10)


@pytest.mark.parametrize("pool", ["prefork", "threads"])
def test_another_pool_than_solo_is_refused_with_a_message(job: LocalJob, flow_file: Path, pool: str) -> None:
    command = [sys.executable, "-m", "celery", "-A", "stages.celery_app", "worker", "-P", pool, "-c", "2"]

    done = subprocess.run(command, env=environment(job, flow_file), capture_output=True, text=True, timeout=60)

    assert done.returncode not in (0, -9)
    assert "error: celeriac workers run with the solo pool only" in done.stderr
    assert "hint: start it with -P solo" in done.stderr
    assert "Traceback" not in done.stderr


def start_that_fails(environment_: dict[str, str]) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "stages.main"], env=environment_, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 3, done.stderr
    assert "Traceback" not in done.stderr
    return done.stderr


def test_a_worker_with_another_pipeline_does_not_start(job: LocalJob, flow_file: Path) -> None:
    flow_file.write_text(FLOW.replace('name="number"', 'name="other"'))

    said = start_that_fails(environment(job, flow_file))

    assert said.startswith(f"error: {flow_file} is not the pipeline that job 'j' was started with\nhint: ")


def test_a_worker_of_another_version_does_not_start_and_names_both(job: LocalJob, flow_file: Path) -> None:
    plan = job.plan.encode().replace(b'"protocol":%d' % PROTOCOL, b'"protocol":99')
    job.client.hset(keys.job("j"), "plan", plan)
    job.is_tampered = True

    said = start_that_fails(environment(job, flow_file))

    assert said == (
        f"error: the job speaks protocol 99, this program {PROTOCOL}\n"
        "hint: run it with the version of celeriac that submitted it\n"
    )


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("CELERIAC_PIPELINE", "/nowhere/flow.py", "error: there is no file /nowhere/flow.py"),
        ("CELERIAC_JOB", "unknown", "error: there is no job 'unknown'"),
        ("CELERIAC_WORKER", "", "error: a worker needs CELERIAC_WORKER in its environment"),
    ],
)
def test_a_worker_that_cannot_start_says_why_in_one_message(
    job: LocalJob, flow_file: Path, name: str, value: str, message: str
) -> None:
    said = start_that_fails({**environment(job, flow_file), name: value})

    assert said.startswith(message)
    assert len(said.splitlines()) <= 2
