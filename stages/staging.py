"""The staging files of one owned partition: written and synced before the commit that names them."""

from __future__ import annotations

from typing import Any

from pipeline.kernel.contract import Step
from pipeline.plan import Plan
from pipeline.sinks.rows import encode_rows
from pipeline.sinks.staging import StagedFacts, StagingFile
from pipeline.store import keys
from pipeline.store.commits import Write


class StagedSinks:
    """One staging file per file sink, owner's term and attempt.

    After a commit of unknown outcome `start_over` begins new files: the old ones hold bytes that may yet be committed.
    """

    def __init__(self, job: str, plan: Plan, sinks: tuple[str, ...], stage: int, partition: int, term: int) -> None:
        self._job = job
        self._plans = {sink.name: sink for sink in plan.sinks if sink.name in sinks}
        self._place = (stage, partition, term)
        self._attempt = 0
        self._files: dict[str, StagingFile] = {}
        self._committed: dict[str, StagedFacts] = {}

    def write(self, step: Step) -> list[Write]:
        """Stores the step's rows durably; what to commit of it. Raises SinkError, EncodingError.

        The steps before it have been committed.
        """
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

    def check(self, step: Step) -> None:
        """Raises EncodingError when a row of the step cannot be written. Writes nothing."""
        for sink, plan in self._plans.items():
            if sink in step.outputs:
                encode_rows(plan, step.outputs[sink])

    def take_back(self) -> None:
        """Takes out of the files what a `write` that failed has left there. Raises SinkError."""
        for sink, file in self._files.items():
            file.rewind(self._committed.get(sink))

    def start_over(self) -> None:
        """Closes the files; the next row goes to new ones."""
        for file in self._files.values():
            file.close()
        self._files = {}
        self._committed = {}
        self._attempt += 1
