"""The pause of a savepoint's cut, its export rate, and the throughput beside it, by size of state.

    python benchmarks/savepoint.py                    # 1 MB and 100 MB of state, some minutes
    python benchmarks/savepoint.py --megabytes 1 --seconds 2

One owner commits, in a process of its own and as fast as it can, changes of ten keys in each of 64 key groups; then a
savepoint is taken beside it. The pause is the time of the call that cuts, of several cuts.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import random
import sys
import tempfile
import time
from multiprocessing.sharedctypes import Synchronized
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent))

from pipeline import Pipeline, count, read, tickets, write
from pipeline.codec import encode_value, state_field
from pipeline.embedded.redis import EmbeddedRedis
from pipeline.keying import GROUPS, group_of
from pipeline.plan import compile_plan
from pipeline.positions import START
from pipeline.savepoints.export import take_savepoint
from pipeline.savepoints.manifest import new_name
from pipeline.savepoints.places import LocalPlace
from pipeline.settings import Limits
from pipeline.store import keys
from pipeline.store.commits import Commit, Committer, Write
from pipeline.store.connection import connect
from pipeline.store.cuts import CutStore
from pipeline.store.jobs import JobStore
from pipeline.store.leadership import Leadership
from pipeline.store.scripts import Scripts

JOB = "bench"
STAGE = 1
CUTS = 20
VALUE_BYTES = 100
CHANGED_GROUPS = 64
CHANGED_KEYS = 10


def make_job(scripts: Scripts, megabytes: int) -> tuple[list[list[bytes]], str]:
    """A job whose second stage holds so much state: (fields by key group, token of its owner)."""
    flow = Pipeline("bench")
    words = flow.source(read.producer(), name="in").key_by(lambda word: word, name="by_word")
    words.aggregate(count(), name="counts").sink(write.stream("out"), name="out")
    plan = compile_plan(flow.graph(), 1, Limits())
    JobStore(scripts).create(JOB, plan)
    leadership = Leadership(scripts, "leader", "n")
    token = leadership.hold(JOB, 3600).token
    ticket = tickets.ticket(JOB, STAGE, 0, 1)
    assert leadership.assign(JOB, token, (STAGE, 0), ("w", "1-a"), 1, "x", ticket, False)
    fields: list[list[bytes]] = [[] for _ in range(GROUPS)]
    value = encode_value("v" * VALUE_BYTES)
    number, size = 0, 0
    while size < megabytes << 20:
        pipe = scripts.client.pipeline(transaction=False)
        for _ in range(5_000):
            key = f"key-{number:09}"
            field = state_field("counts", key)
            fields[group_of(key)].append(field)
            pipe.hset(keys.state(JOB, STAGE, group_of(key)), field, value)
            number, size = number + 1, size + len(field) + len(value)
        pipe.execute()
    return fields, "1:x"


def work(url: str, fields: list[list[bytes]], token: str, done: Synchronized[int]) -> None:
    """Commits until it is ended; `done` counts."""
    committer = Committer(Scripts(connect(url)), JOB, STAGE, 0, token, Limits())
    rng, value = random.Random(1), encode_value("w" * VALUE_BYTES)
    filled = [group for group in range(GROUPS) if fields[group]]
    while True:
        writes = [
            Write(
                "HSET",
                keys.state(JOB, STAGE, group),
                [part for field in rng.choices(fields[group], k=CHANGED_KEYS) for part in (field, value)],
            )
            for group in rng.sample(filled, min(CHANGED_GROUPS, len(filled)))
        ]
        committer.send(Commit(START, START, "keep", START.entry, 1, writes=writes), 1)
        done.value += 1


def rate(done: Synchronized[int], seconds: float) -> float:
    before, started = done.value, time.perf_counter()
    time.sleep(seconds)
    return (done.value - before) / (time.perf_counter() - started)


def pauses(scripts: Scripts) -> list[float]:
    """Milliseconds of the call that cuts, from end to end."""
    store = CutStore(scripts, JOB, JobStore(scripts).read(JOB).plan)
    found = []
    for number in range(CUTS):
        started = time.perf_counter()
        cut = store.cut(f"cut-{number}")
        found.append((time.perf_counter() - started) * 1000)
        store.let_go(cut)
    return sorted(found)


def measure(megabytes: int, seconds: float) -> None:
    with EmbeddedRedis.start(fsync="no") as server, tempfile.TemporaryDirectory() as folder:
        scripts = Scripts(connect(server.url))
        fields, token = make_job(scripts, megabytes)
        number_of_keys = sum(map(len, fields))
        cuts = pauses(scripts)
        done: Any = multiprocessing.Value("q", 0)
        worker = multiprocessing.Process(target=work, args=(server.url, fields, token, done), daemon=True)
        worker.start()
        rate(done, 1.0)
        alone = rate(done, seconds)
        before, started = done.value, time.perf_counter()
        record = JobStore(scripts).read(JOB)
        manifest = take_savepoint(scripts, record, LocalPlace(Path(folder)), new_name(JOB, time.localtime()))
        took = time.perf_counter() - started
        beside = (done.value - before) / took
        worker.kill()
        worker.join()
    print(
        f"{megabytes:5} MB  {number_of_keys:9,} keys   pause {cuts[CUTS // 2]:6.2f} ms median {cuts[-1]:6.2f} ms most"
        f"   export {megabytes / took:6.1f} MB/s {number_of_keys / took:9,.0f} keys/s"
        f" ({manifest.size_bytes / (1 << 20):.1f} MiB written)"
        f"   commits/s alone {alone:6.0f} beside {beside:6.0f} ({beside / alone:.0%})"
    )


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--megabytes", type=int, nargs="*", default=[1, 100])
    options.add_argument("--seconds", type=float, default=5.0)
    asked = options.parse_args()
    print(f"{os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}")
    for megabytes in asked.megabytes:
        measure(megabytes, asked.seconds)


if __name__ == "__main__":
    main()
