"""Where a sink writes, as data. Nothing is opened here."""

from __future__ import annotations

import os
from typing import Final

from pipeline.errors import PipelineError
from pipeline.graph import SinkSpec
from pipeline.validation import absolute_path, check_name

WRITERS: Final = ("auto", "local", "spark")


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
