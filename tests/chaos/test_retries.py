"""Retries under kills: a service that fails now and then, workers that die meanwhile, and every key in order."""

from __future__ import annotations

import json
from pathlib import Path

from tests.e2e.chaos import Site, a_chance, moments

FLOW = """
import os, time
from pathlib import Path
from pipeline import Pipeline, read, retry, write


def work(pair):
    key, number = pair
    seen = Path("seen") / f"{key}-{number}"
    if number % 5 == 0 and not seen.exists():
        seen.touch()
        raise ConnectionError("not yet")
    time.sleep(0.002)
    return number


flow = Pipeline("flaky")
pairs = [[key, number] for number in range(1, 301) for key in "abcdefgh"]
keyed = flow.source(read.iterable(pairs), name="pairs").key_by(
    lambda pair: pair[0], name="by", on_error=retry(20, first_seconds=0.01, most_seconds=0.1)
)
(
    keyed.map(work, name="work")
    .stateful_map(lambda key, n, last: (n if n == (last or 0) + 1 else 1 / 0, n), name="oracle")
    .sink(write.jsonl("out"), name="out")
)
"""


def test_a_flaky_function_is_retried_through_kills_and_no_key_loses_its_order(site: Site) -> None:
    chance = a_chance()
    site.write(FLOW)
    (site.root / "work/seen").mkdir()
    run = site.start("flow.py", "--workers", "2")

    for moment in moments(chance, 8 * 300, 3):
        run.wait_for_taken(moment)
        run.kill_one_of(chance, "w0", "w1")
    run.finish()

    assert sorted(numbers(run.folder / "out")) == sorted(number for number in range(1, 301) for _ in range(8))
    site.assert_clean("flow.py", "out", "seen")


def numbers(folder: Path) -> list[int]:
    lines = [line for path in folder.glob("part-*") for line in path.read_text().splitlines()]
    return [json.loads(line)["value"] for line in lines]
