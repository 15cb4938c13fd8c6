"""Parts of a rotating sink appear while applications still send, and a run that is killed and drained has them all."""

from __future__ import annotations

import json
from pathlib import Path

from pipeline.producer import Producer
from pipeline.sinks.manifest import read_manifest
from tests.e2e.chaos import Site, a_chance, wait_until

FLOW = """from pipeline import Pipeline, read, write
flow = Pipeline("endless")
numbers = flow.source(read.producer(), name="numbers").key_by(lambda number: number % 7, name="by")
numbers.sink(write.jsonl("out", rotate_bytes=2000, rotate_seconds=0.5), name="files")
"""


def rows_in(folder: Path) -> list[int]:
    return [json.loads(line)["value"] for part in folder.glob("part-*") for line in part.read_text().splitlines()]


def test_what_applications_send_is_in_whole_parts_within_the_time_while_workers_are_killed(
    site: Site, redis_url: str
) -> None:
    chance = a_chance()
    site.write(FLOW)
    run = site.start("flow.py", "--workers", "2", "--redis", redis_url, "--job-id", "endless")
    out = run.folder / "out"
    seen: dict[Path, bytes] = {}

    wait_until(lambda: run.facts().record.job == "endless", "the job is registered")
    with Producer("endless", redis_url) as producer:
        for first in range(0, 3000, 500):
            for number in range(first, first + 500):
                producer.send(None, number)
            producer.flush()
            # Nobody sends now: what is there must appear by itself.
            wait_until(lambda: sorted(rows_in(out)) == list(range(first + 500)), "all rows so far are in parts")  # noqa: B023
            found = {path: path.read_bytes() for path in out.glob("part-*")}
            assert seen.items() <= found.items()
            seen = found
            run.kill(chance.choice(["w0", "w1"]))
    run.process.send_signal(2)
    run.finish(code=130)

    assert sorted(rows_in(out)) == list(range(3000))
    manifest = read_manifest(out)
    assert manifest is not None
    assert manifest.records == 3000
    assert {path: path.read_bytes() for path in seen} == seen
    site.assert_clean("flow.py", "out")
