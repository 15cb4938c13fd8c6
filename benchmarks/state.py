"""Export and restore of many small states: keys a second, processor time, and the same bytes moved by Redis alone.

    python benchmarks/state.py                       # 1,000,000 keys with a count, 1,000,000 with a mean
    python benchmarks/state.py --keys 100000 --state count

No job runs beside it. The plain figures of the same run are what the client library does with the same bytes: HGETALL
of each hash, and HSET of 4,000 values at a time in pipelines of 16, which Redis works off while the client waits. So
the seconds of Redis, and not this rate, are the most that a restore can reach. A ratio to it holds on a busy machine.
What was restored is compared with what was saved, hash by hash, in each run.
"""

from __future__ import annotations

import argparse
import os
import resource
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent))

from benchmarks.filling import await_rewriting, fill_states
from pipeline import Pipeline, count, mean, read, write
from pipeline.embedded.redis import EmbeddedRedis
from pipeline.keying import GROUPS
from pipeline.plan import Plan, compile_plan
from pipeline.savepoints.export import take_savepoint
from pipeline.savepoints.manifest import new_name
from pipeline.savepoints.places import LocalPlace
from pipeline.savepoints.reading import Savepoint
from pipeline.savepoints.restoring import restore_job
from pipeline.settings import Limits
from pipeline.store import keys
from pipeline.store.connection import connect
from pipeline.store.jobs import JobStore
from pipeline.store.scripts import Scripts

STAGE = 1
STATES: dict[str, Callable[[int], Any]] = {
    "count": lambda number: number % 1000 + 1,
    "mean": lambda number: [number % 1000 + 1, number, number * 0.5, 0.0],
}


@dataclass(frozen=True)
class Took:
    """Seconds: of the clock, of the processor in this process, and of that in Redis."""

    wall: float
    client: float
    redis: float

    def shown(self, keys: int) -> str:
        rate = f"{keys / self.wall:11,.0f} keys/s  {self.wall:6.2f} s"
        return f"{rate}, processor {self.client:5.2f} s + Redis {self.redis:5.2f} s"


def timed(client: Any, do: Callable[[], Any]) -> Took:
    await_rewriting(client)
    before = (time.perf_counter(), time.process_time(), _redis_seconds(client))
    do()
    return Took(time.perf_counter() - before[0], time.process_time() - before[1], _redis_seconds(client) - before[2])


def _redis_seconds(client: Any) -> float:
    info = client.info("cpu")
    return float(info["used_cpu_user"] + info["used_cpu_sys"])


def plan_of(kind: str) -> Plan:
    flow = Pipeline("bench")
    words = flow.source(read.producer(), name="in").key_by(lambda word: word, name="by_word")
    words.aggregate({"count": count, "mean": mean}[kind](), name="states").sink(write.stream("out"), name="out")
    return compile_plan(flow.graph(), 2, Limits())


def read_plainly(client: Any, job: str) -> list[list[bytes]]:
    """What all hashes hold, as Redis sends it."""
    connection, found = client.connection_pool.get_connection(), []
    for group in range(GROUPS):
        connection.send_command("HGETALL", keys.state(job, STAGE, group))
        found.append(connection.read_response())
    client.connection_pool.release(connection)
    return found


def write_plainly(client: Any, job: str, hashes: list[list[bytes]]) -> None:
    connection = client.connection_pool.get_connection()
    commands = [
        ("HSET", keys.state(job, STAGE, group), *flat[at : at + 4000])
        for group, flat in enumerate(hashes)
        for at in range(0, len(flat), 4000)
    ]
    for at in range(0, len(commands), 16):
        part = commands[at : at + 16]
        connection.send_packed_command(connection.pack_commands(part))
        for _ in part:
            connection.read_response()
    client.connection_pool.release(connection)


def measure(kind: str, wanted: int) -> None:
    with EmbeddedRedis.start(fsync="no") as server, tempfile.TemporaryDirectory() as folder:
        scripts = Scripts(connect(server.url))
        client, jobs, plan = scripts.client, JobStore(scripts), plan_of(kind)
        jobs.create("saved", plan)
        fill_states(client, "saved", STAGE, "states", map(STATES[kind], range(wanted)))
        place, name = LocalPlace(Path(folder)), new_name("saved", time.localtime())
        hashes: list[list[bytes]] = []
        plain_out = timed(client, lambda: hashes.extend(read_plainly(client, "saved")))
        plain_in = timed(client, lambda: write_plainly(client, "plain", hashes))
        client.unlink(*(keys.state("plain", STAGE, group) for group in range(GROUPS)))
        out = timed(client, lambda: take_savepoint(scripts, jobs.read("saved"), place, name))
        into = timed(client, lambda: restore_job(scripts, Savepoint(place, name), "again", plan))
        assert sum(map(len, hashes)) == 2 * wanted == 2 * sum(Savepoint(place, name).manifest.keys.values())
        for group in range(GROUPS):
            assert client.hgetall(keys.state("again", STAGE, group)) == dict(
                zip(*[iter(hashes[group])] * 2, strict=True)
            )
        size = sum(len(part) for flat in hashes for part in flat) / wanted
        files = Savepoint(place, name).manifest.size_bytes / wanted
        print(f"{kind}: {wanted:,} keys, {size:.0f} bytes each in Redis, {files:.1f} in the savepoint")
        for title, took, plain in (("export", out, plain_out), ("restore", into, plain_in)):
            print(f"  {title:8} {took.shown(wanted)}   {took.wall / plain.wall:5.1f} times the plain one's time")
            print(f"  {'plain':8} {plain.shown(wanted)}")


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--keys", type=int, default=1_000_000)
    options.add_argument("--state", choices=list(STATES), nargs="*", default=list(STATES))
    asked = options.parse_args()
    print(f"{os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}")
    for kind in asked.state:
        measure(kind, asked.keys)
    print(f"most memory of this process {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024:,.0f} MiB")


if __name__ == "__main__":
    main()
