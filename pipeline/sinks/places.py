"""Where a file sink keeps things, and what makes them last: names, folders, syncing. Never opens a file."""

from __future__ import annotations

import errno
import os
import re
import secrets
import shutil
import time
from pathlib import Path
from typing import Final

from pipeline.errors import SinkError
from pipeline.plan import SinkPlan

FILE_FORMATS: Final = frozenset({"text", "jsonl", "csv", "parquet", "delta"})
"""The formats that this package writes; the others go through Redis streams."""

EXTENSIONS: Final = {"text": "txt", "jsonl": "jsonl", "csv": "csv", "parquet": "parquet", "delta": "parquet"}

_REMOVING_SECONDS: Final = 5.0
_OF_OTHERS: Final = frozenset({errno.ENOENT, errno.ENOTEMPTY, errno.EEXIST})

_STAGED_NAME: Final = re.compile(r"(\d{1,9})-(\d{1,9})-(\d{1,19})-(\d{1,9})\.(?:txt|jsonl)")
_HINTS: Final = {
    errno.ENOSPC: "free some space on that disk, or write to another one",
    errno.EDQUOT: "the disk quota is used up: free some space, or write to another disk",
    errno.EROFS: "that disk is read-only: choose a folder that can be written",
    errno.EACCES: "let the user that runs the workers write there, or choose another folder",
    errno.EPERM: "let the user that runs the workers write there, or choose another folder",
    errno.ENOTDIR: "a part of that path is a file: choose another path",
    errno.EIO: "the disk reports an error: look at the system log",
}


def target_path(sink: SinkPlan) -> Path:
    """The folder that the sink's result is published as: absolute, symbolic links followed."""
    return Path(os.path.realpath(sink.path))


def staging_folder(sink: SinkPlan, job: str) -> Path:
    """Beside the target, so that it lies on the same file system."""
    target = target_path(sink)
    return target.parent / f".{target.name}.{job}.staging"


def side_folder(sink: SinkPlan, job: str, kind: str) -> Path:
    """A fresh name beside the target; `kind` is publishing or replaced. Found again by `side_folders`."""
    target = target_path(sink)
    return target.parent / f".{target.name}.{job}.{secrets.token_hex(8)}.{kind}"


def side_folders(sink: SinkPlan, job: str, kind: str) -> list[Path]:
    """What earlier publishers of this job left behind. Empty when the parent folder does not exist."""
    target = target_path(sink)
    name = re.compile(rf"\.{re.escape(target.name)}\.{re.escape(job)}\.[0-9a-f]{{16}}\.{kind}")
    if not target.parent.is_dir():
        return []
    return sorted(path for path in target.parent.iterdir() if name.fullmatch(path.name))


def staged_name(sink: SinkPlan, stage: int, partition: int, term: int, attempt: int) -> str:
    """The name of one staging file of (stage, partition, term)."""
    extension = "txt" if sink.format == "text" else "jsonl"
    return f"{stage:03d}-{partition:05d}-{term:08d}-{attempt:04d}.{extension}"


def staged_order(name: str) -> tuple[int, ...]:
    """(stage, partition, term, attempt) of a staging file. Raises SinkError for any other name."""
    match = _STAGED_NAME.fullmatch(name)
    if match is None:
        raise SinkError(f"{name!r} is not the name of a staging file of this program")
    return tuple(int(number) for number in match.groups())


def sync_folder(path: Path) -> None:
    """Makes the folder's entries survive a power cut. Raises OSError."""
    handle = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def make_folder(path: Path) -> None:
    """Makes the folder and what is missing above it, to last through a power cut. Raises OSError."""
    if not path.parent.exists():
        make_folder(path.parent)
    path.mkdir(exist_ok=True)
    sync_folder(path.parent)


def remove_folder(path: Path) -> None:
    """Removes the folder and all in it; a missing one is fine. Raises OSError."""
    until = time.monotonic() + _REMOVING_SECONDS
    while path.exists():
        try:
            shutil.rmtree(path)
        except OSError as error:
            # Another process of this job removes the same folder, or begins a file in it, as it publishes and does not
            # know yet that the job was removed: whoever comes last finishes.
            if error.errno not in _OF_OTHERS or time.monotonic() > until:
                raise
            time.sleep(0.01)


def disk_fault(error: OSError, path: Path, action: str) -> SinkError:
    """The SinkError that tells what (`action`: "write", "publish", ...) could not be done, where, and why."""
    reason = error.strerror or str(error)
    hint = _HINTS.get(error.errno or 0, "check that the folder exists, can be written, and has space")
    return SinkError(f"cannot {action} {path}: {reason}", hint)
