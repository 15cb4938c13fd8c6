"""Writes a savepoint beside the running job, as its exporter: cut, tables, manifest. The job waits for nothing."""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, Final

from pipeline.errors import DecodingError, SavepointError, StoreError
from pipeline.facts import JobRecord
from pipeline.keying import GROUPS
from pipeline.lifecycle import JobState
from pipeline.plan import StagePlan, stream_names
from pipeline.savepoints.manifest import FORMAT, TABLES, Manifest, PartFile
from pipeline.savepoints.places import Place
from pipeline.savepoints.rows import state_columns, timer_row
from pipeline.savepoints.tables import TableWriter
from pipeline.store import keys
from pipeline.store.cuts import Cut, CutStore, Kind, Page
from pipeline.store.scripts import Scripts

logger = logging.getLogger(__name__)

_HOLD_SECONDS: Final = 2.0
"""How often the lease is renewed, and commits are told what they need not keep any more."""


def take_savepoint(
    scripts: Scripts,
    record: JobRecord,
    place: Place,
    name: str,
    *,
    ends: JobState | None = None,
    shadow: str = "",
    clock: Callable[[], float] = time.monotonic,
    between: Callable[[], None] = lambda: None,
) -> Manifest:
    """The savepoint is at the place, whole, when this returns. The job goes on, or enters the state `ends` at the cut.
    With `shadow` (its token) the job's shadow begins there.

    `between` is called after each page. Raises SavepointLost when it was given up, SavepointError, NotQuiet,
    StoreError; then nothing of it is left, and nothing is kept for it.
    """
    place.prepare()
    store = CutStore(scripts, record.job, record.plan, record.table)
    cut = store.cut(name, ends, shadow)
    logger.info("cut: job=%s epoch=%d savepoint=%s", record.job, cut.epoch, name)
    try:
        draft = place.begin(name, record.job)
        try:
            exporter = _Exporter(store, record, cut, clock, between)
            manifest = exporter.write(draft, name)
            store.hold(cut)
            draft.publish(manifest.encode())
        except BaseException:
            draft.discard()
            raise
    finally:
        with suppress(StoreError):  # whoever comes next, or the leader, lets it go
            store.let_go(cut)
    return manifest


class _Exporter:
    """Reads one cut and writes its tables."""

    def __init__(
        self, store: CutStore, record: JobRecord, cut: Cut, clock: Callable[[], float], between: Callable[[], None]
    ) -> None:
        self._store = store
        self._job = record.job
        self._plan = record.plan
        self._cut = cut
        self._clock = clock
        self._between = between
        self._held_at = clock()
        self._through: list[str] = []
        self._keys: Counter[str] = Counter()
        self._in_flight = 0
        self._letters = 0
        self._outputs = dict.fromkeys(stream_names(record.plan), 1)

    def write(self, draft: Any, name: str) -> Manifest:
        record = self._store.record()
        tables: dict[str, tuple[PartFile, ...]] = {}
        for table in TABLES:
            writer = TableWriter(draft, table)
            try:
                if table == "state":
                    for columns in self._state_pages():
                        writer.add_page(*columns)
                for row in self._rows(table, record):
                    writer.add(*row)
                tables[table] = writer.close()
            except BaseException:
                writer.abandon()
                raise
            self._tick(is_due=True)
        return Manifest(
            format=FORMAT,
            name=name,
            job=self._job,
            pipeline=self._plan.pipeline,
            fingerprint=self._plan.fingerprint,
            epoch=self._cut.epoch,
            at_ms=self._cut.at_ms,
            generation=int(record["generation"]),
            state=record["state"].decode(),
            plan=self._plan,
            tables=tables,
            outputs=self._outputs,
            keys=dict(self._keys),
            in_flight=self._in_flight,
            letters=self._letters,
        )

    def _rows(self, table: str, record: dict[str, bytes]) -> Iterator[tuple[Any, ...]]:
        match table:
            case "facts":
                yield from self._facts(record)
            case "in_flight":
                yield from self._entries()
            case "timers":
                for stage in self._plan.stages:
                    yield from self._timers(stage)
            case "held":
                for stage in self._plan.stages:
                    if stage.on_error.holds_keys:
                        yield from self._held(stage)
            case "letters":
                for id_, fields in self._store.letters():
                    self._letters += 1
                    yield from ((id_, field, value) for field, value in fields.items())
            case "ids":
                yield from self._ids()

    def _facts(self, record: dict[str, bytes]) -> Iterator[tuple[str, bytes, bytes]]:
        for name, value in record.items():
            if name != "plan":
                yield "job", name.encode(), value
        for key, field, value in self._store.facts():
            if key.startswith("meta:") and field in (b"head", b"pos", b"rec"):
                self._in_flight += _records(field, value)
            if key.startswith("outmeta:") and field == b"head":
                self._outputs[key.removeprefix("outmeta:")] = int(value) + 1
            yield key, field, value

    def _entries(self) -> Iterator[tuple[str, int, str, str, bytes]]:
        for stage, partition in self._plan.partitions():
            for id_, header, payload in self._store.in_flight(stage, partition):
                yield self._plan.stage(stage).name, partition, id_, header.decode("utf-8", "replace"), payload
            self._store.hold(self._cut, inboxes=[(stage, partition)])
            self._between()

    def _state_pages(self) -> Iterator[tuple[Sequence[Any], ...]]:
        """The columns of the table, a page at a time."""
        for stage in self._plan.stages:
            if not stage.keyed:
                continue
            for group, page in self._pages(partial(keys.state, self._job, stage.index), "h"):
                try:
                    operators, texts, values, packed = state_columns(page.names, page.values)
                except DecodingError as error:
                    raise SavepointError(f"the state of stage {stage.name!r} cannot be read: {error}") from error
                self._keys.update(operators)
                yield [stage.name] * len(texts), operators, [group] * len(texts), texts, values, packed

    def _timers(self, stage: StagePlan) -> Iterator[tuple[Any, ...]]:
        for operator in [each.operator for each in self._plan.states if each.stage == stage.index]:
            for group, page in self._pages(partial(keys.timers, self._job, stage.index, operator), "z"):
                for member in page.names:
                    name, text, due = timer_row(member)
                    yield stage.name, name, group, text, due

    def _held(self, stage: StagePlan) -> Iterator[tuple[Any, ...]]:
        for kind, make in (("held", keys.held), ("heldrecords", keys.held_records)):
            for group, page in self._pages(partial(make, self._job, stage.index), "h"):
                yield from ((stage.name, group, kind, field, value) for field, value in page.found)

    def _pages(self, make: Callable[[int], str], kind: Kind) -> Iterator[tuple[int, Page]]:
        """(key group, page) of all groups; what has been read to its end need not be kept any more."""
        groups = {make(group): group for group in range(GROUPS)}
        for page in self._store.at_cut(list(groups), kind):
            yield groups[page.key], page
            if page.is_last:
                self._through.append(page.key)
            self._tick(is_due=len(self._through) >= GROUPS // 8)

    def _ids(self) -> Iterator[tuple[str, int, bytes, int]]:
        for source in self._plan.sources:
            names = {keys.ids(self._job, source.name, group): group for group in range(GROUPS)}
            for group in [names[name] for name in self._store.filled(list(names), "z")]:
                for digest, seen in self._store.ids_at_cut(source.name, group, self._cut):
                    yield source.name, group, digest, seen
                self._tick()

    def _tick(self, *, is_due: bool = False) -> None:
        self._between()
        if is_due or self._clock() - self._held_at >= _HOLD_SECONDS:
            self._store.hold(self._cut, self._through)
            self._through = []
            self._held_at = self._clock()


def _records(field: bytes, value: bytes) -> int:
    """What a field of a partition adds to the records that it has not passed: its head less its position."""
    match field:
        case b"head":
            return int(value)
        case b"pos":
            return 1 - int(value.partition(b"-")[0])
        case _:
            return -int(value)
