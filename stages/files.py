"""The staging files of one owned partition: written and synced before the commit that names them, and rotated."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any, TypeAlias

from pipeline.plan import SinkPlan
from pipeline.records import Batch
from pipeline.sinks.places import staged_order
from pipeline.sinks.rotation import Claim, publish_part, remove_staged, remove_unnamed, rotation_of
from pipeline.sinks.rows import encode_rows
from pipeline.sinks.staging import StagedFacts, StagingFile
from pipeline.store import keys
from pipeline.store.commits import Write

LoadFacts: TypeAlias = Callable[[], Mapping[str, Sequence[bytes]]]
"""Sink -> the facts of the job's staging files that its commits name."""


@dataclass(frozen=True, slots=True)
class _Retired:
    """A file whose part is published; the next commit forgets its facts."""

    sink: str
    facts: StagedFacts


class StagedFiles:
    """One open staging file per sink. Not safe for threads.

    After a commit of unknown outcome `start_over` begins new files: the old ones hold bytes that may yet be committed.
    """

    def __init__(
        self,
        job: str,
        plans: Sequence[SinkPlan],
        place: tuple[int, int, int],
        load: LoadFacts,
        clock: Callable[[], float],
    ) -> None:
        """place: stage, partition and term."""
        self._job = job
        self._plans = {sink.name: sink for sink in plans}
        self._rotations = {name: found for name, sink in self._plans.items() if (found := rotation_of(sink))}
        self._place = place
        self._load = load
        self._clock = clock
        self._attempt = 0
        self._run = ""
        self._files: dict[str, StagingFile] = {}
        self._committed: dict[str, StagedFacts] = {}
        self._since: dict[str, float] = {}
        self._retired: list[_Retired] = []
        self._forgotten: list[_Retired] = []
        self._published: dict[str, int] = {}
        self._knows_earlier = False
        self.sync_seconds = 0.0
        """How long the disk took to make the rows of the step at hand last: much the same for few and many."""
        self.publishing: Callable[[], AbstractContextManager[None]] = nullcontext
        """Entered while a part is made: a large one takes its time, and no record is to blame."""
        self.number: Callable[[], int] | None = None
        """Where several processes write under one term: gives each file a number that is greater than all before.

        It is asked at a file's first row, so files are in the order of the commits that name them. The files of others
        under this term may grow yet: they become parts when the term has ended.
        """

    def begin(self) -> None:
        """The steps so far have been committed: what is full becomes a part. Raises SinkError, StoreError."""
        for retired in self._forgotten:
            self._published[retired.sink] = self._published.get(retired.sink, 0) + retired.facts.records
            remove_staged(self._plans[retired.sink], self._job, retired.facts.file)
        self._retired = self._retired[len(self._forgotten) :]
        self._forgotten = []
        self.sync_seconds = 0.0
        self.rotate()

    def rotate(self) -> None:
        """Publishes the files that are full, and what earlier owners left.

        Only while no written step waits for its commit. Raises SinkError, StoreError.
        """
        if self._rotations and not self._knows_earlier:
            self._publish_earlier()
            self._knows_earlier = True
        for sink, rotation in self._rotations.items():
            facts = self._committed.get(sink)
            if facts is None or sink not in self._files:
                continue
            is_full = rotation.most_bytes is not None and facts.length_bytes >= rotation.most_bytes
            if is_full or self._seconds_left(sink) == 0:
                self._files.pop(sink).close()
                self._publish(sink, self._committed.pop(sink), is_own=True)
                self._attempt += 1

    def seconds_to_rotation(self) -> float | None:
        """When `rotate` would next have something to do for a file that gets no more rows; None: never."""
        found = [left for sink in self._files if (left := self._seconds_left(sink)) is not None]
        return min(found, default=None)

    def seal(self) -> tuple[list[Write], dict[str, int]]:
        """What the commit of the step must write and log besides, to forget parts that are published."""
        self._forgotten = list(self._retired)
        if not self._forgotten:
            return [], {}
        totals: dict[str, int] = {}
        for retired in self._forgotten:
            before = totals.get(retired.sink, self._published.get(retired.sink, 0))
            totals[retired.sink] = before + retired.facts.records
        fields = [_field(retired.sink, retired.facts.file) for retired in self._forgotten]
        return [Write("HDEL", keys.files(self._job), fields)], {f"r:{sink}": total for sink, total in totals.items()}

    def write(self, outputs: Mapping[str, Batch]) -> list[Write]:
        """Stores the rows durably; what to commit of them. Raises SinkError, EncodingError."""
        values: list[Any] = []
        facts = dict(self._committed)
        for sink, plan in self._plans.items():
            batch = outputs.get(sink)
            if batch is None or not batch.values:
                continue
            file = self._files.get(sink)
            if file is None:
                number = self._attempt if self.number is None else self.number()
                file = self._files[sink] = StagingFile.create(plan, self._job, *self._place, number)
                self._since[sink] = self._clock()
            file.write(batch)
            started = self._clock()
            facts[sink] = file.sync()
            self.sync_seconds += self._clock() - started
            values += [_field(sink, facts[sink].file), facts[sink].encode()]
        self._committed = facts
        return [Write("HSET", keys.files(self._job), values)] if values else []

    def check(self, outputs: Mapping[str, Batch]) -> None:
        """Raises EncodingError when a row cannot be written. Writes nothing."""
        for sink, plan in self._plans.items():
            if sink in outputs:
                encode_rows(plan, outputs[sink])

    def take_back(self) -> None:
        """Takes out of the files what a `write` that failed has left there. Raises SinkError."""
        for sink, file in self._files.items():
            file.rewind(self._committed.get(sink))

    def start_over(self, run: str, published: Mapping[str, int]) -> None:
        """Closes the files; the next row goes to new ones. `published`: sink -> records of parts, by the log."""
        for file in self._files.values():
            file.close()
        self._files, self._committed, self._since = {}, {}, {}
        self._retired, self._forgotten = [], []
        self._run, self._published = run, dict(published)
        self._knows_earlier = False
        self._attempt += 1

    def _seconds_left(self, sink: str) -> float | None:
        rotation = self._rotations.get(sink)
        if rotation is None or rotation.most_seconds is None or sink not in self._since:
            return None
        return max(0.0, self._since[sink] + rotation.most_seconds - self._clock())

    def _publish_earlier(self) -> None:
        """Files that an earlier owner, or this one before `start_over`, left: nobody commits rows of them any more."""
        for sink, found in self._load().items():
            if sink in self._rotations:
                mine = [facts for raw in found if self._is_mine(facts := StagedFacts.decode(raw))]
                for facts in mine:
                    self._publish(sink, facts, is_own=False)
                remove_unnamed(self._plans[sink], self._job, self._place, [facts.file for facts in mine])

    def _is_mine(self, facts: StagedFacts) -> bool:
        order = staged_order(facts.file)
        return order[:2] == self._place[:2] and (self.number is None or order[2] < self._place[2])

    def _publish(self, sink: str, facts: StagedFacts, *, is_own: bool) -> None:
        if facts.records:
            with self.publishing():
                publish_part(self._plans[sink], Claim(self._job, self._run, sink), facts, is_own=is_own)
        self._retired.append(_Retired(sink, facts))


def _field(sink: str, file: str) -> str:
    return f"{sink} {'.'.join(map(str, staged_order(file)))}"
