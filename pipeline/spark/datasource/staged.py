"""Rows that wait in a folder: written by tasks as Parquet, then closed by a manifest, after which they never change.

`folder/name/batch/` holds files of all attempts; the manifest, made once and whole, names those that count. A file that
it does not name does not exist.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Final
from uuid import uuid4

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from pipeline.errors import ProducerError
from pipeline.wording import counted

_MANIFEST: Final = "manifest.json"
_SENT: Final = "sent"
_READ_ROWS: Final = 10_000


class _Manifest(msgspec.Struct, frozen=True):
    """Files in the order in which they are sent, and how many rows each has."""

    files: tuple[tuple[str, int], ...]


class StagedBatch:
    """One batch of one write. Every method may be repeated, in any process that sees the folder."""

    def __init__(self, folder: str, name: str, batch: int) -> None:
        self._root = Path(folder) / name
        self.folder = self._root / f"{batch}"

    def is_closed(self) -> bool:
        """Whether it is decided which rows the batch has."""
        return (self.folder / _MANIFEST).exists()

    def is_sent(self) -> bool:
        return (self.folder / _SENT).exists()

    def close(self, files: Sequence[tuple[str, int]]) -> tuple[tuple[str, int], ...]:
        """The batch consists of these files, unless it was closed before: then of those. Raises ProducerError."""
        path = self.folder / _MANIFEST
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            names = tuple((Path(file).name, rows) for file, rows in files)
            draft = self.folder / f".{uuid4().hex}"
            with draft.open("wb") as file:
                file.write(msgspec.json.encode(_Manifest(names)))
                file.flush()
                os.fsync(file.fileno())
            with suppress(FileExistsError):
                os.link(draft, path)  # the one way to make a file whole and only once
            draft.unlink()
            return msgspec.json.decode(path.read_bytes(), type=_Manifest).files
        except (OSError, msgspec.MsgspecError) as error:
            raise ProducerError(f"the staging folder {self.folder} cannot be used: {error}") from error

    def rows(self, file: tuple[str, int]) -> Iterator[Any]:
        """The rows of one file of the manifest, in order. Raises ProducerError for one that is gone, or not whole."""
        name, wanted = file
        count = 0
        try:
            with pq.ParquetFile(self.folder / name) as opened:
                for batch in opened.iter_batches(_READ_ROWS):
                    count += batch.num_rows
                    yield batch
        except (pa.ArrowException, OSError) as error:
            raise ProducerError(f"the staged file {self.folder / name} cannot be read: {error}") from error
        if count != wanted:
            raise ProducerError(
                f"the staged file {self.folder / name} has {counted(count, 'row')}, and was written with {wanted}"
            )

    def end(self) -> None:
        """All of it is in the job: the rows go, and so do earlier batches, of which Spark asks no more."""
        (self.folder / _SENT).touch()
        for path in self.folder.glob("*.parquet"):
            path.unlink(missing_ok=True)
        for other in self._root.iterdir():
            if other.name.isdecimal() and int(other.name) < int(self.folder.name):
                shutil.rmtree(other, ignore_errors=True)


def write_part(staged: StagedBatch, part: int, batches: Iterator[Any]) -> tuple[str, int]:
    """The rows of one attempt at one partition: (path, rows), whole on disk. Nothing is made for no rows.

    Raises ProducerError.
    """
    path = staged.folder / f"part-{part:06}-{uuid4().hex}.parquet"
    writer, rows = None, 0
    try:
        for batch in batches:
            if writer is None:
                staged.folder.mkdir(parents=True, exist_ok=True)
                writer = pq.ParquetWriter(path, batch.schema, compression="zstd", compression_level=1)
            writer.write_batch(batch)
            rows += batch.num_rows
        if writer is not None:
            writer.close()
            with path.open("rb") as file:
                os.fsync(file.fileno())
    except (pa.ArrowException, OSError) as error:
        path.unlink(missing_ok=True)
        raise ProducerError(f"the staging folder {staged.folder} cannot be written: {error}") from error
    return str(path), rows


def check_folder(folder: str) -> None:
    """Returns when rows can be staged there. Raises ProducerError."""
    if not Path(folder).is_absolute():
        raise ProducerError(
            f"option 'staging' must be an absolute path, not {folder!r}", hint="all executors must see it"
        )
    try:
        Path(folder).mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ProducerError(
            f"option 'staging': {error}", hint="a folder that driver and executors can write"
        ) from error
    if not os.access(folder, os.W_OK):
        raise ProducerError(f"option 'staging': {folder} cannot be written", hint="it needs write permission")
