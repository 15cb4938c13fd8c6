"""One Celery task per word, with Celery as it comes: the figure that the benchmark compares with."""

from __future__ import annotations

import os
import sys
from time import monotonic, perf_counter, sleep
from typing import Any

from celery import Celery

from pipeline.store.connection import connect
from pipeline.tickets import broker_url

COUNTS = "naive:counts"
OUT = "naive:out"

app = Celery("naive", broker=broker_url(os.environ.get("NAIVE_REDIS", "redis://")))
app.conf.task_ignore_result = True


@app.task(name="naive.split")
def split(line: str) -> None:
    for word in line.split():
        tally.delay(word)


@app.task(name="naive.tally")
def tally(word: str) -> None:
    client = _client()
    client.xadd(OUT, {"word": word, "count": client.hincrby(COUNTS, word, 1)})


_clients: list[Any] = []


def _client() -> Any:
    if not _clients:
        _clients.append(connect(os.environ["NAIVE_REDIS"]))
    return _clients[0]


def worker_arguments(number: int) -> list[str]:
    """Behind `python -m`: an ordinary worker, one process."""
    return ["celery", "-A", "benchmarks.naive", "worker", "-P", "solo", "-n", f"naive{number}"]


def run(redis_url: str, words: list[str], words_a_line: int) -> float:
    """Seconds until all words are counted; the counts are checked."""
    client = connect(redis_url)
    app.conf.broker_url = broker_url(redis_url)
    split.delay(words[0])
    _wait(client, 1)
    started = perf_counter()
    for at in range(0, len(words), words_a_line):
        split.delay(" ".join(words[at : at + words_a_line]))
    _wait(client, len(words) + 1)
    seconds = perf_counter() - started
    if sum(int(value) for value in client.hvals(COUNTS)) != len(words) + 1:
        sys.exit("the naive run lost or doubled words")
    client.delete(COUNTS, OUT)
    return seconds


def _wait(client: Any, entries: int) -> None:
    until = monotonic() + 120
    while client.xlen(OUT) < entries:
        if monotonic() > until:
            sys.exit("the naive run did not end")
        sleep(0.01)
