"""Gives records to the sinks that only this process serves: what is printed, databases, addresses, functions.

They come in the order of (stage, partition, number), which is the same however often a task was tried, and each batch
is a step of an owner of its own: so a database has each row once, and elsewhere the idempotency keys are stable.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from pipeline.codec import decode_batch, encode_batch
from pipeline.errors import EncodingError, RecordFailed, SinkAway
from pipeline.kernel.faults import OperatorError
from pipeline.plan import SinkPlan, StagePlan
from pipeline.positions import Position
from pipeline.records import Batch
from pipeline.sinks.effects import Effect, Owner
from pipeline.sinks.links import SinkLinks
from pipeline.spark.bulk.letters import Failure, Letter, letter_of
from pipeline.spark.bulk.rows import Row

_FIRST_AWAY_SECONDS: Final = 0.1
_MOST_AWAY_SECONDS: Final = 30.0


@dataclass(slots=True)
class Delivery:
    """The effects of one stage. `letters`: records that a place refused."""

    job: str
    made_at_ms: int
    stage: StagePlan
    links: SinkLinks
    sinks: Sequence[SinkPlan]
    note: Callable[[str], None]
    sleep: Callable[[float], None] = time.sleep
    letters: list[Letter] = field(default_factory=list)
    given: dict[str, int] = field(default_factory=dict)
    """Sink -> records that its place has taken, of all partitions."""
    skipped: int = 0

    def give(self, sink: str, rows: Iterable[Row]) -> None:
        """All rows of the sink. Waits for what is away. Raises SinkError, RecordFailed, EnvironmentFault."""
        plan = next(each for each in self.sinks if each.name == sink)
        owner: _Owned | None = None
        for row in rows:
            if owner is None or owner.partition != row.partition:
                if owner is not None:
                    owner.close()
                effects = self.links.effects([plan])
                owner = _Owned(self, sink, row.partition, effects)
            owner.take(decode_batch(row.payload))
        if owner is not None:
            owner.close()

    def wait(self, away: SinkAway, failures: int) -> None:
        pause = min(_MOST_AWAY_SECONDS, _FIRST_AWAY_SECONDS * 2 ** min(failures, 20))
        if failures == 0:
            self.note(f"waiting for a sink: {away}")
        self.sleep(max(pause, min(away.wait_seconds, _MOST_AWAY_SECONDS)))

    def settle(self, failure: Failure, partition: int, record: Batch) -> None:
        """What the policy of the stage says about a record that was refused."""
        match self.stage.on_error.then:
            case "skip":
                self.skipped += 1
            case "fail":
                raise RecordFailed(str(failure), hint="on_error says that this fails the job") from failure
            case _:
                self.letters.append(letter_of(failure, (self.stage.index, partition), encode_batch(record)))


class _Owned:
    """One partition of a sink: its steps follow each other, and their positions grow."""

    def __init__(self, delivery: Delivery, sink: str, partition: int, effects: Sequence[Effect]) -> None:
        self.partition = partition
        self._delivery = delivery
        self._sink = sink
        self._effects = effects
        # A run for each sink: a database then has a position for each, though one stage feeds them.
        run = f"{delivery.made_at_ms}-{sink}.0"
        self._owner = Owner(delivery.job, run, delivery.stage.index, partition, 1)
        self._next = 1
        self._given = 0
        self._rng = random.Random(f"{sink} {partition}")

    def take(self, batch: Batch) -> None:
        try:
            self._insist(batch)
            return
        except (EncodingError, OperatorError):
            self._take_back()
        for index in range(len(batch)):
            self._take_one(batch.slice(index, index + 1))

    def close(self) -> None:
        for effect in self._effects:
            effect.close()

    def _take_one(self, record: Batch) -> None:
        policy = self._delivery.stage.on_error
        for attempt in range(1, policy.attempts + 1):
            try:
                self._insist(record)
                return
            except (EncodingError, OperatorError) as error:
                self._take_back()
                if attempt == policy.attempts:
                    self._delivery.settle(error, self.partition, record)
                    return
                self._delivery.sleep(policy.pause_seconds(attempt, self._rng))

    def _insist(self, batch: Batch) -> None:
        """One step, again and again while its place is away."""
        failures = 0
        while True:
            try:
                self._step({self._sink: batch}, len(batch))
                return
            except SinkAway as away:
                self.close()
                self._delivery.wait(away, failures)
                failures += 1

    def _step(self, outputs: Mapping[str, Batch], records: int) -> None:
        start, end = Position(f"{self._next}-0"), Position(f"{self._next + records}-0")
        for effect in self._effects:
            effect.begin(self._owner, start, {self._sink: self._given})
        for effect in self._effects:
            effect.write(outputs)
        for effect in self._effects:
            effect.seal(start, end, 0)
        self._next += records
        self._given += records
        given = self._delivery.given
        given[self._sink] = given.get(self._sink, 0) + records

    def _take_back(self) -> None:
        for effect in self._effects:
            effect.take_back()
