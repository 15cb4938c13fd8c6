"""Redis loses its last writes under load, or everything: the job halts and says what is missing, or nothing is lost."""

from __future__ import annotations

import os
import random
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import redis

from pipeline.embedded.redis import EmbeddedRedis
from pipeline.producer import Producer
from tests import cutting
from tests.e2e.chaos import SEED_VARIABLE, Sequence, Site, a_chance, create_job, moments, wait_until
from tests.proxy import CuttingProxy
from pipeline.settings import Limits

HALTED = "error: the job x has halted: Redis has lost its last writes"

PRODUCED = '''"""Counts what it is sent, by key."""

from pipeline import Pipeline, read, write

flow = Pipeline("produced")
(
    flow.source(read.producer(with_keys=True), name="events")
    .key_by(lambda event: event["key"], name="by_key")
    .stateful_map(lambda key, event, count: ((count or 0) + 1,) * 2, name="count")
    .sink(write.jsonl("out"), name="result")
)
'''


@pytest.fixture
def fast_disk() -> Iterator[Path]:
    """A folder in memory: an fsync that lasts would hold back what is cut here on purpose."""
    with tempfile.TemporaryDirectory(dir="/dev/shm", prefix="clr-") as folder:
        yield Path(folder)


@pytest.mark.parametrize("seed", [1, 2, 3, 4])
def test_a_cut_at_any_byte_either_costs_nothing_or_halts_the_job_which_then_goes_on_to_the_same_result(
    site: Site, fast_disk: Path, seed: int
) -> None:
    chance = random.Random(int(os.environ.get(SEED_VARIABLE) or seed))
    sequence = Sequence(count=1_500)
    site.write(sequence.text)
    with EmbeddedRedis.start(fast_disk, fsync="everysec") as server:
        arguments = ("--workers", "2", "--redis", server.url, "--job-id", "x")
        run = site.start("flow.py", *arguments)
        run.wait_for_taken(moments(chance, sequence.taken, 1, (0.05, 0.6))[0])
        mark = cutting.size(server)
        wait_until(lambda: cutting.size(server) > mark + chance.randrange(1, 200_000), "there is something to cut")
        cutting.kill(server)
        cutting.cut(server, chance.choice([cutting.size(server) - chance.randrange(200), mark, mark - chance.randrange(2_000)]))
        server.restart()

        wait_until(lambda: run.process.poll() is not None, "the run ends", 60.0)
        print(run.said()[-3_000:])
        if run.process.returncode:
            assert run.process.returncode == 1
            assert HALTED in run.said()
            assert "Redis has " in run.said() and "--job-id x --accept-loss" in run.said()
            shown = site.command("status", "x", "--redis", server.url).stdout
            assert "lost      " in shown and "state     failed: Redis has lost its last writes" in shown
            refused = site.command("run", "flow.py", *arguments)
            assert refused.returncode == 2
            assert "the job 'x' has halted" in refused.stderr
            again = site.start("flow.py", *arguments, "--accept-loss", folder="work")
            again.finish()
            assert "goes on under generation 1 without what Redis has lost" in again.said()
        sequence.check(run.folder / "out")
    site.assert_clean("flow.py", "out")
