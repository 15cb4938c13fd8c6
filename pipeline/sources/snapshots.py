"""Where the rows lie that Spark has copied from a database for a job, and who may copy them. Knows no database.

Below the folder that the pipeline names there is one for each source of each job, and in it one for each copy:
`<job>.<source>/<copy>/part-….parquet`. A copy appears whole, by a rename, and is never changed.
"""

from __future__ import annotations

import errno
import fcntl
import logging
import os
import re
import secrets
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from pipeline.errors import InputError
from pipeline.sinks.places import disk_fault, make_folder, remove_folder, sync_folder

_COPY: Final = re.compile(r"(.+\..+)\.([0-9a-f]{16})")
_DRAFT: Final = ".draft"
_OURS: Final = re.compile(rf"[0-9a-f]{{16}}({re.escape(_DRAFT)})?")
_LOCK: Final = ".lock"
_LOOK_SECONDS: Final = 0.2

_log = logging.getLogger(__name__)


def owner_of(job: str, source: str) -> str:
    """Whose copies these are, as the name of their folder."""
    return f"{job}.{source}"


def folder_of(staging: str, copy: str) -> Path:
    """Where a copy lies. Raises InputError for a name that is none of ours."""
    found = _COPY.fullmatch(copy)
    if found is None or "/" in copy:
        raise InputError(f"{copy!r} names no copy of a table")
    return Path(staging) / found[1] / found[2]


def files_of(staging: str, copy: str, what: str) -> list[Path]:
    """The files of a copy, sorted. Raises InputError, with `what` they are copied from, when they are not there."""
    folder = folder_of(staging, copy)
    files = sorted(folder.glob("part-*.parquet"))
    if not files:
        raise InputError(
            f"the rows of {what} that this job has copied are not in {folder}",
            hint="feed it where that folder can be seen; if they were deleted, begin a new job, which copies them anew",
        )
    return files


@contextmanager
def copying(staging: str, owner: str, sleep: Callable[[float], None] = time.sleep) -> Iterator[None]:
    """In the body nobody else copies for this owner. Waits for one who does.

    Raises InputError when the folder cannot be made, or has no locks.
    """
    folder = Path(staging) / owner
    handle = -1
    try:
        make_folder(folder)
        # A file that can be written: locks of NFS need that.
        handle = os.open(folder / _LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        _lock(handle, folder, sleep)
    except OSError as error:
        if handle >= 0:
            os.close(handle)
        raise _unusable(error, folder) from error
    try:
        yield
    finally:
        os.close(handle)


def new_copy(staging: str, owner: str, write: Callable[[Path], None]) -> str:
    """Has `write` fill a folder with Parquet files, and gives the name of the copy when they are there to stay.

    What earlier attempts have left is removed before. Only while `copying`. Raises InputError, and what `write` raises.
    """
    folder = Path(staging) / owner
    name = secrets.token_hex(8)
    draft = folder / (name + _DRAFT)
    try:
        _remove_ours(folder)
        write(draft)
        _make_lasting(draft)
        draft.rename(folder / name)
        sync_folder(folder)
    except OSError as error:
        raise _unusable(error, folder) from error
    finally:
        shutil.rmtree(draft, ignore_errors=True)
    return f"{owner}.{name}"


def remove_copies(staging: str, owner: str) -> None:
    """Removes all copies of the owner, if there are any, and nothing else. Raises SinkError."""
    folder = Path(staging) / owner
    try:
        if folder.is_dir():
            _remove_ours(folder)
            (folder / _LOCK).unlink(missing_ok=True)
            folder.rmdir()
    except FileNotFoundError:
        return  # another process of this job removes the same folder
    except OSError as error:
        if error.errno != errno.ENOTEMPTY:  # somebody else keeps something there
            raise disk_fault(error, folder, "remove") from error


def _remove_ours(folder: Path) -> None:
    for path in folder.iterdir():
        if _OURS.fullmatch(path.name):
            remove_folder(path)


def _lock(handle: int, folder: Path, sleep: Callable[[float], None]) -> None:
    is_told = False
    while True:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        except OSError as error:
            if error.errno not in (errno.EAGAIN, errno.EACCES):
                raise
        if not is_told:
            _log.info("another process copies into %s: it is waited for", folder)
            is_told = True
        sleep(_LOOK_SECONDS)


def _make_lasting(draft: Path) -> None:
    for file in draft.glob("part-*.parquet"):
        handle = os.open(file, os.O_RDONLY | os.O_CLOEXEC)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
    sync_folder(draft)


def _unusable(error: OSError, folder: Path) -> InputError:
    return InputError(
        f"rows cannot be copied to {folder}: {error.strerror or error}",
        hint="staging= must name a folder that can be written, with space for the rows, on a file system with locks",
    )
