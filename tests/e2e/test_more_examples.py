"""The examples of a flaky web service and of a database, each against a computation of its own."""

from __future__ import annotations

import csv
import re
import sqlite3
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import closing

import pytest

from tests.e2e.chaos import ROOT, Site, a_chance, moments

EXAMPLES = ROOT / "examples"
REGIONS = ("north", "east", "south", "west")


@pytest.fixture
def customers() -> Iterator[str]:
    """Address of the service."""
    argv = [sys.executable, str(EXAMPLES / "programs/customers.py"), "0"]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        port = process.stdout.readline().rpartition(" ")[2].strip()
        yield f"http://127.0.0.1:{port}"
        process.kill()


def test_a_flaky_service_is_asked_again_and_unknown_customers_are_dead_letters(site: Site, customers: str) -> None:
    orders: Counter[str] = Counter()
    cents: Counter[str] = Counter()
    unknown = 0
    for path in (EXAMPLES / "data/orders").glob("*.csv"):
        for row in csv.DictReader(path.read_text().splitlines()):
            if row["customer"] == "c13":
                unknown += 1
                continue
            region = REGIONS[int(row["customer"][1:]) % 4]
            orders[region] += 1
            cents[region] += int(row["cents"])

    run = site.start(str(EXAMPLES / "enrich.py"), "--workers", "2", CUSTOMERS=customers)
    run.finish(code=4)

    parts = (run.folder / "out/regions").glob("part-*")
    rows = [row for path in parts for row in csv.DictReader(path.read_text().splitlines())]
    assert len(rows) == len(orders)
    assert {row["region"]: int(row["orders"]) for row in rows} == orders
    assert {row["region"]: int(row["cents"]) for row in rows} == cents
    assert f"dead letters: {unknown} records given up" in run.said()
    assert "HTTP Error 404" in run.said()
    site.assert_clean("out")


def test_the_table_of_words_is_that_of_a_counter_through_kills(site: Site) -> None:
    chance = a_chance()
    words = [f"word{number}" for number in range(300)]
    (site.root / "work/text").mkdir(parents=True)
    for number in range(8):
        lines = (" ".join(chance.choices(words, k=10)) for _ in range(500))
        (site.root / f"work/text/{number}.txt").write_text("\n".join(lines) + "\n")
    text = " ".join(path.read_text() for path in (site.root / "work/text").iterdir())
    expected = Counter(re.findall(r"\w+", text.lower()))

    run = site.start(str(EXAMPLES / "to_sql.py"), "--workers", "2", WORDS="text")
    for moment in moments(chance, sum(expected.values()), 2, within=(0.05, 0.6)):
        run.wait_for_taken(moment)
        run.kill_one_of(chance, "w0", "w1")
    run.finish()

    with closing(sqlite3.connect(run.folder / "words.db")) as database:
        assert dict(database.execute("SELECT word, count FROM words")) == expected
    site.assert_clean("text", "words.db")
