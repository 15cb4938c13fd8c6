"""`celeriac run --engine spark` in this process: what it says, its exit codes, and what it leaves."""

from __future__ import annotations

import json
import re
import socket
from pathlib import Path
from typing import Any

import pytest

from pipeline.cli.exits import Exit
from pipeline.cli.main import run_command

pytestmark = pytest.mark.timeout(600)

FLOW = """
from pipeline import Pipeline, count, read, {imports} write

flow = Pipeline("shop")
orders = flow.source(read.iterable(["ada 3", "bob x", "ada 4", "cy 5"]), name="orders"{policy})
amounts = orders.map(lambda line: (line.split()[0], int(line.split()[1])), name="parse")
by_name = amounts.key_by(lambda pair: pair[0], name="by_name")
by_name.aggregate(count(), name="orders_so_far").sink(write.{sink}, name="out")
"""


@pytest.fixture
def session(spark: Any) -> Any:
    """There is one, so that a command need not start another."""
    return spark


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def a_flow(folder: Path, sink: str = 'jsonl("out")', policy: str = "", imports: str = "") -> str:
    (folder / "flow.py").write_text(FLOW.format(sink=sink, policy=policy, imports=imports))
    return "flow.py"


def run(*arguments: str) -> int:
    return run_command(["run", *arguments, "--engine", "spark", "--partitions", "2"])


@pytest.mark.usefixtures("session")
def test_it_publishes_tells_of_each_stage_and_keeps_dead_letters_in_a_file(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code = run(a_flow(folder))

    said = capsys.readouterr()
    assert code == Exit.DEAD_LETTERS, said.err
    assert "  read: 4 records\n" in said.err
    assert "  stage orders: in 4, out 3, given up 1," in said.err
    assert "  stage by_name: in 3, out 3," in said.err
    assert re.search(rf"  out: {folder}/out \(\d files?, 3 records\)\n", said.err)
    assert "    parse: ValueError: invalid literal for int() with base 10: 'x' (flow.py:6)\n" in said.err
    letters = list(folder.glob("shop-*.dead-letters.jsonl"))
    assert len(letters) == 1
    assert f"1 record given up, kept in {letters[0]}\n" in said.err
    row = json.loads(letters[0].read_text())
    assert (row["operator"], row["kind"], row["value"], row["key"]) == ("parse", "record", "bob x", None)
    assert "flow.py" in row["traceback"]
    assert {path.name for path in folder.iterdir()} == {"flow.py", "out", letters[0].name}


@pytest.mark.usefixtures("session")
def test_console_sinks_are_printed(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code = run(a_flow(folder, "console()"), "--quiet")

    said = capsys.readouterr()
    assert code == Exit.DEAD_LETTERS
    assert sorted(said.out.splitlines()) == ["ada: 1", "ada: 2", "cy: 1"]
    assert said.err.startswith("  dead letters: 1 record given up"), said.err


@pytest.mark.usefixtures("session")
def test_a_policy_that_fails_the_job_ends_the_run_with_one_message(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code = run(a_flow(folder, policy=", on_error=fail()", imports="fail,"))

    said = capsys.readouterr().err
    assert code == Exit.FAILED
    assert "failed: the operator 'parse' failed: ValueError: invalid literal" in said
    assert "Traceback" not in said
    assert [path.name for path in folder.iterdir()] == ["flow.py"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--engine", "spark", "--workers", "2"), "--workers makes no sense with --engine spark"),
        (("--engine", "spark", "--redis", "redis://h"), "--redis makes no sense with --engine spark"),
        (("--engine", "spark", "--autoscale", "1..2"), "--autoscale makes no sense with --engine spark"),
        (("--engine", "spark", "--job-id", "j"), "--job-id makes no sense with --engine spark"),
        (("--master", "local[2]"), "--master goes with --engine spark"),
        (("--engine", "spark", "--reader", "local"), "--reader makes no sense"),
        (("--scratch", "s"), "--scratch goes with --engine spark"),
        (("--engine", "spark", "--master", "local", "--remote", "sc://h"), "either --master or --remote"),
        (("--engine", "flink"), "'flink' is not one of"),
        (("--stream",), "--stream goes with --engine spark"),
        (("--engine", "spark", "--interval", "1"), "--interval goes with --stream"),
        (("--engine", "spark", "--stream", "--workers", "2"), "--workers makes no sense with --engine spark --stream"),
        (("--engine", "spark", "--stream", "--remote", "sc://h"), "--remote makes no sense"),
        (("--engine", "spark", "--stream", "--scratch", "s"), "--scratch makes no sense"),
    ],
)
def test_options_that_do_not_go_together_are_refused(
    folder: Path, capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...], message: str
) -> None:
    code = run_command(["run", a_flow(folder), *arguments])

    assert (code, message in capsys.readouterr().err) == (Exit.USAGE, True)


@pytest.mark.usefixtures("folder")
def test_an_address_in_a_variable_does_not_matter_to_spark(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("CELERIAC_REDIS", "redis://nobody:1")

    code = run_command(["run", "missing.py", "--engine", "spark"])

    assert code == Exit.USAGE
    assert "there is no file missing.py" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (("--master", "mesos://h:1"), Exit.USAGE, "'mesos://h:1' is no Spark master"),
        (("--master", "spark://127.0.0.1:{port}"), Exit.ENVIRONMENT, "does not answer"),
        (("--remote", "http://h"), Exit.USAGE, "'http://h' is no Connect server"),
        (("--remote", "sc://127.0.0.1:{port}/;token=secret"), Exit.ENVIRONMENT, "sc://127.0.0.1"),
    ],
)
def test_an_address_where_nobody_is_ends_with_one_message(
    folder: Path, capsys: pytest.CaptureFixture[str], arguments: tuple[str, str], code: Exit, message: str
) -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        address = arguments[1].format(port=unused.getsockname()[1])
        found = run(a_flow(folder), arguments[0], address)

    said = capsys.readouterr().err
    assert (found, "Traceback" in said, "secret" in said) == (code, False, False), said
    assert message in said or ("Spark Connect needs" in said and arguments[0] == "--remote")
    assert [path.name for path in folder.iterdir()] == ["flow.py"]
