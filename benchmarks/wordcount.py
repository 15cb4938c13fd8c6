"""Words per second through two stages, latency at a fixed rate, and one Celery task per word, in one run.

    python benchmarks/wordcount.py            # everything, about a minute
    python benchmarks/wordcount.py --seconds 5 --workers 2 --fsync everysec

Lines are appended by this process, split by the entry stage, counted per word by the keyed stage, and read from the
output stream, where every count is checked against the last one of its word: a gap, a repeat or a swap ends the run.
This file is also the pipeline that the workers load.
"""

from __future__ import annotations

import argparse
import os
import random
import secrets
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from itertools import cycle, islice
from pathlib import Path
from time import monotonic, perf_counter, perf_counter_ns, sleep
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent))

from benchmarks import naive
from benchmarks.processes import python_process
from pipeline import Pipeline, count, read, write
from pipeline.embedded.redis import EmbeddedRedis
from pipeline.errors import InboxFull
from pipeline.lifecycle import JobState
from pipeline.plan import compile_plan
from pipeline.records import Batch
from pipeline.settings import Limits
from pipeline.store.connection import connect
from pipeline.store.jobs import JobStore
from pipeline.store.outputs import OutputReader
from pipeline.store.scripts import Scripts
from pipeline.store.senders import FeedAddress

flow = Pipeline("bench_wordcount")
(
    flow.source(read.iterable([""]), name="lines")
    .flat_map(str.split, name="words")
    .key_by(lambda word: word, name="by_word")
    .aggregate(count(), name="running_count")
    .sink(write.stream("counts"), name="counts")
)

WORDS_A_LINE = 8
LINES_A_BATCH = 125
VOCABULARY = 20_000


@dataclass(frozen=True)
class Figures:
    words: int
    seconds: float

    @property
    def rate(self) -> float:
        return self.words / self.seconds


class Checked:
    """Reads the output stream; `counts` is what each word has reached."""

    def __init__(self, reader: OutputReader) -> None:
        self._reader = reader
        self.counts: dict[str, int] = {}
        self.words = 0
        self.stamps: list[int] = []

    def read(self, wait_ms: int = 0) -> None:
        for batch in self._reader.read(entries=256, wait_ms=wait_ms):
            arrived = perf_counter_ns()
            for word, reached in zip(batch.keys or (), batch.values, strict=True):
                if reached != self.counts.get(word, 0) + 1:
                    sys.exit(f"WRONG: {word!r} went from {self.counts.get(word, 0)} to {reached}")
                self.counts[word] = reached
                if word[0] == "@":
                    self.stamps.append(arrived - int(word[1:]))
            self.words += len(batch)
        self._reader.advance()


def sample_batches(number: int) -> list[Batch]:
    """Batches of lines of a Zipf-like vocabulary."""
    rng = random.Random(7)
    vocabulary = [f"word{i}" for i in range(VOCABULARY)]
    weights = [1 / (rank + 1) for rank in range(VOCABULARY)]
    words = rng.choices(vocabulary, weights, k=number * LINES_A_BATCH * WORDS_A_LINE)
    lines = [" ".join(words[at : at + WORDS_A_LINE]) for at in range(0, len(words), WORDS_A_LINE)]
    return [Batch(lines[at : at + LINES_A_BATCH]) for at in range(0, len(lines), LINES_A_BATCH)]


@contextmanager
def running_job(redis_url: str, workers: int, partitions: int) -> Iterator[tuple[str, Checked]]:
    """A job of this pipeline with its leader and workers as processes of their own."""
    store = JobStore(Scripts(connect(redis_url)))
    job = f"bench-{secrets.token_hex(3)}"
    plan = compile_plan(flow.graph(), partitions, Limits())
    store.create(job, plan)
    reader = OutputReader(Scripts(connect(redis_url)), job, "counts", "bench", plan.limits)
    shared = {**os.environ, "CELERIAC_REDIS": redis_url, "CELERIAC_JOB": job, "CELERIAC_PIPELINE": __file__}
    shared["PYTHONPATH"] = str(Path(__file__).parent.parent)
    with ExitStack() as stack:
        stack.callback(lambda: store.erase(job))
        stack.enter_context(python_process(["leader.main"], {**shared, "CELERIAC_LEADER": f"leader-{job}"}))
        for number in range(workers):
            name = {"CELERIAC_WORKER": f"w{number}", "CELERIAC_INCARNATION": "1-bench"}
            stack.enter_context(python_process(["stages.main"], {**shared, **name}))
        _wait(lambda: len({part.owner for part in store.facts(job).partitions} - {""}) == workers, "workers that own")
        yield job, Checked(reader)
        store.transition(job, JobState.CANCELLED)


def _wait(holds: Any, what: str, seconds: float = 30.0) -> None:
    until = monotonic() + seconds
    while not holds():
        if monotonic() > until:
            sys.exit(f"no {what} after {seconds} s")
        sleep(0.02)


def throughput(redis_url: str, workers: int, partitions: int, seconds: float, batches: list[Batch]) -> Figures:
    """Appends as fast as the inboxes take it for some seconds, then drains; all of it is timed and checked."""
    with running_job(redis_url, workers, partitions) as (job, output):
        feed = FeedAddress(redis_url, job, "lines", full_timeout_seconds=0.0).open()
        lanes = [feed.lane(f"bench{number}") for number in range(partitions)]
        warm = _pump(lanes, batches, output, monotonic() + 1.0)
        _drain(output, warm)
        started, before = perf_counter(), output.words
        sent = _pump(lanes, batches, output, monotonic() + seconds)
        _drain(output, warm + sent)
        return Figures(output.words - before, perf_counter() - started)


def _pump(lanes: list[Any], batches: list[Batch], output: Checked, until: float) -> int:
    sent = 0
    for turn, (lane, batch) in enumerate(zip(cycle(lanes), cycle(batches), strict=False)):
        _append(lane, batch, output)
        sent += LINES_A_BATCH * WORDS_A_LINE
        if turn % 16 == 0:
            output.read()
            if monotonic() > until:
                break
    return sent


def _append(lane: Any, batch: Batch, output: Checked) -> None:
    """Goes on reading while the inbox is full: the output may be what it waits for."""
    while True:
        try:
            return lane.append(lane.taken + 1, batch)
        except InboxFull:
            output.read(wait_ms=5)


def _drain(output: Checked, words: int) -> None:
    until = monotonic() + 60
    while output.words < words:
        output.read(wait_ms=100)
        if monotonic() > until:
            sys.exit(f"WRONG: {words} words were sent, {output.words} came out")
    if output.words != words:
        sys.exit(f"WRONG: {words} words were sent, {output.words} came out")


def latency(
    redis_url: str, workers: int, partitions: int, seconds: float, rate: int, batches: list[Batch]
) -> list[float]:
    """Milliseconds from append to the reader of the output, of one word in each batch of 100; `rate` in words/s."""
    with running_job(redis_url, workers, partitions) as (job, output):
        feed = FeedAddress(redis_url, job, "lines").open()
        lanes = [feed.lane(f"bench{number}") for number in range(partitions)]
        lines = cycle(line for batch in batches for line in batch.values)
        sent, started = 0, monotonic()
        while (elapsed := monotonic() - started) < seconds + 1.0:
            if sent < elapsed * rate:
                lane = lanes[(sent // 100) % len(lanes)]
                words = " ".join(islice(lines, 12)) + " last1 last2 last3"
                lane.append(lane.taken + 1, Batch([f"@{perf_counter_ns()} {words}"]))
                sent += 100
            due_seconds = started + sent / rate - monotonic()
            output.read(wait_ms=max(1, int(due_seconds * 1000)))
        _drain(output, sent)
        warm = len(output.stamps) // (int(seconds) + 1)
        return sorted(stamp / 1e6 for stamp in output.stamps[warm:])


def task_per_word(redis_url: str, workers: int, words: list[str]) -> Figures:
    """What teams do today: a Celery task for each line makes a task for each word, which counts in Redis."""
    environment = {**os.environ, "NAIVE_REDIS": redis_url, "PYTHONPATH": str(Path(__file__).parent.parent)}
    with ExitStack() as stack:
        for number in range(workers):
            stack.enter_context(python_process(naive.worker_arguments(number), environment))
        return Figures(len(words), naive.run(redis_url, words, WORDS_A_LINE))


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--seconds", type=float, default=8.0)
    options.add_argument("--workers", type=int, default=2)
    options.add_argument("--partitions", type=int, help="of each stage; by default as many as workers")
    options.add_argument("--rounds", type=int, default=3)
    options.add_argument("--fsync", choices=["everysec", "always", "no"], default="everysec")
    options.add_argument("--rate", type=int, default=20_000)
    asked = options.parse_args()
    batches, partitions = sample_batches(200), asked.partitions or asked.workers
    with EmbeddedRedis.start(fsync=asked.fsync) as server:
        rates = []
        for _ in range(asked.rounds):
            figures = throughput(server.url, asked.workers, partitions, asked.seconds, batches)
            rates.append(figures.rate)
            print(f"throughput     {figures.rate:12,.0f} words/s   {figures.words:,} words, all counts right")
        times = latency(server.url, asked.workers, partitions, asked.seconds, asked.rate, batches)
        p50, p99 = times[len(times) // 2], times[int(len(times) * 0.99)]
        print(
            f"latency        {p50:12.1f} ms p50   {p99:.1f} ms p99   at {asked.rate:,} words/s, {len(times):,} samples"
        )
        naive = task_per_word(
            server.url, asked.workers, " ".join(line for batch in batches[:3] for line in batch.values).split()
        )
        print(f"task per word  {naive.rate:12,.0f} words/s   {naive.words:,} words")
        print(f"ratio          {sorted(rates)[len(rates) // 2] / naive.rate:12,.0f} x   (median throughput)")


if __name__ == "__main__":
    main()
