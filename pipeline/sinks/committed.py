"""Reads staging files up to their committed length, never beyond, and notices when that is not there."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import msgspec

from pipeline.errors import SinkError
from pipeline.plan import SinkPlan
from pipeline.sinks.places import disk_fault, staged_order, staging_folder
from pipeline.sinks.staging import StagedFacts
from pipeline.wording import counted

_CHUNK_BYTES: Final = 4 << 20

_ROWS: Final = msgspec.json.Decoder(dict[str, Any])


@dataclass(frozen=True, slots=True)
class CommittedFile:
    """The committed prefix of one staging file: whole lines, one for each record."""

    path: Path
    length_bytes: int
    records: int

    def chunks(self) -> Iterator[bytes]:
        """The prefix in pieces of bounded size, cut anywhere.

        Raises SinkError when the file is missing, is shorter than its committed length, cannot be read, or
        does not hold the committed number of lines; the last is known after the last chunk only.
        """
        try:
            yield from self._chunks()
        except FileNotFoundError as error:
            raise self._loss("is missing") from error
        except OSError as error:
            raise disk_fault(error, self.path, "read") from error

    def rows(self) -> Iterator[list[dict[str, Any]]]:
        """The rows of a csv, parquet or delta sink, in lists of bounded size. Raises SinkError as `chunks` does."""
        rest = b""
        for chunk in self.chunks():
            lines, newline, rest = (rest + chunk).rpartition(b"\n")
            if not newline:
                continue
            try:
                yield [_ROWS.decode(line) for line in lines.split(b"\n")]
            except msgspec.MsgspecError as error:
                raise self._loss(f"is damaged ({error})") from error

    def _chunks(self) -> Iterator[bytes]:
        missing, lines, last = self.length_bytes, 0, b""
        with self.path.open("rb", buffering=0) as file:
            while missing:
                last = file.read(min(_CHUNK_BYTES, missing))
                if not last:
                    raise self._loss(f"has only {self.length_bytes - missing} bytes")
                missing -= len(last)
                lines += last.count(b"\n")
                yield last
        if lines != self.records or not last.endswith(b"\n"):
            raise self._loss(f"holds {counted(lines, 'whole line')} there")

    def _loss(self, what: str) -> SinkError:
        return SinkError(
            f"the staging file {self.path} {what}, and {self.length_bytes} bytes with {counted(self.records, 'record')}"
            " were committed: nothing is published",
            "if a disk was lost or the file was changed, restore it, or run the pipeline again as a new job",
        )


def committed_files(sink: SinkPlan, job: str, facts: Sequence[StagedFacts]) -> list[CommittedFile]:
    """The files that hold records, by stage, partition and term.

    Raises SinkError for a name that is not a staging file's, and for two facts of one file.
    """
    folder = staging_folder(sink, job)
    by_place = {staged_order(fact.file): fact for fact in facts}
    if len(by_place) < len(facts):
        raise SinkError(f"the job {job} names a staging file of the sink {sink.name!r} twice")
    return [
        CommittedFile(folder / fact.file, fact.length_bytes, fact.records)
        for _, fact in sorted(by_place.items())
        if fact.records
    ]
