"""The pause of a savepoint's cut, its export rate, and the throughput beside it, by size of state.

    python benchmarks/savepoint.py                    # 1 MB and 100 MB of state, some minutes
    python benchmarks/savepoint.py --megabytes 1 --seconds 2

One owner commits, in a process of its own and as fast as it can, changes of ten keys in each of 64 key groups; then a
savepoint is taken beside it. The pause is the time of the call that cuts, and what a commit feels of it: the slowest
one in the 50 ms around a cut, against the slowest one in 50 ms without.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.sharedctypes import Synchronized
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent))

from benchmarks.filling import fill_state
from pipeline import Pipeline, count, read, tickets, write
from pipeline.codec import encode_value
from pipeline.embedded.redis import EmbeddedRedis
from pipeline.keying import GROUPS
from pipeline.plan import compile_plan
from pipeline.positions import START
from pipeline.savepoints.export import take_savepoint
from pipeline.savepoints.manifest import new_name
from pipeline.savepoints.places import LocalPlace
from pipeline.settings import Limits
from pipeline.store import keys
from pipeline.store.commits import Commit, Committer, Write
from pipeline.store.connection import connect
from pipeline.store.cuts import Cut, CutStore
from pipeline.store.jobs import JobStore
from pipeline.store.leadership import Leadership
from pipeline.store.scripts import Scripts

JOB = "bench"
STAGE = 1
CUTS = 20
VALUE_BYTES = 100
CHANGED_GROUPS = 64
CHANGED_KEYS = 10


def make_job(scripts: Scripts, megabytes: int, value_bytes: int = VALUE_BYTES) -> tuple[list[list[bytes]], str]:
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
    for group, field in fill_state(scripts.client, JOB, STAGE, "counts", megabytes, value_bytes):
        if len(fields[group]) < 10_000:
            fields[group].append(field)
    return fields, "1:x"


def work(
    url: str, fields: list[list[bytes]], token: str, done: Synchronized[int], slowest: Synchronized[float]
) -> None:
    """Commits until it is ended; `done` counts. `slowest`: milliseconds of the longest one since that was set to 0."""
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
        started = time.perf_counter()
        committer.send(Commit(START, START, "keep", START.entry, 1, writes=writes), 1)
        slowest.value = max(slowest.value, (time.perf_counter() - started) * 1000)
        done.value += 1


def rate(done: Synchronized[int], seconds: float) -> float:
    before, started = done.value, time.perf_counter()
    time.sleep(seconds)
    return (done.value - before) / (time.perf_counter() - started)


@dataclass(frozen=True)
class Figures:
    """cuts: milliseconds of the call that cuts. felt, calm: of the slowest commit around a cut, and without one.

    export: megabytes of state a second. share: commits a second during an export, of those before.
    """

    keys: int
    cuts: list[float]
    felt: list[float]
    calm: list[float]
    export: float
    share: float


def _slowest(slowest: Synchronized[float], do: Callable[[], None]) -> float:
    """Of the commits within 50 ms around what is done."""
    slowest.value = 0.0
    time.sleep(0.02)
    do()
    time.sleep(0.03)
    return slowest.value


def pauses(scripts: Scripts, slowest: Synchronized[float]) -> tuple[list[float], list[float], list[float]]:
    """The calls that cut, from end to end, and what commits beside them feel; in turn with as long a time without."""
    store = CutStore(scripts, JOB, JobStore(scripts).read(JOB).plan)
    cuts, felt, calm = [], [], []
    made: list[Cut] = []

    def cut() -> None:
        started = time.perf_counter()
        made.append(store.cut(f"cut-{len(made)}"))
        cuts.append((time.perf_counter() - started) * 1000)

    for _ in range(CUTS):
        calm.append(_slowest(slowest, lambda: None))
        felt.append(_slowest(slowest, cut))
        store.let_go(made[-1])
    return cuts, felt, calm


def measure(megabytes: int, seconds: float, value_bytes: int = VALUE_BYTES) -> Figures:
    with EmbeddedRedis.start(fsync="no") as server, tempfile.TemporaryDirectory() as folder:
        scripts = Scripts(connect(server.url))
        fields, token = make_job(scripts, megabytes, value_bytes)
        done: Any = multiprocessing.Value("q", 0)
        slowest: Any = multiprocessing.Value("d", 0.0)
        worker = multiprocessing.Process(target=work, args=(server.url, fields, token, done, slowest), daemon=True)
        worker.start()
        rate(done, 1.0)
        cuts, felt, calm = pauses(scripts, slowest)
        alone = rate(done, seconds)
        before, started = done.value, time.perf_counter()
        record = JobStore(scripts).read(JOB)
        manifest = take_savepoint(scripts, record, LocalPlace(Path(folder)), new_name(JOB, time.localtime()))
        took = time.perf_counter() - started
        beside = (done.value - before) / took
        worker.kill()
        worker.join()
        return Figures(manifest.keys["counts"], cuts, felt, calm, megabytes / took, beside / alone)


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--megabytes", type=int, nargs="*", default=[1, 100])
    options.add_argument("--seconds", type=float, default=5.0)
    options.add_argument("--value-bytes", type=int, default=VALUE_BYTES)
    asked = options.parse_args()
    print(f"{os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}")
    for megabytes in asked.megabytes:
        found = measure(megabytes, asked.seconds, asked.value_bytes)
        mid = statistics.median
        print(
            f"{megabytes:5} MB  {found.keys:9,} keys   cut {mid(found.cuts):6.2f} ms median {max(found.cuts):6.2f} most"
            f"   slowest commit {mid(found.felt):6.2f} ms around one, {mid(found.calm):6.2f} ms without"
            f"   export {found.export:6.1f} MB/s, commits beside it {found.share:.0%}"
        )


if __name__ == "__main__":
    main()
