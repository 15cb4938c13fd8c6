"""What Spark computes and filters itself, beside a story on another Spark than that of the tests."""

from __future__ import annotations

from collections import Counter

from tests.e2e.chaos import Run, Site, read_rows

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
