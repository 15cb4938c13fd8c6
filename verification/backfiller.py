"""The command of a surgical backfill in a scenario: the state of keys that went wrong is computed anew and swapped.

What Spark computes from the history is summed here. At which record the state is swapped depends on the run, so running
totals are looked at for what must be so at any: wrong by the same amount up to some record, and right from there on.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import contextmanager, suppress
from functools import partial
from itertools import groupby
from pathlib import Path
from typing import Any, Final

from pipeline import Pipeline, read, write
from pipeline.errors import CeleriacError, JobStateError, StoreError
from pipeline.operations import About, Claim, Phase
from pipeline.recomputing.computed import Computed, Given
from pipeline.recomputing.course import Course, Wanted
from pipeline.records import MAX_TIME, Timer
from pipeline.store.claims import ClaimStore
from pipeline.store.jobs import JobStore
from verification.actors import Leader, Submitter, Worker
from verification.commands import Command, Stepped, spread
from verification.world import JOB, Actor, World

_STAGE: Final = 1
_WRONG: Final = frozenset({"a", "c"})
"""Keys whose first records were counted ten times."""

_ONCE: Final[list[Any]] = [["c", 1], ["c", 2]]
"""Of a key that gets nothing after the first records: only the end of the input shows what is kept of it."""


def balances(_: Path) -> Pipeline:
    """[key, number] -> [number, total so far]; and the last total of each key, when the input has ended."""
    flow = Pipeline("verified")
    pairs = flow.source(read.producer(), name="in").key_by(lambda pair: pair[0], name="by_key")
    totals = pairs.stateful_map(_add, name="total")
    totals.sink(write.stream("out"), name="out")
    totals.last(name="last").sink(write.stream("ends"), name="ends")
    return flow


def _add(key: Any, pair: Any, total: int | None) -> tuple[list[int], int]:
    number = pair[1]
    found = (total or 0) + number * (10 if key in _WRONG and number == 1 else 1)
    return [number, found], found


def right_from_some_record_on(seen: dict[str, Any]) -> dict[str, Any]:
    return {**seen, "outputs": {**seen["outputs"], "out": {k: _told(v) for k, v in seen["outputs"]["out"].items()}}}


def _told(values: Sequence[Any]) -> Any:
    """The numbers, and by how much their totals were wrong, each amount once where it changes."""
    errors = [total - number * (number + 1) // 2 for number, total in values]
    return [number for number, _ in values], [error for error, _ in groupby(errors)]


class Backfiller(Command):
    """Swaps the state of the keys that are wrong. `history`: all that the producer sends, in its order."""

    def __init__(self) -> None:
        super().__init__("backfiller")
        self.history: Sequence[Any] = ()
        self._is_computing = False

    def has_begun(self, world: World) -> bool:
        return self._is_computing

    def end(self, world: World) -> None:
        self._is_computing = False
        super().end(world)

    def step(self, world: World) -> None:
        if world.state() is None or not any(part.taken for part in world.jobs.facts(JOB).partitions if part.stage):
            return
        record = JobStore(self.scripts).read(JOB)
        if any(past.outcome == "done" for past in record.operations):
            if record.held_back:
                return  # the leader lets go what a life before has left
            world.kept["held back"] = sorted(record.paused)
            self.is_done = True
            return
        try:
            self._swap(world)
        except CeleriacError as error:
            if not isinstance(error, StoreError | JobStateError):
                raise
        finally:
            self.end(world)

    def _swap(self, world: World) -> None:
        about = About("backfill", "by_key", by="me@here", file="flow.py", keys=len(_WRONG))
        claims = ClaimStore(self.scripts)
        claim = claims.undertake(JOB, about, Phase.RECOMPUTING)
        self.begin()
        with _ended(claims, claim):
            record = JobStore(self.scripts).read(JOB)
            Course(
                self.scripts,
                record,
                claim,
                Wanted(record.plan.stage(_STAGE), ("total", "last"), _WRONG),
                partial(self._recompute, world),
                wait_seconds=1e9,
                say=partial(claims.renew, claim),
                clock=lambda: self.seconds,
                sleep=partial(self.look, world),
            ).run()

    def _recompute(self, world: World, given: Given) -> Computed:
        """The totals of what was given by then. Others go on meanwhile."""
        records = sum(sent.records for splits in given.values() for sent in splits.values())
        last = {key: number for key, number in self.history[:records] if key in _WRONG}
        self._is_computing = True
        self.look(world)
        values = {}
        for key, number in last.items():
            total = number * (number + 1) // 2
            values.update({("total", key): total, ("last", key): [number, total]})
        return Computed(values, tuple(Timer("last", key, MAX_TIME) for key in last), records=records, seconds=1.0)


@contextmanager
def _ended(claims: ClaimStore, claim: Claim) -> Any:
    """As the command ends its operation."""
    try:
        yield
    except CeleriacError as error:
        with suppress(StoreError):
            claims.end(claim, f"given up: {error}")
        raise
    claims.end(claim, "done")


def backfilled() -> Sequence[Actor]:
    """Those who take part."""
    backfiller = Backfiller()
    first, *more = spread("ab", 1)
    second, *rest = more
    producer = Stepped([[*first, *second, *_ONCE], *rest], backfiller)
    backfiller.history = producer.values
    return Submitter(), producer, Worker(), backfiller, Leader(every=2)
