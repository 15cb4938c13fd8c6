"""What a file source consists of, found before it is read: files, splits, the format of their records."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

from pipeline.errors import PipelineError
from pipeline.graph import SourceSpec
from pipeline.sources.csvrows import CsvFormat, csv_format
from pipeline.sources.formats import JsonLinesFormat, TextFormat
from pipeline.sources.lines import check_encoding
from pipeline.sources.snapshots import files_of
from pipeline.sources.splits import SPLIT_BYTES, Split, find_files, plan_splits
from pipeline.sources.versions import copy_split, version_split

if TYPE_CHECKING:
    from pipeline.sources.parquetrows import ParquetFormat

Format: TypeAlias = "TextFormat | JsonLinesFormat | CsvFormat | ParquetFormat"


@dataclass(frozen=True, slots=True)
class FileInput:
    """A source of files. `pin`: the split that says which version, or copy, of a table they are; or empty."""

    path: str
    splits: tuple[Split, ...]
    form: Format
    pin: str = ""

    @property
    def size(self) -> int:
        """Bytes of all files, as stored."""
        return sum(split.length for split in self.splits)

    def doubt(self) -> str:
        """What looks wrong with the files though they can be read, as a sentence, or nothing."""
        return self.form.doubt() if isinstance(self.form, CsvFormat) else ""

    def describe(self) -> str:
        """The columns and their types, inferred or given, in one line; nothing for text and JSON."""
        return self.form.describe()


def open_files(spec: SourceSpec, split_bytes: int = SPLIT_BYTES) -> FileInput:
    """Finds the files of a source and what is in them.

    Raises InputError when there are none, or one cannot be read, has a bad header or differs from the others.
    """
    if spec.format == "delta":
        return _open_table(spec, split_bytes)
    if spec.format == "jdbc":
        return _open_copy(spec, split_bytes)
    files = find_files(spec.path)
    form: Format
    if spec.format != "parquet":
        for file in files:
            check_encoding(file)
    match spec.format:
        case "text":
            form = TextFormat()
        case "json":
            form = JsonLinesFormat()
        case "csv":
            form = csv_format(files, spec.options)
        case "parquet":
            from pipeline.sources.parquetrows import parquet_format  # pyarrow is an extra

            form = parquet_format(files, spec.options.get("columns"))
        case other:
            raise PipelineError(f"there is no format {other!r} to read", hint="use text, csv, json, parquet or delta")
    return FileInput(spec.path, tuple(plan_splits(files, split_bytes)), form)


def _open_table(spec: SourceSpec, split_bytes: int) -> FileInput:
    from pipeline.sources.deltatable import delta_files  # delta-rs is an extra

    files, form, version = delta_files(spec.path, spec.options["version"], spec.options["columns"])
    return FileInput(spec.path, tuple(plan_splits(files, split_bytes)), form, version_split(version))


def _open_copy(spec: SourceSpec, split_bytes: int) -> FileInput:
    from pipeline.sources.parquetrows import parquet_format  # pyarrow is an extra

    table, copy = spec.options["table"], spec.options["copy"]
    files = files_of(spec.options["staging"], copy, table)
    return FileInput(table, tuple(plan_splits(files, split_bytes)), parquet_format(files, None), copy_split(copy))
