"""Redis loses its last writes under load, or everything: the job halts and says what is missing, or nothing is lost."""

from __future__ import annotations

import os
import random
import signal
import tempfile
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest
import redis

from pipeline.embedded.redis import EmbeddedRedis
from pipeline.errors import UnknownJob
from pipeline.producer import Producer
from tests import cutting
from tests.e2e.chaos import SEED_VARIABLE, Run, Sequence, Site, a_chance, moments, read_rows, wait_until
from tests.proxy import CuttingProxy

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
        cutting.cut(
            server, chance.choice([cutting.size(server) - chance.randrange(200), mark, mark - chance.randrange(2_000)])
        )
        server.restart()

        wait_until(lambda: run.process.poll() is not None, "the run ends", 60.0)
        if run.process.returncode:
            assert run.process.returncode == 1
            assert HALTED in run.said()
            assert "--job-id x --accept-loss" in run.said()
            shown = site.command("status", "x", "--redis", server.url).stdout
            assert "state     failed: Redis has lost its last writes" in shown
            assert "lost      s" in shown
            refused = site.command("run", "flow.py", *arguments)
            assert refused.returncode == 2
            assert "the job 'x' has halted" in refused.stderr
            again = site.start("flow.py", *arguments, "--accept-loss", folder="work")
            again.finish()
            assert "goes on under generation 1 without what Redis has lost" in again.said()
        sequence.check(run.folder / "out")
    site.assert_clean("flow.py", "out")


def test_with_fsync_always_a_killed_redis_has_all_that_producers_were_told_is_taken(site: Site) -> None:
    chance = a_chance()
    site.write(PRODUCED)
    sent = 0
    with EmbeddedRedis.start(site.root / "redis", fsync="always") as server:
        run = site.start("flow.py", "--workers", "2", "--redis", server.url, "--job-id", "x")
        _wait_for_job(server, run)
        with Producer("x", server.url, name="shop", full_timeout_seconds=60) as producer:
            for _ in range(3):
                for number in range(chance.randrange(2_000, 6_000)):
                    producer.send(f"k{number % 20}", number)
                    sent += 1
                cutting.kill(server)
                server.restart()
            producer.flush()
        run.process.send_signal(signal.SIGINT)
        run.finish(code=130)

    rows = list(read_rows(run.folder / "out"))
    assert len(rows) == sent
    assert sorted(row["value"] for row in rows if row["key"] == "k0") == list(
        range(1, 1 + sum(1 for row in rows if row["key"] == "k0"))
    )


def _wait_for_job(server: EmbeddedRedis, run: Run) -> None:
    def is_taking() -> bool:
        run.assert_running()
        with redis.Redis.from_url(server.url) as client:
            return bool(client.hget("celeriac:{x}:job", "state") == b"running")

    wait_until(is_taking, "the job is there")


def is_loading(server: EmbeddedRedis) -> bool:
    with redis.Redis.from_url(server.url, retry=None, socket_timeout=20) as client:
        try:
            client.ping()
        except redis.BusyLoadingError:
            return True
        except redis.ConnectionError:
            pass
        return False


def test_a_server_that_is_full_read_only_and_loading_in_turn_is_waited_for(site: Site, fast_disk: Path) -> None:
    chance, sequence = a_chance(), Sequence(count=3_000)
    site.write(sequence.text)
    with EmbeddedRedis.start(fast_disk) as server, redis.Redis.from_url(server.url) as admin:
        with admin.pipeline(transaction=False) as pipe:
            for number in range(4_000):  # while it loads it looks at its connections once in a thousand commands
                pipe.set("of another program", number)
            pipe.execute()
        run = site.start("flow.py", "--workers", "2", "--redis", server.url, "--job-id", "x")
        first, second, third = moments(chance, sequence.taken, 3, (0.05, 0.6))

        run.wait_for_taken(first)
        admin.config_set("maxmemory", 1)
        reached = run.taken()
        wait_until(lambda: run.taken() > reached, "commits go on though it is full")
        admin.config_set("maxmemory", 0)

        run.wait_for_taken(second)
        admin.execute_command("REPLICAOF", "127.0.0.1", "1")
        until = time.monotonic() + 8.0  # as long as a failover, in which each worker that starts ends at once
        wait_until(lambda: time.monotonic() >= until, "it was read-only for a while")
        run.assert_running()
        admin.execute_command("REPLICAOF", "NO", "ONE")

        run.wait_for_taken(third)
        cutting.kill(server)
        server._arguments += ["--key-load-delay", "1000"]  # microseconds for each command: the start takes its time
        # The server is tied to the thread that starts it, so another one looks.
        with ThreadPoolExecutor(1) as pool:
            looking = pool.submit(wait_until, lambda: is_loading(server), "it loads its data")
            server.restart()
            looking.result()
        run.finish()

    assert "halted" not in run.said()
    sequence.check(run.folder / "out")


@pytest.mark.parametrize("seed", [1])
def test_connections_that_are_cut_at_random_change_nothing(site: Site, fast_disk: Path, seed: int) -> None:
    chance = random.Random(int(os.environ.get(SEED_VARIABLE) or seed))
    sequence = Sequence(count=4_000, work=300)
    site.write(sequence.text)
    with EmbeddedRedis.start(fast_disk) as server, CuttingProxy(server.socket_path) as proxy:
        run = site.start("flow.py", "--workers", "2", "--redis", proxy.url, "--job-id", "x")
        with redis.Redis.from_url(server.url) as client:
            wait_until(lambda: client.exists("celeriac:{x}:job") == 1, "the job is there")
        until, cuts = time.monotonic() + 15.0, 0
        while time.monotonic() < until and run.process.poll() is None:
            threading.Event().wait(chance.uniform(0.05, 0.5))
            cuts += proxy.cut(chance, 0.3)
        run.finish()

    assert cuts > 20
    sequence.check(run.folder / "out")


def test_a_flushed_redis_ends_the_run_and_the_producer_with_a_clear_message_and_nobody_makes_the_job_again(
    site: Site, fast_disk: Path
) -> None:
    site.write(PRODUCED)
    with EmbeddedRedis.start(fast_disk) as server, redis.Redis.from_url(server.url) as admin:
        run = site.start("flow.py", "--workers", "2", "--redis", server.url, "--job-id", "x")
        _wait_for_job(server, run)
        producer = Producer("x", server.url, full_timeout_seconds=20)
        producer.send("k", 1)
        producer.flush()
        admin.flushall()
        producer.send("k", 2)
        with pytest.raises(UnknownJob, match="this Redis no longer knows job 'x'"):
            producer.flush()
        run.finish(code=1)
        status = site.command("status", "x", "--redis", server.url)

        assert "error: this Redis no longer knows job 'x'" in run.said()
        assert (status.returncode, status.stderr.count("there is no job 'x'")) == (2, 1)
        assert "came back without its data" in status.stderr
        assert not [key for key in admin.keys("*") if b"{x}" in key and b"kombu" not in key]
    site.assert_clean("flow.py")


GATED = '''"""Gives half of its records, and the others when a file says so. Counts them by key."""

import time
from pathlib import Path

from pipeline import Pipeline, read, write

KEYS, COUNT = 20, 200


def numbered():
    for number in range(1, COUNT + 1):
        for key in range(KEYS):
            yield [f"k{key}", number]
        if number == COUNT // 2:
            time.sleep(0.1)  # so that the next value has all that came before sent
            yield ["gate", 1]
            while not Path("gate").exists():
                time.sleep(0.01)


flow = Pipeline("gated")
(
    flow.source(read.iterable(numbered), name="numbers")
    .key_by(lambda pair: pair[0], name="by_key")
    .map(lambda pair: pair[1], name="number")
    .stateful_map(lambda key, number, last: ((last or 0) + 1,) * 2, name="count")
    .sink(write.jsonl("out"), name="result")
)
'''


@contextmanager
def frozen(run: Run) -> Iterator[None]:
    """SIGSTOP for the command itself, and SIGCONT at the end."""
    run.process.send_signal(signal.SIGSTOP)
    try:
        yield
    finally:
        run.process.send_signal(signal.SIGCONT)


@pytest.mark.parametrize("loses", ["the last records", "only that these were all"])
def test_a_source_that_had_given_all_gives_again_what_redis_has_lost_of_it(
    site: Site, fast_disk: Path, loses: str
) -> None:
    site.write(GATED)
    with EmbeddedRedis.start(fast_disk, fsync="everysec") as server, redis.Redis.from_url(server.url) as client:
        run = site.start("flow.py", "--workers", "2", "--redis", server.url, "--job-id", "x")

        def given() -> int:
            run.assert_running()
            return sum(int(client.hget(f"celeriac:{{x}}:meta:0.{number}", "head") or 0) for number in range(4))

        wait_until(lambda: given() == 2_001, "half of the records are given", 60.0)
        wait_until(lambda: run.taken() == 4_002, "and processed")
        assert site.command("pause", "x", "--stage", "numbers", "--redis", server.url).returncode == 0
        with run.stopped("leader"), frozen(run):  # they have not looked yet at what is lost
            mark = cutting.size(server)
            (run.folder / "gate").touch()
            complete = "complete:numbers"
            wait_until(lambda: client.hget("celeriac:{x}:job", complete) is not None, "the source has given all")
            wait_until(lambda: run.find("source") is None, "its feeder has ended")
            cutting.kill(server)
            data = cutting.aof(server).read_bytes()
            cutting.cut(server, mark if loses == "the last records" else data.index(complete.encode()) - 60)
            server.restart()
            assert client.hget("celeriac:{x}:job", complete) is None
            assert given() == (2_001 if loses == "the last records" else 4_001)
        assert site.command("unpause", "x", "--stage", "numbers", "--redis", server.url).returncode == 0
        run.finish()

    rows = list(read_rows(run.folder / "out"))
    assert "halted" not in run.said()
    for key in range(20):
        assert [row["value"] for row in rows if row["key"] == f"k{key}"] == list(range(1, 201))
    assert len(rows) == 4_001
    site.assert_clean("flow.py", "out", "gate")
