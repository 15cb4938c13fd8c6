"""How long a partition stands still when it moves to another worker, whatever the size of its state.

    python benchmarks/moves.py                        # 1 MB and 100 MB of state, 10 drains, some minutes
    python benchmarks/moves.py --megabytes 1 --drains 3

`celeriac run` runs this file as a pipeline with one worker, and `celeriac worker` joins a second node, on a Redis of
their own; a producer in this process sends 500 records a second. First the keyed stage is filled with state. Then the
two nodes are drained in turn: each time all eight partitions move.

collected  the owner was asked, and gave the partition away between two slices
forced     its owner was stopped (SIGSTOP), so that it did not answer, and lost the partition after `collect_seconds`

The pauses are those that `celeriac moves` shows: from the last slice of the old owner, or the question, whichever is
later, to the acquisition by the new one, by the clock of Redis. At the end no record is missing.

beside     then a stage that a third node has to itself is given more than it can do: its rate while the others move to
           and fro, all the time, against its rate just before
"""

from __future__ import annotations

import argparse
import os
import signal
import statistics
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final

import psutil

sys.path.insert(0, str(Path(__file__).parent.parent))

from benchmarks.filling import fill_state
from benchmarks.processes import python_process
from benchmarks.rescale import share
from pipeline import Pipeline, read, write
from pipeline.embedded.redis import EmbeddedRedis
from pipeline.errors import InboxClosed, StoreError
from pipeline.facts import Moved
from pipeline.lifecycle import JobState
from pipeline.nodes import owned_by
from pipeline.producer import Producer
from pipeline.store.connection import connect
from pipeline.store.jobs import JobStore
from pipeline.store.moving import MovingStore
from pipeline.store.scripts import Scripts

JOB: Final = "moves"
NODES: Final = ("home", "far")
APART: Final = "apart"
"""The node, and the pool, of the stage that no move concerns."""
VALUE: Final = "x" * 1_000
KEYS: Final = 1_000
RATE: Final = 500
PLACES: Final = 8
"""Partitions that move: of the first source and of its keyed stage."""
PATIENCE_SECONDS: Final = 120.0
PLANNED: Final = ("levelling", "their node is drained")


def keep(_key: Any, value: str, _last: str | None) -> tuple[int, str]:
    return len(value), value


flow = Pipeline("moves")
(
    flow.source(read.producer(), name="in")
    .key_by(lambda record: record[0], name="by_key")
    .map(lambda record: record[1], name="value")
    .stateful_map(keep, name="kept")
    .sink(write.stream("out"), name="out")
)
(
    flow.source(read.producer(), name="more", pool=APART)
    .key_by(lambda record: record[0], name="beside", pool=APART)
    .map(lambda record: record[1], name="beside_value")
    .stateful_map(keep, name="beside_kept")
    .sink(write.stream("beside_out"), name="beside_out")
)


class Site:
    """The job, seen from outside."""

    def __init__(self, url: str) -> None:
        scripts = Scripts(connect(url))
        self.jobs, self.moving = JobStore(scripts), MovingStore(scripts, JOB)

    def until(self, what: str, is_so: Any) -> None:
        deadline = time.monotonic() + PATIENCE_SECONDS
        while True:
            try:
                if is_so():
                    return
            except StoreError:
                pass
            if time.monotonic() > deadline:
                raise SystemExit(f"it did not happen in {PATIENCE_SECONDS:.0f} s: {what}")
            time.sleep(0.02)

    def owned(self, node: str) -> int:
        return len(owned_by(self.jobs.facts(JOB), node))

    def drain(self, node: str) -> None:
        """All that the node owns goes to the other one, which has room again."""
        for other in NODES:
            if other != node:
                self.moving.undrain(other)
        self.moving.drain(node)
        # A pause is noted when the new owner has acquired.
        self.until(f"{node} owns nothing", lambda: self.owned(node) == 0)
        self.until("all has been acquired", lambda: self.owned(other_than(node)) == PLACES)

    def taken(self, name: str) -> int:
        stages = self.jobs.read(JOB).plan.stages
        index = next(stage.index for stage in stages if stage.name == name)
        return sum(part.taken for part in self.jobs.facts(JOB).partitions if part.stage == index)

    def rate_while(self, name: str, work: Callable[[], None]) -> float:
        started, before = time.monotonic(), self.taken(name)
        work()
        return (self.taken(name) - before) / (time.monotonic() - started)


def other_than(node: str) -> str:
    return next(other for other in NODES if other != node)


@contextmanager
def sending(url: str, source: str, rate: int) -> Iterator[list[int]]:
    """Sends so many records a second until the block ends, for 0 as many as are taken; what was sent is counted."""
    sent, stop = [0], threading.Event()

    def send() -> None:
        with suppress(InboxClosed), Producer(JOB, source=source, redis_url=url) as producer:
            due = time.monotonic()
            while not stop.is_set():
                for _ in range(rate // 50 or 200):
                    producer.send(sent[0] % KEYS, [sent[0] % KEYS, VALUE])
                    sent[0] += 1
                due += 0.02
                if rate:
                    time.sleep(max(0.0, due - time.monotonic()))

    thread = threading.Thread(target=send)
    thread.start()
    try:
        yield sent
    finally:
        stop.set()
        thread.join()


@dataclass(frozen=True)
class Found:
    """Pauses in ms of collected and of forced moves. beside: the rates of another stage before and during moves."""

    collected: list[int]
    forced: list[int]
    beside: list[tuple[float, float]]


def measure(megabytes: int, drains: int, forces: int, rounds: int) -> Found:
    with ExitStack() as stack:
        url = stack.enter_context(EmbeddedRedis.start()).url
        environment = {**os.environ, "CELERIAC_REDIS": url, "PYTHONPATH": str(Path(__file__).parent.parent)}
        target = f"{Path(__file__).resolve()}"
        run = ["pipeline.cli.main", "run", target, "--job-id", JOB, "--workers", "1", "--pool", f"{APART}=0"]
        stack.enter_context(python_process([*run, "--partitions", "4", "--node", NODES[0]], environment))
        site = Site(url)
        site.until("the job runs", lambda: site.owned(NODES[0]) == PLACES)
        for _ in fill_state(connect(url), JOB, 1, "kept", megabytes):
            pass
        join = ["pipeline.cli.main", "worker", JOB, target, "--workers", "1"]
        far = stack.enter_context(python_process([*join, "--node", NODES[1]], environment))
        stack.enter_context(python_process([*join, "--node", APART, "--pool", APART], environment))
        site.until("the other node has its share", lambda: site.owned(NODES[1]) >= 4)
        site.until("the stage beside has its node", lambda: site.owned(APART) == PLACES)
        with sending(url, "in", RATE) as sent:
            collected, forced = _collected(site, drains), _forced(site, far, forces)
            with sending(url, "more", 0):
                beside = _beside(site, rounds)
        site.until("all is taken", lambda: site.taken("by_key") == sent[0])
        site.jobs.transition(JOB, JobState.CANCELLED)
    return Found(collected, forced, beside)


def _beside(site: Site, rounds: int) -> list[tuple[float, float]]:
    """Each round: how fast the other stage is for two seconds, then while all moves there and back, four times."""
    site.until("the other stage is busy", lambda: site.taken("beside") > 10 * RATE)
    rest, moving = partial(time.sleep, 2.0), partial(_to_and_fro, site, 4)
    return [(site.rate_while("beside", rest), site.rate_while("beside", moving)) for _ in range(rounds)]


def _to_and_fro(site: Site, times: int) -> None:
    for _ in range(times):
        for node in NODES:
            site.drain(node)


def _collected(site: Site, drains: int) -> list[int]:
    before = site.jobs.facts(JOB).now_ms
    for number in range(drains):
        site.drain(NODES[number % 2])
    site.drain(NODES[0])
    return [moved.pause_ms for moved in _since(site, before) if moved.how == "collected"]


def _forced(site: Site, far: int, drains: int) -> list[int]:
    """The other node, which owns all, is stopped while it is drained."""
    pauses: list[int] = []
    for _ in range(drains):
        before = site.jobs.facts(JOB).now_ms
        processes = psutil.Process(far).children(recursive=True)
        workers = [each for each in processes if " ".join(each.cmdline()).startswith("celeriac: worker ")]
        for worker in workers:
            worker.send_signal(signal.SIGSTOP)
        try:
            site.drain(NODES[1])
        finally:
            for worker in workers:
                worker.send_signal(signal.SIGCONT)
        pauses += [moved.pause_ms for moved in _since(site, before) if moved.how == "forced"]
        site.drain(NODES[0])
    return pauses


def _since(site: Site, at_ms: int) -> list[Moved]:
    return [moved for moved in site.moving.moves() if moved.at_ms > at_ms]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--megabytes", type=int, action="append", help="state of the job; may be repeated")
    parser.add_argument("--drains", type=int, default=10)
    options = parser.parse_args()
    print(f"{'state':>8}  {'how':<10}{'moves':>6}{'median ms':>11}{'90 %':>7}{'most':>7}")
    for megabytes in options.megabytes or (1, 100):
        found = measure(megabytes, options.drains, max(1, options.drains // 3), 3)
        for how, pauses in (("collected", found.collected), ("forced", found.forced)):
            ordered = sorted(pauses) or [0]
            row = statistics.median(ordered), ordered[int(0.9 * (len(ordered) - 1))], ordered[-1]
            print(f"{megabytes:>5} MB  {how:<10}{len(pauses):>6}{row[0]:>11g}{row[1]:>7}{row[2]:>7}", flush=True)
        print(f"{megabytes:>5} MB  beside: the other stage at {share(found.beside):.0%} of before", flush=True)


if __name__ == "__main__":
    if sys.platform != "linux":
        raise SystemExit("it needs Linux")
    main()
