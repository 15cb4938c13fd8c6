"""Workers from one to eight to three, partitions from 8 to 64 to 16, under a load that brings new keys all the time."""

from __future__ import annotations

import json
import subprocess

import pytest

from tests.e2e.chaos import Run, Site, read_rows, wait_until

OLD_KEYS = 997

FLOW = """
import json
import threading
from pathlib import Path
from time import monotonic

from pipeline import Pipeline, read, write


def numbered():
    '''50,000 a second as long as the job takes them; one in ten has a key that never was before.'''
    number, counts, pace, started = 0, [0] * %(keys)d, threading.Event(), monotonic()
    while not Path("enough").exists():
        for _ in range(500):
            number += 1
            if number %% 10:
                counts[number %% %(keys)d] += 1
                yield [f"k{number %% %(keys)d}", counts[number %% %(keys)d]]
            else:
                yield [f"n{number}", 1]
        pace.wait(max(0.0, started + number / 50_000 - monotonic()))
    Path("sent").write_text(json.dumps({"records": number, "seconds": monotonic() - started}))


def in_sequence(key, number, last):
    if number != (last or 0) + 1:
        raise ValueError(f"{key}: {number} came after {last}")
    return number, number


flow = Pipeline("scaled")
(
    flow.source(read.iterable(numbered), name="numbers")
    .key_by(lambda pair: pair[0], name="by_key")
    .map(lambda pair: pair[1], name="number")
    .stateful_map(in_sequence, name="oracle")
    .last(name="at_the_end")
    .sink(write.jsonl("out"), name="result")
)
"""


def expected(sent: int) -> dict[str, int]:
    """Key -> its last number, of so many records."""
    found: dict[str, int] = {}
    for number in range(1, sent + 1):
        key = f"k{number % OLD_KEYS}" if number % 10 else f"n{number}"
        found[key] = found.get(key, 0) + 1
    return found


class Crowd:
    """The job, and the nodes that join it."""

    def __init__(self, site: Site, run: Run) -> None:
        self._site, self._run, self._job, self._address = site, run, run.link[1], run.address
        self._nodes: list[subprocess.Popen[bytes]] = []

    def join(self, node: str, workers: int) -> None:
        arguments = ("worker", self._job, "flow.py", "--workers", str(workers), "--node", node)
        self._nodes.append(self._run.beside(f"{node}.log", *arguments))
        self.wait_for_owners({f"{node}.w{number}" for number in range(workers)})

    def wait_for_owners(self, names: set[str]) -> None:
        def all_own() -> bool:
            self._run.assert_running()
            return names <= self._run.owners()

        wait_until(all_own, f"{sorted(names)} own partitions", 90.0)

    def command(self, *arguments: str) -> None:
        done = self._site.command(*arguments, "--redis", self._address)
        assert done.returncode == 0, (arguments, done.stdout, done.stderr)

    def rescale(self, partitions: int) -> None:
        self.command("rescale", self._job, "by_key", "--partitions", str(partitions), "--now")

    def leave(self, node: str) -> None:
        self.command("node", "drain", self._job, node, "--stop")

    def ended(self) -> list[int]:
        return [node.wait(30) for node in self._nodes]


@pytest.mark.timeout(400)
def test_workers_and_partitions_go_up_and_down_under_load_and_nothing_is_lost_doubled_or_out_of_order(
    site: Site,
) -> None:
    site.write(FLOW % {"keys": OLD_KEYS})
    run = site.start("flow.py", "--workers", "1", "--partitions", "8")
    run.wait_for_taken(50_000)
    crowd = Crowd(site, run)

    crowd.join("many", 7)
    crowd.rescale(64)
    run.wait_for_taken(run.taken() + 100_000)
    crowd.leave("many")
    crowd.join("few", 2)
    crowd.rescale(16)
    run.wait_for_taken(run.taken() + 100_000)
    (run.folder / "enough").touch()
    run.finish(seconds=180.0)

    assert "the books balance: " in run.said()
    assert crowd.ended() == [0, 0]
    sent = json.loads((run.folder / "sent").read_text())
    print(f"{sent['records']:,} records at {sent['records'] / sent['seconds']:,.0f} a second")
    found = [(row["key"], row["value"]) for row in read_rows(run.folder / "out")]
    assert len(dict(found)) == len(found), "a key came twice"
    assert dict(found) == expected(sent["records"])
    site.assert_clean("flow.py", "enough", "out", "sent")
