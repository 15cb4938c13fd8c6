"""A real job that is scaled: a backlog brings workers, rest takes them away, and every key stays in sequence."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import pytest
from chaos import Run, Sequence, Site, wait_until

from pipeline.scaling.policies import Kind
from pipeline.store.scaling import ScalingStore
from pipeline.store.scripts import Scripts

FLOW = '''"""The sequence oracle behind a source that rests until the file `go_on` is there."""

import time
from pathlib import Path

from pipeline import Pipeline, read, write

KEYS, COUNT, FIRST = {keys}, {count}, {first}


def numbered(position):
    for place in range(position or 0, KEYS * COUNT):
        while place >= KEYS * FIRST and not Path("go_on").exists():
            time.sleep(0.05)
        yield place + 1, [f"k{{place % KEYS}}", place // KEYS + 1]


def worked(pair):
    time.sleep(0.002)
    return pair[1]


def in_sequence(key, number, last):
    if number != (last or 0) + 1:
        raise ValueError(f"{{key}}: {{number}} came after {{last}}")
    return number, number


flow = Pipeline("scaled")
(
    flow.source(read.generator(numbered, poll_seconds=None), name="numbers")
    .key_by(lambda pair: pair[0], name="by_key")
    .map(worked, name="number")
    .stateful_map(in_sequence, name="oracle")
    .sink(write.jsonl("out"), name="result")
)
'''

FIRST = 180
SEQUENCE = Sequence(keys=50, count=FIRST + 20)


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    site = Site(tmp_path)
    yield site
    site.close()


def alive(run: Run) -> set[str]:
    """The worker processes that are there."""
    return {name for name in ("w0", "w1", "w2", "w3") if run.find(name) is not None}


def until(run: Run, workers: set[str], seconds: float = 60.0) -> None:
    def is_so() -> bool:
        run.assert_running()
        return alive(run) == workers

    wait_until(is_so, f"the workers are {sorted(workers)}", seconds)


@pytest.mark.timeout(240)
def test_a_backlog_makes_three_workers_of_one_and_rest_makes_one_again_through_the_death_of_the_leader(
    site: Site,
) -> None:
    site.write(FLOW.format(keys=SEQUENCE.keys, count=SEQUENCE.count, first=FIRST))
    run = site.start("flow.py", "--autoscale", "1..3", "--cooldown", "4", "--catch-up", "5", "--partitions", "6")

    until(run, {"w0"})
    run.wait_for_taken(SEQUENCE.keys * 20)
    until(run, {"w0", "w1", "w2"})
    run.kill("leader")
    wait_until(lambda: run.owners() == {"w0", "w1", "w2"}, "all three have partitions", 60.0)
    until(run, {"w0"}, 120.0)
    assert run.owners() == {"w0"}
    _, job = run.link
    decisions = ScalingStore(Scripts(run._client)).decisions(job)
    (run.folder / "go_on").touch()
    run.finish(seconds=120.0)

    SEQUENCE.check(run.folder / "out")
    changes = [each for each in reversed(decisions) if each.is_change]
    assert (changes[0].kind, changes[0].before, changes[0].wanted) == (Kind.UP, 1, 3)
    assert {each.kind for each in changes[1:]} == {Kind.DOWN}
    assert changes[-1].wanted == 1
    assert all(later.at_ms - one.at_ms >= 4_000 for one, later in pairwise(changes))
    # None of the workers that left was missed or killed: their partitions were given away before.
    assert "dies again" not in run.log("node")
    assert "their worker is gone" not in run.log("leader")
    site.assert_clean("flow.py", "out", "go_on")


def test_a_run_without_the_option_keeps_its_workers(site: Site) -> None:
    site.write(FLOW.format(keys=5, count=2, first=2))
    run = site.start("flow.py", "--workers", "2")

    run.finish()

    Sequence(keys=5, count=2).check(run.folder / "out")
