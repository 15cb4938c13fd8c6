"""The sources of a pipeline as portions for tasks: files are found, and what only this process can read is staged."""

from __future__ import annotations

import random
import time
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Final

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import SparkSession

from pipeline.errors import InputError, PipelineError, SourceAway
from pipeline.graph import Graph, Source
from pipeline.plan import PRODUCER_FORMAT, is_endless, is_followed
from pipeline.settings import Limits
from pipeline.sinks.places import disk_fault
from pipeline.sources.endless import After
from pipeline.sources.feed import SplitWriter
from pipeline.sources.generated import GENERATOR_SPLIT, Generated
from pipeline.sources.jdbcaddress import JdbcAddress
from pipeline.sources.layout import open_files
from pipeline.sources.local import ITERABLE_SPLIT, ItemChunk, groups
from pipeline.sources.snapshots import copying, owner_of, remove_copies
from pipeline.sources.versions import at_version, copy_split, needs_copy
from pipeline.spark.bulk.portions import CollectingLane, FilePortions, Piece, Portions, Range, StagedPortions
from pipeline.spark.jdbc import copy_table

_SCHEMA: Final = pa.schema([("split", pa.string()), ("payload", pa.binary()), ("numbers", pa.int64())])
_FILE_BYTES: Final = 32 << 20
"""What one task reads of what was staged."""

_GROUP_PIECES: Final = 32
_ATTEMPTS: Final = 6
_MOST_PAUSE_SECONDS: Final = 5.0


def check_sources(graph: Graph) -> None:
    """Raises PipelineError for a source that has no end, or that is read from positions which Redis keeps."""
    for node in _sources(graph):
        spec = node.spec
        if is_endless(spec.format, spec.options) or (spec.format != "generator" and _needs_redis(node)):
            what = "takes what producers send" if spec.format == PRODUCER_FORMAT else f"follows its {spec.format} input"
            raise PipelineError(
                f"the source {node.name!r} {what} and has no end, and the Spark engine runs a pipeline to its end",
                hint="run it live (--engine celery), or read what is there already, as files or by read.iterable",
            )


def followed_sources(graph: Graph) -> frozenset[str]:
    """Those whose position is another one than the number of a record: all but files that are there, and iterables."""
    return frozenset(node.name for node in _sources(graph) if node.spec.items is None and _needs_redis(node))


def open_sources(
    graph: Graph,
    folder: Path,
    limits: Limits,
    ranges: Mapping[str, Mapping[str, Range]],
    left_out: frozenset[str] = frozenset(),
    given: Mapping[str, Portions] | None = None,
) -> tuple[dict[str, Portions], list[str]]:
    """Source -> its portions, and what looks doubtful in them. `ranges`: source -> split -> the records wanted.

    Those that are `left_out` have none; those that are `given` are as they are. Those that Spark is to copy first are
    left to `copied_sources`.

    Runs the functions of iterable and generator sources, in this thread, once. Raises InputError, PipelineError,
    SinkError when the folder cannot be written.
    """
    found: dict[str, Portions] = {}
    doubts = []
    for node in _sources(graph):
        wanted = ranges.get(node.name, {})
        if node.name in left_out:
            found[node.name] = StagedPortions(())
        elif given and node.name in given:
            found[node.name] = given[node.name]
        elif node.spec.items is not None or node.spec.format == "generator":
            found[node.name] = _staged(node, folder, limits, wanted)
        elif needs_copy(at_version(node.spec, wanted)):
            JdbcAddress.of(node.spec)  # what is missing for it is told before Spark starts
        else:
            files = open_files(at_version(node.spec, wanted))
            if files.doubt():
                doubts.append(f"{node.spec.path}: {files.doubt()}")
            found[node.name] = FilePortions.of(files, wanted)
    return found, doubts


def copied_sources(
    graph: Graph, job: str, session: SparkSession, open_already: Iterable[str]
) -> Iterator[tuple[str, Portions]]:
    """The sources that are not open yet, copied from their databases for this run, one after the other.

    Raises InputError, EnvironmentFault.
    """
    for node in _sources(graph):
        if node.name not in open_already:
            owner = owner_of(job, node.name)
            with copying(node.spec.options["staging"], owner):
                copy = copy_table(session, node.spec, owner)
            yield node.name, FilePortions.of(open_files(at_version(node.spec, [copy_split(copy)])))


def remove_copied(graph: Graph, job: str) -> None:
    """Removes what `copied_sources` has made for this run. Raises SinkError."""
    for node in _sources(graph):
        if node.spec.format == "jdbc":
            remove_copies(node.spec.options["staging"], owner_of(job, node.name))


def _sources(graph: Graph) -> list[Source]:
    return [node for node in graph.nodes if isinstance(node, Source)]


def _needs_redis(node: Source) -> bool:
    return node.spec.format == PRODUCER_FORMAT or is_followed(node.spec.format, node.spec.options)


def _staged(node: Source, folder: Path, limits: Limits, ranges: Mapping[str, Range]) -> StagedPortions:
    split = GENERATOR_SPLIT if node.spec.items is None else ITERABLE_SPLIT
    lane = CollectingLane(split, limits, ranges.get(split, (0, None)))
    pieces = _generated(node, lane) if node.spec.items is None else _iterated(node, lane)
    return StagedPortions(tuple(_write(pieces, folder, node.name)))


def _iterated(node: Source, lane: CollectingLane) -> Iterator[Piece]:
    assert node.spec.items is not None
    writer = SplitWriter(lane, ITERABLE_SPLIT)
    for values in groups(iter(node.spec.items())):
        writer.add(ItemChunk(values))
        yield from lane.collected()
        if lane.is_full(writer.count):
            return


def _generated(node: Source, lane: CollectingLane) -> Iterator[Piece]:
    """What is away is tried again from where it was, some times."""
    assert node.spec.fn is not None
    source = Generated(node.spec.fn, None)
    position, count, failures = None, 0, 0
    reader = source.open(None)
    try:
        while True:
            try:
                portion = reader.read()
            except SourceAway as away:
                failures += 1
                if failures == _ATTEMPTS:
                    raise InputError(f"the source {node.name!r} stayed away: {away}", hint=away.hint) from away
                time.sleep(min(_MOST_PAUSE_SECONDS, 0.1 * 2**failures) * random.uniform(0.5, 1.0))
                reader = source.open(position)
                continue
            if len(portion.batch):
                failures = 0
                lane.append(count + 1, portion.batch, lambda index: f"record {count + 1 + index}: ")  # noqa: B023
                count += len(portion.batch)
                position = portion.position(len(portion.batch) - 1)
                yield from lane.collected()
            if portion.after is After.ENDED:
                return
    finally:
        reader.close()


def _write(pieces: Iterable[Piece], folder: Path, source: str) -> Iterator[str]:
    """Files of these pieces, in order, of bounded size; none where there is no piece."""
    writer: pq.ParquetWriter | None = None
    path, size, pending = folder, 0, list[Piece]()
    try:
        for number, piece in enumerate(pieces):
            if writer is None:
                path = folder / f"{source}-{number:08d}.parquet"
                writer, size = pq.ParquetWriter(path, _SCHEMA, compression="lz4"), 0
            pending.append(piece)
            size += len(piece.payload)
            if len(pending) == _GROUP_PIECES or size >= _FILE_BYTES:
                _flush(writer, pending)
            if size >= _FILE_BYTES:
                writer.close()
                writer = None
                yield str(path)
        if writer is not None:
            _flush(writer, pending)
            writer.close()
            writer = None
            yield str(path)
    except OSError as error:
        raise disk_fault(error, path, "write") from error
    finally:
        if writer is not None:
            writer.close()


def _flush(writer: pq.ParquetWriter, pending: list[Piece]) -> None:
    columns = [[piece.split for piece in pending], [piece.payload for piece in pending], [p.numbers for p in pending]]
    arrays = [pa.array(column, kind.type) for column, kind in zip(columns, _SCHEMA, strict=True)]
    if pending:
        writer.write_table(pa.Table.from_arrays(arrays, schema=_SCHEMA))
    pending.clear()
