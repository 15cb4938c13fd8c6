"""The pause of a rescale: from the switch to the first record of each partition that gets keys.

    python benchmarks/rescale.py                       # 1 MB and 100 MB of state, some minutes
    python benchmarks/rescale.py --megabytes 1 --times 3

`celeriac run` runs this file as a pipeline with two workers, each a process, on a Redis of their own; producers in
this process send. `by_key` goes from 8 to 16 partitions and back under a steady load that leaves its backlog short.
Then `beside`, which no rescale concerns, is given more than it can do: its rate during the rescales, each from its
beginning to its end, is compared with that of the two seconds before each.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

sys.path.insert(0, str(Path(__file__).parent.parent))

from benchmarks.filling import fill_state
from benchmarks.processes import python_process
from pipeline import Pipeline, read, write
from pipeline.embedded.redis import EmbeddedRedis
from pipeline.errors import InboxClosed, InboxFull
from pipeline.layouts import layout
from pipeline.lifecycle import JobState
from pipeline.positions import Position
from pipeline.producer import Producer
from pipeline.store import keys
from pipeline.store.connection import connect
from pipeline.store.jobs import JobStore
from pipeline.store.operations import OperationStore
from pipeline.store.scripts import Scripts

JOB: Final = "rescale"
KEYS: Final = 2_000
RATE: Final = 2_000
SWITCHES: Final = ((8, 16), (16, 8))
BURST: Final = 200
"""Records for `beside` are sent in so many at a time: a small step is a small disturbance of the others, too."""


def total(_key: Any, value: int, last: int | None) -> tuple[int, int]:
    return (last or 0) + value, value


def slow(value: int) -> int:
    for _ in range(300):
        pass
    return value


flow = Pipeline("rescale")
(
    flow.source(read.producer(), name="in")
    .key_by(lambda record: record[0], name="by_key")
    .map(lambda record: record[1], name="value")
    .stateful_map(total, name="total")
    .sink(write.stream("out"), name="out")
)
(
    flow.source(read.producer(), name="more")
    .key_by(lambda record: record[0], name="beside")
    .map(lambda record: record[1], name="beside_value")
    .map(slow, name="slow")
    .stateful_map(total, name="beside_total")
    .sink(write.stream("beside_out"), name="beside_out")
)


@dataclass(frozen=True)
class Found:
    """One rescale. Times are milliseconds. pauses: of each receiver. waited: from the command to the switch."""

    pauses: list[float]
    waited: float
    settled: float


class Site:
    """The job, seen from outside."""

    def __init__(self, url: str) -> None:
        self.client = connect(url)
        scripts = Scripts(self.client)
        self.jobs, self.operations = JobStore(scripts), OperationStore(scripts)

    def wait(self, what: str, is_so: Callable[[], bool], seconds: float = 120.0) -> None:
        deadline = time.monotonic() + seconds
        while not is_so():
            if time.monotonic() > deadline:
                raise SystemExit(f"it did not happen in {seconds:.0f} s: {what}")
            time.sleep(0.05)

    def is_owned(self) -> bool:
        try:
            facts = self.jobs.facts(JOB)
        except Exception:  # it is not there yet
            return False
        return len({part.owner for part in facts.partitions}) == 2 and all(part.owner for part in facts.partitions)

    def stage(self, name: str) -> Any:
        return next(stage for stage in self.jobs.read(JOB).plan.stages if stage.name == name)

    def taken(self, name: str) -> int:
        stage = self.stage(name)
        pipe = self.client.pipeline(transaction=False)
        for number in range(stage.partitions):
            pipe.hget(keys.meta(JOB, stage.index, number), "taken")
        return sum(int(each or 0) for each in pipe.execute())

    def rate_of(self, name: str, seconds: float) -> float:
        started, before = time.monotonic(), self.taken(name)
        time.sleep(seconds)
        return (self.taken(name) - before) / (time.monotonic() - started)

    def rescale(self, to: int) -> Found:
        stage = self.stage("by_key")
        receivers = sorted(layout(stage.serving, to).givers)
        begun_ms = self.now_ms()
        self.operations.begin(self.jobs.read(JOB), stage, to, "bench")
        switched, through = self._watch(stage.index, receivers)
        self.wait("it has ended", lambda: self.jobs.facts(JOB).operation is None)
        time.sleep(0.5)
        return Found([at - switched for at in through.values()], switched - begun_ms, self.now_ms() - switched - 500)

    def beside(self, to: int) -> tuple[float, float]:
        """The rate of the other stage just before, and while this one is rescaled."""
        before = self.rate_of("beside", 2.0)
        started, taken = time.monotonic(), self.taken("beside")
        self.operations.begin(self.jobs.read(JOB), self.stage("by_key"), to, "bench")
        self.wait("it has ended", lambda: self.jobs.facts(JOB).operation is None)
        return before, (self.taken("beside") - taken) / (time.monotonic() - started)

    def now_ms(self) -> float:
        seconds, micros = self.client.time()
        return float(seconds * 1000 + micros / 1000)

    def _watch(self, stage: int, receivers: list[int]) -> tuple[float, dict[int, float]]:
        """When the switch was, and when each receiver had taken a record behind its mark; looks every few ms."""
        switched, marks, through = 0.0, dict[int, Any](), dict[int, float]()
        deadline = time.monotonic() + 30.0
        while len(through) < len(receivers) and time.monotonic() < deadline:
            pipe = self.client.pipeline(transaction=False)
            pipe.hget(keys.operation(JOB), "switched_at")
            for number in receivers:
                pipe.hmget(keys.meta(JOB, stage, number), "switch", "pos", "rec")
            pipe.time()
            at, *metas, (seconds, micros) = pipe.execute()
            now = seconds * 1000 + micros / 1000
            switched = float(at) if at and not switched else switched
            for number, (mark, pos, rec) in zip(receivers, metas, strict=True):
                if not switched or number in through:
                    continue
                if number not in marks:
                    marks[number] = Position(mark.decode()).order[:2] if mark else (0, 0)
                here = Position(pos.decode() if pos else "1-0").order[:2]
                if here[0] > marks[number][0] or (here > marks[number] and int(rec or 0)):
                    through[number] = now
            time.sleep(0.002)
        return switched, through


@contextmanager
def sending(url: str, source: str, rate: float) -> Iterator[None]:
    """Sends records of all keys in turn, so many a second, until the block ends; as many as are taken, for 0."""
    stop = threading.Event()

    def send() -> None:
        sent = 0
        with suppress(InboxClosed, InboxFull), Producer(JOB, source=source, redis_url=url) as producer:
            due = time.monotonic()
            while not stop.is_set():
                for _ in range(int(rate / 100) if rate else BURST):
                    producer.send(sent % KEYS, [f"key-{sent % KEYS}", sent])
                    sent += 1
                due += 0.01
                if rate:
                    time.sleep(max(0.0, due - time.monotonic()))

    thread = threading.Thread(target=send)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


def share(rates: Sequence[tuple[float, float]]) -> float:
    """All rates of the second kind as a share of those of the first. A single one, of half a second, tells little."""
    return sum(second for _, second in rates) / sum(first for first, _ in rates)


def measure(megabytes: int, times: int) -> tuple[dict[tuple[int, int], list[Found]], list[tuple[float, float]]]:
    """The rescales of each kind under a steady load alone; then the other stage's rates before and during others."""
    with ExitStack() as stack:
        url = stack.enter_context(EmbeddedRedis.start(fsync="no")).url
        environment = {**os.environ, "CELERIAC_REDIS": url, "PYTHONPATH": str(Path(__file__).parent.parent)}
        run = ["pipeline.cli.main", "run", str(Path(__file__).resolve()), "--job-id", JOB]
        stack.enter_context(python_process([*run, "--workers", "2", "--partitions", "8"], environment))
        site = Site(url)
        site.wait("the job runs on both workers", site.is_owned)
        for _ in fill_state(site.client, JOB, site.stage("by_key").index, "total", megabytes):
            pass
        senders = stack.enter_context(ExitStack())
        senders.enter_context(sending(url, "in", RATE))
        site.wait("records flow", lambda: site.taken("by_key") > 3 * RATE)
        found: dict[tuple[int, int], list[Found]] = {switch: [] for switch in SWITCHES}
        for _ in range(times):
            for before, after in SWITCHES:
                found[before, after].append(site.rescale(after))
        senders.enter_context(sending(url, "more", 0))
        site.wait("the other stage is busy", lambda: site.taken("beside") > 3 * RATE)
        rates = [site.beside(after) for _ in range(2 * times) for _, after in SWITCHES]
        senders.close()
        site.jobs.transition(JOB, JobState.CANCELLED)
    return found, rates


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--megabytes", type=int, nargs="*", default=[1, 100])
    options.add_argument("--times", type=int, default=5)
    asked = options.parse_args()
    print(f"{os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}")
    print("state    partitions   pause of a receiver: median    most   waited   settled")
    mid = statistics.median
    for megabytes in asked.megabytes:
        rescales, rates = measure(megabytes, asked.times)
        for (before, after), several in rescales.items():
            pauses = [pause for found in several for pause in found.pauses]
            print(
                f"{megabytes:>5} MB  {before:>3} -> {after:<3} {mid(pauses):>28.0f} {max(pauses):>7.0f} ms"
                f" {mid(each.waited for each in several):>5.0f} ms {mid(each.settled for each in several):>6.0f} ms",
                flush=True,
            )
        print(f"{megabytes:>5} MB  rate of the other stage: {share(rates):.0%} of before")


if __name__ == "__main__":
    main()
