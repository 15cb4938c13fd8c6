"""Publishes rows as files of a Delta table: they come into its folder whole, and then one commit names them all."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pipeline.errors import SinkError
from pipeline.sinks.columns import column_types
from pipeline.sinks.committed import CommittedFile
from pipeline.sinks.delta_table import TableSink, check_fit, check_names
from pipeline.sinks.manifest import Part
from pipeline.sinks.parquet_file import arrow_schema, write_fitted
from pipeline.sinks.parts import write_synced
from pipeline.sinks.places import make_folder, sync_folder


def publish_to_table(table: TableSink, files: Sequence[CommittedFile], folder: Path) -> list[Part]:
    """The table has the rows of these files, each once, when this returns. `folder` beside it is for unfinished files.

    May be repeated, also beside another one that does the same. Files that no commit names are nothing to readers.
    A run without rows commits nothing, unless it overwrites a table. Raises SinkError, OSError.
    """
    types = column_types(files)
    schema = table.schema()
    if not files and (schema is None or not table.overwrites):
        return []
    if schema is None:
        check_names(types)
        schema = arrow_schema(types)
    else:
        check_fit(types, schema, table.target)
    parts = _moved(table, files, folder, schema)
    try:
        table.commit(parts, schema)
    except (SinkError, OSError):
        # Another publisher of this run may have been first, or the commit is in and what follows it failed.
        if table.committed() is None:
            raise
    done = table.committed()
    if done is None:
        raise SinkError(f"the commit to {table.target} is not in the table's log", "publish again")
    return list(done)


def _moved(table: TableSink, files: Sequence[CommittedFile], folder: Path, schema: Any) -> list[Part]:
    make_folder(table.target)
    parts = []
    for number, file in enumerate(files):
        path = folder / f"part-{number:05d}.parquet"
        size = write_synced(path, lambda out, file=file: write_fitted(out, file, schema))  # type: ignore[misc]
        name = table.part_name(number, _digest(table.sender, path))
        path.rename(table.target / name)
        parts.append(Part(name, file.records, size))
    sync_folder(table.target)
    return parts


def _digest(sender: str, path: Path) -> str:
    """Of the run and the content, so that a file may be put there again any time."""
    digest = hashlib.sha256(sender.encode())
    with path.open("rb") as file:
        while chunk := file.read(1 << 20):
            digest.update(chunk)
    return digest.hexdigest()[:32]
