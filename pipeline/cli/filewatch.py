"""Notices that the pipeline's file was changed while its job runs."""

from __future__ import annotations

from hashlib import blake2b
from pathlib import Path


class FileWatch:
    """The file as it was when this was made. Other modules that it imports are not watched."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._stamp = self._look()
        self._digest = self._read()

    def changed(self) -> str:
        """A sentence when it holds something else than before, once for each change; else nothing."""
        stamp = self._look()
        if stamp == self._stamp:
            return ""
        self._stamp = stamp
        digest = self._read()
        if digest == self._digest:
            return ""
        self._digest = digest
        return (
            f"{self._file.name} was changed while the job runs: a worker that is started again runs it as it is now, "
            "or ends if its operators are others. Put it back, or cancel the job and run it again"
        )

    def _look(self) -> tuple[int, int, int]:
        try:
            facts = self._file.stat()
        except OSError:
            return 0, 0, 0
        return facts.st_mtime_ns, facts.st_size, facts.st_ino

    def _read(self) -> bytes:
        """What identifies its content; nothing for a file that cannot be read now."""
        try:
            return blake2b(self._file.read_bytes()).digest()
        except OSError:
            return b""
