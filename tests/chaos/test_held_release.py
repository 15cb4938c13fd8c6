"""A held key goes on while the workers that run what was held are killed, and its order and every record stay."""

from __future__ import annotations

import json
from collections import defaultdict
from pathlib import Path

from pipeline.client import Client
from pipeline.producer import Producer
from tests.e2e.chaos import Run, Site, a_chance, moments, wait_until

COUNT = 600
KEYS = "abcd"
FLOW = """
import time
from pathlib import Path
from pipeline import Pipeline, hold_key, read, write


def work(pair):
    if pair == ["a", 3] and not Path("mended").exists():
        raise ConnectionError("the service of a is away")
    time.sleep(0.01 if pair[0] == "a" else 0)
    return pair[1]


flow = Pipeline("held")
keyed = flow.source(read.producer(), name="pairs").key_by(lambda pair: pair[0], name="by", on_error=hold_key())
(
    keyed.map(work, name="work")
    .stateful_map(lambda key, n, last: (n if n == (last or 0) + 1 else 1 / 0, n), name="oracle")
    .sink(write.jsonl("out"), name="out")
)
"""


def emitted(run: Run) -> int:
    return sum(part.emitted for part in run.facts().partitions if part.stage == 1)


def owner_of(run: Run, partition: int) -> str:
    return next(part.owner for part in run.facts().partitions if (part.stage, part.partition) == (1, partition))


def test_what_was_held_goes_on_in_order_and_once_through_kills(site: Site, redis_url: str) -> None:
    chance = a_chance()
    site.write(FLOW)
    run = site.start("flow.py", "--workers", "2", "--redis", redis_url, "--job-id", "held")
    wait_until(lambda: run.facts().record.job == "held", "the job is registered")
    with Producer("held", redis_url) as producer:
        for number in range(1, COUNT + 1):
            for key in KEYS:
                producer.send(None, [key, number])
    run.wait_for_taken(2 * len(KEYS) * COUNT)
    before = emitted(run)
    assert before == len(KEYS) * COUNT - run.facts().held - 1
    assert run.facts().held > 0

    with Client(redis_url) as client:
        [letter] = client.dead_letters("held").list()
    (run.folder / "mended").touch()
    done = site.command("dead-letters", "replay", "held", "--all", "--redis", redis_url)
    assert done.stdout == "1 replayed\n", done.stderr
    for moment in moments(chance, COUNT, 2, within=(0.1, 0.6)):
        wait_until(lambda: emitted(run) >= before + moment, f"{moment:.0f} records of the key have gone on")  # noqa: B023
        run.kill(owner_of(run, letter.partition))
    assert emitted(run) < len(KEYS) * COUNT
    wait_until(lambda: emitted(run) == len(KEYS) * COUNT, "all have gone on")
    assert (run.facts().held, run.facts().dead_letters) == (0, 0)
    with Client(redis_url) as client:
        assert list(client.dead_letters("held").list()) == []
    run.process.send_signal(2)
    run.finish(code=130)

    assert by_key(run.folder / "out") == {key: list(range(1, COUNT + 1)) for key in KEYS}
    site.assert_clean("flow.py", "out", "mended")


def by_key(folder: Path) -> dict[str, list[int]]:
    found: dict[str, list[int]] = defaultdict(list)
    for path in sorted(folder.glob("part-*")):
        for line in path.read_text().splitlines():
            row = json.loads(line)
            found[row["key"]].append(row["value"])
    return found
