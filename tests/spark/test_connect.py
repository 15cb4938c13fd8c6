"""One Connect server: runs in bulk and frames of a live job on it, and the format `pipeline` in a session of it."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from pipeline.embedded.java import ensure_java
from pipeline.errors import ProducerError, UnknownJob
from pipeline.spark import register
from pipeline.spark.python import python_program
from tests import jvm
from tests.e2e.chaos import ROOT, Sequence, Site, read_rows, wait_until
from tests.runtime.harness import LocalJob
from tests.spark.finals import check_finals, with_finals
from tests.spark.frames import a_job, fault_of, in_order, loaded, numbers, save, streamed
from tests.spark.interrupting import check_that_an_interrupt_ends_the_job

pytestmark = pytest.mark.timeout(900)

SECONDS = 600.0
"""Spark's start takes its time on a busy machine."""


@pytest.fixture(scope="module")
def connect_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a Connect server with two cores, which goes at the end."""
    root = tmp_path_factory.mktemp("connect")
    spec = find_spec("pyspark")
    assert spec is not None
    home = Path(str(spec.origin)).parent
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    own = {"SPARK_HOME": str(home), "JAVA_HOME": str(ensure_java(root)), "PYSPARK_PYTHON": str(python_program(root))}
    own |= {"TMPDIR": str(root), "PYTHONPATH": str(ROOT), "JAVA_TOOL_OPTIONS": jvm.options()}
    settings = {"spark.connect.grpc.binding.port": str(port), "spark.ui.enabled": "false"}
    arguments = [text for name, value in settings.items() for text in ("--conf", f"{name}={value}")]
    arguments += ["--conf", jvm.PYTHON]
    server = subprocess.Popen(
        ["bash", str(home / "sbin/start-connect-server.sh"), "--master", "local[2,4]", *arguments],
        cwd=root,
        env={**os.environ, **own, "SPARK_NO_DAEMONIZE": "1", "SPARK_LOCAL_IP": "127.0.0.1"},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        wait_until(lambda: is_open(port), "the Connect server answers", SECONDS)
        yield f"sc://127.0.0.1:{port}"
    finally:
        os.killpg(server.pid, signal.SIGKILL)
        server.wait(30)


def is_open(port: int) -> bool:
    with socket.socket() as trial:
        return trial.connect_ex(("127.0.0.1", port)) == 0


ENGINE = ("--engine", "spark", "--partitions", "2")

FRAMES = """
from pipeline import Pipeline, read, write


def doubled(frame):
    assert "connect" in type(frame).__module__
    return frame.selectExpr("n * 2 as n")


rows = [{"n": number} for number in range(200)]
flow = Pipeline("frames")
numbers = flow.source(read.iterable(rows), name="in")
numbers.transform(doubled, schema="n long", name="op").sink(write.jsonl("out"), name="o")
"""


def test_a_connect_server_runs_the_same_file_and_the_frames_of_a_live_job(site: Site, connect_server: str) -> None:
    sequence = Sequence(keys=10, count=200)
    site.write(with_finals(site, sequence.text))
    run = site.start("flow.py", *ENGINE, "--remote", connect_server)

    run.finish(seconds=SECONDS)

    sequence.check(run.folder / "out")
    check_finals(run)
    assert {path.name for path in run.folder.iterdir()} == {"flow.py", "out", "finals", "sevens"}

    site.write(FRAMES, folder="live")
    live = site.start("flow.py", "--workers", "1", folder="live", CELERIAC_SPARK_REMOTE=connect_server)
    live.finish(seconds=SECONDS)

    assert [row["n"] for row in read_rows(live.folder / "out")] == list(range(0, 400, 2))


DATABASE = """
from pipeline import Pipeline, read, write

rows = "SELECT * FROM (VALUES (1, TIME('12:13:14'), TIMESTAMP('2026-03-29 02:30:00'))) AS T (ID, CLOCK, SOLD)"
flow = Pipeline("rows")
source = read.jdbc("jdbc:derby:memory:shop;create=true", rows, staging="staging")
flow.source(source, name="in").sink(write.jsonl("out"), name="out")
"""


def test_a_database_is_read_by_a_connect_server(site: Site, connect_server: str) -> None:
    site.write(DATABASE)
    run = site.start("flow.py", *ENGINE, "--remote", connect_server)

    run.finish(seconds=SECONDS)

    [row] = read_rows(run.folder / "out")
    assert row == {"ID": 1, "CLOCK": "12:13:14", "SOLD": "2026-03-29T02:30:00Z"}
    assert list((run.folder / "staging").iterdir()) == []


# --- the data source


@pytest.fixture(scope="module")
def session(connect_server: str) -> Iterator[Any]:
    from pyspark.sql.connect.session import SparkSession

    made = SparkSession.builder.remote(connect_server).create()
    register(made)
    yield made
    made.stop()


@pytest.fixture
def job(redis_url: str) -> Iterator[LocalJob]:
    with a_job(redis_url) as made:
        yield made


def fill(job: LocalJob, first: int, count: int) -> None:
    job.send([{"n": n, "k": f"k{n % 3}", "x": 0.5} for n in range(first, first + count)], entry_records=7)
    job.run_until_idle()


def test_results_state_and_errors_are_those_of_a_classic_session(session: Any, job: LocalJob) -> None:
    fill(job, 0, 60)

    rows = loaded(session, job.url, "n INT, x DOUBLE, position BIGINT", stream="out", start="11").collect()
    state = loaded(session, job.url, table="state", operator="counted").filter("key in ('k1', 'k2')")
    gone = fault_of(lambda: loaded(session, job.url, job="gone").collect())

    assert sorted((row.n, row.x, row.position) for row in rows) == [(n, 0.5, n + 1) for n in range(10, 60)]
    assert sorted((row.key, row.result) for row in state.collect()) == [("k1", "20"), ("k2", "20")]
    assert isinstance(gone, UnknownJob)


def test_a_stream_of_results_ends_and_goes_on_from_its_checkpoint(session: Any, job: LocalJob, tmp_path: Path) -> None:
    def run() -> list[int]:
        frame = streamed(session, job.url, stream="out", reader="archive", max_records=40)
        query = (
            frame.writeStream.format("parquet")
            .option("path", str(tmp_path / "rows"))
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            .trigger(availableNow=True)
            .start()
        )
        assert query.awaitTermination(int(SECONDS))
        assert query.exception() is None
        return sorted(row.position for row in session.read.parquet(str(tmp_path / "rows")).collect())

    fill(job, 0, 60)
    assert run() == list(range(1, 61))
    fill(job, 60, 10)
    assert run() == list(range(1, 71))


def test_rows_come_in_once_by_batch_and_by_stream(session: Any, job: LocalJob, tmp_path: Path) -> None:
    frame = session.range(2_000).selectExpr("cast(id as int) as n", "concat('k', id % 5) as k")
    for _ in range(2):
        save(in_order(frame, 2), job.url, name="history", order_by="n", frame_partitions=2)
    assert numbers(job) == list(range(2_000))

    session.range(2_000, 2_300).selectExpr("cast(id as int) as n").write.parquet(str(tmp_path / "in"))
    rows = session.readStream.schema("n INT").parquet(str(tmp_path / "in"))
    query = (
        rows.writeStream.format("pipeline")
        .option("redis", job.url)
        .option("job", "j")
        .option("source", "in")
        .option("staging", str(tmp_path / "staging"))
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    assert query.awaitTermination(int(SECONDS))
    assert query.exception() is None
    assert numbers(job) == list(range(2_300))

    refused = fault_of(lambda: save(frame, job.url, name="history", order_by="n"))
    assert isinstance(refused, ProducerError)
    assert "frame_partitions" in str(refused)


@pytest.mark.usefixtures("loggers_as_before")
def test_an_interrupt_ends_the_jobs_of_a_call(session: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    check_that_an_interrupt_ends_the_job(session, tmp_path, monkeypatch)
