"""The sinks of one owned partition: files are written and synced, effects made, before the commit that counts them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from pipeline.errors import EncodingError
from pipeline.kernel.contract import Step
from pipeline.kernel.faults import OperatorError
from pipeline.plan import SinkPlan
from pipeline.positions import Position
from pipeline.sinks.effects import Bound, Effect, Owner
from pipeline.sinks.places import FILE_FORMATS
from pipeline.sinks.rows import encode_rows
from pipeline.sinks.staging import StagedFacts, StagingFile
from pipeline.store import keys
from pipeline.store.commits import Write


class StagedSinks:
    """One staging file per file sink, owner's term and attempt; and the effects of all other sinks.

    After a commit of unknown outcome `start_over` begins new files: the old ones hold bytes that may yet be committed.
    """

    def __init__(
        self, job: str, plans: Sequence[SinkPlan], stage: int, partition: int, term: int, effects: Sequence[Effect] = ()
    ) -> None:
        self._job = job
        self._plans = {sink.name: sink for sink in plans if sink.format in FILE_FORMATS}
        self._effects = effects
        self._owner = Owner(job, "", stage, partition, term)
        self._given: dict[str, int] = {}
        self._counted: dict[str, int] = {}
        self._place = (stage, partition, term)
        self._attempt = 0
        self._files: dict[str, StagingFile] = {}
        self._committed: dict[str, StagedFacts] = {}

    @property
    def has_effects(self) -> bool:
        """Then a step holds only records that all sinks took: one that fails is a step of its own."""
        return bool(self._effects)

    def begin(self, position: Position) -> Bound | None:
        """A step begins here, and those before it have been committed; where it must end, if effects say so.

        Raises SinkAway, SinkError.
        """
        self._given = self._counted
        bounds = [effect.begin(self._owner, position, self._given) for effect in self._effects]
        return min((bound for bound in bounds if bound), key=lambda bound: bound.end.order, default=None)

    def seal(self, start: Position, end: Position, timers: int) -> dict[str, int]:
        """The effects of the step last when this returns; what to write into the log. Raises SinkAway, SinkError."""
        for effect in self._effects:
            effect.seal(start, end, timers)
        return {f"n:{sink}": count for sink, count in self._counted.items() if count != self._given.get(sink)}

    def write(self, step: Step) -> list[Write]:
        """Stores the step's rows durably; what to commit of it. Raises SinkError, EncodingError.

        Effects are made but for `seal`.
        """
        self._write_effects(step)
        values: list[Any] = []
        facts = dict(self._committed)
        for sink, plan in self._plans.items():
            batch = step.outputs.get(sink)
            if batch is None or not batch.values:
                continue
            file = self._files.get(sink)
            if file is None:
                file = self._files[sink] = StagingFile.create(plan, self._job, *self._place, self._attempt)
            file.write(batch)
            facts[sink] = file.sync()
            values += [f"{sink} {'.'.join(map(str, self._place))}.{self._attempt}", facts[sink].encode()]
        self._committed = facts
        return [Write("HSET", keys.files(self._job), values)] if values else []

    def _write_effects(self, step: Step) -> None:
        self._counted = dict(self._given)
        for effect in self._effects:
            effect.write(step.outputs)
            for sink in effect.sinks:
                if sink in step.outputs:
                    self._counted[sink] = self._given.get(sink, 0) + len(step.outputs[sink])

    def check(self, step: Step) -> None:
        """Raises EncodingError when a row of the step, which is one record's, cannot be written; then none is."""
        for sink, plan in self._plans.items():
            if sink in step.outputs:
                encode_rows(plan, step.outputs[sink])
        for number, effect in enumerate(self._effects):
            try:
                effect.check(step.outputs)
            except (EncodingError, OperatorError):
                for earlier in self._effects[:number]:
                    earlier.undo()
                raise

    def take_back(self) -> None:
        """Takes out of the files what a `write` that failed has left there. Raises SinkError."""
        for sink, file in self._files.items():
            file.rewind(self._committed.get(sink))
        self._counted = dict(self._given)
        for effect in self._effects:
            effect.take_back()

    def start_over(self, run: str = "", given: Mapping[str, int] | None = None) -> None:
        """Closes the files; the next row goes to new ones. `given`: sink -> records that the log counts for it."""
        for effect in self._effects:
            effect.close()
        self._owner = Owner(self._job, run, *self._place)
        self._given = self._counted = dict(given or {})
        for file in self._files.values():
            file.close()
        self._files = {}
        self._committed = {}
        self._attempt += 1
