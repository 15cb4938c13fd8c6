"""Makes a new job of a savepoint: checked first, filled next, and opened last, by one script."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from pipeline.errors import SavepointError
from pipeline.keying import GROUPS
from pipeline.lifecycle import JobState
from pipeline.plan import Plan
from pipeline.savepoints.manifest import STATE, Manifest
from pipeline.savepoints.matching import Matching, match
from pipeline.savepoints.moving import Facts, Inbox, Move, Placed, move_of
from pipeline.savepoints.originals import OriginalPage
from pipeline.savepoints.reading import Savepoint
from pipeline.sinks.places import FILE_FORMATS
from pipeline.store import keys
from pipeline.store.holds import Hold
from pipeline.store.restores import RestoreStore
from pipeline.store.scripts import Scripts

logger = logging.getLogger(__name__)

Placing = Callable[[Plan, Plan, Matching, Facts, Mapping[tuple[str, bytes], Hold]], Move]

_CLOSED: Final = frozenset({JobState.DRAINING.value, JobState.PUBLISHING.value, JobState.FINISHED.value})
"""States in which the inboxes are closed: what is restored from them comes to its end."""


@dataclass(frozen=True, slots=True)
class Restored:
    """What was restored. `lines`: what a person should know of it. keys: operator -> keys with state."""

    job: str
    manifest: Manifest
    keys: dict[str, int]
    in_flight: int
    lines: tuple[str, ...]


def restore_job(
    scripts: Scripts,
    savepoint: Savepoint,
    job: str,
    plan: Plan,
    *,
    allow_dropped: bool = False,
    allow_edits: bool = False,
    place: Placing = move_of,
) -> Restored:
    """The job exists, is whole and may run when this returns. Nothing of it exists when the savepoint is refused.

    `place` says what goes where.

    Raises SavepointError for a savepoint that is damaged, edited without `allow_edits` or wrongly, or that holds what
    the plan has no place for, without `allow_dropped`; JobStateError when the id is taken; StoreError.
    """
    manifest = savepoint.manifest
    edited = savepoint.check(allow_edits=allow_edits)
    matching = match(manifest.plan, plan)
    _check_dropped(matching, manifest, allow_dropped=allow_dropped)
    if edited:
        savepoint.check_rows()
    move = place(manifest.plan, plan, matching, savepoint.facts(), savepoint.holds())
    with RestoreStore(scripts, job) as store:
        store.begin(plan, savepoint.name)
        filling = _Filling(savepoint, job, plan, matching, move, store, is_edited=STATE in edited)
        filling.fill()
        store.finish(_state(manifest), {**move.job_fields(), **filling.job_fields, "restored_from": savepoint.name})
    lines = [f"edited: the table {table} is not as it was written; each of its rows was checked" for table in edited]
    lines += [f"dropped: {line}" for line in matching.dropped.values()]
    lines += [f"new: {line}" for line in matching.added]
    lines += _lines_on_sinks(manifest, plan, matching)
    logger.info("restored: job=%s savepoint=%s", job, savepoint.name)
    return Restored(job, manifest, dict(filling.keys), filling.in_flight, tuple(lines))


def _state(manifest: Manifest) -> JobState:
    return JobState.DRAINING if manifest.state in _CLOSED else JobState.RUNNING


def _check_dropped(matching: Matching, manifest: Manifest, *, allow_dropped: bool) -> None:
    if matching.dropped and not allow_dropped:
        raise SavepointError(
            f"the pipeline has no place for what the savepoint {manifest.name} holds:"
            + "".join(f"\n  - {line}" for line in matching.dropped.values()),
            hint="operators are matched by their names: give them the names that they had, or use --allow-dropped",
        )


def _lines_on_sinks(manifest: Manifest, plan: Plan, matching: Matching) -> Iterator[str]:
    for sink in plan.sinks:
        if sink.format in FILE_FORMATS:
            yield f"sink {sink.name!r} gets what comes behind the savepoint; what was before is in job {manifest.job}"
    for stream in sorted(matching.streams):
        yield f"the output {stream!r} goes on with result {manifest.outputs.get(stream, 1):,}"
    if not matching.is_same:
        yield (
            "stages or partitions are others: counts begin anew, but for what a source's stage has taken, which goes on"
            " with the numbers of its senders"
        )


class _Filling:
    """Everything that is put into the new job."""

    def __init__(
        self,
        savepoint: Savepoint,
        job: str,
        plan: Plan,
        matching: Matching,
        move: Move,
        store: RestoreStore,
        *,
        is_edited: bool,
    ) -> None:
        self._savepoint = savepoint
        self._is_edited = is_edited
        self._job = job
        self._plan = plan
        self._matching = matching
        self._move = move
        self._store = store
        self.keys: Counter[str] = Counter()
        self.in_flight = 0
        self.job_fields: dict[str, Any] = {}
        self._letters: Counter[tuple[int, int]] = Counter()

    def fill(self) -> None:
        self._fill_states()
        self._fill_timers()
        self._fill_held()
        self._fill_letters()
        self._fill_ids()
        self._fill_inboxes()
        self._store.flush()

    def _fill_states(self) -> None:
        stage_of = self._matching.operators
        for page in self._state_pages():
            self.keys.update({name: n for name, n in page.counts.items() if name in stage_of})
            for part in page.parts(stage_of):
                for group, start, stop in part.runs:
                    self._store.put_pairs(keys.state(self._job, part.stage, group), part.pairs, start, stop)

    def _state_pages(self) -> Iterator[OriginalPage]:
        if not self._is_edited:
            return self._savepoint.original_pages()
        pages = self._savepoint.state_pages()
        return (OriginalPage.of_rows(page.operators, page.groups, page.fields, page.datas) for page in pages)

    def _fill_timers(self) -> None:
        for row in self._savepoint.timers():
            stage = self._matching.operators.get(row.operator)
            if stage is not None:
                key = keys.timers(self._job, stage, row.operator, row.group)
                self._store.put("ZADD", key, (row.due, row.member))

    def _fill_held(self) -> None:
        for row in self._savepoint.held():
            stage = self._matching.stages.get(row["stage"])
            if stage is not None:
                make = keys.held if row["kind"] == "held" else keys.held_records
                self._store.put("HSET", make(self._job, stage, row["group"]), (row["field"], row["value"]))

    def _fill_letters(self) -> None:
        names = {stage.index: stage.name for stage in self._savepoint.manifest.plan.stages}
        edits = self._move.facts.get("deadedits", {})
        dropped = 0
        for id_, fields in self._savepoint.letters():
            index = self._matching.stages.get(names[int(fields[b"stage"])])
            if index is None:
                dropped += 1
                continue
            stage = self._plan.stage(index)
            partition = self._move.place_of_letter(stage, int(fields[b"partition"]), fields[b"payload"])
            self._letters[index, partition] += 1
            values: list[Any] = []
            for pair in {**fields, b"stage": index, b"partition": partition}.items():
                values += pair
            self._store.put("XADD", keys.dead(self._job), [id_, len(values), *values])
            if id_ in edits:
                self._store.put("HSET", keys.dead_edits(self._job), (id_, edits[id_]))

    def _fill_ids(self) -> None:
        for source, group, digest, seen in self._savepoint.ids():
            if source in self._matching.sources and 0 <= group < GROUPS:
                self._store.put("ZADD", keys.ids(self._job, source, group), (seen, digest))

    def _fill_inboxes(self) -> None:
        counts: Counter[tuple[int, int]] = Counter()
        if self._move.counts_first:
            for placed in self._move.entries(self._savepoint.entries()):
                counts[placed.stage, placed.partition] += placed.count
        inboxes = self._move.begin(counts)
        begun = {at: inbox.head for at, inbox in inboxes.items()}
        for placed in self._move.entries(self._savepoint.entries()):
            self._append(placed, inboxes)
        for placed in self._move.promises():
            self._append(placed, inboxes)
        hashes = self._move.hashes(inboxes, begun)
        for (stage, partition), letters in self._letters.items():
            hashes[f"meta:{stage}.{partition}"].setdefault("letters", letters)
        for name, fields in hashes.items():
            for pair in fields.items():
                self._store.put("HSET", f"{keys.of_job(self._job)}:{name}", pair)

    def _append(self, placed: Placed, inboxes: dict[tuple[int, int], Inbox]) -> None:
        at = (placed.stage, placed.partition)
        id_ = placed.id or inboxes[at].add(placed)
        values: list[Any] = ["h", placed.header]
        if placed.payload:
            values += ["d", placed.payload]
        self._store.put("XADD", keys.inbox(self._job, *at), [id_, len(values), *values])
        self.in_flight += placed.count
