"""`celeriac run` with sources that go on: written to, rotated, killed, drained by Ctrl-C, and wrong."""

from __future__ import annotations

import json
import signal
import sqlite3
from collections import defaultdict
from pathlib import Path

import psutil
import pytest

from stages.node import SOURCE_RESTARTS
from tests.e2e.chaos import Run, Site, a_chance, read_rows, wait_until

FILES = """
from pipeline import Pipeline, read, write


def in_sequence(key, number, last):
    if number != (last or 0) + 1:
        raise ValueError(f"{key}: {number} came after {last}")
    return number, number


flow = Pipeline("logs")
(
    flow.source(read.json("in/log*", follow=True, poll_seconds=0.05), name="lines")
    .key_by(lambda pair: pair[0], name="by_file")
    .map(lambda pair: pair[1], name="number")
    .stateful_map(in_sequence, name="oracle")
    .sink(write.jsonl("out"), name="result")
)
"""

ROWS = """
from pipeline import Pipeline, read, write

flow = Pipeline("rows")
orders = flow.source(read.sql("env:SHOP_DB", "{table}", column="id", poll_seconds=0.05), name="orders")
orders.sink(write.jsonl("out"), name="result")
"""

GENERATED = """
from pipeline import Pipeline, read, write


def numbers(position):
    for number in range((position or 0) + 1, 100_001):
        yield number, number


flow = Pipeline("numbers")
flow.source(read.generator(numbers, poll_seconds=None), name="numbers").sink(write.jsonl("out"), name="result")
"""


def written(path: Path, key: str, first: int, last: int) -> None:
    with open(path, "a") as file:
        file.writelines(f"{json.dumps([key, number])}\n" for number in range(first, last + 1))


def interrupt(run: Run) -> None:
    """Ctrl-C."""
    run.process.send_signal(signal.SIGINT)


def test_a_log_that_is_rotated_while_its_feeder_is_killed_arrives_once_and_in_order(site: Site) -> None:
    chance = a_chance()
    site.write(FILES)
    folder = site.root / "work" / "in"
    folder.mkdir()
    written(folder / "log", "f0", 1, 500)
    run = site.start("flow.py", "--workers", "1", "--partitions", "2")
    count, kills = 500, 0
    run.wait_for_taken(500)

    def killed(probability: float) -> int:
        """A feeder that dies more often, each time soon after its start, is given up."""
        if kills == SOURCE_RESTARTS or chance.random() >= probability:
            return 0
        run.kill("source")
        return 1

    for number in range(1, 6):
        written(folder / "log", f"f{number - 1}", 501, 800)
        kills += killed(0.7)
        (folder / "log").rename(folder / f"log.{number}")
        written(folder / "log", f"f{number}", 1, 500)
        kills += killed(0.5)
        count += 800
        run.wait_for_taken(2 * count * chance.random())
    run.wait_for_taken(2 * count)
    with open(folder / "log", "a") as file:
        file.write('["unfinished", ')
    interrupt(run)
    run.finish(code=130)

    last: dict[str, int] = defaultdict(int)
    for row in read_rows(site.root / "work" / "out"):
        assert row["value"] == last[row["key"]] + 1
        last[row["key"]] = row["value"]
    assert last == {**{f"f{number}": 800 for number in range(5)}, "f5": 500}
    assert "source lines is followed until Ctrl-C" in run.said()
    assert "drained: the results hold what was read until then" in run.said()
    assert "dead letters" not in run.said()
    site.assert_clean("flow.py", "in", "out")


def test_rows_written_while_the_feeder_is_killed_arrive_once_and_the_address_is_shown_to_nobody(site: Site) -> None:
    site.write(ROWS.format(table="orders"))
    path = site.root / "shop-s3cret.db"
    with sqlite3.connect(path) as database:
        database.execute("CREATE TABLE orders (id INTEGER PRIMARY KEY)")
        database.executemany("INSERT INTO orders VALUES (?)", [(number,) for number in range(1, 1_001)])
    run = site.start("flow.py", "--workers", "1", SHOP_DB=f"sqlite:///{path}")
    run.wait_for_taken(1_000)

    for start in (1_001, 2_001, 3_001):
        run.kill("source")
        with sqlite3.connect(path) as database:
            database.executemany("INSERT INTO orders VALUES (?)", [(n,) for n in range(start, start + 1_000)])
        run.wait_for_taken(start + 999)
    commands = [word for process in site.processes() for word in command_line(process)]
    interrupt(run)
    run.finish(code=130)

    assert sorted(row["id"] for row in read_rows(site.root / "work" / "out")) == list(range(1, 4_001))
    assert not any("s3cret" in word for word in commands)
    assert "s3cret" not in run.said()


def command_line(process: psutil.Process) -> list[str]:
    try:
        return process.cmdline()
    except psutil.Error:
        return []


def test_a_generator_with_an_end_finishes_the_job_though_its_feeder_was_killed(site: Site) -> None:
    site.write(GENERATED)
    run = site.start("flow.py", "--workers", "1")
    run.wait_for_taken(100)
    if run.find("source") is not None:
        run.kill("source")
    run.finish()

    assert sorted(int(row) for row in read_rows(site.root / "work" / "out")) == list(range(1, 100_001))


def test_a_table_that_does_not_exist_fails_the_job_with_a_hint(site: Site) -> None:
    site.write(ROWS.format(table="order"))
    path = site.root / "shop.db"
    with sqlite3.connect(path) as database:
        database.execute("CREATE TABLE orders (id INTEGER PRIMARY KEY)")
    run = site.start("flow.py", "--workers", "1", SHOP_DB=f"sqlite:///{path}")

    run.finish(code=1)

    assert "source 'orders': there is no table 'order' (did you mean 'orders'?)" in run.said()
    assert "Traceback" not in run.said()


@pytest.mark.parametrize("text", [FILES.replace("in/log*", "nowhere/log*"), FILES.replace("in/log*", "nowhere.log")])
def test_what_is_not_there_yet_is_waited_for_until_ctrl_c(site: Site, text: str) -> None:
    site.write(text)
    run = site.start("flow.py", "--workers", "1")
    wait_until(lambda: "waiting: source lines: " in run.said(), "the run says that it waits")
    job = run.link[1]
    status = site.command("status", job, "--redis", run.address)
    assert "waiting   lines: " in status.stdout
    assert "is not there (it is read as soon as it is)" in status.stdout or "cannot be looked at" in status.stdout
    interrupt(run)

    run.finish(code=130)

    assert "read: 0 records" in run.said()


def test_a_variable_that_is_not_set_is_told_before_anything_is_started(site: Site) -> None:
    site.write(ROWS.format(table="orders"))
    run = site.start("flow.py", "--workers", "1")

    run.finish(code=3)

    assert "in the variable SHOP_DB, which is not set" in run.said()


def test_a_job_that_was_cancelled_goes_on_behind_what_it_had_read(site: Site) -> None:
    site.write(FILES)
    folder = site.root / "work" / "in"
    folder.mkdir()
    written(folder / "log", "f", 1, 500)
    first = site.start("flow.py", "--workers", "1", "--job-id", "kept")
    first.wait_for_taken(1_000)
    first.process.send_signal(signal.SIGTERM)
    first.finish(code=130)
    assert "Traceback" not in first.log("source0")
    assert "retired role=source child=source lines code=0" in first.log("node")
    written(folder / "log", "f", 501, 700)
    (folder / "log").rename(folder / "log.1")
    written(folder / "log", "g", 1, 10)

    second = site.start("flow.py", "--workers", "1", "--job-id", "kept")
    second.wait_for_taken(2 * 710)
    interrupt(second)
    second.finish(code=130)

    rows = list(read_rows(site.root / "work" / "out"))
    assert [row["value"] for row in rows if row["key"] == "f"] == list(range(1, 701))
    assert [row["value"] for row in rows if row["key"] == "g"] == list(range(1, 11))
