"""What the data source `pipeline` may be told: its options, for what each counts, and how they are read. Pure."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any, Final

from pipeline.client import REDIS_VARIABLE
from pipeline.errors import CeleriacError, EnvironmentFault, PipelineError, ProducerError, ReadingError
from pipeline.sinks.secrets import is_variable, value_of
from pipeline.validation import suggestion

FORMAT: Final = "pipeline"


class Use(Enum):
    """What is done with the format; the value is how a person calls it."""

    RESULTS = "spark.read of results"
    STREAM = "spark.readStream"
    STATE = "spark.read of the table state"
    LETTERS = "spark.read of the table dead_letters"
    SAVEPOINT = "spark.read of the table savepoint"
    JOBS = "spark.read of the table jobs"
    WRITE = "df.write"
    WRITE_STREAM = "df.writeStream"


TABLES: Final = {
    "results": Use.RESULTS,
    "state": Use.STATE,
    "dead_letters": Use.LETTERS,
    "savepoint": Use.SAVEPOINT,
    "jobs": Use.JOBS,
}

_READS: Final = (Use.RESULTS, Use.STREAM)
_WRITES: Final = (Use.WRITE, Use.WRITE_STREAM)
_OF_JOB: Final = tuple(use for use in Use if use not in (Use.SAVEPOINT, Use.JOBS))
_OF_REDIS: Final = tuple(use for use in Use if use is not Use.SAVEPOINT)


@dataclass(frozen=True, slots=True)
class Option:
    """`default` None: it must be given. least, most: of a number. values: all that are allowed, if that is a list."""

    name: str
    uses: tuple[Use, ...]
    meaning: str
    default: str | None = ""
    values: tuple[str, ...] = ()
    least: int | None = None
    most: float = math.inf


OPTIONS: Final = (
    Option("redis", _OF_REDIS, f"address of Redis, or env:NAME for a variable with it; else {REDIS_VARIABLE} has it"),
    Option("job", _OF_JOB, "id of the job", None),
    Option("table", tuple(TABLES.values()), "what is read", "results", tuple(TABLES)),
    Option("stream", _READS, "name of the sink or stream; needed where the job has several"),
    Option("start", _READS, '"begin", the number of a result, or, for a new reader of readStream, "end"', "begin"),
    Option("reader", (Use.STREAM,), "name of the reader: the job keeps what Spark's checkpoint has not passed", None),
    Option("max_records", (Use.STREAM,), "most results in one micro-batch; 0 for all", "0", least=0),
    Option("partition_records", _READS, "results that one task reads", "250000", least=1),
    Option(
        "value_as",
        (*_READS, *_WRITES),
        "what a text column `value` holds: JSON, by default when read, or text as it is, by default when written",
        values=("json", "text"),
    ),
    Option("operator", (Use.STATE, Use.LETTERS, Use.SAVEPOINT), "only what belongs to this operator"),
    Option("partitions", (Use.STATE,), "tasks that read state", "4", least=1, most=256),
    Option("path", (Use.SAVEPOINT,), "folder of the savepoint; `load(path)` says the same", None),
    Option("source", _WRITES, "source that takes the rows; needed where the job has several"),
    Option("name", _WRITES, "what was written under it is not written again; for a stream its query's id by default"),
    Option("order_by", _WRITES, "columns, with commas, in whose order each partition's rows are, no two the same"),
    Option("frame_partitions", _WRITES, "needed with order_by: the number that repartition was given", "0", least=0),
    Option("staging", _WRITES, "instead: a folder that driver and executors share, where rows are put down first"),
    Option("key_column", _WRITES, "key, for a source that takes keys; by default `key` beside a column `value`"),
    Option("time_column", _WRITES, "event time; by default `time` beside a column `value`"),
    Option("id_column", _WRITES, "the record's own id; by default `id` beside a column `value`"),
    Option("full_timeout_seconds", _WRITES, "how long a task waits before a full inbox", "300", least=0, most=1e9),
)

_SPARKS_OWN: Final = frozenset({"checkpointlocation", "path", "queryname"})
"""What Spark hands over among the options of a streaming write."""


@dataclass(frozen=True, slots=True)
class Options:
    """Options that have been checked. `redis_url` may hold a password: it is shown nowhere."""

    use: Use
    given: Mapping[str, str]

    def __repr__(self) -> str:
        return f"Options({self.use.name}, {sorted(self.given)})"

    def text(self, name: str) -> str:
        """The option, or its default; nothing where it has none."""
        return self.given.get(name, _BY_NAME[name].default or "")

    def number(self, name: str) -> int:
        return int(float(self.text(name)))

    @property
    def redis_url(self) -> str:
        """Raises EnvironmentFault for a variable that is not set in this process."""
        return value_of(self.given.get("redis") or f"env:{REDIS_VARIABLE}", "the address of Redis")


_BY_NAME: Final = {option.name: option for option in OPTIONS}


def use_of(given: Mapping[str, str]) -> Use:
    """What a batch read is of, by the option `table`. Raises ReadingError."""
    table = {name.lower(): text for name, text in given.items()}.get("table", "results")
    if table not in TABLES:
        raise ReadingError(f"option 'table' cannot be {table!r}", hint=f"one of {', '.join(TABLES)}")
    return TABLES[table]


def parse(given: Mapping[str, str], *uses: Use) -> Options:
    """Options for one of `uses`, the first of which decides what must be there.

    Raises ReadingError or ProducerError, which name the option and what it may be.
    """
    kind = ProducerError if uses[0] in _WRITES else ReadingError
    known = {option.name: option for option in OPTIONS if set(uses) & set(option.uses)}
    found: dict[str, str] = {}
    for name, text in given.items():
        if name.lower() in known:
            found[name.lower()] = text
            _check(known[name.lower()], text, kind)
        elif not (uses[0] is Use.WRITE_STREAM and name.lower() in _SPARKS_OWN):
            raise kind(_unknown(name, uses[0]), hint=suggestion(name.lower(), list(known)))
    for option in known.values():
        if option.default is None and uses[0] in option.uses and not found.get(option.name):
            raise kind(f"{uses[0].value} needs option {option.name!r}", hint=option.meaning)
    if Use.SAVEPOINT not in uses and not found.get("redis") and not os.environ.get(REDIS_VARIABLE):
        raise kind(f"{uses[0].value} needs option 'redis'", hint=_BY_NAME["redis"].meaning)
    return Options(uses[0], found)


def _unknown(name: str, use: Use) -> str:
    if name.lower() in _BY_NAME:
        uses = ", ".join(each.value for each in _BY_NAME[name.lower()].uses)
        return f"option {name!r} does not belong to {use.value}, but to {uses}"
    return f"{use.value} has no option {name!r}"


def _check(option: Option, text: str, kind: type[CeleriacError]) -> None:
    if option.values and text not in option.values:
        raise kind(f"option {option.name!r} cannot be {text!r}", hint=f"one of {', '.join(option.values)}")
    if option.name == "redis":
        _check_variable(text, kind)
    if option.least is not None and not _is_number(text, option):
        most = "" if option.most == math.inf else f" and at most {option.most:,.0f}"
        raise kind(
            f"option {option.name!r} cannot be {text!r}", hint=f"a whole number of at least {option.least}{most}"
        )
    if option.name == "start" and text not in ("begin", "end") and not (_is_whole(text) and int(text) >= 1):
        raise kind(f"option 'start' cannot be {text!r}", hint='"begin", "end", or the number of a result: 1, 2, 3, ...')


def _check_variable(text: str, kind: type[CeleriacError]) -> None:
    try:
        if is_variable(text):
            value_of(text, "option 'redis'")
    except (PipelineError, EnvironmentFault) as error:
        raise kind(f"option 'redis': {error}", hint=error.hint) from error


def _is_number(text: str, option: Option) -> bool:
    return _is_whole(text) and option.least is not None and option.least <= int(text) <= option.most


def _is_whole(text: str) -> bool:
    return text.isascii() and text.isdecimal() and len(text) <= 15


def table_of_options() -> str:
    """For the documentation: a row for each option."""
    rows = [f"| `{each.name}` | {_used(each)} | {_shown(each)} | {each.meaning} |" for each in OPTIONS]
    return "\n".join(["| option | for | default | meaning |", "|---|---|---|---|", *rows])


def _used(option: Option) -> str:
    if set(option.uses) == set(_OF_REDIS):
        return "all but savepoints"
    if set(option.uses) == set(_OF_JOB):
        return "all but savepoints and jobs"
    return ", ".join(_SHORT[use] for use in option.uses)


def _shown(option: Option) -> str:
    values = " or ".join(f"`{value}`" for value in option.values)
    default = "needed" if option.default is None else f"`{option.default}`" if option.default else ""
    return default if not values or option.name == "table" else f"{default} {values}".strip()


_SHORT: Final[Mapping[Use, Any]] = {
    Use.RESULTS: "results",
    Use.STREAM: "readStream",
    Use.STATE: "state",
    Use.LETTERS: "dead_letters",
    Use.SAVEPOINT: "savepoint",
    Use.JOBS: "jobs",
    Use.WRITE: "write",
    Use.WRITE_STREAM: "writeStream",
}
