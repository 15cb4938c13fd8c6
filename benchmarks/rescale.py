"""The pause of a rescale: from the switch to the first record of a moved key, by size of state; and the switch alone.

    python benchmarks/rescale.py                              # 1 MB, 100 MB and 1 GB of state, some minutes
    python benchmarks/rescale.py --megabytes 1 --many         # also between 64 and 256 partitions

Two workers run in this process, one slice after the other, on a Redis of its own; the leader's duty and its placement
are those of a leader. So the way of a wake-up to another process is not in it: about a millisecond, each.
"""

from __future__ import annotations

import argparse
import random
import statistics
import sys
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent))

from leader.duties.placement import Placement
from leader.duties.rescaling import Rescaling
from pipeline import Pipeline, count, read, write
from pipeline.codec import encode_value, state_field
from pipeline.embedded.redis import EmbeddedRedis
from pipeline.keying import group_of
from pipeline.layouts import layout
from pipeline.plan import compile_plan
from pipeline.records import Batch
from pipeline.settings import Limits
from pipeline.store import keys
from pipeline.store.connection import connect
from pipeline.store.jobs import JobStore
from pipeline.store.leadership import Leadership
from pipeline.store.operations import OperationStore
from pipeline.store.ownership import Ownership
from pipeline.store.scripts import Scripts
from pipeline.store.senders import Feed, FeedAddress
from stages.worker import Place, Worker

JOB = "bench"
KEYS = 2_000
SWITCHES = ((8, 16), (16, 8))
MANY = ((64, 256), (256, 64))


def a_pipeline() -> Pipeline:
    flow = Pipeline("bench")
    words = flow.source(read.producer(), name="in").key_by(lambda word: word, name="count")
    counted = words.aggregate(count(), name="counts").key_by(lambda number: number % 100, name="behind")
    counted.aggregate(count(), name="seen").sink(write.stream("out"), name="out")
    return flow


class Site:
    """A job, its workers and its leader, moved by hand."""

    def __init__(self, url: str, partitions: int, megabytes: int) -> None:
        self.client = connect(url)
        self.marks: dict[Place, int] = {}
        self.through: dict[Place, float] = {}
        """When a partition had taken its first record behind the mark."""
        self.client.flushall()
        self.scripts = Scripts(self.client)
        self.jobs = JobStore(self.scripts)
        graph = a_pipeline().graph()
        limits = Limits(lease_seconds=3_600.0)
        plan = compile_plan(graph, partitions, limits)
        self.jobs.create(JOB, plan)
        _fill(self.client, megabytes)
        self.leadership = Leadership(self.scripts, "leader", "n")
        self.token = self.leadership.hold(JOB, 3600).token
        self.placement = Placement(self.scripts, self.leadership, lambda: self.leadership.server, random.Random(1))
        self.operations = OperationStore(self.scripts)
        self.workers = [Worker(Ownership(Scripts(self.client), JOB, name, "1-a"), plan, graph) for name in ("w0", "w1")]
        for worker in self.workers:
            worker.ownership.heartbeat("{}")
        self.placement.run_once(self.jobs.facts(JOB), self.token)
        run = self.jobs.read(JOB).run
        self.lane = Feed(Scripts(self.client), FeedAddress(url, JOB, "in", 0.0), plan, run).lane("a")
        self.serve()

    def send(self) -> None:
        """One record of each key."""
        self.lane.append(self.lane.taken + 1, Batch([f"key-{number}" for number in range(KEYS)]))

    def serve(self) -> int:
        """One slice of each partition that is new, or has a ticket."""
        slices = 0
        for worker in self.workers:
            for place in worker.look():
                self._slice(worker, place)
            for place in worker.places:
                if self.client.rpop(keys.queue(JOB, *place)) is not None:
                    self._slice(worker, place)
                    slices += 1
        return slices

    def _slice(self, worker: Worker, place: Place) -> None:
        worker.slice(*place)
        mark, owner = self.marks.get(place), worker.owner(place)
        if mark is not None and owner is not None and owner.position.order[0] > mark:
            self.through[place] = time.perf_counter()
            del self.marks[place]

    def run_until_idle(self) -> None:
        while self.serve():
            pass

    def rescale(self, to: int) -> tuple[float, float, float, float]:
        """Milliseconds of the script, and from the switch to a receiver's first record: first, median and last of them.

        Records of all keys stand in the entry inboxes when the switch comes.
        """
        record = self.jobs.read(JOB)
        self.operations.begin(record, record.plan.stage(1), to, "bench", is_urgent=True)
        self.send()
        facts = self.jobs.facts(JOB)
        assert facts.operation is not None
        started = time.perf_counter()
        switch = self.operations.switch(JOB, self.token, facts.record.plan, facts.record.table, facts.operation)
        scripted = time.perf_counter() - started
        assert switch[0] == "switched"
        facts = self.jobs.facts(JOB)
        self.placement.run_once(facts, self.token)
        receivers = layout(record.plan.stage(1).serving, to).givers
        self.marks = {(1, part.partition): part.head + 1 for part in facts.partitions if part.stage == 1}
        self.marks = {place: mark for place, mark in self.marks.items() if place[1] in receivers}
        self.through = {}
        while self.marks:
            self.serve()
        self.run_until_idle()
        duty = Rescaling(self.operations, self.jobs.facts, self.placement)
        assert duty.run_once(self.jobs.facts(JOB), self.token) == {"rescaled": 1}
        times = [1000 * (at - started) for at in self.through.values()]
        return 1000 * scripted, min(times), statistics.median(times), max(times)


def _fill(client: Any, megabytes: int) -> None:
    """State of keys that are not sent."""
    value, size, number = encode_value("v" * 100), 0, 0
    while size < megabytes << 20:
        pipe = client.pipeline(transaction=False)
        for _ in range(5_000):
            key = f"old-{number:09}"
            field = state_field("counts", key)
            pipe.hset(keys.state(JOB, 1, group_of(key)), field, value)
            number, size = number + 1, size + len(field) + len(value)
        pipe.execute()


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else None)
    options.add_argument("--megabytes", type=int, nargs="*", default=[1, 100, 1_000])
    options.add_argument("--many", action="store_true", help="Also between 64 and 256 partitions.")
    options.add_argument("--times", type=int, default=5)
    asked = options.parse_args()
    print("state   partitions   switch alone    first receiver   half of them   all of them   (ms, medians)")
    with EmbeddedRedis.start(fsync="no") as server:
        for megabytes in asked.megabytes:
            for before, after in SWITCHES + (MANY if asked.many else ()):
                found = []
                for _ in range(asked.times):
                    site = Site(server.url, before, megabytes)
                    site.send()
                    site.run_until_idle()
                    found.append(site.rescale(after))
                    site.client.close()
                columns = " ".join(f"{statistics.median(column):>14.1f}" for column in zip(*found, strict=True))
                print(f"{megabytes:>4} MB  {before:>4} -> {after:<4} {columns}", flush=True)


if __name__ == "__main__":
    main()
