"""Where a sink writes, as data. Nothing is opened here."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from pipeline.errors import PipelineError
from pipeline.graph import SinkSpec
from pipeline.sinks.secrets import checked_database, is_variable, without_secrets
from pipeline.validation import absolute_path, check_function, check_name

WRITERS: Final = ("auto", "local", "spark")
SQL_MODES: Final = ("insert", "upsert")
DELTA_MODES: Final = ("append", "overwrite")
MOST_BATCH: Final = 10_000
MOST_TIMEOUT_SECONDS: Final = 50.0
"""One request must end before its worker counts as stuck."""

LEAST_ROTATE_SECONDS: Final = 0.1

KAFKA_BATCH: Final = 10_000

_TABLE: Final = re.compile(r"[^.\0]{1,128}(\.[^.\0]{1,128})?")


def console() -> SinkSpec:
    """Prints the records of a run. At least once: a record may be printed again after a failure."""
    return SinkSpec("console")


def stream(name: str) -> SinkSpec:
    """A named stream of the job, from which other programs read. Raises PipelineError for a bad name."""
    return SinkSpec("stream", options={"name": check_name(name, "a stream")})


def text(
    path: str | os.PathLike[str], rotate_bytes: int | None = None, rotate_seconds: float | None = None
) -> SinkSpec:
    """A folder of text files, one record a line: `value`, or `key: value` on a keyed stream.

    A relative path counts from the current folder of this call. The folder appears complete, when the input
    has ended, each record in it once. With `rotate_bytes` or `rotate_seconds` part files appear in it while the job
    runs, each whole and then never changed. Raises PipelineError for an argument that cannot be right.
    """
    return SinkSpec("text", absolute_path(path, "write.text"), _rotation(rotate_bytes, rotate_seconds, "write.text"))


def jsonl(
    path: str | os.PathLike[str], rotate_bytes: int | None = None, rotate_seconds: float | None = None
) -> SinkSpec:
    """A folder of JSON Lines files. The arguments are as for `text`."""
    return SinkSpec("jsonl", absolute_path(path, "write.jsonl"), _rotation(rotate_bytes, rotate_seconds, "write.jsonl"))


def csv(path: str | os.PathLike[str], rotate_bytes: int | None = None, rotate_seconds: float | None = None) -> SinkSpec:
    """A folder of CSV files, each with a header line. The arguments are as for `text`.

    All files have the same columns, but with rotation each has those of its own rows.
    """
    return SinkSpec("csv", absolute_path(path, "write.csv"), _rotation(rotate_bytes, rotate_seconds, "write.csv"))


def parquet(path: str | os.PathLike[str], writer: str = "auto") -> SinkSpec:
    """A folder of Parquet files, written in this process ("local"), by Spark, or by what suits the amount."""
    if not isinstance(writer, str) or writer not in WRITERS:
        raise PipelineError(f"write.parquet: writer must be one of {', '.join(WRITERS)}, not {writer!r}")
    return SinkSpec("parquet", absolute_path(path, "write.parquet"), {"writer": writer})


def delta(path: str | os.PathLike[str], mode: str = "append") -> SinkSpec:
    """A Delta table: all rows of the run are added to it by one commit, when the input has ended, each once.

    mode: "append", or "overwrite", by which the same commit takes out the rows that were there before.
    A table that is there keeps its columns, and the rows must fit them; else it is made, with columns from the rows.
    Needs the extra `delta`. Raises PipelineError for an argument that cannot be right.
    """
    if not isinstance(mode, str) or mode not in DELTA_MODES:
        raise PipelineError(f"write.delta: mode must be one of {', '.join(DELTA_MODES)}, not {mode!r}")
    return SinkSpec("delta", absolute_path(path, "write.delta"), {"mode": mode})


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


def http(url: str, batch: int = 1, headers: Mapping[str, str] | None = None, timeout_seconds: float = 10.0) -> SinkSpec:
    """POSTs each record as JSON, at least once, with the header `Idempotency-Key`, the same on every retry.

    url and the values of headers may be "env:NAME" for a variable of the workers' environment.
    batch: with more than 1, a JSON array of so many {"idempotency_key", "record"} at most.
    5xx, 429 and no answer are waited out; another 4xx makes the record a dead letter.
    Raises PipelineError for an argument that cannot be right.
    """
    if not isinstance(url, str) or not (is_variable(url) or url.startswith(("http://", "https://"))):
        raise PipelineError("write.http: the address must begin with http:// or https://", hint='or be "env:NAME"')
    if not isinstance(timeout_seconds, int | float) or not 0 < timeout_seconds <= MOST_TIMEOUT_SECONDS:
        raise PipelineError(f"write.http: timeout_seconds must be above 0 and at most {MOST_TIMEOUT_SECONDS:.0f}")
    secrets = {f"header {name}": value for name, value in _texts(headers, "write.http: headers").items()}
    options = {
        "url": without_secrets(url),
        "batch": _batch(batch, "write.http"),
        "headers": sorted(headers or {}),
        "timeout_seconds": float(timeout_seconds),
    }
    return SinkSpec("http", options=options, secrets={"url": url, **secrets})


def call(fn: Callable[[list[dict[str, Any]]], Any], batch: int = 1000) -> SinkSpec:
    """Calls fn(records) in the workers, at least once: a list of {"key", "value", "idempotency_key"}.

    An OSError (ConnectionError, TimeoutError) is waited out. Any other error has the records tried one by one, and one
    that fails alone is a dead letter. Raises PipelineError for an argument that cannot be right.
    """
    check_function(fn, ("records",), "write.call")
    return SinkSpec("call", options={"batch": _batch(batch, "write.call")}, fn=fn)


def kafka(servers: str, topic: str, options: Mapping[str, str] | None = None) -> SinkSpec:
    """A Kafka topic, at least once: the record's key, its value as JSON, and the header `idempotency-key`.

    servers: "host:port" or several with commas, or "env:NAME". options: settings of librdkafka, whose values may be
    "env:NAME" as well; they are kept out of the plan. Raises PipelineError for an argument that cannot be right.
    """
    if not isinstance(servers, str) or not servers:
        raise PipelineError("write.kafka: the servers must be text such as 'host:9092'")
    if not isinstance(topic, str) or not re.fullmatch(r"[A-Za-z0-9._-]{1,249}", topic):
        raise PipelineError(f"write.kafka: {topic!r} cannot be the name of a topic")
    secrets = _texts(options, "write.kafka: options")
    plan = {"topic": topic, "servers": servers, "batch": KAFKA_BATCH, "options": sorted(secrets)}
    return SinkSpec("kafka", options=plan, secrets={**secrets, "servers": servers})


def _rotation(most_bytes: object, most_seconds: object, owner: str) -> dict[str, Any]:
    options: dict[str, Any] = {}
    if most_bytes is not None:
        if not isinstance(most_bytes, int) or isinstance(most_bytes, bool) or most_bytes < 1:
            raise PipelineError(f"{owner}: rotate_bytes must be a number of bytes, not {most_bytes!r}")
        options["rotate_bytes"] = most_bytes
    if most_seconds is not None:
        if not isinstance(most_seconds, int | float) or not LEAST_ROTATE_SECONDS <= most_seconds < float("inf"):
            raise PipelineError(
                f"{owner}: rotate_seconds must be a number of at least {LEAST_ROTATE_SECONDS}, not {most_seconds!r}"
            )
        options["rotate_seconds"] = float(most_seconds)
    return options


def _batch(batch: object, owner: str) -> int:
    if not isinstance(batch, int) or isinstance(batch, bool) or not 1 <= batch <= MOST_BATCH:
        raise PipelineError(f"{owner}: batch must be a number from 1 to {MOST_BATCH:,}, not {batch!r}")
    return batch


def _texts(given: object, owner: str) -> dict[str, str]:
    if given is None:
        return {}
    if not isinstance(given, Mapping) or not all(isinstance(text, str) for pair in given.items() for text in pair):
        raise PipelineError(f"{owner} must be a dict of texts")
    for text in given.values():
        is_variable(text)
    return dict(given)
