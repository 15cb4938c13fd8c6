"""The examples as they are, against the standard library and pandas."""

from __future__ import annotations

import pytest

from tests.e2e.chaos import Site, a_chance
from tests.e2e.references import (
    EXAMPLES,
    check_delays,
    delays_by_pandas,
    flights,
    read_counts,
    write_texts,
)


def test_wordcount_as_it_is_equals_the_standard_library(site: Site) -> None:
    counts = write_texts(site.root / "texts", a_chance(), files=4, lines=500)

    run = site.start(str(EXAMPLES / "wordcount.py"), WORDS=str(site.root / "texts"))
    run.finish()

    assert read_counts(run.folder / "out/words") == counts
    site.assert_clean("out")


@pytest.mark.timeout(400)
def test_flights_as_they_are_equal_pandas(site: Site) -> None:
    delays = delays_by_pandas(flights())
    run = site.start(str(EXAMPLES / "flights.py"))
    run.finish(seconds=300.0)  # Spark's start takes its time on a busy machine

    check_delays(run.folder / "out/mean_delay", delays)
    site.assert_clean("out")
