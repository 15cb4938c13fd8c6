"""Redis dies, freezes, or is away for ten seconds: the job goes on, and its result is equal."""

from __future__ import annotations

import os
import signal
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

import pytest
import redis

from pipeline.embedded.redis import EmbeddedRedis
from tests.e2e.chaos import Sequence, Site, a_chance, moments, wait_until

OUTAGE_SECONDS = 10.0


def wait_out(seconds: float) -> None:
    """The outage itself is the condition here: nothing else ends it."""
    until = time.monotonic() + seconds
    wait_until(lambda: time.monotonic() >= until, "the outage is over", 2 * seconds)


@pytest.fixture
def fast_disk() -> Iterator[str]:
    """A folder in memory. While an fsync lasts, Redis with `everysec` holds what it has acknowledged back for up to two
    seconds, and a kill -9 then loses it: on a slow disk this is another story than the one told here.
    """
    with tempfile.TemporaryDirectory(dir="/dev/shm", prefix="clr-") as folder:
        yield folder


def test_an_embedded_redis_that_is_killed_again_and_again_loses_nothing(site: Site, fast_disk: str) -> None:
    chance, sequence = a_chance(), Sequence()
    site.write(sequence.text)
    run = site.start("flow.py", "--workers", "2", TMPDIR=fast_disk)

    for moment in moments(chance, sequence.taken, 3):
        run.wait_for_taken(moment)
        run.kill("redis")
    run.finish()

    assert run.said().count("Redis died and was started again") == 3
    sequence.check(run.folder / "out")
    site.assert_clean("flow.py", "out")
    assert list(Path(fast_disk).iterdir()) == []


def test_an_embedded_redis_that_is_frozen_for_ten_seconds_is_waited_for(site: Site) -> None:
    chance, sequence = a_chance(), Sequence()
    site.write(sequence.text)
    run = site.start("flow.py", "--workers", "2")

    run.wait_for_taken(moments(chance, sequence.taken, 1)[0])
    with run.stopped("redis"):
        wait_out(OUTAGE_SECONDS)
    run.finish()

    sequence.check(run.folder / "out")
    site.assert_clean("flow.py", "out")


def test_a_foreign_redis_that_is_away_for_ten_seconds_is_waited_for(site: Site) -> None:
    chance, sequence = a_chance(), Sequence()
    # What is killed is the server, not the machine: what it has written is there, synced or not.
    fsync: Literal["always", "everysec"] = chance.choice(["always", "everysec"])
    site.write(sequence.text)
    with EmbeddedRedis.start(site.root / "redis", fsync=fsync) as server:
        run = site.start("flow.py", "--workers", "2", "--redis", server.url)
        run.wait_for_taken(moments(chance, sequence.taken, 1)[0])

        os.kill(server.pid, signal.SIGKILL)
        wait_out(OUTAGE_SECONDS)
        server.restart()
        run.finish()

    assert "Redis does not answer; waiting for it" in run.said()
    sequence.check(run.folder / "out")
    site.assert_clean("flow.py", "out")


def test_a_foreign_redis_that_dies_as_soon_as_the_job_is_registered_is_waited_for(site: Site, fast_disk: str) -> None:
    sequence = Sequence(count=200)
    site.write(sequence.text)
    with EmbeddedRedis.start(Path(fast_disk)) as server, redis.Redis.from_url(server.url) as client:
        run = site.start("flow.py", "--workers", "2", "--redis", server.url, "--job-id", "x")
        while not client.exists("celeriac:{x}:job"):  # as fast as it can: before the run has read what it made
            run.assert_running()
        os.kill(server.pid, signal.SIGKILL)
        wait_until(lambda: "Redis does not answer; waiting for it" in run.said(), "the run waits")
        server.restart()
        run.finish()

    sequence.check(run.folder / "out")


def test_ctrl_c_while_a_redis_is_away_that_may_have_the_job_says_how_to_go_on(site: Site, fast_disk: str) -> None:
    site.write(Sequence(count=200).text)
    with EmbeddedRedis.start(Path(fast_disk)) as server, redis.Redis.from_url(server.url) as client:
        run = site.start("flow.py", "--workers", "2", "--redis", server.url, "--job-id", "x")
        while not client.exists("celeriac:{x}:job"):
            run.assert_running()
        os.kill(server.pid, signal.SIGKILL)
        wait_until(lambda: "Redis does not answer; waiting for it" in run.said(), "the run waits")
        run.process.send_signal(signal.SIGINT)
        run.finish(code=130)

    assert "--job-id x" in run.said()
    site.assert_clean("flow.py")
