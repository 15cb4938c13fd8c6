"""Which class follows which source. Libraries that are extras are imported only for the source that needs them."""

from __future__ import annotations

import time
from collections.abc import Callable

from pipeline.errors import PipelineError
from pipeline.graph import SourceSpec
from pipeline.sinks.secrets import value_of
from pipeline.sources.csvrows import growing_format
from pipeline.sources.endless import Memory, Source
from pipeline.sources.formats import JsonLinesFormat, TextFormat
from pipeline.sources.generated import Generated
from pipeline.sources.growing import GrowingFiles
from pipeline.sources.growingfile import FormatOf


def open_source(spec: SourceSpec, memory: Memory, clock: Callable[[], float] = time.monotonic) -> Source:
    """The source, not read yet. `clock` gives seconds that only grow.

    Raises EnvironmentFault for what must be installed or set first, PipelineError.
    """
    match spec.format:
        case "generator":
            assert spec.fn is not None  # read.generator gives one
            return Generated(spec.fn, spec.options["poll_seconds"])
        case "text" | "json" | "csv":
            return GrowingFiles(spec.path, growing_formats(spec), memory, spec.options["poll_seconds"], clock)
        case "sql":
            from pipeline.sources.sqlrows import SqlRows, SqlTable  # SQLAlchemy is an extra

            table = SqlTable(spec.options["table"], tuple(spec.options["columns"]))
            return SqlRows(value_of(spec.secrets["url"], "read.sql"), table, spec.options["poll_seconds"])
        case "redis_stream":
            from pipeline.sources.redisstream import (
                RedisStream,
                StreamOptions,
            )  # the store, which other sources do not need here

            url = value_of(spec.secrets["url"], "read.redis_stream")
            return RedisStream(url, StreamOptions(**spec.options))
        case "kafka":
            from pipeline.sources.kafkatopic import KafkaTopic  # confluent-kafka is an extra

            return KafkaTopic(spec, clock)
        case other:
            raise PipelineError(f"there is no source of the format {other!r} that can be followed")


def growing_formats(spec: SourceSpec) -> FormatOf:
    """How lines of files that grow become records."""
    match spec.format:
        case "text":
            return FormatOf(TextFormat())
        case "json":
            return FormatOf(JsonLinesFormat())
        case _:
            return FormatOf(None, lambda path, line: growing_format(path, line, spec.options))


def check_source(spec: SourceSpec) -> None:
    """Raises EnvironmentFault for what must be installed or set first. Asks nothing of what it reads from."""
    open_source(spec, _Nothing()).close()


class _Nothing:
    """The memory of a job that does not exist yet."""

    def splits(self) -> list[str]:
        return []

    def position(self, split: str) -> None:
        return None
