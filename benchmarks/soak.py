"""A job at moderate load for a long time: nothing may grow once it is warm.

    python benchmarks/soak.py                 # 20 minutes
    python benchmarks/soak.py --minutes 6 --rate 4000

Two workers, a leader and a Redis of its own. Producers with and without ids come, send and leave, a part of the records
come again, some fail and their dead letters are dropped, and a named reader reads the results. Every few seconds it
looks at the memory and the open files of each process, the keys, the memory and the stream lengths of Redis, and at
the books. It ends with the growth of each over the time after the warm-up, its noise, and PASS or FAIL (exit code 1).
This file is also the pipeline that the workers load.
"""

from __future__ import annotations

import argparse
import os
import random
import secrets
import sys
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from time import monotonic, sleep
from typing import Final

import psutil

sys.path.insert(0, str(Path(__file__).parent.parent))

from benchmarks.processes import python_process
from benchmarks.trend import Trend, trend
from pipeline import Pipeline, count, read, write
from pipeline.books import findings
from pipeline.deadletters import DeadLetters
from pipeline.embedded.redis import EmbeddedRedis
from pipeline.lifecycle import JobState
from pipeline.plan import compile_plan
from pipeline.producer import Producer
from pipeline.settings import Limits
from pipeline.store.books import BookStore
from pipeline.store.connection import connect
from pipeline.store.jobs import JobStore
from pipeline.store.outputs import OutputReader
from pipeline.store.scripts import Scripts

WORKERS: Final = 2
KEYS: Final = 2_000
REMEMBERED_SECONDS: Final = 5
"""How long ids are remembered: shorter than the warm-up."""

PRODUCER_SECONDS: Final = 5.0
"""A producer without a name lives for this long, then the next one comes."""

WARM_SHARE: Final = 0.25
LEAST_WARM_SECONDS: Final = 15.0

ALLOWED: Final[dict[str, Callable[[float], float]]] = {
    "rss": lambda level: max(3e6, 0.03 * level),
    "fds": lambda _: 2.0,
    "redis keys": lambda _: 8.0,
    "redis memory": lambda level: max(2e6, 0.05 * level),
    "backlog": lambda _: 5_000.0,
    "output kept": lambda _: 5_000.0,
    "dead letters": lambda _: 100.0,
}
"""What a series may have grown by at the end: allocators and caches that round up, and the load of one moment."""


def checked(word: str) -> str:
    if word.endswith("!"):
        raise ValueError(f"a word that fails: {word}")
    return word


flow = Pipeline("soak")
(
    flow.source(read.producer(id_seconds=REMEMBERED_SECONDS, id_count=50_000), name="words")
    .map(checked, name="checked")
    .filter(lambda word: not word.endswith("?"), name="sure")
    .key_by(lambda word: word, name="by_word")
    .aggregate(count(), name="running_count")
    .sink(write.stream("counts"), name="counts")
)


@dataclass(slots=True)
class Samples:
    """Series of what may grow: (kind, what) -> (seconds, value)."""

    series: dict[tuple[str, str], list[tuple[float, float]]] = field(default_factory=lambda: defaultdict(list))

    def add(self, seconds: float, kind: str, what: str, value: float) -> None:
        self.series[(kind, what)].append((seconds, value))

    def trends(self, warm_seconds: float) -> list[Trend]:
        """Of all series, from `warm_seconds` on."""
        found = []
        for (kind, what), samples in self.series.items():
            warm = [sample for sample in samples if sample[0] >= warm_seconds]
            level = sum(value for _, value in warm) / max(1, len(warm))
            found.append(trend(f"{kind} {what}".strip(), warm, ALLOWED[kind](level)))
        return found


class Load:
    """Sends `rate` records a second and reads what comes out; stands in for applications."""

    def __init__(self, url: str, job: str, rate: int) -> None:
        self.sent = self.failing = 0
        self.words = 0
        self._url, self._job, self._rate = url, job, rate
        self._dice = random.Random(7)
        self._named = Producer(job, url, name="shop", lanes=2)
        self._visitor: Producer | None = None
        self._visitor_until = 0.0
        self._reader = OutputReader(Scripts(connect(url)), job, "counts", "soak", Limits())
        self._letters = DeadLetters(job, url)

    def until(self, seconds: float, started: float) -> None:
        """Goes on for so many seconds since `started`."""
        while (now := monotonic() - started) < seconds:
            producer = self._a_producer(now)
            while self.sent < now * self._rate:
                self._send_some(producer)
            self.read(wait_ms=20)

    def _a_producer(self, now: float) -> Producer:
        if now >= self._visitor_until:
            if self._visitor is not None:
                self._visitor.close()
            self._visitor = Producer(self._job, self._url, lanes=1)
            self._visitor_until = now + PRODUCER_SECONDS
        assert self._visitor is not None
        return self._dice.choice([self._named, self._visitor])

    def _send_some(self, producer: Producer) -> None:
        for _ in range(50):
            self.sent += 1
            word = f"word{self._dice.randrange(KEYS)}"
            if self.sent % 10 == 0:
                word += "?"
            elif self.sent % 5_000 == 1:
                word += "!"
            # Every fourth has an id, and half of those ids were seen just before.
            own = f"id-{self.sent // 8}" if self.sent % 4 == 0 else None
            producer.send(word, word, id=own)

    def read(self, wait_ms: int) -> None:
        for batch in self._reader.read(entries=256, wait_ms=wait_ms):
            self.words += len(batch)
        self._reader.advance()

    def drop_letters(self) -> None:
        ids = [letter.id for letter in self._letters.list()]
        if ids:
            self._letters.drop(ids)

    def close(self) -> None:
        for producer in (self._named, self._visitor):
            if producer is not None:
                producer.close()


@contextmanager
def running_job(url: str) -> Iterator[tuple[str, dict[str, int]]]:
    """The job with its processes: their names and pids."""
    store, job = JobStore(Scripts(connect(url))), f"soak-{secrets.token_hex(3)}"
    store.create(job, compile_plan(flow.graph(), 2 * WORKERS, Limits()))
    shared = {**os.environ, "CELERIAC_REDIS": url, "CELERIAC_JOB": job, "CELERIAC_PIPELINE": __file__}
    shared["PYTHONPATH"] = str(Path(__file__).parent.parent)
    with ExitStack() as stack:
        stack.callback(lambda: store.erase(job))
        leader = {**shared, "CELERIAC_LEADER": f"leader-{job}"}
        pids = {"leader": stack.enter_context(python_process(["leader.main"], leader))}
        for number in range(WORKERS):
            name = {"CELERIAC_WORKER": f"w{number}", "CELERIAC_INCARNATION": "1-soak"}
            pids[f"w{number}"] = stack.enter_context(python_process(["stages.main"], {**shared, **name}))
        yield job, pids
        store.transition(job, JobState.CANCELLED)


class Eyes:
    """Looks at the processes and the Redis of one job."""

    def __init__(self, url: str, job: str, pids: dict[str, int]) -> None:
        self.samples = Samples()
        self.wrong: set[str] = set()
        self._client = connect(url)
        scripts = Scripts(self._client)
        self._store, self._books = JobStore(scripts), BookStore(scripts)
        self._job, self._pids = job, pids

    def look(self, seconds: float) -> None:
        """Adds one sample of everything, and what is wrong in the books."""
        add = self.samples.add
        for name, pid in self._pids.items():
            process = psutil.Process(pid)
            add(seconds, "rss", name, process.memory_info().rss)
            add(seconds, "fds", name, process.num_fds())
        facts = self._store.facts(self._job)
        add(seconds, "redis keys", "", self._client.dbsize())
        add(seconds, "redis memory", "", self._client.info("memory")["used_memory"])
        add(seconds, "backlog", "", sum(part.backlog for part in facts.partitions))
        add(seconds, "output kept", "", sum(out.next_number - out.oldest for out in facts.outputs))
        add(seconds, "dead letters", "", facts.dead_letters)
        self.wrong.update(alarm.text for alarm in findings(self._books.read(facts.record)))

    def backlog(self) -> int:
        return sum(part.backlog for part in self._store.facts(self._job).partitions)


def soak(seconds: float, rate: int, say: Callable[[str], None] = print) -> tuple[list[Trend], list[str]]:
    """Runs for so many seconds. What grew, and what was wrong in the books."""
    warm_seconds = max(LEAST_WARM_SECONDS, WARM_SHARE * seconds)
    every = max(0.5, min(5.0, seconds / 120))
    with EmbeddedRedis.start(fsync="everysec") as server, running_job(server.url) as (job, pids):
        eyes = Eyes(server.url, job, pids | {"redis": server.pid, "this": os.getpid()})
        load = Load(server.url, job, rate)
        started, at = monotonic(), 0.0
        while at < seconds:
            at = min(seconds, at + every)
            load.until(at, started)
            load.drop_letters()
            eyes.look(monotonic() - started)
            if int(at / 60) > int((at - every) / 60):
                say(f"{at / 60:5.0f} min   {load.sent:,} sent, {load.words:,} results")
        load.close()
        _drain(load, eyes)
        eyes.look(monotonic() - started)
        say(f"{load.sent:,} records sent, {load.words:,} results, {rate:,} a second")
    return eyes.samples.trends(warm_seconds), sorted(eyes.wrong)


def _drain(load: Load, eyes: Eyes) -> None:
    """Until all that was sent has come out. Exits when it does not."""
    until = monotonic() + 30.0
    while eyes.backlog():
        load.read(wait_ms=50)
        if monotonic() > until:
            sys.exit("WRONG: the job stands still")
        sleep(0.02)
    load.read(wait_ms=50)


def report(trends: list[Trend], wrong: list[str]) -> Iterator[str]:
    """A line for each series, and the verdict."""
    yield f"{'series':<16}{'level':>16}{'growth':>14}{'noise':>12}{'allowed':>12}"
    for each in trends:
        verdict = "" if each.is_bounded else "   GROWS"
        yield f"{each.name:<16}{each.level:16,.0f}{each.growth:14,.0f}{each.noise:12,.0f}{each.allowed:12,.0f}{verdict}"
    yield from (f"BOOKS DO NOT BALANCE: {text}" for text in wrong)
    yield "PASS" if all(each.is_bounded for each in trends) and not wrong else "FAIL"


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--minutes", type=float, default=20.0)
    options.add_argument("--rate", type=int, default=2_000, help="records a second")
    asked = options.parse_args()
    lines = list(report(*soak(60 * asked.minutes, asked.rate)))
    print("\n".join(lines))
    sys.exit(lines[-1] != "PASS")


if __name__ == "__main__":
    main()
