"""The exporter of a scenario: takes a savepoint beside the work of the others, and restores it into a second job.

What a savepoint holds depends on when it was cut, so it is looked at together with what was still to come: that is
always the whole.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

from pipeline.codec import decode_batch, decode_value, split_state_field
from pipeline.errors import SavepointError
from pipeline.keying import GROUPS
from pipeline.messages import Data, decode_header
from pipeline.savepoints.export import take_savepoint
from pipeline.savepoints.places import LocalPlace
from pipeline.savepoints.reading import Savepoint
from pipeline.savepoints.restoring import restore_job
from pipeline.savepoints.tables import TableWriter, read_rows
from pipeline.store import keys
from pipeline.store.cuts import CutStore
from pipeline.store.jobs import JobStore
from pipeline.store.scripts import Scripts
from verification.world import JOB, Actor, World

AGAIN: Final = "again"
_EVERY: Final = 5
"""After so many pages of an export the others do something."""


class Exporter(Actor):
    """Begins in its round `begins`. `lines`: those of the only split of the job's source, which counts their words."""

    def __init__(self, lines: Sequence[str], begins: int) -> None:
        super().__init__("exporter")
        warm_up()
        self._lines = lines
        self._begins = begins
        self._rounds = 0
        self._tries = 0

    def start(self, world: World, scripts: Scripts) -> None:
        self._scripts = scripts

    def after_death(self, world: World) -> None:
        let_export_pass(world)

    def step(self, world: World) -> None:
        self._rounds += 1
        if self._rounds < self._begins or world.state() is None:
            return
        place = LocalPlace(world.folder / "savepoints")
        try:
            if not place.names():
                self._take(world, place)
            self._restore(world, Savepoint(place, place.names()[0]))
        except SavepointError:
            let_export_pass(world)  # what a lost reply has left of an attempt before is let go
            return
        self.is_done = True

    def _take(self, world: World, place: LocalPlace) -> None:
        self._tries += 1
        pages = 0

        def between() -> None:
            nonlocal pages
            pages += 1
            if pages % _EVERY == 0:
                world.step_others(self)

        record = JobStore(self._scripts).read(JOB)
        name = f"{JOB}-20260102-030405-{self._tries:04x}"
        take_savepoint(self._scripts, record, place, name, clock=lambda: 0.0, between=between)

    def _restore(self, world: World, savepoint: Savepoint) -> None:
        jobs = JobStore(self._scripts)
        if AGAIN in jobs.list_ids():
            jobs.erase(AGAIN)
        else:
            jobs.finish_removal(AGAIN)
        restore_job(self._scripts, savepoint, AGAIN, world.plan)
        world.kept["words of the savepoint"] = self._words(world)
        jobs.erase(AGAIN)

    def _words(self, world: World) -> dict[str, int]:
        """word -> how often it is in the restored job: counted, on its way, or still to be sent."""
        found: Counter[str] = Counter()
        groups = CutStore(world.scripts, AGAIN, world.plan)
        for key in groups.filled([keys.state(AGAIN, 1, group) for group in range(GROUPS)], "h"):
            for field, data in world.client.hgetall(key).items():
                found[split_state_field(field)[1]] += decode_value(data)
        for stage in (0, 1):
            for value in _waiting(world, stage):
                found.update(value.split() if stage == 0 else [value[0]])
        log = world.client.hgetall(keys.log(AGAIN, 0, 0))
        sent = sum(int(number) for name, number in log.items() if name.isdigit())
        for line in self._lines[sent:]:
            found.update(line.split())
        return dict(sorted(found.items()))


@cache
def warm_up() -> None:
    """The first use of pyarrow takes a second, in which a leader looks at its books once more than in later runs."""
    with TemporaryDirectory() as folder:
        place = LocalPlace(Path(folder))
        draft = place.begin("warm", JOB)
        writer = TableWriter(draft, "letters")
        writer.add("1-0", b"", b"")
        writer.close()
        draft.publish(b"{}")
        assert len(list(read_rows(place, "warm", "letters", "letters/part-00000.parquet"))) == 1


def _waiting(world: World, stage: int) -> list[Any]:
    """Records of an inbox that are not passed: values, and of a keyed stage pairs of key and value."""
    pos, rec = world.client.hmget(keys.meta(AGAIN, stage, 0), "pos", "rec")
    found: list[Any] = []
    for id_, fields in world.client.xrange(keys.inbox(AGAIN, stage, 0)):
        if isinstance(decode_header(fields[b"h"]), Data):
            batch = decode_batch(fields[b"d"])
            passed = int(rec) if id_ == pos else 0
            values = batch.values if batch.keys is None else list(zip(batch.keys, batch.values, strict=True))
            found += values[passed:]
    return found


def let_export_pass(world: World) -> None:
    """As if the time of the exporter's lease had passed."""
    if world.client.exists(keys.savepoint(JOB)):
        world.client.hset(keys.savepoint(JOB), "until", 0)
