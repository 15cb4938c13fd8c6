"""The streaming engine of Spark without Spark: this plays the driver, and processes that run tasks are objects here.

Plans come from the source that Spark asks, tasks are those that it carries; only the carrying is left out, so that a
test can run them twice, at once, late, or in any order.
"""

from __future__ import annotations

import json
import os
import random
import secrets
import threading
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows

from pipeline import tickets
from pipeline.spark.streaming.slices import NOTHING, Place, Served, Slice, slices_in
from pipeline.spark.streaming.source import InboxReader
from pipeline.store import keys
from pipeline.store.connection import connect
from pipeline.store.ownership import Ownership
from pipeline.store.scripts import Scripts
from stages.streaming.member import StreamMember
from stages.streaming.task import Desk, TaskOwnership, TaskSettings
from tests.runtime.harness import LocalJob

NAME = "spark"


class Streamed:
    """A member of the job with so many processes for tasks. Its clock stands still unless a test moves it."""

    def __init__(
        self, job: LocalJob, folder: Path, desks: int = 2, most_records: int = 0, incarnation: str = "1-a"
    ) -> None:
        self.job = job
        self.incarnation = incarnation
        self.now = 0.0
        self.most_records = most_records
        self.offset: dict[str, Any] = NOTHING
        self._clients: list[Any] = []
        self.ownership = Ownership(self._scripts(), job.job, NAME, incarnation)
        self.member = StreamMember(self.ownership, {}, lambda: self.now)
        self.member.on_batch_end = self.beat
        address = folder / "address"
        address.write_text(job.url)
        options = {"job": job.job, "worker": NAME, "incarnation": incarnation, "address": str(address)}
        self.options = options
        self.reader = InboxReader(options)
        self.reader.wait_seconds = 0.0
        self.desks = [self.desk() for _ in range(desks)]

    def _scripts(self) -> Scripts:
        self._clients.append(connect(self.job.url))
        return Scripts(self._clients[-1])

    def desk(self) -> Desk:
        """One more process that runs tasks."""
        ownership = TaskOwnership(self._scripts(), self.job.job, NAME, self.incarnation)
        return Desk(ownership, self.job.jobs.read(self.job.job).plan, self.job.graph)

    def close(self) -> None:
        for desk in self.desks:
            desk.close()
        self.reader.stop()
        for client in self._clients:
            client.close()

    def __enter__(self) -> Streamed:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def cut(self, cuts: dict[str, str]) -> None:
        """From now on plans end there, as those of a burst."""
        self.reader.stop()
        self.reader = InboxReader({**self.options, "cuts": json.dumps(cuts)})
        self.reader.wait_seconds = 0.0

    def take(self, places: Iterable[Place] | None = None, *, is_unclean: bool = False) -> None:
        """The leader gives it these partitions: all, by default."""
        job = self.job
        for place in job.places if places is None else places:
            term = int(job.client.hget(keys.meta(job.job, *place), "term")) + 1
            ticket = tickets.ticket(job.job, *place, term)
            to = (NAME, self.incarnation)
            assert job.leader.assign(job.job, job.token, place, to, term, f"n{term}", ticket, is_unclean)
        self.look()

    def look(self) -> None:
        self.member.look()
        self.beat()

    def beat(self) -> None:
        assert self.ownership.heartbeat(json.dumps(self.member.report(self.ownership))) is not None

    def plan(self) -> list[Slice]:
        """The slices of the next batch, as Spark would log them; none when there is nothing to do."""
        limit = ReadMaxRows(self.most_records) if self.most_records else ReadAllAvailable()
        found = json.loads(json.dumps(self.reader.latestOffset(self.offset, limit)))
        if found == self.offset:
            return []
        self.offset = found
        return slices_in(found)

    def run(self, slices: list[Slice], chance: random.Random | None = None) -> list[Served]:
        """A batch: each slice on one of the desks, or by chance on several, one attempt after the other."""
        self.member.begin(slices)
        served = []
        for part in slices:
            order = chance.sample(self.desks, len(self.desks)) if chance else self.desks
            for desk in order[: chance.randrange(1, len(order) + 1) if chance else 1]:
                last = desk.serve(part, 60.0)
            served.append(last)
        self.member.end(served)
        return served

    def run_until_idle(self, chance: random.Random | None = None, batches: int = 2_000) -> None:
        """Batches until nothing is left to do, while pauses end at once."""
        for _ in range(batches):
            self.now += 3600.0
            self.look()
            slices = self.plan()
            if not slices:
                return
            self.run(slices, chance)
            self.job.drain_outputs()
        raise AssertionError(f"it still plans after {batches} batches: {self.offset}")


@dataclass(frozen=True)
class Failing:
    """Tasks of which some fail: the second before its work, the fourth behind it, and the sixth in the middle, with its
    process. `folder` has a file for each attempt so far.
    """

    task: TaskSettings
    folder: str

    def serve(self, part: Slice) -> Served:
        attempt = len(list(Path(self.folder).iterdir())) + 1
        (Path(self.folder) / secrets.token_hex(8)).touch()
        if attempt == 2:
            raise RuntimeError("a task that failed before its work (by the test)")
        if attempt == 6:
            threading.Timer(0.02, lambda: os._exit(9)).start()
        served = self.task.serve(part)
        if attempt in (4, 6):
            raise RuntimeError("a task that failed behind its work (by the test)")
        return served
