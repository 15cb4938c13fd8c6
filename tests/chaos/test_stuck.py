"""A record that never lets its worker go."""

from __future__ import annotations

import json
from pathlib import Path

from pipeline.settings import Limits
from tests.e2e.chaos import Site, create_job

FLOW = """
from pipeline import Pipeline, read, write


def worked(number):
    while number == 13:
        pass
    return number


flow = Pipeline("stuck")
(
    flow.source(read.iterable(range(40)), name="numbers")
    .key_by(lambda number: number, name="by_number")
    .map(worked, name="worked")
    .sink(write.jsonl("out"), name="out")
)
"""


def test_a_record_that_loops_for_ever_is_a_dead_letter_in_the_end_and_the_rest_is_right(
    site: Site, redis_url: str
) -> None:
    site.write(FLOW)
    create_job(site, redis_url, "stuck", Limits(stuck_seconds=0.5))
    run = site.start("flow.py", "--workers", "2", "--redis", redis_url, "--job-id", "stuck")

    run.finish(code=4)

    assert numbers(run.folder / "out") == [number for number in range(40) if number != 13]
    assert "killed its worker" in run.said()
    site.assert_clean("flow.py", "out")


def numbers(folder: Path) -> list[int]:
    lines = [line for path in folder.glob("part-*") for line in path.read_text().splitlines()]
    return sorted(json.loads(line)["value"] for line in lines)
