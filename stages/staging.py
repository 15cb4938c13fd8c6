"""The sinks of one owned partition: files are written and synced, effects made, before the commit that counts them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager

from pipeline.errors import EncodingError
from pipeline.kernel.contract import Step
from pipeline.kernel.faults import OperatorError
from pipeline.plan import STREAM_FORMATS, SinkPlan
from pipeline.positions import Position
from pipeline.sinks.effects import Bound, Effect, Owner
from pipeline.sinks.places import FILE_FORMATS
from pipeline.store.commits import Commit, Write
from pipeline.store.ownership import Acquired, Assigned
from stages.files import LoadFacts, StagedFiles


class StagedSinks:
    """All sinks of one partition but output streams. Its steps follow each other, each committed before the next."""

    def __init__(
        self,
        job: str,
        row: Assigned,
        plans: Sequence[SinkPlan],
        effects: Sequence[Effect],
        load: LoadFacts,
        clock: Callable[[], float],
    ) -> None:
        self._job = job
        self._place = (row.stage, row.partition, row.term)
        self.names = tuple(sink.name for sink in plans if sink.format not in STREAM_FORMATS)
        """Of the sinks that are kept here."""
        plans = [sink for sink in plans if sink.format in FILE_FORMATS]
        self._files = StagedFiles(job, plans, self._place, load, clock)
        self._effects = effects
        self._owner = Owner(job, "", *self._place)
        self._given: dict[str, int] = {}
        self._counted: dict[str, int] = {}

    @property
    def has_effects(self) -> bool:
        """Then a step holds only records that all sinks took: one that fails is a step of its own."""
        return bool(self._effects)

    @property
    def sync_seconds(self) -> float:
        """As that of `StagedFiles`."""
        return self._files.sync_seconds

    def tell_publishing(self, publishing: Callable[[], AbstractContextManager[None]]) -> None:
        """`publishing` is entered while a file becomes a part."""
        self._files.publishing = publishing

    def number_files(self, number: Callable[[], int]) -> None:
        """As `StagedFiles.number`."""
        self._files.number = number

    def begin(self, position: Position) -> Bound | None:
        """A step begins here, and those before it have been committed; where it must end, if effects say so.

        Raises SinkAway, SinkError, StoreError.
        """
        self._given = self._counted
        self._files.begin()
        bounds = [effect.begin(self._owner, position, self._given) for effect in self._effects]
        return min((bound for bound in bounds if bound), key=lambda bound: bound.end.order, default=None)

    def seal(self, commit: Commit, timers: int) -> None:
        """The effects of the step last when this returns; adds to its commit. Raises SinkAway, SinkError."""
        for effect in self._effects:
            effect.seal(commit.start, commit.end, timers)
        changed = {sink: count for sink, count in self._counted.items() if count != self._given.get(sink)}
        commit.log.update({f"n:{sink}": count for sink, count in changed.items()})
        writes, log = self._files.seal()
        commit.writes += writes
        commit.log.update(log)

    def write(self, step: Step) -> list[Write]:
        """Stores the step's rows durably; what to commit of it. Raises SinkError, EncodingError.

        Effects are made but for `seal`.
        """
        self._counted = dict(self._given)
        for effect in self._effects:
            effect.write(step.outputs)
            for sink in effect.sinks:
                if sink in step.outputs:
                    self._counted[sink] = self._given.get(sink, 0) + len(step.outputs[sink])
        return self._files.write(step.outputs)

    def check(self, step: Step) -> None:
        """Raises EncodingError when a row of the step, which is one record's, cannot be written; then none is."""
        self._files.check(step.outputs)
        for number, effect in enumerate(self._effects):
            try:
                effect.check(step.outputs)
            except (EncodingError, OperatorError):
                for earlier in self._effects[:number]:
                    earlier.undo()
                raise

    def take_back(self) -> None:
        """Takes back what a `write` that failed has left. Raises SinkError."""
        self._files.take_back()
        self._counted = dict(self._given)
        for effect in self._effects:
            effect.take_back()

    def rotate(self) -> float | None:
        """Publishes files that are full by now, of an owner without a step in hand; in how many seconds to ask again.

        Raises SinkError, StoreError.
        """
        self._files.rotate()
        return self._files.seconds_to_rotation()

    def start_over(self, acquired: Acquired) -> None:
        """Forgets all, and goes on from what Redis knows: the next rows go to new files."""
        self.close()
        self._owner = Owner(self._job, acquired.run, *self._place, acquired.restored_end)
        self._given = self._counted = dict(acquired.given)
        self._files.start_over(acquired.run, acquired.published)

    def close(self) -> None:
        """What is not committed does not exist."""
        for effect in self._effects:
            effect.close()
        self._files.start_over("", {})
