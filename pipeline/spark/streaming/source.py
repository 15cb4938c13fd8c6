"""The inboxes of a job as a streaming source of Spark: it plans batches and hands out slices, one for each task.

It reads no records: the task that works on a slice reads them with its commits, in the same round trips. It runs in a
Python process of its own beside the driver and knows what Redis says: the assignment table, the heads and positions of
inboxes, and what the driver has said of itself in its heartbeat.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final

from pipeline.errors import EnvironmentFault, StoreError
from pipeline.spark.streaming.planning import read_standing
from pipeline.spark.streaming.slices import NOTHING, Slice, Standing, next_offset, planned, read_cuts, slices_in
from pipeline.store.connection import connect
from pipeline.store.jobs import JobStore
from pipeline.store.ownership import Ownership
from pipeline.store.scripts import Scripts

try:
    from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition
    from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow
except ImportError as error:
    raise EnvironmentFault("the streaming engine needs PySpark 4.2", hint="pip install 'celeriac[spark]'") from error

FORMAT: Final = "celeriac_inboxes"

COLUMNS: Final = "stage int, partition int, token string, start string, stop string, records long"

WAIT_SECONDS: Final = 0.2
"""So long a plan is waited for before Spark is told that there is nothing; it asks again at once."""

_LOOK_SECONDS: Final = 0.01
_AWAY_SECONDS: Final = 0.1


class Inboxes(DataSource):
    """For `spark.dataSource.register`.

    Options: job, worker, incarnation, records (the most of a slice; 0: no bound), cuts (JSON: partition -> position,
    from which on it gets no slice), begins_empty (yes: the first batch has no slice, so that nobody waits for what
    Spark does once), and address, a file that holds that of Redis, as options are shown in plans.
    """

    @classmethod
    def name(cls) -> str:
        return FORMAT

    def schema(self) -> str:
        return COLUMNS

    def streamReader(self, schema: Any) -> InboxReader:  # noqa: N802
        return InboxReader(dict(self.options))


class SlicePartition(InputPartition):
    def __init__(self, part: Slice) -> None:
        super().__init__(None)
        self.part = part


class InboxReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Plans for one incarnation of one worker. While Redis is away there is nothing new: it never fails by that."""

    def __init__(self, options: dict[str, str]) -> None:
        self._job, self._worker = options["job"], options["worker"]
        self._incarnation, self._most = options["incarnation"], int(options.get("records", "0"))
        self._address = options["address"]
        self._cuts = read_cuts(options.get("cuts", "{}"))
        self._begins_empty = options.get("begins_empty") == "yes"
        self.wait_seconds = WAIT_SECONDS
        self._ownership: Ownership | None = None
        self._stages: dict[str, int] = {}
        self._ends: dict[tuple[int, int], Any] | None = None

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802
        return NOTHING

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        return ReadMaxRows(self._most) if self._most else ReadAllAvailable()

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        """What is in the inboxes now is all that is taken."""
        self._ends = {place: each.end for place, each in self._standing().backlogs.items()}

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802
        """The next batch as an offset; `start` itself when there is nothing to do."""
        if self._begins_empty and start == NOTHING:
            return next_offset(start, [], [])
        most = limit.max_rows if isinstance(limit, ReadMaxRows) else 0
        until = time.monotonic() + self.wait_seconds
        while True:
            try:
                standing = self._standing()
            except StoreError:
                time.sleep(_AWAY_SECONDS)
                return start
            slices = planned(standing, frozenset(start.get("known", ())), most or 1 << 60, self._cuts)
            slices = [each for each in slices if self._is_wanted(each)]
            if slices:
                return next_offset(start, slices, standing.rows)
            if time.monotonic() >= until or self._ends is not None:
                return start
            time.sleep(_LOOK_SECONDS)

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """The same slices for the same offset, whenever it is asked."""
        return [SlicePartition(each) for each in slices_in(end)]

    def read(self, partition: InputPartition) -> Iterator[tuple[Any, ...]]:
        if isinstance(partition, SlicePartition):
            yield as_row(partition.part)

    def stop(self) -> None:
        if self._ownership is not None:
            self._ownership.scripts.client.close()

    def __getstate__(self) -> dict[str, Any]:
        """What tasks need: the connection stays here."""
        return {**self.__dict__, "_ownership": None}

    def _is_wanted(self, part: Slice) -> bool:
        return self._ends is None or (
            part.place in self._ends and part.reach.start.order < self._ends[part.place].order
        )

    def _standing(self) -> Standing:
        """Raises StoreError."""
        return read_standing(self._live(), self._stage)

    def _stage(self, name: str) -> int:
        if name not in self._stages:
            plan = JobStore(self._live().scripts).read(self._job).plan
            self._stages = {stage.name: stage.index for stage in plan.stages}
        return self._stages.get(name, -1)

    def _live(self) -> Ownership:
        if self._ownership is None:
            scripts = Scripts(connect(Path(self._address).read_text(encoding="utf-8")))
            self._ownership = Ownership(scripts, self._job, self._worker, self._incarnation)
        return self._ownership


def as_row(part: Slice) -> tuple[Any, ...]:
    reach = part.reach
    return part.stage, part.partition, part.token, str(reach.start), str(reach.stop), reach.records
