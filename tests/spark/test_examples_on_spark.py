"""The examples as they are on the Spark engine: what they give live, to a user's eye. Nothing is left behind."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.e2e.chaos import Site, a_chance, read_rows
from tests.e2e.references import EXAMPLES, check_delays, delays_by_pandas, read_counts, write_texts

pytestmark = pytest.mark.timeout(900)

SECONDS = 600.0
"""Spark's start takes its time on a busy machine."""

ENGINE = ("--engine", "spark", "--master", "local[2,4]")
FAST = {"CELERIAC_SPARK_FAST_START": "1"}


def test_wordcount_gives_the_same_on_both_engines(site: Site, tmp_path: Path) -> None:
    delays_by_pandas(tmp_path)  # skips where Spark cannot run
    counts = write_texts(site.root / "texts", a_chance(), files=4, lines=500)
    words = {"WORDS": str(site.root / "texts")}

    bulk = site.start(str(EXAMPLES / "wordcount.py"), *ENGINE, folder="bulk", **words, **FAST)
    bulk.finish(seconds=SECONDS)
    live = site.start(str(EXAMPLES / "wordcount.py"), folder="live", **words)
    live.finish()

    assert read_counts(bulk.folder / "out/words") == counts
    rows = [sorted(map(str, read_rows(run.folder / "out/words"))) for run in (bulk, live)]
    assert rows[0] == rows[1]
    assert "by_word: in 16,000, out" in bulk.said()
    site.assert_clean("out", folder="bulk")


def test_flights_on_spark_equal_pandas(site: Site, tmp_path: Path) -> None:
    delays = delays_by_pandas(tmp_path)

    run = site.start(str(EXAMPLES / "flights.py"), *ENGINE, **FAST)
    run.finish(seconds=SECONDS)

    check_delays(run.folder / "out/mean_delay", delays)
    site.assert_clean("out")
