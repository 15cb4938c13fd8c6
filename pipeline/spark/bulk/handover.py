"""The seam from bulk to live: what a run on Spark has made, as a savepoint that a live job begins with.

A live job that is restored from it goes on with the next record of each split: senders are registered under their
names, with the number of the last record that was read. Stages begin with nothing in flight, so numbers between them
begin anew, and so do the counts of the job but for what its sources' stages have taken.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import islice
from typing import Any, Final

from pipeline.books import FORGOTTEN
from pipeline.codec import encode_state_fields, encode_values
from pipeline.errors import SavepointError
from pipeline.keying import group_of, groups_of
from pipeline.plan import STREAM_FORMATS, Plan, StagePlan, compile_plan, stream_name, stream_names
from pipeline.reading.keytext import key_text
from pipeline.savepoints.manifest import FORMAT, STATE, TABLES, Manifest, PartFile
from pipeline.savepoints.places import Draft, Place
from pipeline.savepoints.rows import state_columns
from pipeline.savepoints.tables import TableWriter
from pipeline.spark.bulk.engine import BulkRun
from pipeline.spark.bulk.letters import Letter
from pipeline.wording import counted

_EPOCH: Final = 0
_GENERATION: Final = 0
_PAGE: Final = 5_000


@contextmanager
def handed_over(run: BulkRun, place: Place, name: str) -> Iterator[Manifest]:
    """All of the savepoint but its manifest is written when the body begins; it is at the place when that has ended.

    Nothing of it is there when anything raises. `run` has computed, with `keeps_state` and without `ends_input`; in the
    body it may publish: what could refuse the savepoint has been looked at by then.

    Raises SavepointError, also when a dead letter holds its key: what is behind it would be lost, or come before it.
    """
    holding = sum(letter.holds for letter in run.facts.letters)
    if holding:
        raise SavepointError(
            f"keys are held by {counted(holding, 'dead letter')}, and a savepoint of a run on Spark has no place for"
            " what is behind them",
            hint="mend what fails, or give them up with dead_letter() in the place of hold_key(), and run it again",
        )
    draft = place.begin(name, run.job)
    try:
        manifest = _Handover(run).write(draft, name)
        yield manifest
        draft.publish(manifest.encode())
        run.keeps_copies = True
    except BaseException:
        draft.discard()
        raise


def positions(run: BulkRun) -> dict[str, dict[str, int]]:
    """Source -> split -> the number of its last record that was wanted and read; splits without one are left out.

    Of a table also, with 0, the split that says which version was read.
    """
    found = {
        source: {split: last for split, last in splits.items() if last} for source, splits in run.facts.splits.items()
    }
    for source, pin in run.pins().items():
        found.setdefault(source, {})[pin] = 0
    return found


class _Handover:
    def __init__(self, run: BulkRun) -> None:
        self._run = run
        # Its sinks are those of the pipeline, whatever the run has put in their place, and so are its stages.
        self._plan = compile_plan(run.graph, run.plan.stages[0].partitions, run.plan.limits)
        self._keys: Counter[str] = Counter()
        self._made_at_ms = int(time.time() * 1000)

    def write(self, draft: Draft, name: str) -> Manifest:
        tables: dict[str, tuple[PartFile, ...]] = {}
        for table in TABLES:
            writer = TableWriter(draft, table)
            try:
                for page in self._state_pages() if table == STATE else ():
                    writer.add_page(*page)
                for row in self._rows(table):
                    writer.add(*row)
                tables[table] = writer.close()
            except BaseException:
                writer.abandon()
                raise
        return Manifest(
            format=FORMAT,
            name=name,
            job=self._run.job,
            pipeline=self._plan.pipeline,
            fingerprint=self._plan.fingerprint,
            epoch=_EPOCH,
            at_ms=self._made_at_ms,
            generation=_GENERATION,
            state="running",
            plan=self._plan,
            tables=tables,
            outputs={stream: count + 1 for stream, count in self._outputs().items()},
            keys=dict(self._keys),
            in_flight=0,
            letters=len(self._run.facts.letters),
        )

    def _rows(self, table: str) -> Iterator[tuple[Any, ...]]:
        match table:
            case "facts":
                for hash_, fields in facts_of(self._plan, positions(self._run), self._outputs()).items():
                    yield from ((hash_, field.encode(), str(value).encode()) for field, value in fields.items())
            case "timers":
                for stage, timer in self._run.timers():
                    name = self._run.plan.stage(stage).name
                    yield name, timer.operator, group_of(timer.key), key_text(timer.key), timer.due
            case "letters":
                for number, letter in enumerate(self._run.facts.letters):
                    id_ = f"{self._made_at_ms}-{number}"
                    # A task of a source has the number of its portion, and there may be more of these.
                    live = self._live_stage(letter.stage)
                    found = _letter_fields(letter, live.index, letter.partition % live.partitions)
                    yield from ((id_, field, value) for field, value in found.items())

    def _state_pages(self) -> Iterator[tuple[Sequence[Any], ...]]:
        """The columns of the table, a page at a time."""
        states = self._run.states()
        while page := list(islice(states, _PAGE)):
            fields = encode_state_fields([row[1] for row in page], [row[2] for row in page])
            operators, texts, values, packed = state_columns(fields, encode_values([row[3] for row in page]))
            self._keys.update(operators)
            stages = [self._run.plan.stage(stage).name for stage, *_ in page]
            yield stages, operators, groups_of([row[2] for row in page]), texts, values, packed

    def _live_stage(self, index: int) -> StagePlan:
        """The stage of a live job that a stage of the run belongs to: in bulk DataFrame operators begin one each."""
        stage = self._run.plan.stage(index)
        names = {live.name: live for live in self._plan.stages}
        while stage.name not in names:
            stage = self._run.plan.stage(stage.upstream[0])
        return names[stage.name]

    def _outputs(self) -> dict[str, int]:
        """Stream -> how many results it would have had by now."""
        found = dict.fromkeys(stream_names(self._plan), 0)
        sunk = Counter[str]()
        for stage in self._run.plan.stages:
            sunk.update(self._run.facts.of_stage(stage.index).sunk)
        for sink in self._plan.sinks:
            if sink.format in STREAM_FORMATS:
                found[stream_name(sink)] += sunk[sink.name]
        return found


def facts_of(
    plan: Plan, positions: Mapping[str, Mapping[str, int]], outputs: Mapping[str, int]
) -> dict[str, dict[str, Any]]:
    """What the hashes of a job hold, as a savepoint's table of facts has it, that has read so far and is at rest."""
    found: dict[str, dict[str, Any]] = {"job": {"generation": _GENERATION, "table": 1}, "senders": {}}
    for stage, partition in plan.partitions():
        found[f"meta:{stage}.{partition}"] = {"rec": 0, "sub": 0, "bytes": 0, "term": 0}
        found[f"log:{stage}.{partition}"] = {}
    taken: Counter[tuple[int, int]] = Counter()
    number = 1
    for source in sorted(positions):
        entry = plan.entry_stage(source)
        for split, last in sorted(positions[source].items()):
            at = entry.index, number % entry.partitions
            found["senders"][f"n:{_GENERATION}/{source}/{split}"] = f"{number} {at[1]}"
            found["log:{}.{}".format(*at)] |= {str(number): last, f"e:{number}": 0}
            taken[at] += last
            number += 1
    found["senders"]["next"] = number
    for place in plan.partitions():
        count = taken[place]
        found["meta:{}.{}".format(*place)] |= {"pos": f"{count + 1}-0", "head": count, "taken": count}
    for stream, count in outputs.items():
        found[f"outmeta:{stream}"] = {"head": count, "sub": 0}
        found[f"outlog:{stream}"] = {FORGOTTEN: count}
    return found


def _letter_fields(letter: Letter, stage: int, partition: int) -> dict[bytes, bytes]:
    """As a worker writes them."""
    fields = {
        "stage": str(stage),
        "partition": str(partition),
        "operator": letter.operator,
        "error": letter.error,
        "traceback": letter.traceback,
        "kind": letter.kind,
        **({"tried": "\n".join(letter.tried)} if letter.tried else {}),
    }
    return {name.encode(): text.encode() for name, text in fields.items()} | {b"payload": letter.payload}
