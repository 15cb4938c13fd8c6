"""The Spark engine as a process of its own: interrupted, killed, on a cluster and behind a Connect server."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import psutil
import pytest

from pipeline.embedded.java import ensure_java
from tests.e2e.chaos import Run, Sequence, Site, read_rows, wait_until
from tests.e2e.references import needs_spark

pytestmark = pytest.mark.timeout(900)

SECONDS = 600.0
"""Spark's start takes its time on a busy machine."""

ENGINE = ("--engine", "spark", "--partitions", "2")
FAST = {"CELERIAC_SPARK_FAST_START": "1"}

WAITING = """
from pathlib import Path
from threading import Event

from pipeline import Pipeline, count, read, write


def waiting(value):
    if value == {at}:
        Path("hand").touch()
        Event().wait(600)
    return value


flow = Pipeline("waiting")
numbers = flow.source(read.iterable({items}), name="in")
keyed = numbers.map(waiting, name="wait").external("cat", protocol="lines", name="cat").key_by(lambda v: v, name="by")
keyed.aggregate(count(), name="n").sink(write.jsonl("out"), name="out")
"""


def started(site: Site, text: str, *arguments: str) -> Run:
    needs_spark(site.root)
    site.write(text)
    return site.start("flow.py", *ENGINE, *arguments, **FAST)


def wait_for(run: Run, sign: Path) -> None:
    def is_there() -> bool:
        run.assert_running()
        return sign.exists()

    wait_until(is_there, f"there is {sign}", SECONDS)


def test_an_interrupted_run_leaves_nothing(site: Site) -> None:
    run = started(site, WAITING.format(at="'x3'", items="[f'x{n}' for n in range(9)]"), "--master", "local[2,4]")
    wait_for(run, run.folder / "hand")

    run.process.send_signal(signal.SIGINT)  # the one that PySpark and py4j have ideas of their own about
    run.finish(code=130, seconds=SECONDS)

    assert run.said().splitlines()[-1].startswith("cancelled run waiting-")
    site.assert_clean("flow.py", "hand")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_run_that_is_interrupted_while_it_reads_its_input_starts_no_spark(site: Site, number: signal.Signals) -> None:
    text = WAITING.format(at="-1", items="lambda: map(waiting, [-1])")
    run = started(site, text, "--master", "local[2,4]")
    wait_for(run, run.folder / "hand")
    assert not [each for each in site.processes() if each.name() == "java"]

    run.process.send_signal(number)
    run.finish(code=130, seconds=SECONDS)

    site.assert_clean("flow.py", "hand")


def test_nothing_outlives_a_run_that_is_killed(site: Site) -> None:
    run = started(site, WAITING.format(at="'x3'", items="[f'x{n}' for n in range(9)]"), "--master", "local[2,4]")
    wait_for(run, run.folder / "hand")

    psutil.Process(run.process.pid).kill()
    run.process.wait(30)

    wait_until(lambda: not site.processes(), "all processes have ended", 60.0)
    assert not (run.folder / "out").exists()


FINALS = """
from pipeline import count, itself

lines = flow.source(read.text("../lines"), name="lines").filter(~itself().starts_with("2"), name="no_2")
ended = lines.key_by(itself().length(), name="by_length").aggregate(count(), name="n").last(name="end")
ended.sink(write.jsonl("finals"), name="finals")

sevens = flow.source(read.text("../lines"), name="fronted").filter(itself().starts_with("7"), name="sevens")
sevens.key_by(len, name="by_len").aggregate(count(), name="each").sink(write.jsonl("sevens"), name="out_sevens")
"""
"""Beside other sources: few records, but bytes enough for Spark to compute them itself, or filter them first."""

LINES = [f"{number % 10}" + "x" * (16_000 + number % 3) for number in range(1_100)]


def with_finals(site: Site, text: str) -> str:
    (site.root / "lines").mkdir()
    for number in range(4):
        (site.root / "lines" / f"{number}.txt").write_text("\n".join(LINES[number::4]))
    return text + FINALS


def check_finals(run: Run) -> None:
    assert "stage lines: in 1,100, out 990, filtered 110, by Spark itself" in run.said()
    rows = [(row["key"], row["value"]) for row in read_rows(run.folder / "finals")]
    assert sorted(rows) == sorted(Counter(len(line) for line in LINES if line[0] != "2").items())
    fronted = next(line for line in run.said().splitlines() if line.startswith("  stage fronted: "))
    assert fronted.startswith("  stage fronted: in 1,100, out 110, filtered 990, ")
    assert fronted.endswith(", filtered by Spark first")
    last = {row["key"]: row["value"] for row in read_rows(run.folder / "sevens")}
    assert last == Counter(len(line) for line in LINES if line[0] == "7")


def test_a_cluster_computes_and_filters_itself_and_order_holds_though_its_shuffle_has_none(site: Site) -> None:
    sequence = Sequence(keys=20, count=400)
    run = started(site, with_finals(site, sequence.text), "--master", "local-cluster[2,1,1024]")

    run.finish(seconds=SECONDS)

    sequence.check(run.folder / "out")
    check_finals(run)
    site.assert_clean("flow.py", "out", "finals", "sevens")


@pytest.fixture
def connect_server(site: Site) -> Iterator[str]:
    """The address of a Connect server with two cores, which goes at the end."""
    needs_spark(site.root)
    if find_spec("grpc") is None and not os.environ.get("CI"):
        pytest.skip("grpcio is not installed (pip install 'celeriac[connect]')")
    spec = find_spec("pyspark")
    assert spec is not None
    home = Path(str(spec.origin)).parent
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    own = {"SPARK_HOME": str(home), "JAVA_HOME": str(ensure_java(site.root)), "PYSPARK_PYTHON": sys.executable}
    settings = {"spark.connect.grpc.binding.port": str(port), "spark.ui.enabled": "false"}
    arguments = [text for name, value in settings.items() for text in ("--conf", f"{name}={value}")]
    server = subprocess.Popen(
        ["bash", str(home / "sbin/start-connect-server.sh"), "--master", "local[2,4]", *arguments],
        cwd=site.root,
        env={**site.environment(**own), "SPARK_NO_DAEMONIZE": "1", "SPARK_LOCAL_IP": "127.0.0.1"},
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
