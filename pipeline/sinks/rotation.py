"""Parts of a rotating sink: files that appear in the sink's folder while the job runs, whole, and never change again.

A part is the committed prefix of one staging file that its owner writes no more, under a name made of that file's. So
whoever publishes it, and however often, it is there once. The folder belongs to one run of one job: a claim says so.
"""

from __future__ import annotations

import errno
import os
import secrets
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Final

import msgspec

from pipeline.errors import SinkAhead, SinkError
from pipeline.plan import SinkPlan
from pipeline.sinks.columns import column_names
from pipeline.sinks.committed import CommittedFile
from pipeline.sinks.csv_file import write_csv
from pipeline.sinks.manifest import MANIFEST_NAME, Manifest, Part
from pipeline.sinks.parts import write_synced
from pipeline.sinks.places import (
    EXTENSIONS,
    disk_fault,
    make_folder,
    staged_order,
    staging_folder,
    sync_folder,
    target_path,
)
from pipeline.sinks.staging import StagedFacts
from pipeline.wording import counted

CLAIM_NAME: Final = "_celeriac.json"

_CHUNK_BYTES: Final = 4 << 20
_NO_LINKS: Final = frozenset({errno.EXDEV, errno.EPERM, errno.EOPNOTSUPP, errno.EMLINK})


class Claim(msgspec.Struct, frozen=True):
    """Whose parts a folder holds."""

    job: str
    run: str
    sink: str

    @property
    def generation(self) -> int:
        """`run` is `made_at.generation`."""
        return int(self.run.partition(".")[2] or 0)

    def follows(self, other: Claim) -> bool:
        """True for a later generation of the same job: it goes on in the folder."""
        made_at, other_made_at = self.run.partition(".")[0], other.run.partition(".")[0]
        is_same = (self.job, self.sink, made_at) == (other.job, other.sink, other_made_at)
        return is_same and self.generation > other.generation


@dataclass(frozen=True, slots=True)
class Rotation:
    """When a file is full: at so many bytes of staged rows, or so many seconds after its first row."""

    most_bytes: int | None
    most_seconds: float | None


def rotation_of(sink: SinkPlan) -> Rotation | None:
    """None for a sink whose result appears at the end."""
    most_bytes, most_seconds = sink.options.get("rotate_bytes"), sink.options.get("rotate_seconds")
    return None if most_bytes is None and most_seconds is None else Rotation(most_bytes, most_seconds)


def part_name(sink: SinkPlan, staged: str) -> str:
    """Stage, partition, term and number of the staging file of that name."""
    return f"part-{'-'.join(Path(staged).stem.split('-'))}.{EXTENSIONS[sink.format]}"


def check_rotating_target(sink: SinkPlan, target: Path) -> bool:
    """True when the folder holds parts of an unfinished job, perhaps of the one that goes on.

    Raises SinkError when a finished result is there: parts that readers may have seen are not replaced.
    """
    if (target / MANIFEST_NAME).exists():
        raise SinkError(
            f"the folder {target} holds a finished result, and the sink {sink.name!r} rotates: it adds parts to it",
            "give the sink another path, or move that folder away",
        )
    return (target / CLAIM_NAME).exists()


def publish_part(sink: SinkPlan, claim: Claim, facts: StagedFacts, *, is_own: bool) -> None:
    """The part is in the folder when this returns, also when it was there before.

    `is_own`: the caller wrote the staging file, has closed it, and all of it is committed; then it need not be copied.
    Raises SinkError.
    """
    target = target_path(sink)
    part = target / part_name(sink, facts.file)
    staged = staging_folder(sink, claim.job) / facts.file
    with _faults(part):
        _claim(target, claim)
        if not part.exists():
            if is_own and sink.format != "csv":
                _link(sink, staged, part, facts)
            else:
                _write(sink, staged, part, facts)
            sync_folder(target)
        size = part.stat().st_size
        if sink.format != "csv" and size > facts.length_bytes:
            if claim.generation == 0:
                raise SinkAhead(
                    f"sink {sink.name!r}: the part {part.name} holds {size:,} bytes, Redis has {facts.length_bytes:,}"
                    " of them as committed"
                )
        elif sink.format != "csv" and size != facts.length_bytes:
            raise SinkError(
                f"the part {part} has {size} bytes, and {facts.length_bytes} were committed",
                "another program has changed it: restore it, or run the pipeline again as a new job",
            )


def remove_staged(sink: SinkPlan, job: str, name: str) -> None:
    """Once its part is published and no commit names it any more. Raises SinkError."""
    path = staging_folder(sink, job) / name
    with _faults(path):
        path.unlink(missing_ok=True)


def remove_unnamed(sink: SinkPlan, job: str, place: tuple[int, int, int], named: Sequence[str]) -> None:
    """Removes staging files of earlier terms of (stage, partition, term) that no commit names. Raises SinkError."""
    folder = staging_folder(sink, job)
    with _faults(folder):
        for path in folder.iterdir() if folder.is_dir() else ():
            stage, partition, term, _ = staged_order(path.name)
            if (stage, partition) == place[:2] and term < place[2] and path.name not in named:
                path.unlink(missing_ok=True)


def finish_parts(sink: SinkPlan, claim: Claim, facts: Sequence[StagedFacts], published: int, pipeline: str) -> Manifest:
    """Publishes what is left, and the manifest. May be repeated, also after the staging files are gone.

    `published`: the records of parts that no facts name any more. Raises SinkError, also when parts are missing.
    """
    target = target_path(sink)
    with _faults(target):
        _claim(target, claim)
        for fact in facts:
            if fact.records:
                publish_part(sink, claim, fact, is_own=False)
        parts = [_counted(sink, path) for path in sorted(target.glob("part-*"))]
        found, wanted = sum(part.records for part in parts), published + sum(fact.records for fact in facts)
        if found > wanted and claim.generation == 0:
            raise SinkAhead(
                f"sink {sink.name!r}: its parts hold {counted(found, 'record')},"
                f" Redis has {wanted:,} of them as committed",
                found - wanted,
            )
        if found < wanted:
            raise SinkError(
                f"the parts in {target} hold {counted(found, 'record')}, and {wanted:,} were committed",
                "if parts were moved away or changed, that is what is missing; the job's result is not marked as whole",
            )
        manifest = Manifest("celeriac", claim.job, pipeline, sink.name, sink.format, found, tuple(parts))
        with _temporary(target) as path:
            write_synced(path, lambda out: out.write(manifest.encode()))
            path.rename(target / MANIFEST_NAME)
        (target / CLAIM_NAME).unlink(missing_ok=True)
        sync_folder(target)
        return manifest


def _claim(target: Path, claim: Claim) -> None:
    path = target / CLAIM_NAME
    if not path.exists() and not (target / MANIFEST_NAME).exists():
        make_folder(target)
        with _temporary(target) as fresh:
            write_synced(fresh, lambda out: out.write(msgspec.json.encode(claim)))
            with suppress(FileExistsError):
                os.link(fresh, path)
        sync_folder(target)
    try:
        try:
            found: object = msgspec.json.decode(path.read_bytes(), type=Claim)
        except FileNotFoundError:
            path = target / MANIFEST_NAME
            manifest = msgspec.json.decode(path.read_bytes(), type=Manifest)
            found, path = Claim(manifest.job, claim.run, manifest.sink), target / CLAIM_NAME
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise SinkError(
            f"{path} cannot be read: {error}", "it says whose parts are in the folder: give the sink another path"
        ) from error
    if isinstance(found, Claim) and claim.follows(found):
        with _temporary(target) as fresh:
            write_synced(fresh, lambda out: out.write(msgspec.json.encode(claim)))
            fresh.rename(path)
        sync_folder(target)
    elif found != claim:
        raise SinkError(
            f"the folder {target} holds parts of another run: {found}", "give the sink another path, or move them away"
        )


def _link(sink: SinkPlan, staged: Path, part: Path, facts: StagedFacts) -> None:
    try:
        os.link(staged, part)
    except FileExistsError:
        return
    except OSError as error:
        if error.errno not in _NO_LINKS:
            raise
        _write(sink, staged, part, facts)


def _write(sink: SinkPlan, staged: Path, part: Path, facts: StagedFacts) -> None:
    file = CommittedFile(staged, facts.length_bytes, facts.records)

    def write(out: BinaryIO) -> None:
        if sink.format == "csv":
            write_csv(out, file, column_names([file]))
        else:
            out.writelines(file.chunks())

    with _temporary(part.parent) as fresh:
        write_synced(fresh, write)
        fresh.rename(part)


@contextmanager
def _temporary(folder: Path) -> Iterator[Path]:
    path = folder / f".{secrets.token_hex(8)}"
    try:
        yield path
    finally:
        path.unlink(missing_ok=True)


def _counted(sink: SinkPlan, path: Path) -> Part:
    """A part with its records: lines, and in csv those outside of quotes, less the header."""
    records, is_quoted = 0, False
    with path.open("rb", buffering=0) as file:
        while chunk := file.read(_CHUNK_BYTES):
            if sink.format != "csv":
                records += chunk.count(b"\n")
                continue
            for index, piece in enumerate(chunk.split(b'"')):
                is_quoted ^= index > 0
                records += 0 if is_quoted else piece.count(b"\n")
    return Part(path.name, records - (sink.format == "csv"), path.stat().st_size)


@contextmanager
def _faults(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        named = Path(error.filename) if isinstance(error.filename, str) else path
        raise disk_fault(error, named, "publish") from error
