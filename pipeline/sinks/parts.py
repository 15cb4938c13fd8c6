"""Turns committed rows into final files in the sink's format. Never decides in which folder."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any, BinaryIO, Final, TypeAlias

from pipeline.errors import EnvironmentFault, SinkError
from pipeline.plan import SinkPlan
from pipeline.sinks.columns import ColumnType, Scalar, column_names, column_types, spark_schema
from pipeline.sinks.committed import CommittedFile
from pipeline.sinks.csv_file import write_csv
from pipeline.sinks.manifest import Part
from pipeline.sinks.places import EXTENSIONS, remove_folder
from pipeline.wording import counted

INSTALL_SPARK: Final = "pip install 'celeriac[spark]'"
INSTALL_DELTA: Final = "pip install 'celeriac[delta]'"

SPARK_WORTHWHILE_BYTES: Final = 256 << 20
"""Staged bytes beyond which Spark is worth its start, about ten seconds."""

SparkWriter: TypeAlias = Callable[[list[Path], Path, str], list[Path]]
"""(files of JSON lines, folder, schema as DDL) -> the Parquet files that it made in that folder."""

_PartWriter: TypeAlias = Callable[[BinaryIO, CommittedFile | None], object]

_WRITERS: Final = ("auto", "local", "spark")


def check_options(sink: SinkPlan) -> None:
    """Raises SinkError for an option of the sink that has no meaning."""
    writer = sink.options.get("writer", "auto")
    if sink.format == "parquet" and writer not in _WRITERS:
        raise SinkError(f"the sink {sink.name!r} has the writer {writer!r}", f"take one of {', '.join(_WRITERS)}")


def write_parts(
    sink: SinkPlan, files: Sequence[CommittedFile], folder: Path, spark_writer: SparkWriter | None = None
) -> list[Part]:
    """Writes and syncs the files of the sink, in order: one for each committed file, else a single empty one.

    Spark splits the rows among files of its own. Raises SinkError, EnvironmentFault and OSError.
    """
    match sink.format:
        case "text" | "jsonl":
            return _write_each(sink, files, folder, _copy)
        case "csv":
            columns = column_names(files) or [sink.key_field or "value"]
            return _write_each(sink, files, folder, _csv_writer(columns))
        case "parquet":
            types = column_types(files) or {sink.key_field or "value": Scalar.NOTHING}
            if files and _is_for_spark(sink, files):
                return _write_with_spark(files, folder, types, spark_writer or _spark_writer)
            return _write_each(sink, files, folder, _parquet_writer(types))
    raise SinkError(f"the sink {sink.name!r} has the format {sink.format!r}, which is not written to files")


def write_synced(path: Path, write: Callable[[BinaryIO], object]) -> int:
    """Makes a new file, lets `write` fill it, and returns its size in bytes once it is on the disk."""
    with path.open("xb") as out:
        write(out)
        out.flush()
        os.fsync(out.fileno())
        return out.tell()


def _write_each(sink: SinkPlan, files: Sequence[CommittedFile], folder: Path, write: _PartWriter) -> list[Part]:
    made = []
    for number, file in enumerate(files or [None]):
        name = f"part-{number:05d}.{EXTENSIONS[sink.format]}"
        size = write_synced(folder / name, lambda out, file=file: write(out, file))  # type: ignore[misc]
        made.append(Part(name, file.records if file else 0, size))
    return made


def _copy(out: BinaryIO, file: CommittedFile | None) -> None:
    if file is not None:
        out.writelines(file.chunks())


def _csv_writer(columns: list[str]) -> _PartWriter:
    def write(out: BinaryIO, file: CommittedFile | None) -> None:
        if file is not None:
            write_csv(out, file, columns)

    return write


def _parquet_writer(types: dict[str, ColumnType]) -> _PartWriter:
    write = _parquet_module().write_parquet
    return lambda out, file: write(out, file, types)


def _parquet_module() -> Any:
    try:
        from pipeline.sinks import parquet_file
    except ModuleNotFoundError as error:
        raise EnvironmentFault(f"writing Parquet needs {error.name}", INSTALL_SPARK) from error
    return parquet_file


def _is_for_spark(sink: SinkPlan, files: Sequence[CommittedFile]) -> bool:
    writer = sink.options.get("writer", "auto")
    if writer == "auto":
        return sum(file.length_bytes for file in files) > SPARK_WORTHWHILE_BYTES and find_spec("pyspark") is not None
    return bool(writer == "spark")


def _write_with_spark(
    files: Sequence[CommittedFile], folder: Path, types: dict[str, ColumnType], spark_writer: SparkWriter
) -> list[Part]:
    count_rows = _parquet_module().count_rows
    copies = folder / "_copies"
    copies.mkdir()
    paths = [copies / f"{number:05d}.jsonl" for number in range(len(files))]
    for path, file in zip(paths, files, strict=True):
        write_synced(path, lambda out, file=file: _copy(out, file))  # type: ignore[misc]
    made = spark_writer(paths, folder, spark_schema(types))
    remove_folder(copies)
    written = [Part(path.name, count_rows(str(path)), path.stat().st_size) for path in made]
    found, wanted = sum(part.records for part in written), sum(file.records for file in files)
    if found != wanted:
        raise SinkError(f"Spark wrote {found:,} of {counted(wanted, 'record')} to {folder}: nothing is published")
    return written


def _spark_writer(files: list[Path], folder: Path, schema: str) -> list[Path]:
    try:
        from pipeline.spark.session import spark_session
        from pipeline.spark.sink import write_parquet_with_spark
    except ModuleNotFoundError as error:
        raise EnvironmentFault(f"writing Parquet with Spark needs {error.name}", INSTALL_SPARK) from error
    return write_parquet_with_spark(spark_session(), files, folder, schema)
