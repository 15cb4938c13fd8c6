"""What a job holds, as frames: live state, dead letters, the state of a savepoint; and the jobs of a Redis."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from datetime import UTC, datetime
from typing import Any, Final

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, EqualNullSafe, EqualTo, Filter, In, InputPartition
from pyspark.sql.pandas.types import to_arrow_schema

from pipeline.codec import decode_value
from pipeline.errors import DecodingError, EncodingError, ReadingError, UnknownJob
from pipeline.keying import GROUPS, group_of
from pipeline.plan import StatePlan
from pipeline.reading.choosing import choose_stage, states_of
from pipeline.reading.keytext import key_text, parse_key
from pipeline.reading.live import result_of
from pipeline.savepoints.manifest import STATE
from pipeline.savepoints.reading import Savepoint
from pipeline.savepoints.rows import hide, show
from pipeline.savepoints.tables import read_rows
from pipeline.spark.datasource.columns import exact_json
from pipeline.spark.datasource.faults import told
from pipeline.spark.datasource.options import Options, Use
from pipeline.spark.datasource.results import scripts_of
from pipeline.store.jobs import JobStore
from pipeline.store.letters import DeadLetter, LetterStore
from pipeline.store.states import load_keys, scan_states

STATE_SCHEMA: Final = (
    "stage STRING, operator STRING, `group` INT, key STRING, value STRING, packed BINARY, result STRING"
)
LETTER_SCHEMA: Final = (
    "id STRING, time TIMESTAMP, stage INT, partition INT, operator STRING, kind STRING, error STRING, traceback STRING,"
    " key STRING, value STRING, packed BINARY, event_time TIMESTAMP, attempts INT, replay_of STRING, is_edited BOOLEAN,"
    " holds_key BOOLEAN, behind BIGINT"
)
JOB_SCHEMA: Final = (
    "job STRING, pipeline STRING, state STRING, reason STRING, made_at TIMESTAMP, changed_at TIMESTAMP, generation INT"
)
SCHEMAS: Final = {
    Use.STATE: STATE_SCHEMA,
    Use.SAVEPOINT: STATE_SCHEMA,
    Use.LETTERS: LETTER_SCHEMA,
    Use.JOBS: JOB_SCHEMA,
}

_PAGE_ROWS: Final = 5_000


class Piece(InputPartition):
    """What one task reads: key groups of a stage, keys alone, files of a savepoint, or all of a small table."""

    def __init__(self, groups: Sequence[int] = (), keys: Sequence[str] = (), paths: Sequence[str] = ()) -> None:
        super().__init__(None)
        self.groups, self.keys, self.paths = groups, keys, paths


class TableReader(DataSourceReader):
    """Rows of one table. Subclasses give them as tuples, in the order of the columns."""

    def __init__(self, options: Options, schema: Any) -> None:
        self.options = options
        self._schema = schema

    def partitions(self) -> Sequence[InputPartition]:
        return [Piece()]

    def read(self, partition: InputPartition) -> Iterator[Any]:
        """Arrow batches of bounded size; whatever was opened is closed at the end."""
        schema = to_arrow_schema(self._schema, timezone="UTC")
        rows: list[Sequence[Any]] = []
        with told():
            for row in self.rows(partition):
                rows.append(row)
                if len(rows) >= _PAGE_ROWS:
                    yield _table(rows, schema)
                    rows = []
            if rows:
                yield _table(rows, schema)

    def rows(self, partition: Any) -> Iterator[Sequence[Any]]:
        raise NotImplementedError


class StateReader(TableReader):
    """Live state, each key as of its partition's last commit, read in several tasks."""

    def __init__(self, options: Options, schema: Any) -> None:
        """Raises ReadingError for an operator that there is not, UnknownJob, StoreError."""
        super().__init__(options, schema)
        self.wanted: tuple[str, ...] | None = None
        with told(), scripts_of(options) as scripts:
            plan = JobStore(scripts).read(options.text("job")).plan
        name = options.text("operator")
        states = choose_stage(plan, options.text("job"), name)[1] if name else states_of(plan)
        self._states = [(plan.stage(state.stage).name, state) for state in states]

    def partitions(self) -> Sequence[InputPartition]:
        if self.wanted is not None:
            return [Piece(keys=self.wanted)]
        count = self.options.number("partitions")
        return [Piece(groups=range(GROUPS)[GROUPS * n // count : GROUPS * (n + 1) // count]) for n in range(count)]

    def rows(self, partition: Any) -> Iterator[Sequence[Any]]:
        if not isinstance(partition, Piece):
            return
        job = self.options.text("job")
        with scripts_of(self.options) as scripts:
            JobStore(scripts).state(job)
            for index in sorted({state.stage for _, state in self._states}):
                known = {state.operator: (name, state) for name, state in self._states if state.stage == index}
                found = (
                    load_keys(scripts.client, job, index, list(known), keys_of(partition.keys))
                    if self.wanted is not None
                    else scan_states(scripts.client, job, index, partition.groups)
                )
                for group, operator, key, data in found:
                    if operator in known:
                        yield state_columns(*known[operator], group, key_text(key), data)


class SavepointReader(TableReader):
    """The state of a savepoint, a file a task. Every task must see the folder."""

    def __init__(self, options: Options, schema: Any) -> None:
        """Raises SavepointError, ReadingError for an operator that there is not."""
        super().__init__(options, schema)
        self.wanted: tuple[str, ...] | None = None
        with told():
            savepoint = Savepoint.at(options.text("path"))
            plan, name = savepoint.manifest.plan, options.text("operator")
            states = choose_stage(plan, savepoint.manifest.job, name)[1] if name else states_of(plan)
            self._states = {state.operator: state for state in states}
            self._paths = savepoint.place.files(savepoint.name, STATE)

    def partitions(self) -> Sequence[InputPartition]:
        return [Piece(paths=[path]) for path in self._paths]

    def rows(self, partition: Any) -> Iterator[Sequence[Any]]:
        if not isinstance(partition, Piece):
            return
        savepoint = Savepoint.at(self.options.text("path"))
        wanted = None if self.wanted is None else set(self.wanted)
        for path in partition.paths:
            for page in read_rows(savepoint.place, savepoint.name, STATE, path):
                for row in page:
                    state = self._states.get(row["operator"])
                    if state is not None and (wanted is None or row["key"] in wanted):
                        value, packed = row["value"], row["packed"]
                        result = _result(state, decode_value(hide(value, packed)))
                        yield row["stage"], row["operator"], row["group"], row["key"], value, packed, result


class LetterReader(TableReader):
    """The dead letters, oldest first, as they are when they are read."""

    def __init__(self, options: Options, schema: Any) -> None:
        """Raises UnknownJob, StoreError."""
        super().__init__(options, schema)
        with told(), scripts_of(options) as scripts:
            JobStore(scripts).read(options.text("job"))

    def rows(self, partition: Any) -> Iterator[Sequence[Any]]:
        wanted = self.options.text("operator")
        with scripts_of(self.options) as scripts:
            for letter in LetterStore(scripts, JobStore(scripts).read(self.options.text("job"))).read():
                if not wanted or letter.operator == wanted:
                    yield _letter_columns(letter)


class JobsReader(TableReader):
    """The jobs of a Redis, oldest first; one that is removed meanwhile is left out."""

    def rows(self, partition: Any) -> Iterator[Sequence[Any]]:
        with scripts_of(self.options) as scripts:
            store = JobStore(scripts)
            for job in store.list_ids():
                try:
                    record = store.read(job)
                except UnknownJob:
                    continue
                made, changed = _instant(record.made_at_ms), _instant(record.changed_at_ms)
                about = (job, record.plan.pipeline, record.state.value, record.reason)
                yield *about, made, changed, record.generation


class PushedKeys:
    """Equality and IN on the column `key`, taken over from Spark: only those keys are fetched. To be mixed in."""

    wanted: tuple[str, ...] | None

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:  # noqa: N802
        """Those that Spark has still to apply."""
        left = []
        for each in filters:
            found = keys_in(each)
            if found is None:
                left.append(each)
            else:
                known = found if self.wanted is None else [key for key in self.wanted if key in set(found)]
                self.wanted = tuple(known)
        return left


class PushingStateReader(PushedKeys, StateReader):
    """Live state of few keys without a scan."""


class PushingSavepointReader(PushedKeys, SavepointReader):
    """State of a savepoint, of these keys."""


READERS: Final = {
    Use.STATE: StateReader,
    Use.SAVEPOINT: SavepointReader,
    Use.LETTERS: LetterReader,
    Use.JOBS: JobsReader,
}
PUSHING: Final = {**READERS, Use.STATE: PushingStateReader, Use.SAVEPOINT: PushingSavepointReader}


def keys_in(condition: Filter) -> list[str] | None:
    """The keys, as text, that a condition allows; None for one on something else."""
    match condition:
        case EqualTo(attribute=("key",), value=str(key)) | EqualNullSafe(attribute=("key",), value=str(key)):
            return [key]
        case In(attribute=("key",), value=values):
            return list(dict.fromkeys(key for key in values if isinstance(key, str)))
    return None


def keys_of(texts: Sequence[str]) -> list[Any]:
    """The keys whose text in the column is one of these; another writing of a key is no row of it."""
    found = []
    for text in texts:
        try:
            key = parse_key(text)
            group_of(key)
        except (ReadingError, EncodingError):
            continue
        if key_text(key) == text:
            found.append(key)
    return found


def state_columns(stage: str, state: StatePlan, group: int, key: str, data: bytes) -> Sequence[Any]:
    """A row as in the table of a savepoint, with what the operator makes of its state. Raises DecodingError."""
    shown = show(data)
    return stage, state.operator, group, key, shown.value, shown.packed, _result(state, decode_value(data))


def _result(state: StatePlan, raw: Any) -> str | None:
    """JSON, or nothing where JSON has no form for it."""
    texts, _ = exact_json([result_of(state, raw)])
    return None if texts[0] is None else texts[0].decode()


def _letter_columns(letter: DeadLetter) -> Sequence[Any]:
    key = value = packed = event_time = None
    try:
        batch = letter.record()
        [text], rest = exact_json(batch.values)
        value, packed = (None if text is None else text.decode()), (rest[0] if rest else None)
        key = None if batch.keys is None or batch.keys[0] is None else key_text(batch.keys[0])
        event_time = None if batch.times is None else _instant(batch.times[0])
    except (DecodingError, ValueError):
        packed = letter.payload  # the bytes that could not be read
    at = _instant(int(letter.id.partition("-")[0]))
    about = (letter.id, at, letter.stage, letter.partition, letter.operator, letter.kind, letter.error)
    more = (len(letter.tried), letter.replay_of or None, bool(letter.edited), letter.holds, letter.behind)
    return *about, letter.traceback, key, value, packed, event_time, *more


def _table(rows: Sequence[Sequence[Any]], schema: Any) -> Any:
    columns = [pa.array(column, field.type) for column, field in zip(zip(*rows, strict=True), schema, strict=True)]
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def _instant(ms: int) -> datetime | None:
    """None for a time that no calendar of Python has."""
    try:
        return datetime.fromtimestamp(ms / 1000, UTC)
    except (OverflowError, ValueError, OSError):
        return None
