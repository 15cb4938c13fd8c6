"""Where a sink writes, as data. Nothing is opened here."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from typing import Final

from pipeline.errors import PipelineError
from pipeline.graph import SinkSpec
from pipeline.sinks.secrets import checked_database, without_secrets
from pipeline.validation import absolute_path, check_name

WRITERS: Final = ("auto", "local", "spark")
SQL_MODES: Final = ("insert", "upsert")

_TABLE: Final = re.compile(r"[^.\0]{1,128}(\.[^.\0]{1,128})?")


def console() -> SinkSpec:
    """Prints the records of a run. At least once: a record may be printed again after a failure."""
    return SinkSpec("console")


def stream(name: str) -> SinkSpec:
    """A named stream of the job, from which other programs read. Raises PipelineError for a bad name."""
    return SinkSpec("stream", options={"name": check_name(name, "a stream")})


def text(path: str | os.PathLike[str]) -> SinkSpec:
    """A folder of text files, one record a line: `value`, or `key: value` on a keyed stream.

    A relative path counts from the current folder of this call. The folder appears complete, when the input
    has ended, each record in it once. Raises PipelineError for a bad path.
    """
    return SinkSpec("text", absolute_path(path, "write.text"))


def jsonl(path: str | os.PathLike[str]) -> SinkSpec:
    """A folder of JSON Lines files. `path` is as for `text`."""
    return SinkSpec("jsonl", absolute_path(path, "write.jsonl"))


def csv(path: str | os.PathLike[str]) -> SinkSpec:
    """A folder of CSV files, each with a header line. `path` is as for `text`."""
    return SinkSpec("csv", absolute_path(path, "write.csv"))


def parquet(path: str | os.PathLike[str], writer: str = "auto") -> SinkSpec:
    """A folder of Parquet files, written in this process ("local"), by Spark, or by what suits the amount."""
    if not isinstance(writer, str) or writer not in WRITERS:
        raise PipelineError(f"write.parquet: writer must be one of {', '.join(WRITERS)}, not {writer!r}")
    return SinkSpec("parquet", absolute_path(path, "write.parquet"), {"writer": writer})


def sql(
    url: str, table: str, key: str | Sequence[str] | None = None, mode: str = "insert", create: bool = False
) -> SinkSpec:
    """Rows of a table in SQLite or PostgreSQL, each record once: rows and position go in one transaction.

    url: "sqlite:///file.db", "postgresql://user:password@host/name", or "env:NAME" for a variable of the workers'
    environment. A password stays in the processes that load the pipeline.
    table: it may name its schema, as in "sales.orders". It must exist, unless `create` has it made from the first rows.
    mode: "insert", or "upsert", which replaces the row of the same `key`, one column or several.
    Raises PipelineError for an argument that cannot be right.
    """
    secret = checked_database(url, "write.sql")
    if not isinstance(table, str) or not _TABLE.fullmatch(table):
        raise PipelineError(
            f"write.sql: {table!r} cannot be the name of a table", hint="give 'table' or 'schema.table'"
        )
    if not isinstance(mode, str) or mode not in SQL_MODES:
        raise PipelineError(f"write.sql: mode must be one of {', '.join(SQL_MODES)}, not {mode!r}")
    names = [key] if isinstance(key, str) else list(key or [])
    if not all(isinstance(name, str) and name for name in names) or len(set(names)) < len(names):
        raise PipelineError(f"write.sql: key must be the name of a column or a list of such names, not {key!r}")
    if mode == "upsert" and not names:
        raise PipelineError("write.sql: an upsert needs a key", hint='name the columns that tell rows apart: key="id"')
    options = {"url": without_secrets(secret), "table": table, "key": names, "mode": mode, "create": bool(create)}
    return SinkSpec("sql", options=options, secrets={"url": secret})
