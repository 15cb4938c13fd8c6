"""The Spark cluster of the overlay as plain processes: a job reads its file on it."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.compose.engine import Engine, free_port
from tests.e2e.chaos import read_rows, wait_until

FLOW = """
from pipeline import Pipeline, count, read, write

flow = Pipeline("lengths")
(
    flow.source(read.text("lines.txt", reader="spark"), name="lines")
    .key_by(lambda line: len(line), name="by_length")
    .aggregate(lines=count(), name="counted")
    .last(name="final")
    .sink(write.jsonl("out"), name="table")
)
"""


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[Engine]:
    port = free_port()
    variables = {"CELERIAC_FLOWER_AUTH": "viewer:word", "CELERIAC_REDIS": f"redis://127.0.0.1:{port}/0"}
    engine = Engine(tmp_path, variables, port, with_spark=True)
    yield engine
    engine.close()


@pytest.mark.timeout(400)  # five JVMs start one behind the other
def test_a_job_reads_its_file_on_the_cluster(engine: Engine) -> None:
    lines = ["x" * (number % 7 + 1) for number in range(5_000)]
    (engine.work / "lines.txt").write_text("\n".join(lines) + "\n")
    (engine.work / "flow.py").write_text(FLOW)
    for name in ("redis", "spark-master", "spark-worker"):
        engine.up(name)
        engine.wait_for(name)

    job = engine.up("job")
    wait_until(lambda: job.poll() is not None, "the job has ended", 250.0)

    assert job.returncode == 0, engine.log("job")
    rows = {row["key"]: row for row in read_rows(engine.work / "out")}
    assert {key: row["lines"] for key, row in rows.items()} == dict(Counter(map(len, lines))), json.dumps(rows)
    assert "Registered app celeriac" in engine.log("spark-master")
    assert "Launched executor" in engine.log("spark-worker") or "ExecutorRunner" in engine.log("spark-worker")
    assert list((engine.temporary / "spark").glob("app-*"))
