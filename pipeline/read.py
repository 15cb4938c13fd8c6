"""What a source reads, as data. Nothing is opened here: a missing file is found when the pipeline runs."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

from pipeline.addresses import checked_address
from pipeline.errors import PipelineError
from pipeline.graph import SourceSpec
from pipeline.plan import PRODUCER_FORMAT
from pipeline.sinks.secrets import is_variable, without_secrets
from pipeline.sources.jdbcaddress import URL, is_jdbc, shown_url
from pipeline.validation import absolute_path, check_function, checked_seconds, is_unicode, suggestion

READERS: Final = ("auto", "local", "spark")
TYPES: Final = ("int", "float", "text")
ON_LOST: Final = ("fail", "continue")
KAFKA_VALUES: Final = ("json", "text", "bytes")

POLL_SECONDS: Final = 0.25

ID_SECONDS: Final = 86_400
ID_COUNT: Final = 1_000_000
_MOST_ID_SECONDS: Final = 366 * 86_400
_MOST_IDS: Final = 1_000_000_000


def text(
    path: str | os.PathLike[str],
    reader: str = "auto",
    *,
    follow: bool = False,
    poll_seconds: float = POLL_SECONDS,
) -> SourceSpec:
    """The lines of a file, of the files of a folder, or of all files that a glob matches, as text.

    `reader` is "local" (plain Python), "spark", or "auto": Spark where there is much to read.
    A relative path counts from the current folder of this call. Raises PipelineError for a bad argument.

    follow: the files grow, are rotated, and new ones come: the job runs until it is drained. docs/sources.md says how
    they are known again. `poll_seconds` is then how often they are looked at.
    """
    options = {"reader": _reader(reader, "read.text"), **_following(follow, poll_seconds, reader, "read.text")}
    return SourceSpec("text", absolute_path(path, "read.text"), options)


def csv(
    path: str | os.PathLike[str],
    columns: Sequence[str] | None = None,
    delimiter: str = ",",
    null_values: Sequence[str] = ("", "NA"),
    types: Mapping[str, str] | None = None,
    reader: str = "auto",
    *,
    follow: bool = False,
    poll_seconds: float = POLL_SECONDS,
) -> SourceSpec:
    """The rows of CSV files with a header line, as dicts. `path`, `reader`, `follow`, `poll_seconds` are as for `text`.

    columns: the columns to keep, all by default.
    null_values: texts that are read as None.
    types: column -> "int", "float" or "text", for columns whose type must not be inferred. With `follow` nothing is
    inferred, since the rows are not there yet: the other columns are text.
    """
    wanted = _columns(columns, "read.csv")
    options = {
        "columns": wanted,
        "delimiter": _delimiter(delimiter),
        "null_values": _texts(null_values, "null_values", "read.csv"),
        "types": _types(types, wanted),
        "reader": _reader(reader, "read.csv"),
        **_following(follow, poll_seconds, reader, "read.csv"),
    }
    return SourceSpec("csv", absolute_path(path, "read.csv"), options)


def json(
    path: str | os.PathLike[str],
    reader: str = "auto",
    *,
    follow: bool = False,
    poll_seconds: float = POLL_SECONDS,
) -> SourceSpec:
    """The values of JSON Lines files: one JSON value a line. The arguments are as for `text`."""
    options = {"reader": _reader(reader, "read.json"), **_following(follow, poll_seconds, reader, "read.json")}
    return SourceSpec("json", absolute_path(path, "read.json"), options)


def parquet(path: str | os.PathLike[str], columns: Sequence[str] | None = None, reader: str = "auto") -> SourceSpec:
    """The rows of Parquet files, as dicts of the chosen columns. `path` and `reader` are as for `text`."""
    options = {"columns": _columns(columns, "read.parquet"), "reader": _reader(reader, "read.parquet")}
    return SourceSpec("parquet", absolute_path(path, "read.parquet"), options)


def delta(path: str | os.PathLike[str], version: int | None = None, columns: Sequence[str] | None = None) -> SourceSpec:
    """The rows of a version of a Delta table, as dicts of the chosen columns. Needs the extra `delta`.

    version: by default the newest one when the job begins; a job that goes on stays with it.
    Values are as for `parquet`. Raises PipelineError for a bad argument.
    """
    if version is not None and (not isinstance(version, int) or isinstance(version, bool) or version < 0):
        raise PipelineError(f"read.delta: version must be a number from 0 on, not {version!r}")
    options = {"version": version, "columns": _columns(columns, "read.delta")}
    return SourceSpec("delta", absolute_path(path, "read.delta"), options)


def iterable(items: list[Any] | tuple[Any, ...] | range | Callable[[], Iterable[Any]]) -> SourceSpec:
    """The values of a list, tuple or range, or of the fresh iterable that a function makes at each call.

        read.iterable(range(10))
        read.iterable(lambda: (n * n for n in range(10)))

    A retry reads again and must meet the same values in the same order.
    Raises PipelineError for what can be read only once, or has no order.
    """
    if isinstance(items, list | tuple | range):
        fixed = tuple(items) if isinstance(items, list) else items
        return SourceSpec("iterable", items=lambda: fixed)
    if isinstance(items, Iterator):
        raise PipelineError(
            f"read.iterable: a {type(items).__name__} can be read only once, and a retry reads again",
            hint="give a list, or a function without parameters that makes a fresh iterable at each call",
        )
    if not callable(items):
        raise PipelineError(
            f"read.iterable: cannot read a {type(items).__name__} again in the same order",
            hint="give a list, tuple or range, or a function without parameters that makes an iterable",
        )
    check_function(items, (), "read.iterable")
    return SourceSpec("iterable", items=items)


def producer(with_keys: bool = False, id_seconds: int = ID_SECONDS, id_count: int = ID_COUNT) -> SourceSpec:
    """The records that applications send with `pipeline.producer.Producer`. It has no end: the job runs until drained.

    with_keys: each value is a dict {"key": ..., "value": ...}; else it is the value that was sent, and the key it was
    sent with only decides which records keep their order.
    id_seconds, id_count: how long, and how many, ids that records were sent with are remembered, to drop the records
    that come again. The bound of time or the bound of number, whichever is met first.
    Raises PipelineError for a bad argument.
    """
    options = {
        "with_keys": _flag(with_keys, "with_keys", "read.producer"),
        "id_seconds": _whole(id_seconds, "id_seconds", _MOST_ID_SECONDS),
        "id_count": _whole(id_count, "id_count", _MOST_IDS),
    }
    return SourceSpec(PRODUCER_FORMAT, "", options)


def generator(fn: Callable[[Any], Iterable[tuple[Any, Any]]], poll_seconds: float | None = 1.0) -> SourceSpec:
    """The values that a function makes, which can go on where it stopped: fn(position) -> pairs (position, value).

        def tickets(position):
            for ticket in api.tickets(after=position or 0):
                yield ticket["id"], ticket

        read.generator(tickets)

    The position is a JSON value of at most 4 KB, None at the first call. It is stored with its record, and after a
    restart fn is called with the newest one: it must then give what follows, and the same each time.
    poll_seconds: the pause before fn is called again when it has ended. None: its end is the end of the source.
    Raises PipelineError for a bad argument.
    """
    check_function(fn, ("position",), "read.generator")
    seconds = None if poll_seconds is None else checked_seconds(poll_seconds, "poll_seconds", "read.generator")
    return SourceSpec("generator", options={"poll_seconds": seconds}, fn=fn)


def sql(url: str, table: str, column: str | Sequence[str], *, poll_seconds: float = 1.0) -> SourceSpec:
    """The rows of a table, or of a query (any text with a space in it), as dicts, in the order of a column that grows.

        read.sql("env:ORDERS_DB", "orders", column="id")
        read.sql("sqlite:///shop.db", "SELECT * FROM orders WHERE paid", column=["updated_at", "id"])

    url: an SQLAlchemy address, or "env:NAME" for what that variable holds where the source is read. It enters neither
    the plan nor Redis.
    column: its value must be unique and must grow with each new row; several columns do that together. Of a table this
    is checked when reading begins. Rows where it is NULL are not read.
    Raises PipelineError for a bad argument.
    """
    address = checked_address(url, "read.sql", '"postgresql://user:password@host/name"')
    columns = [column] if isinstance(column, str) else _columns(column, "read.sql")
    if not columns or not all(columns):
        raise PipelineError(f"read.sql: column must name one or more columns, not {column!r}")
    options = {
        "url": without_secrets(address),
        "table": _text(table, "table", "read.sql"),
        "columns": columns,
        "poll_seconds": checked_seconds(poll_seconds, "poll_seconds", "read.sql"),
    }
    return SourceSpec("sql", options=options, secrets={"url": address})


def jdbc(
    url: str,
    table: str,
    *,
    staging: str | os.PathLike[str],
    properties: Mapping[str, str] | None = None,
    driver: str | None = None,
    partition_column: str | None = None,
    lower: int | str | None = None,
    upper: int | str | None = None,
    partitions: int = 1,
) -> SourceSpec:
    """The rows of a table, or of a query (any text with a space in it), as dicts, read by Spark through JDBC.

        read.jdbc("jdbc:postgresql://host/shop", "orders", staging="/data/staging",
                  properties={"user": "shop", "password": "env:SHOP_PASSWORD"})

    Spark copies the rows once into Parquet files below the folder `staging`, and those are what the job reads, whatever
    becomes of the table: they go with the job. All hosts of Spark, and whoever feeds the job, must see that folder.
    url: a JDBC address, or "env:NAME" for what that variable holds where it is read.
    properties: what the driver and Spark's JDBC reader are given (user, password, fetchsize, ...); "env:NAME" as for
    the address. Neither they nor what is secret in the address enter the plan or Redis.
    driver: its class, needed with a jar that goes to Spark by --conf spark.jars=/path/driver.jar.
    partition_column, lower, upper, partitions: read by so many queries at once, each for a range of that column, which
    holds numbers, dates or times. The bounds only cut the ranges: rows beyond them are read, too.
    Raises PipelineError for a bad argument.
    """
    owner = "read.jdbc"
    address = _jdbc_address(url)
    secrets = _settings(properties, "properties", owner, {"password": "env:SHOP_PASSWORD"})
    for name in secrets:
        if name.lower() in _JDBC_ARGUMENTS:
            raise PipelineError(f"{owner}: {name!r} is no property here", hint=_JDBC_ARGUMENTS[name.lower()])
    options = {
        "url": shown_url(address),
        "table": _text(table, "table", owner),
        "staging": absolute_path(staging, owner),
        "driver": None if driver is None else _text(driver, "driver", owner),
        "ranges": _ranges(partition_column, lower, upper, partitions),
    }
    return SourceSpec("jdbc", options=options, secrets={**secrets, URL: address})


_JDBC_ARGUMENTS: Final = {
    "url": "it is the first argument",
    "dbtable": "the table is the second argument",
    "query": "the query is the second argument",
    "driver": "give driver=...",
    "partitioncolumn": "give partition_column=...",
    "lowerbound": "give lower=...",
    "upperbound": "give upper=...",
    "numpartitions": "give partitions=...",
    "prefertimestampntz": "times without a zone count as UTC",
}
"""Options of Spark's reader that are given otherwise."""

_MOST_JDBC_PARTITIONS: Final = 1_000


def _jdbc_address(url: object) -> str:
    hint = 'for example "jdbc:postgresql://host/shop", or "env:NAME" for what that variable holds'
    if not isinstance(url, str) or not is_unicode(url) or "\0" in url:
        raise PipelineError("read.jdbc: the address must be text", hint=hint)
    if not is_variable(url) and not is_jdbc(url):
        raise PipelineError("read.jdbc: the address does not begin with jdbc: and the name of a driver", hint=hint)
    return url


def _ranges(column: object, lower: object, upper: object, partitions: object) -> list[Any] | None:
    """Column, bounds and number; None where one query reads all."""
    if not isinstance(partitions, int) or isinstance(partitions, bool) or not 1 <= partitions <= _MOST_JDBC_PARTITIONS:
        raise PipelineError(
            f"read.jdbc: partitions must be a number from 1 to {_MOST_JDBC_PARTITIONS:,}, not {partitions!r}"
        )
    given = [column, lower, upper]
    if column is None and lower is None and upper is None:
        if partitions > 1:
            raise PipelineError("read.jdbc: several partitions need partition_column, lower and upper")
        return None
    if any(each is None for each in given):
        raise PipelineError("read.jdbc: partition_column, lower and upper go together")
    for name, bound in (("lower", lower), ("upper", upper)):
        if not isinstance(bound, int | str) or isinstance(bound, bool):
            raise PipelineError(
                f"read.jdbc: {name} must be a whole number, or a date or time as text, not {bound!r}",
                hint='as lower=1, or lower="2026-01-01"',
            )
    return [_text(column, "partition_column", "read.jdbc"), str(lower), str(upper), partitions]


def redis_stream(
    url: str, key: str, *, with_ids: bool = False, on_lost: str = "fail", poll_seconds: float = 0.1
) -> SourceSpec:
    """The entries of a Redis stream, from its first one on, as dicts of text (bytes where they are no UTF-8).

    url: redis://, rediss:// or unix://, or "env:NAME" for what that variable holds where it is read.
    with_ids: each value is {"id": "1700000000000-0", "value": {...}}. The event time is that of the id in any case.
    on_lost: what happens when entries were trimmed before they were read: "fail" ends the job, "continue" logs it.
    Raises PipelineError for a bad argument.
    """
    owner = "read.redis_stream"
    address = checked_address(url, owner, '"redis://user:password@host:6379/0"')
    options = {
        "url": without_secrets(address),
        "key": _text(key, "key", owner),
        "with_ids": _flag(with_ids, "with_ids", owner),
        "on_lost": _on_lost(on_lost, owner),
        "poll_seconds": checked_seconds(poll_seconds, "poll_seconds", owner),
    }
    return SourceSpec("redis_stream", options=options, secrets={"url": address})


def kafka(
    servers: str,
    topic: str,
    *,
    values: str = "json",
    with_keys: bool = False,
    on_lost: str = "fail",
    config: Mapping[str, str] | None = None,
    poll_seconds: float = 0.1,
) -> SourceSpec:
    """The messages of a Kafka topic, from its oldest ones on. Each topic partition keeps its order.

    servers: `host:port,host:port`.
    values: "json", "text" or "bytes". What is no JSON becomes a dead letter.
    with_keys: each value is {"key": ..., "value": ...}; the key is text, or bytes where it is no UTF-8.
    on_lost: what happens when messages were deleted before they were read: "fail" ends the job, "continue" logs it.
    config: more settings of librdkafka (security.protocol, sasl.password, ...); "env:NAME" stands for what that
    variable holds where the source is read. They enter neither the plan nor Redis.
    Raises PipelineError for a bad argument.
    """
    owner = "read.kafka"
    if values not in KAFKA_VALUES:
        raise PipelineError(f"{owner}: values must be one of {', '.join(KAFKA_VALUES)}, not {values!r}")
    options = {
        "servers": _text(servers, "servers", owner),
        "topic": _text(topic, "topic", owner),
        "values": values,
        "with_keys": _flag(with_keys, "with_keys", owner),
        "on_lost": _on_lost(on_lost, owner),
        "poll_seconds": checked_seconds(poll_seconds, "poll_seconds", owner),
    }
    return SourceSpec(
        "kafka", options=options, secrets=_settings(config, "config", owner, {"security.protocol": "SSL"})
    )


def _settings(given: object, field: str, owner: str, example: dict[str, str]) -> dict[str, str]:
    """Names and values that go to a library; a value may be the name of a variable."""
    if given is None:
        return {}
    if isinstance(given, Mapping) and all(isinstance(part, str) for pair in given.items() for part in pair):
        return dict(given)
    raise PipelineError(f"{owner}: {field} must be a dict of text", hint=f"{field}={example!r}")


def _on_lost(on_lost: object, owner: str) -> str:
    if isinstance(on_lost, str) and on_lost in ON_LOST:
        return on_lost
    raise PipelineError(f"{owner}: on_lost must be one of {', '.join(ON_LOST)}, not {on_lost!r}")


def _flag(flag: object, field: str, owner: str) -> bool:
    if isinstance(flag, bool):
        return flag
    raise PipelineError(f"{owner}: {field} must be True or False, not {flag!r}")


def _text(value: object, field: str, owner: str) -> str:
    if isinstance(value, str) and value.strip() and is_unicode(value) and "\0" not in value:
        return value
    raise PipelineError(f"{owner}: {field} must be text, not {value!r}")


def _whole(number: object, field: str, most: int) -> int:
    if isinstance(number, int) and not isinstance(number, bool) and 1 <= number <= most:
        return number
    raise PipelineError(f"read.producer: {field} must be a whole number from 1 to {most:,}, not {number!r}")


def _following(follow: object, poll_seconds: object, reader: str, owner: str) -> dict[str, Any]:
    """The options of a source that is followed; none for one that is not."""
    if not isinstance(follow, bool):
        raise PipelineError(f"{owner}: follow must be True or False, not {follow!r}")
    seconds = checked_seconds(poll_seconds, "poll_seconds", owner)
    if not follow:
        return {}
    if reader == "spark":
        raise PipelineError(f"{owner}: files that are followed are not read by Spark", hint="leave reader= out")
    return {"follow": True, "poll_seconds": seconds}


def _reader(reader: object, owner: str) -> str:
    if isinstance(reader, str) and reader in READERS:
        return reader
    raise PipelineError(f"{owner}: reader must be one of {', '.join(READERS)}, not {reader!r}")


def _delimiter(delimiter: object) -> str:
    if isinstance(delimiter, str) and re.fullmatch(r'[^\r\n"\0\ud800-\udfff]', delimiter):
        return delimiter
    raise PipelineError(f"read.csv: delimiter must be one character, no quote or line end, not {delimiter!r}")


def _columns(columns: object, owner: str) -> list[str] | None:
    if columns is None:
        return None
    names = _texts(columns, "columns", owner)
    if not names or "" in names or len(set(names)) < len(names):
        raise PipelineError(f"{owner}: columns must name one or more columns, each once, not {columns!r}")
    return names


def _texts(values: object, field: str, owner: str) -> list[str]:
    """The values as a list. A single text is refused too: it is a sequence of its letters."""
    if isinstance(values, list | tuple) and all(isinstance(each, str) and is_unicode(each) for each in values):
        return list(values)
    raise PipelineError(f"{owner}: {field} must be a list of text, not {values!r}", hint=f"{field}=['a', 'b']")


def _types(types: object, columns: list[str] | None) -> dict[str, str] | None:
    if types is None:
        return None
    if not isinstance(types, Mapping):
        raise PipelineError(f"read.csv: types must be a dict, not {types!r}", hint="types={'distance': 'float'}")
    for column, kind in types.items():
        if not isinstance(column, str) or not is_unicode(column):
            raise PipelineError(f"read.csv: types names the column {column!r}; a column's name is text")
        if not isinstance(kind, str) or kind not in TYPES:
            raise PipelineError(f"read.csv: types must be of {', '.join(TYPES)}; {column!r} has {kind!r}")
        if columns is not None and column not in columns:
            raise PipelineError(
                f"read.csv: types names the column {column!r}, which is not among columns",
                hint=suggestion(column, columns),
            )
    return dict(sorted(types.items()))  # the order is part of the plan's fingerprint
