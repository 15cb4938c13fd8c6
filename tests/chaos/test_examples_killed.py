"""The examples under kills, against the standard library and pandas, and with an oracle of their order."""

from __future__ import annotations

import random
from pathlib import Path

from tests.e2e.chaos import Run, Site, a_chance, moments, read_rows
from tests.e2e.references import (
    EXAMPLES,
    check_delays,
    delays_by_pandas,
    flights,
    read_counts,
    write_texts,
)

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


def check_oracle(folder: Path, counts: dict[str, int]) -> None:
    """Every key's running counts lie there as 1 .. its count, in this order."""
    last: dict[str, int] = {}
    for row in read_rows(folder):
        assert row["value"] == last.get(row["key"], 0) + 1, f"{row} is written after {last.get(row['key'], 0)}"
        last[row["key"]] = row["value"]
    assert last == counts


def kill_at_random(run: Run, chance: random.Random, total: int, times: int) -> None:
    for moment in moments(chance, total, times):
        run.wait_for_taken(moment)
        run.kill_one_of(chance, "w0", "w1", "leader", "source")


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


def test_flights_equal_pandas_whoever_is_killed(site: Site) -> None:
    delays = delays_by_pandas(flights())
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
