"""Spark as a writer of Parquet for the publisher of a sink. Publishes nothing itself."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException

from pipeline.errors import SinkError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def write_parquet_with_spark(
    session: SparkSession, staged_prefix_files: Sequence[Path], target: Path, schema: str | None = None
) -> list[Path]:
    """Writes the rows of files of JSON lines as `part-NNNNN.parquet` into `target`, and returns these.

    `schema` is DDL text; without it Spark derives one from the rows, with its columns in the order of their
    names. The order of rows holds within a piece of a file, not from piece to piece. On a cluster every
    executor must see these paths (a shared file system). Raises SinkError when Spark cannot read or write
    them. Blocks until Spark is done.
    """
    reader = session.read.option("mode", "FAILFAST")
    if schema is not None:
        reader = reader.schema(schema)
    output = target / "_spark"
    try:
        reader.json([_url(path, "glob") for path in staged_prefix_files]).write.parquet(_url(output))
    except (PySparkException, Py4JError) as error:
        raise SinkError(
            f"Spark could not write {target}: {str(error).strip().splitlines()[0]}",
            "look at Spark's log; the sink's option writer='local' does without Spark",
        ) from error
    written = sorted(output.glob("part-*.parquet"))
    made = [_settle(path, target / f"part-{number:05d}.parquet") for number, path in enumerate(written)]
    shutil.rmtree(output)
    return made


def _url(path: Path, kind: str = "plain") -> str:
    """The path as Hadoop reads it: nothing percent-encoded, and backslashes before pattern signs."""
    text = re.sub(r"([\\*?\[\]{}])", r"\\\1", str(path)) if kind == "glob" else str(path)
    return f"file://{text}"


def _settle(path: Path, final: Path) -> Path:
    with path.open("rb") as file:
        os.fsync(file.fileno())
    return path.rename(final)
