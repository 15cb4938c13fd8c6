"""The manifest of a published folder: what makes a folder a result of ours, and what belongs to it."""

from __future__ import annotations

from pathlib import Path
from typing import Final, Literal

import msgspec

MANIFEST_NAME: Final = "_manifest.json"
"""Readers of data folders (Spark, pyarrow) skip names that begin with an underscore."""


class Part(msgspec.Struct, frozen=True):
    """One file of a result."""

    name: str
    records: int
    bytes: int


class Manifest(msgspec.Struct, frozen=True):
    """What a folder holds. It is written last, so a folder with a manifest is whole."""

    program: Literal["celeriac"]
    job: str
    pipeline: str
    sink: str
    format: str
    records: int
    files: tuple[Part, ...]

    def encode(self) -> bytes:
        return msgspec.json.format(msgspec.json.encode(self), indent=2) + b"\n"


def read_manifest(folder: Path) -> Manifest | None:
    """The folder's manifest, or None where there is none that this program wrote. Raises OSError."""
    try:
        return msgspec.json.decode((folder / MANIFEST_NAME).read_bytes(), type=Manifest)
    except (FileNotFoundError, NotADirectoryError, IsADirectoryError):
        return None
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None


def strangers(folder: Path, manifest: Manifest) -> list[str]:
    """Names in the folder that are no part of the result; hidden files do not count. Raises OSError."""
    known = {MANIFEST_NAME, *(part.name for part in manifest.files)}
    return sorted(path.name for path in folder.iterdir() if path.name not in known and not path.name.startswith("."))
