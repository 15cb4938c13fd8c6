"""A Delta table as the place of a sink, by delta-rs: the one module of the sinks that needs it. Writes no data files.

A commit names the run and the sink that it came from, as an application transaction of the Delta protocol. So whoever
publishes again sees whether it is in, and of two who publish at once the table takes one.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TypeAlias

import msgspec
import pyarrow as pa
from deltalake import CommitProperties, DeltaTable, PostCommitHookProperties, Schema, Transaction
from deltalake.exceptions import DeltaError
from deltalake.transaction import AddAction, create_table_with_add_actions

from pipeline.errors import SinkError
from pipeline.plan import SinkPlan
from pipeline.sinks.columns import ColumnType, ListOf, ObjectOf, Scalar, words
from pipeline.sinks.manifest import Part
from pipeline.sinks.places import sync_folder

LOG_NAME: Final = "_delta_log"

_WRITABLE: Final = frozenset({"appendOnly", "invariants", "changeDataFeed", "timestampNtz", "deletionVectors"})
"""Features of a table that ask nothing of who adds files. The others do: a mapping of names, checks, row ids."""

_PART_NAME: Final = re.compile(r"part-\d{5,}-[0-9a-f]{32}\.parquet")
"""Alone in a folder they are what a publisher left that died before it made the table."""

_BY_NAME: Final = 7
"""From this writer version on a table names its features one by one."""

_IDENTITY: Final = 6
"""The writer version that numbers rows."""

_NAME_REFUSED: Final = frozenset(" ,;{}()\n\t=")
"""Characters that the Delta protocol has no place for in the name of a column."""

_KEEPS_COMMIT: Final = PostCommitHookProperties(create_checkpoint=True, cleanup_expired_logs=False)

ArrowSchema: TypeAlias = Any


class _Outcome(msgspec.Struct, frozen=True):
    """What a commit of this program says of itself, below the name `celeriac` in its `commitInfo`.

    Read from the log itself: `DeltaTable.history` finds nothing where the path has a space or `#` in it.
    """

    sender: str
    files: tuple[Part, ...]


class _Info(msgspec.Struct, frozen=True):
    outcome: _Outcome | None = msgspec.field(name="celeriac", default=None)


class _Line(msgspec.Struct, frozen=True):
    """One line of a commit."""

    commit_info: _Info | None = msgspec.field(name="commitInfo", default=None)


@dataclass(frozen=True, slots=True)
class TableSink:
    """One run's part in a table. `sender` is the name of its transaction: run and sink."""

    sink: SinkPlan
    target: Path
    sender: str

    @property
    def overwrites(self) -> bool:
        return bool(self.sink.options.get("mode") == "overwrite")

    def check(self) -> None:
        """Returns when the run's rows may be committed, as far as this is known without them. Raises SinkError."""
        if not self.target.exists():
            return
        if not self.target.is_dir():
            raise SinkError(f"{self.target} is a file, and a Delta table is a folder", "give the sink another path")
        table = self._open()
        if table is not None:
            self._check_table(table)
        elif not all(_PART_NAME.fullmatch(path.name) or path.name == LOG_NAME for path in self.target.iterdir()):
            raise SinkError(
                f"the folder {self.target} is not empty and no Delta table",
                "give the sink another path, or move that folder away",
            )

    def committed(self) -> tuple[Part, ...] | None:
        """The files that this run has committed; None when it has not. Raises SinkError."""
        table = self._open()
        if table is None or table.transaction_version(self.sender) is None:
            return None
        for path in sorted((self.target / LOG_NAME).glob("*.json"), reverse=True):
            found = _outcome(path)
            if found is not None and found.sender == self.sender:
                _sync(path)
                return found.files
        return ()  # the log of that time was cleaned up: the table's checkpoint says that it is in

    def schema(self) -> ArrowSchema | None:
        """The columns of the table, in Arrow; None where there is none yet. Raises SinkError."""
        table = self._open()
        return None if table is None else pa.schema(table.schema())

    @staticmethod
    def part_name(number: int, digest: str) -> str:
        """Of 32 hex digits of its content and its run: a file of that name is never another one."""
        return f"part-{number:05d}-{digest}.parquet"

    def commit(self, parts: Sequence[Part], schema: ArrowSchema) -> None:
        """One commit with these files of the table's folder, which are durably there: all of them count, or none.

        Nothing is done when the run's commit is in already. `schema`: that of the files. Raises SinkError when the
        table refuses: also when it has other columns by now, or gets this run's commit from another one just now.
        """
        outcome = msgspec.to_builtins(_Outcome(self.sender, tuple(parts)))
        properties = CommitProperties({"celeriac": outcome}, app_transactions=[Transaction(self.sender, 1, _now_ms())])
        actions = [self._add(part) for part in parts]
        table = self._open()
        if table is not None and table.transaction_version(self.sender) is not None:
            return
        if table is not None and pa.schema(table.schema()) != schema:
            raise SinkError(f"the columns of the Delta table {self.target} were changed just now", "publish again")
        with self._faults():
            if table is None:
                create_table_with_add_actions(
                    str(self.target),
                    Schema.from_arrow(schema),
                    actions,
                    commit_properties=properties,
                    post_commithook_properties=_KEEPS_COMMIT,
                )
            else:
                table.create_write_transaction(
                    actions,
                    "overwrite" if self.overwrites else "append",
                    schema,
                    commit_properties=properties,
                    post_commithook_properties=_KEEPS_COMMIT,
                )

    def _add(self, part: Part) -> AddAction:
        modified_ms = int((self.target / part.name).stat().st_mtime * 1000)
        stats = msgspec.json.encode({"numRecords": part.records}).decode()
        return AddAction(part.name, part.bytes, {}, modified_ms, True, stats)

    def _open(self) -> DeltaTable | None:
        if not (self.target / LOG_NAME).is_dir():
            return None
        with self._faults():
            return DeltaTable(str(self.target)) if DeltaTable.is_deltatable(str(self.target)) else None

    def _check_table(self, table: DeltaTable) -> None:
        asked = _asks_too_much(table)
        if asked:
            raise SinkError(
                f"{self.target} is a Delta table with {asked}, to which this sink cannot write",
                "write to another table, and move the rows with a program that supports it",
            )
        columns = pa.schema(table.schema())
        key = self.sink.key_field
        if key is not None and key not in columns.names:
            raise SinkError(
                f"the Delta table {self.target} has no column {key!r}, and the sink's stream is keyed by it",
                f"the table has: {', '.join(columns.names)}. Key by a field of that name, or write elsewhere",
            )
        if self.overwrites and table.metadata().configuration.get("delta.appendOnly") == "true":
            raise SinkError(f"{self.target} is a Delta table to which rows can only be added", 'take mode="append"')

    @contextmanager
    def _faults(self) -> Iterator[None]:
        try:
            yield
        except (DeltaError, ValueError) as error:
            raise SinkError(
                f"the Delta table {self.target} refuses: {error}",
                "see whether another program can read and write it",
            ) from error


def _outcome(path: Path) -> _Outcome | None:
    """What a commit of this program says; None for those of others, and for one that was cleaned up just now."""
    try:
        for line in path.read_bytes().splitlines():
            if b'"celeriac"' in line:
                info = msgspec.json.decode(line, type=_Line).commit_info
                return info.outcome if info is not None else None
    except (FileNotFoundError, msgspec.MsgspecError, UnicodeDecodeError):
        return None
    return None


def _sync(commit: Path) -> None:
    """The commit survives a power cut: delta-rs does not see to that."""
    handle = os.open(commit, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
    sync_folder(commit.parent)


def check_fit(types: Mapping[str, ColumnType], schema: ArrowSchema, target: Path) -> None:
    """Returns when rows of these types can be rows of the table. Raises SinkError with the column's name."""
    for name, kind in types.items():
        if name not in schema.names:
            raise _misfit(target, name, "does not exist in it", f"it has: {', '.join(schema.names)}")
        held = schema.field(name).type
        if not _fits(kind, held, is_nested=False):
            raise _misfit(target, name, f"is {held} there, and {words(kind)} in the results", "")
    for field in schema:
        if not field.nullable and field.name not in types:
            raise _misfit(target, field.name, "may not be null, and the results have no such field", "")


def _misfit(target: Path, name: str, what: str, more: str) -> SinkError:
    return SinkError(
        f"the results cannot be rows of the Delta table {target}: the column {name!r} {what}",
        f"{more + '; ' if more else ''}change the table and go on with --job-id, which publishes what is computed, "
        "or give the rows the table's columns with .map before the sink",
    )


def _fits(kind: ColumnType, held: Any, *, is_nested: bool) -> bool:
    match kind:
        case Scalar.NOTHING:
            return True
        case Scalar.FLAG:
            return bool(pa.types.is_boolean(held))
        case Scalar.INTEGER:
            return bool(pa.types.is_signed_integer(held) or pa.types.is_floating(held))
        case Scalar.NUMBER:
            return bool(pa.types.is_floating(held))
        case Scalar.TEXT:
            is_time = pa.types.is_date(held) or pa.types.is_timestamp(held)
            return bool(pa.types.is_string(held) or pa.types.is_large_string(held) or (is_time and not is_nested))
        case ListOf(item):
            return bool(pa.types.is_list(held)) and _fits(item, held.value_type, is_nested=True)
        case ObjectOf(fields):
            if not pa.types.is_struct(held):
                return False
            inner = {field.name: field.type for field in held}
            return all(name in inner and _fits(each, inner[name], is_nested=True) for name, each in fields.items())


def _asks_too_much(table: DeltaTable) -> str:
    """What the table asks of writers that this one does not do, in words; else nothing."""
    metadata, protocol = table.metadata(), table.protocol()
    if metadata.partition_columns:
        return f"partitions (by {', '.join(metadata.partition_columns)})"
    features = set(protocol.writer_features or ()) - _WRITABLE
    if protocol.min_writer_version >= _BY_NAME and features:
        return f"the feature {', '.join(sorted(features))}"
    if protocol.min_writer_version == _IDENTITY:
        return "the writer version 6, that of identity columns"
    configuration = metadata.configuration
    if configuration.get("delta.columnMapping.mode", "none") != "none":
        return "a mapping of column names"
    checks = sorted(name for name in configuration if name.startswith("delta.constraints."))
    if checks:
        return f"checks of rows ({checks[0]})"
    for field in msgspec.json.decode(table.schema().to_json())["fields"]:
        asked = sorted(field["metadata"].keys() & {"delta.invariants", "delta.generationExpression"})
        if asked:
            return f"a rule for the column {field['name']!r} ({asked[0]})"
        if _has_required(field["type"]):
            return f"required parts in the column {field['name']!r}"
    return ""


def _has_required(kind: Any) -> bool:
    """Whether a list, struct or map has parts that may not be null. Arrow does not check those."""
    if not isinstance(kind, dict):
        return False
    match kind["type"]:
        case "struct":
            return any(not field["nullable"] or _has_required(field["type"]) for field in kind["fields"])
        case "array":
            return not kind["containsNull"] or _has_required(kind["elementType"])
        case _:
            return False


def check_names(types: Mapping[str, ColumnType], above: str = "") -> None:
    """Raises SinkError for names that columns of a Delta table cannot have. `above`: the struct that they are in."""
    seen: dict[str, str] = {}
    for name, kind in types.items():
        place = f"{above}{name}"
        if not name or _NAME_REFUSED & set(name):
            raise SinkError(
                f"{place!r} cannot be the name of a column of a Delta table",
                "names have no spaces and none of ,;{}()= in them: rename it with .map before the sink",
            )
        other = seen.setdefault(name.lower(), name)
        if other != name:
            raise SinkError(
                f"the columns {above + other!r} and {place!r} differ in case only, which a Delta table cannot hold",
                "rename one of them with .map before the sink",
            )
        inner = kind
        while isinstance(inner, ListOf):
            inner = inner.item
        if isinstance(inner, ObjectOf):
            check_names(inner.fields, f"{place}.")


def _now_ms() -> int:
    return int(time.time() * 1000)
