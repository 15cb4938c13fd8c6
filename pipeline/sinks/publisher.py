"""Publishes a sink: copies exactly what was committed into final files, and lets them appear by one rename.

Staging files are copied and never moved: a worker that lost its term may still append to its own.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from pipeline.errors import EnvironmentFault, SinkError
from pipeline.plan import SinkPlan
from pipeline.sinks import parts
from pipeline.sinks.committed import committed_files
from pipeline.sinks.manifest import MANIFEST_NAME, Manifest, Part, read_manifest, strangers
from pipeline.sinks.parts import SparkWriter
from pipeline.sinks.places import (
    FILE_FORMATS,
    disk_fault,
    make_folder,
    remove_folder,
    side_folder,
    side_folders,
    staging_folder,
    sync_folder,
    target_path,
)
from pipeline.sinks.rotation import Claim, check_rotating_target, finish_parts, rotation_of
from pipeline.sinks.staging import StagedFacts

if TYPE_CHECKING:
    from pipeline.sinks.delta_table import TableSink


@dataclass(frozen=True, slots=True)
class Published:
    """What stands at `path` now: the number of data files, of records, and of bytes in those files."""

    path: Path
    files: int
    records: int
    bytes: int


def publish(
    sink: SinkPlan,
    job: str,
    facts: Sequence[StagedFacts],
    *,
    pipeline: str = "",
    run: str = "",
    published: int = 0,
    spark_writer: SparkWriter | None = None,
) -> Published:
    """Makes the folder `sink.path` hold exactly the records that `facts` names, and a manifest.

    The folder appears whole or not at all. An earlier result of ours there is replaced; the path is absent
    for the instant between two renames, and a publisher killed just there is made good by the next call.
    Doing it again gives the same content, also after `discard`. One publisher at a time for each job; memory
    is bounded. `spark_writer` stands in for `pipeline.spark.sink`.

    A rotating sink's folder is there already: what is left is added, and the manifest. `run` and `published` are those
    of its claim and its log. A Delta table gets one commit, which is in it once for each `run`.

    Raises SinkError when the path holds anything else, when less is staged than was committed, when rows do
    not fit a table, or when the disk refuses; EnvironmentFault when what Parquet needs is not installed. The
    path is then as it was before.
    """
    target = target_path(sink)
    if rotation_of(sink) is not None:
        return _as_published(target, finish_parts(sink, Claim(job, run, sink.name), facts, published, pipeline).files)
    if sink.format == "delta":
        return _as_published(target, _commit(sink, job, run, facts))
    with _disk_faults(target, "publish"):
        _clear_leftovers(sink, job)
        done = _published_before(sink, job, facts)
        if done is not None:
            return done
        check_target(sink)
        make_folder(target.parent)
        with _publishing_folder(sink, job) as folder:
            written = parts.write_parts(sink, committed_files(sink, job, facts), folder, spark_writer)
            manifest = _manifest(sink, job, pipeline, written)
            parts.write_synced(folder / MANIFEST_NAME, lambda out: out.write(manifest.encode()))
            sync_folder(folder)
            _swap_in(sink, job, folder)
        return _as_published(target, manifest.files)


def check_target(sink: SinkPlan) -> None:
    """To be asked before a run. Returns when `publish` may write to the sink's path; touches nothing.

    Raises SinkError when the path is a file, or a folder that is neither empty nor a result of ours alone,
    when the folder above cannot be written, or when the sink's options are wrong; EnvironmentFault when a
    library is missing.
    """
    if sink.format not in FILE_FORMATS:
        raise SinkError(f"the sink {sink.name!r} has the format {sink.format!r}, which is not written to files")
    if not sink.path:
        raise SinkError(f"the sink {sink.name!r} has no path", "give it the folder to write")
    parts.check_options(sink)
    _check_libraries(sink)
    target = target_path(sink)
    with _disk_faults(target, "write"):
        if sink.format == "delta":
            _table_sink(sink).check()
        else:
            _check_content(sink, target)
        _check_parent(target)


def discard(sink: SinkPlan, job: str) -> None:
    """Removes the job's staging files and what a killed publisher left; never a result. Raises SinkError.

    Only after all facts were published, or are not wanted any more.
    """
    folder = staging_folder(sink, job)
    with _disk_faults(folder, "remove"):
        _clear_leftovers(sink, job)
        remove_folder(folder)


def _published_before(sink: SinkPlan, job: str, facts: Sequence[StagedFacts]) -> Published | None:
    """What a publisher of this job published before it discarded the staging files, if so."""
    target = target_path(sink)
    if staging_folder(sink, job).exists():
        return None
    manifest = read_manifest(target)
    if manifest is None or (manifest.job, manifest.sink) != (job, sink.name):
        return None
    is_the_same = manifest.records == sum(fact.records for fact in facts)
    return _as_published(target, manifest.files) if is_the_same else None


def _manifest(sink: SinkPlan, job: str, pipeline: str, written: list[Part]) -> Manifest:
    records = sum(part.records for part in written)
    return Manifest("celeriac", job, pipeline, sink.name, sink.format, records, tuple(written))


def _as_published(target: Path, files: Sequence[Part]) -> Published:
    records, size = sum(part.records for part in files), sum(part.bytes for part in files)
    return Published(target, len(files), records, size)


def _commit(sink: SinkPlan, job: str, run: str, facts: Sequence[StagedFacts]) -> Sequence[Part]:
    """The files that the run has in the Delta table; they are committed now, or were before."""
    target = target_path(sink)
    _check_libraries(sink)
    table = _table_sink(sink, job, run)
    from pipeline.sinks.delta_parts import publish_to_table  # delta-rs is an extra

    with _disk_faults(target, "publish"):
        _clear_leftovers(sink, job)
        done = table.committed()
        if done is not None:
            return done
        check_target(sink)
        make_folder(target.parent)
        with _publishing_folder(sink, job) as folder:
            return publish_to_table(table, committed_files(sink, job, facts), folder)


def _table_sink(sink: SinkPlan, job: str = "", run: str = "") -> TableSink:
    from pipeline.sinks.delta_table import TableSink  # delta-rs is an extra

    return TableSink(sink, target_path(sink), f"celeriac {job} {run} {sink.name}")


@contextmanager
def _publishing_folder(sink: SinkPlan, job: str) -> Iterator[Path]:
    """A new folder beside the target; removed again unless it was renamed away."""
    folder = side_folder(sink, job, "publishing")
    folder.mkdir()
    try:
        yield folder
    finally:
        remove_folder(folder)


def _swap_in(sink: SinkPlan, job: str, folder: Path) -> None:
    target = target_path(sink)
    old: Path | None = None
    if read_manifest(target) is not None:
        old = side_folder(sink, job, "replaced")
        target.rename(old)
    folder.rename(target)
    sync_folder(target.parent)
    if old is not None:
        remove_folder(old)


def _clear_leftovers(sink: SinkPlan, job: str) -> None:
    target = target_path(sink)
    for old in side_folders(sink, job, "replaced"):
        # Killed between the two renames: the earlier result stands aside and nothing is in its place.
        if not target.exists():
            old.rename(target)
            sync_folder(target.parent)
        else:
            remove_folder(old)
    for folder in side_folders(sink, job, "publishing"):
        remove_folder(folder)


def _check_content(sink: SinkPlan, target: Path) -> None:
    if not target.exists() or (rotation_of(sink) is not None and check_rotating_target(sink, target)):
        return
    if not target.is_dir():
        raise SinkError(f"{target} is a file, and a sink writes a folder", "give the sink another path")
    manifest = read_manifest(target)
    if manifest is None and any(target.iterdir()):
        raise SinkError(
            f"the folder {target} is not empty and was not written by this program, so it is not replaced",
            "give the sink another path, or move that folder away",
        )
    others = strangers(target, manifest) if manifest is not None else []
    if others:
        raise SinkError(
            f"the folder {target} holds {', '.join(others[:3])} besides an earlier result: it is not replaced",
            "move these files elsewhere, or give the sink another path",
        )


def _check_parent(target: Path) -> None:
    parent = target.parent
    if parent == target:
        raise SinkError(f"{target} cannot be replaced by a result", "give the sink a folder of its own")
    while not parent.exists():
        parent = parent.parent
    if not parent.is_dir():
        raise SinkError(f"cannot write {target}: {parent} is a file", "give the sink another path")
    if not os.access(parent, os.W_OK | os.X_OK):
        raise SinkError(f"cannot write {target}: {parent} cannot be written", "let this user write there")


def _check_libraries(sink: SinkPlan) -> None:
    match sink.format:
        case "parquet" if sink.options.get("writer") == "spark":
            needed, what, install = ["pyarrow", "pyspark"], "Parquet", parts.INSTALL_SPARK
        case "parquet":
            needed, what, install = ["pyarrow"], "Parquet", parts.INSTALL_SPARK
        case "delta":
            needed, what, install = ["deltalake", "pyarrow"], "a Delta table", parts.INSTALL_DELTA
        case _:
            return
    missing = [name for name in needed if find_spec(name) is None]
    if missing:
        raise EnvironmentFault(f"the sink {sink.name!r} writes {what}, which needs {' and '.join(missing)}", install)


@contextmanager
def _disk_faults(path: Path, action: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        named = Path(error.filename) if isinstance(error.filename, str) else path
        raise disk_fault(error, named, action) from error
