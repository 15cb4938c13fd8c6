"""Reads a whole source into a feed and completes it, with the reader that suits: plain Python or Spark."""

from __future__ import annotations

import logging
from typing import Final

from pipeline.errors import InputError
from pipeline.graph import SourceSpec
from pipeline.sources.feed import FeedAddress, SourceSummary
from pipeline.sources.layout import FileInput, open_files
from pipeline.sources.local import read_items, read_locally
from pipeline.sources.splits import SPLIT_BYTES
from pipeline.sources.versions import pinned

LOCAL_BYTES: Final = 8 << 20
"""Up to this much input, starting Spark costs more than it gives."""

DEFAULT_MASTER: Final = "local[*,4]"
"""All cores, and four attempts at a task."""

_log = logging.getLogger(__name__)


def feed_source(
    spec: SourceSpec,
    address: FeedAddress,
    *,
    reader: str = "",
    master: str = DEFAULT_MASTER,
    split_bytes: int = SPLIT_BYTES,
    owner: str = "",
) -> SourceSummary:
    """Appends every record of the source, each under its split and number, then completes the source.

    reader: "local", "spark" or "auto" (Spark above LOCAL_BYTES); empty for what the source's options say.
    master: where Spark runs, when it is needed. The session stays open until the process ends.
    owner: to whom copies of tables belong, see `pipeline.sources.snapshots`.
    May be called again after a failure: what the job has is skipped. What was acknowledged before this call is
    compared with what the job has at its end, also over a restart of Redis.
    Raises InputError (for missing files before Spark starts), EnvironmentFault when Spark is needed and not
    installed, and what the feed raises.
    """
    feed = address.open()
    if spec.items is not None:
        summary = read_items(spec.items, address)
    else:
        source = open_files(pinned(spec, feed, owner, lambda: _copy(spec, owner, master)), split_bytes)
        if source.describe():
            _log.info("source %s: %s", source.path, source.describe())
        wanted = reader or str(spec.options.get("reader", "auto"))
        # Spark would read files of such a table as it reads Parquet: without what the table knows of them.
        summary = _read(source, address, "local" if spec.format == "delta" else wanted, master)
    feed.complete(summary.splits)
    return summary


def _copy(spec: SourceSpec, owner: str, master: str) -> str:
    from pipeline.spark.jdbc import copy_table  # PySpark is an extra
    from pipeline.spark.session import spark_session

    return copy_table(spark_session(master, starts_fast=True), spec, owner)


def _read(source: FileInput, address: FeedAddress, reader: str, master: str) -> SourceSummary:
    match reader:
        case "local":
            return read_locally(source, address)
        case "auto" if source.size <= LOCAL_BYTES:
            return read_locally(source, address)
        case "auto" | "spark":
            from pipeline.spark.session import spark_session  # PySpark is an extra
            from pipeline.spark.source import read_with_spark

            # Here Spark only deals out blocks, the rest is Python: an early start is worth more than peak speed.
            return read_with_spark(spark_session(master, starts_fast=True), source, address)
        case _:
            raise InputError(f"there is no reader {reader!r}", hint="use auto, local or spark")
