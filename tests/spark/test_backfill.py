"""History on Spark and then live, as commands, with a kill in between: as if the job had been live all the time."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from pipeline.cli.main import run_command
from tests.e2e.chaos import Site, wait_until
from tests.e2e.references import read_rows

FLOW = """
from pathlib import Path
from threading import Event

from pipeline import Pipeline, count, read, write


def waiting(line):
    if Path("hold").exists():
        Path("hand").touch()
        Event().wait(600)
    return line


flow = Pipeline("words")
counts = (
    flow.source(read.text("in"), name="lines")
    .external("cat", protocol="lines", name="cat")
    .map(waiting, name="wait")
    .flat_map(str.split, name="split")
    .key_by(lambda word: word, name="by_word")
    .aggregate(count(), name="counts")
)
counts.sink(write.jsonl("out"), name="running")
counts.last(name="last").sink(write.jsonl("end"), name="end")
"""

LIVE_ONLY = """
from pipeline import Pipeline, read, write

flow = Pipeline("live")
flow.source(read.producer(), name="in").sink(write.jsonl("out"), name="out")
"""

pytestmark = pytest.mark.timeout(900)

SECONDS = 600.0
"""Spark's start takes its time on a busy machine."""


def write_input(folder: Path) -> Counter[str]:
    """1,200 lines in three files."""
    (folder / "in").mkdir(parents=True)
    words: Counter[str] = Counter()
    for number in range(3):
        lines = [f"a{n % 7} b{n % 3} f{number}" for n in range(400)]
        (folder / "in" / f"{number}.txt").write_text("\n".join(lines) + "\n")
        words.update(" ".join(lines).split())
    return words


def test_history_on_spark_and_then_live_is_as_live_alone_though_both_are_killed(
    spark: Any,  # noqa: ARG001 - the second backfill runs on it, in this process
    site: Site,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    folder = site.root / "work"
    site.write(FLOW)
    words = write_input(folder)
    kill_a_backfill(site)
    assert list(folder.glob("savepoints/*/manifest.json")) == []
    assert not (folder / "history.results").exists()

    with monkeypatch.context() as patch:
        patch.chdir(folder)
        code = run_command(["backfill", "flow.py", "--until", "lines=700", "--savepoint", "history"])
    said = capsys.readouterr().err
    assert code == 0, said
    assert "go on live, from the next record: celeriac run flow.py --from-savepoint savepoints/history" in said
    run = site.start("flow.py", "--workers", "2", "--from-savepoint", "savepoints/history")
    run.wait_for_taken(100)
    if run.find("w0") is not None:
        run.kill("w0")
    run.finish()

    together: dict[str, list[int]] = {}
    for row in [*read_rows(folder / "history.results/running"), *read_rows(folder / "out")]:
        together.setdefault(row["key"], []).append(row["value"])
    assert {key: sorted(values) for key, values in together.items()} == {
        key: list(range(1, count + 1)) for key, count in words.items()
    }
    assert {row["key"]: row["value"] for row in read_rows(folder / "end")} == words
    assert list(read_rows(folder / "history.results/end")) == []


def kill_a_backfill(site: Site) -> None:
    """While a task of it works on a line, with its program beside it. Nothing outlives it."""
    folder = site.root / "work"
    (folder / "hold").touch()
    process = subprocess.Popen(
        [sys.executable, "-m", "pipeline.cli.main", "backfill", "flow.py", "--savepoint", "history"],
        cwd=folder,
        env=site.environment(),
        stderr=subprocess.DEVNULL,
    )

    def is_at_work() -> bool:
        assert process.poll() is None
        return (folder / "hand").exists()

    wait_until(is_at_work, "it is at work", SECONDS)
    process.kill()
    process.wait(30)
    wait_until(lambda: not site.processes(), "Spark has ended with it, and all that it has started", 60.0)
    (folder / "hold").unlink()


def test_what_cannot_be_read_in_bulk_is_said_before_spark_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def never(*_: Any, **__: Any) -> Any:
        raise AssertionError("Spark was started")

    monkeypatch.setattr("pipeline.spark.bulk.engine.open_session", never)
    monkeypatch.chdir(tmp_path)
    write_input(tmp_path)

    def refused(flow: str, *arguments: str) -> str:
        Path("flow.py").write_text(flow)
        assert run_command(list(arguments)) == 2
        return capsys.readouterr().err

    assert (
        refused(FLOW, "backfill", "flow.py", "--until", "lins=3")
        == "error: no source 'lins' is read in bulk\nhint: there are: lines\n"
    )
    assert "give SOURCE=COUNT, as lines=250000" in refused(FLOW, "backfill", "flow.py", "--until", "lines:3")
    assert "there is no history to read: in can be read live only" in refused(LIVE_ONLY, "backfill", "flow.py")
    gone = ("run", "flow.py", "--engine", "spark", "--from-savepoint", "savepoints/none")
    assert "there is no" in refused(LIVE_ONLY, *gone)
    assert {path.name for path in tmp_path.iterdir()} == {"flow.py", "in"}
