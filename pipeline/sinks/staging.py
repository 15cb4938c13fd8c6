"""Staging files: rows on disk before the commit that makes them count.

A file belongs to one (stage, partition, term) and is never opened by another, since no fence of Redis reaches
the file system. Bytes that no commit names do not exist.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Final, TypeAlias

import msgspec

from pipeline.errors import DecodingError, SinkError
from pipeline.plan import SinkPlan
from pipeline.records import Batch
from pipeline.sinks.places import disk_fault, make_folder, staged_name, staging_folder, sync_folder
from pipeline.sinks.rows import encode_rows

_Action: TypeAlias = Callable[[], None]

_BUFFER_BYTES: Final = 1 << 20


class StagedFacts(msgspec.Struct, frozen=True):
    """What a commit says of a staging file: its name in its folder, and how much of its start counts."""

    file: str
    length_bytes: int
    records: int

    def encode(self) -> bytes:
        return msgspec.json.encode(self)

    @classmethod
    def decode(cls, data: bytes) -> StagedFacts:
        """Raises DecodingError."""
        try:
            facts = msgspec.json.decode(data, type=cls)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            raise DecodingError(f"the stored facts of a staging file cannot be read: {error}") from error
        if facts.length_bytes < 0 or facts.records < 0:
            raise DecodingError(f"the stored facts of the staging file {facts.file!r} are negative")
        return facts


class StagingFile:
    """The rows that one owner of a partition writes in one term, appended only. Not safe for threads.

    The protocol is: `write` what a step emits, `sync`, commit the facts together with the step's position.
    After any SinkError the file can only be closed: only what the last commit names is then known to be
    there.
    """

    def __init__(self, sink: SinkPlan, path: Path) -> None:
        self._sink = sink
        self._path = path
        self._handle = -1
        self._buffer = bytearray()
        self._length = 0
        self._records = 0
        self._is_synced = True
        self._is_broken = False

    @classmethod
    def create(cls, sink: SinkPlan, job: str, stage: int, partition: int, term: int, attempt: int = 0) -> StagingFile:
        """Touches no disk: the file is made by the first row.

        A term has several attempts when the outcome of a commit was unknown: the owner goes on in a new file.
        """
        return cls(sink, staging_folder(sink, job) / staged_name(sink, stage, partition, term, attempt))

    @property
    def path(self) -> Path:
        return self._path

    def write(self, batch: Batch) -> None:
        """Appends one row for each record. All rows of the batch, or none when it raises EncodingError.

        Raises EncodingError as `pipeline.sinks.rows.encode_rows` does; the file stays usable. Raises
        SinkError when the disk refuses, or when the file of this term exists already. Blocks on the disk.
        """
        self._check_usable()
        self.write_rows(encode_rows(self._sink, batch), len(batch))

    def write_rows(self, rows: bytes, records: int) -> None:
        """As `write`, for rows that `encode_rows` made for this sink."""
        self._check_usable()
        if not rows:
            return
        self._buffer += rows
        self._length += len(rows)
        self._records += records
        self._is_synced = False
        if len(self._buffer) >= _BUFFER_BYTES or self._handle < 0:
            self._guard(self._flush)

    def sync(self) -> StagedFacts:
        """All rows so far, durably on the disk when this returns. Raises SinkError. Blocks on the disk."""
        self._check_usable()
        if not self._is_synced:
            self._guard(self._flush_and_sync)
        return StagedFacts(self._path.name, self._length, self._records)

    def rewind(self, committed: StagedFacts | None) -> None:
        """Takes back the rows after `committed` (all, for None), to write anew a step that was refused.

        Only the owner of the term may call this, and never while it is unknown whether a commit was applied:
        rows that a commit names would be lost. Raises SinkError when the file is shorter than `committed`.
        """
        self._check_usable()
        facts = committed or StagedFacts(self._path.name, 0, 0)
        if facts.file != self._path.name or facts.length_bytes > self._length:
            raise SinkError(f"{self._path} has {self._length} bytes and cannot go back to {facts}")
        if facts.length_bytes < self._length:
            self._guard(lambda: self._cut(facts.length_bytes))
            self._length, self._records = facts.length_bytes, facts.records

    def close(self) -> None:
        """Closes the file. Rows written since the last `sync` may be lost: no commit names them."""
        self._is_broken = True
        self._buffer.clear()
        if self._handle >= 0:
            os.close(self._handle)
            self._handle = -1

    def _check_usable(self) -> None:
        if self._is_broken:
            raise SinkError(f"{self._path} was closed, or failed before", "go on under a new term, with a new file")

    def _guard(self, action: _Action) -> None:
        self._is_broken = True
        try:
            action()
        except OSError as error:
            raise disk_fault(error, self._path, "write") from error
        self._is_broken = False

    def _flush(self) -> None:
        if self._handle < 0:
            self._open()
        view = memoryview(self._buffer)
        try:
            written = 0
            while written < len(view):
                written += os.write(self._handle, view[written:])
        finally:
            view.release()
        self._buffer.clear()

    def _flush_and_sync(self) -> None:
        self._flush()
        os.fsync(self._handle)
        self._is_synced = True

    def _open(self) -> None:
        make_folder(self._path.parent)
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND | os.O_CLOEXEC
        try:
            self._handle = os.open(self._path, flags, 0o666)
        except FileExistsError as error:
            raise SinkError(
                f"the staging file {self._path} exists already: another worker wrote it in this term",
                "take the partition over under a new term",
            ) from error
        sync_folder(self._path.parent)

    def _cut(self, length: int) -> None:
        on_disk = self._length - len(self._buffer)
        if length >= on_disk:
            del self._buffer[length - on_disk :]
            return
        self._buffer.clear()
        os.ftruncate(self._handle, length)
        self._is_synced = False
