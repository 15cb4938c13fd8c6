"""Named readers of output streams: each has a position in Redis, and the stream is trimmed to the slowest."""

from __future__ import annotations

from typing import Any, Final

from pipeline.codec import decode_batch
from pipeline.errors import StoreError, UnknownJob
from pipeline.messages import Data, decode_header
from pipeline.positions import entry_after
from pipeline.records import Batch
from pipeline.settings import Limits
from pipeline.store import keys
from pipeline.store.connection import translated
from pipeline.store.scripts import Scripts

LONGEST_WAIT_MS: Final = 5_000
"""Below the time after which the client takes a silent server for dead."""


class OutputReader:
    """Reads one output stream of a job under a name. Records are kept until `advance` has passed them."""

    def __init__(self, scripts: Scripts, job: str, sink: str, reader: str, limits: Limits) -> None:
        """Registers the reader, or goes on where it stood. Raises UnknownJob."""
        self._scripts = scripts
        self._reader = reader
        self._limits = limits
        self._keys = [keys.out(job, sink), keys.out_meta(job, sink), keys.out_waiting(job, sink)]
        answer = scripts.run("reader", [*self._keys[:2], keys.job(job)], [reader])
        if answer[0] != 1:
            raise UnknownJob(f"there is no job {job!r}")
        self.position: str = answer[1].decode()
        self._read_to = self.position
        self._unanswered: set[str] = set()
        """Where calls of `advance` whose answer was lost may have moved it to."""

    def read(self, entries: int = 64, wait_ms: int = 0) -> list[Batch]:
        """The next batches behind all that was read before; may wait up to `wait_ms` (5 s at most) for the first."""
        with translated():
            raw = self._scripts.client.xrange(self._keys[0], self._read_to, "+", count=entries)
            if not raw and wait_ms:
                # XREAD wants the id before the one we look for; an id below it in the same stream does not exist.
                self._scripts.client.xread(
                    {self._keys[0]: _before(self._read_to)}, count=1, block=min(wait_ms, LONGEST_WAIT_MS)
                )
                raw = self._scripts.client.xrange(self._keys[0], self._read_to, "+", count=entries)
        batches = []
        for entry_id, fields in raw:
            header = decode_header(fields[b"h"])
            count = header.count if isinstance(header, Data) else 0
            self._read_to = entry_after(entry_id.decode(), count)
            if isinstance(header, Data):
                batches.append(decode_batch(fields[b"d"]))
        return batches

    def advance(self) -> None:
        """Gives up what was read. Raises StoreError if the reader was moved by somebody else."""
        if self._read_to == self.position:
            return
        limits = self._limits
        args = [
            self._reader,
            self.position,
            self._read_to,
            limits.inbox_records,
            limits.inbox_bytes,
            limits.inbox_low,
        ]
        answer = self._advance(args)
        if answer[0] == -2 and answer[1].decode() in self._unanswered:
            self.position = args[1] = answer[1].decode()
            answer = [1] if self.position == self._read_to else self._advance(args)
        if answer[0] != 1:
            raise StoreError(f"the reader {self._reader!r} was moved or removed by another process")
        self.position = self._read_to
        self._unanswered.clear()

    def _advance(self, args: list[Any]) -> list[Any]:
        try:
            return self._scripts.run("advance", self._keys, args)
        except StoreError:
            self._unanswered.add(self._read_to)
            raise


def _before(entry: str) -> str:
    first, _, sub = entry.partition("-")
    return f"{first}-{int(sub) - 1}" if int(sub) else f"{int(first) - 1}-18446744073709551615"
