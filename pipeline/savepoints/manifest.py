"""What a savepoint says of itself: a JSON file, which is written last. A folder without one is no savepoint. Pure."""

from __future__ import annotations

import re
import secrets
import time
from typing import Final

import msgspec

from pipeline.errors import SavepointError
from pipeline.plan import Plan

FORMAT: Final = 1
MANIFEST: Final = "manifest.json"
STATE: Final = "state"

TABLES: Final = ("facts", "in_flight", STATE, "timers", "letters", "held", "ids")
"""All tables, in the order in which they are written: what commits must keep longest comes first."""

_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,99}-\d{8}-\d{6}-[0-9a-f]{4}")


class PartFile(msgspec.Struct, frozen=True):
    """One Parquet file: `path` is its place in the savepoint's folder."""

    path: str
    rows: int
    bytes: int
    sha256: str


class Manifest(msgspec.Struct, frozen=True):
    """at_ms: when the cut was, by the clock of Redis; epoch: its number in the job.

    generation: of the job's time line. outputs: stream -> number of the first result behind the cut.
    keys: operator -> keys that have state. in_flight: records that were taken in and not processed.
    """

    format: int
    name: str
    job: str
    pipeline: str
    fingerprint: str
    epoch: int
    at_ms: int
    generation: int
    state: str
    plan: Plan
    tables: dict[str, tuple[PartFile, ...]]
    outputs: dict[str, int]
    keys: dict[str, int]
    in_flight: int
    letters: int = 0

    @property
    def size_bytes(self) -> int:
        return sum(part.bytes for parts in self.tables.values() for part in parts)

    def encode(self) -> bytes:
        return msgspec.json.format(msgspec.json.encode(self), indent=1)


def read_manifest(data: bytes, where: str) -> Manifest:
    """Raises SavepointError for what is none, and for one of another format."""
    try:
        head = msgspec.json.decode(data, type=dict[str, msgspec.Raw])
        version = msgspec.json.decode(head["format"], type=int)
    except (msgspec.MsgspecError, KeyError, UnicodeDecodeError) as error:
        raise SavepointError(f"{where} holds no readable {MANIFEST}: {error}") from error
    if version != FORMAT:
        raise SavepointError(
            f"the savepoint {where} has format {version}, this program reads {FORMAT}",
            hint="read it with the version of celeriac that wrote it",
        )
    try:
        return msgspec.json.decode(data, type=Manifest)
    except msgspec.MsgspecError as error:
        raise SavepointError(f"{where} holds no readable {MANIFEST}: {error}") from error


def new_name(job: str, now: time.struct_time) -> str:
    """`<job>-<yyyymmdd-hhmmss>-<4 random>`."""
    return f"{job}-{time.strftime('%Y%m%d-%H%M%S', now)}-{secrets.token_hex(2)}"


def is_name_of(name: str, job: str) -> bool:
    """Whether a savepoint of that name is of this job."""
    return bool(_NAME.fullmatch(name)) and name[: -len("-yyyymmdd-hhmmss-xxxx")] == job
