"""A Delta table as files: those of one version, found by delta-rs, and read as Parquet files are.

What a reader of Parquet would read wrongly is refused: rows that are marked as deleted, columns under other names.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final
from urllib.parse import unquote

from pipeline.errors import EnvironmentFault, InputError
from pipeline.sources.deltarows import DeltaFormat
from pipeline.sources.parquetrows import is_supported

try:
    import pyarrow as pa
    from deltalake import DeltaTable
    from deltalake.exceptions import DeltaError
except ImportError as error:
    raise EnvironmentFault(f"reading Delta tables needs {error.name}", hint="pip install 'celeriac[delta]'") from error

_READABLE: Final = frozenset({"deletionVectors", "timestampNtz", "v2Checkpoint", "vacuumProtocolCheck"})
"""Features that change nothing about the files of a version. Deletion vectors do, where a file has one."""

_BY_NAME: Final = 3
"""From this reader version on a table names its features one by one."""


def current_version(path: str) -> int:
    """Raises InputError where there is no table that can be read."""
    with _faults(path):
        return int(DeltaTable(path).version())


def delta_files(path: str, version: int | None, columns: Sequence[str] | None) -> tuple[list[Path], DeltaFormat, int]:
    """The files of a version of the table (None: the newest), sorted, what is in them, and which version it is.

    Raises InputError for a table, version or column that is not there, and for what cannot be read as plain Parquet.
    """
    with _faults(path):
        table = DeltaTable(path, version=version)
        _check_readable(table, path)
        names = table.metadata().partition_columns
        found = pa.table(table.get_add_actions(flatten=True)).to_pylist()
        schema = pa.schema(table.schema())
    root = Path(path).absolute()
    partitions = {_file(root, row["path"]): {name: row[f"partition.{name}"] for name in names} for row in found}
    form = DeltaFormat(pa.schema(list(_fields(schema, columns, path, names))), partitions)
    return sorted(map(Path, partitions)), form, int(table.version())


def _fields(schema: Any, columns: Sequence[str] | None, path: str, partitioned: Sequence[str]) -> Iterator[Any]:
    for name in columns or schema.names:
        if name not in schema.names:
            raise InputError(f"there is no column {name!r}", hint=f"the table {path} has: {', '.join(schema.names)}")
        field = schema.field(name)
        if not is_supported(field.type):
            raise InputError(
                f"{path}: column {name!r} is of the type {field.type}, which is not supported",
                hint="choose other columns with columns=[...]",
            )
        if name in partitioned and pa.types.is_binary(field.type):
            # Writers do not agree how the log has bytes, and delta-rs gives its text for them.
            raise InputError(
                f"{path}: column {name!r} is binary, and the table is partitioned by it, which is not supported",
                hint="choose other columns with columns=[...]",
            )
        yield pa.field(name, field.type)


def _file(root: Path, logged: str) -> str:
    """Its path; in the log it is relative to the table and percent-encoded."""
    name = unquote(logged)
    if "://" in name or Path(name).is_absolute():
        raise InputError(
            f"{root} is a Delta table with files of another one ({name})",
            hint="it is a shallow clone: copy it whole, or read the table that it was made from",
        )
    return str(root / name)


def _check_readable(table: Any, path: str) -> None:
    protocol, configuration = table.protocol(), table.metadata().configuration
    if configuration.get("delta.columnMapping.mode", "none") != "none":
        raise _unreadable(path, "column mapping", "write it to a table without: its files name columns otherwise")
    unknown = sorted(set(protocol.reader_features or ()) - _READABLE)
    if protocol.min_reader_version >= _BY_NAME and unknown:
        raise _unreadable(path, f"the feature {', '.join(unknown)}", "write it to a table without, and read that")
    if "deletionVectors" in (protocol.reader_features or ()) and _has_deletions(table):
        raise _unreadable(
            path, "deletion vectors", "REORG TABLE ... APPLY (PURGE) takes them away; so does a rewrite of the table"
        )


def _has_deletions(table: Any) -> bool:
    return any(pa.record_batch(batch).num_rows for batch in table.deletion_vectors())


def _unreadable(path: str, what: str, hint: str) -> InputError:
    return InputError(f"{path} is a Delta table with {what}, which is not supported", hint=hint)


@contextmanager
def _faults(path: str) -> Iterator[None]:
    """delta-rs says by its own errors, and by general ones, what it cannot read."""
    try:
        yield
    except (DeltaError, OSError, ValueError) as error:
        raise InputError(
            f"{path} cannot be read as a Delta table: {error}",
            hint="check the path and the version; versions whose log or files were cleaned up cannot be read",
        ) from error
