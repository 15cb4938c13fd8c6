"""One followed source on a real job: its feeder is moved round by round, and may die at any call of the store."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable
from typing import Any

from pipeline import Pipeline, write
from pipeline.errors import InboxFull, StoreUnavailable
from pipeline.graph import SourceSpec
from pipeline.plan import is_endless
from pipeline.settings import Limits
from pipeline.sources.following import Following
from pipeline.sources.opening import open_source
from pipeline.store.connection import connect
from pipeline.store.jobs import JobStore
from pipeline.store.patience import Patience
from pipeline.store.scripts import Scripts
from pipeline.store.senders import Feed, FeedAddress
from tests.runtime.harness import FlakyScripts, LocalJob


class Follow:
    """A job with one followed source, and its feeder, which is moved round by round and may die at any call."""

    def __init__(
        self,
        redis_url: str,
        spec: SourceSpec,
        *,
        partitions: int = 2,
        limits: Limits | None = None,
        job: str = "j",
        fresh: bool = False,
    ) -> None:
        """`fresh`: an earlier job of that name is removed."""
        self.spec = spec
        self.slept = 0.0
        if fresh:
            with connect(redis_url) as client:
                JobStore(Scripts(client)).erase(job)
        flow = Pipeline("followed")
        flow.source(spec, name="in").sink(write.stream("out"), name="out")
        self.job = LocalJob(redis_url, flow, partitions=partitions, limits=limits, job=job)
        self.job.assign()
        self.scripts = FlakyScripts(self.job.client)
        self.time = Patience(outage_seconds=0.0, clock=lambda: self.slept, sleep=self._sleep, rng=random.Random(1))
        self.feeder: Following | None = None

    def _sleep(self, seconds: float) -> None:
        self.slept += seconds

    def feed(self) -> Feed:
        address = FeedAddress(self.job.url, self.job.job, "in", 0.0)
        return Feed(self.scripts, address, self.job.plan, self.job.run_of_job, self.time)

    def start(self) -> Following:
        """A feeder that knows nothing but what Redis tells it."""
        if self.feeder is not None:
            self.feeder.close()
        feed = self.feed()
        source = open_source(self.spec, feed, lambda: self.slept)
        endless = is_endless(self.spec.format, self.spec.options)
        self.feeder = Following(source, feed, endless=endless, patience=self.time)
        return self.feeder

    def rounds(self, count: int = 1) -> None:
        """So many rounds, each a second after the other; a feeder that lost Redis is followed by a new one."""
        for _ in range(count):
            self.slept += 1.0
            try:
                (self.feeder or self.start()).round()
            except StoreUnavailable:
                self.start()
            except InboxFull:  # it dies in the middle of a batch
                self.start()
                self.job.run_until_idle()

    def until(self, predicate: Callable[[], bool], rounds: int = 2_000, pause: bool = False) -> None:
        """Rounds until it is true. `pause`: what is read from works in threads of its own, and needs some time."""
        for _ in range(rounds):
            if predicate():
                return
            self.rounds()
            if pause:
                threading.Event().wait(0.02)
        raise AssertionError(f"not true after {rounds} rounds; there is {self.values()[-20:]}")

    def values(self) -> list[Any]:
        self.job.run_until_idle()
        return self.job.values()

    def close(self) -> None:
        if self.feeder is not None:
            self.feeder.close()
        self.job.__exit__()
