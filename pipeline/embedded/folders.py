"""Temporary folders that go with their owner, or, where that was killed, when the next one of their kind is made.

A folder belongs to whoever holds the lock in it: the process that made it, and children that were given its descriptor.
The lock ends with the last of them, however that ends. So one that can be taken proves that nobody is left, which
neither an age nor the number of a process could.
"""

from __future__ import annotations

import fcntl
import os
import re
import shutil
import stat
import tempfile
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Final

from pipeline.errors import CeleriacError

LOCK_NAME: Final = "owner.lock"

_WRITABLE_BY_OTHERS: Final = stat.S_IWGRP | stat.S_IWOTH


class OwnFolder:
    """A fresh folder that only this user may enter; made by `make`. Its owner has it until `close`, or until it ends.

    `holds`: what a child must be given (`pass_fds`) that may still work in the folder when this process has ended.
    """

    def __init__(self, path: Path, descriptor: int | None) -> None:
        self.path = path
        self._descriptor = descriptor

    @classmethod
    def make(
        cls, kind: str, parent: Path | None = None, *, bury: Callable[[Path], None] = lambda _folder: None
    ) -> OwnFolder:
        """A folder whose name begins with `kind`, below `parent` (None: where temporary files go). Raises OSError.

        Folders of this kind there whose owners have been killed are removed; `bury` is called with each of them first,
        and one for which it raises OSError or an error of ours stays for the next time.
        """
        folder = Path(tempfile.gettempdir()) if parent is None else parent
        sweep(kind, folder, bury)
        while True:
            path = Path(tempfile.mkdtemp(prefix=kind, dir=folder))
            try:
                descriptor = _locked(path)
            except OSError:  # a file system without locks: nobody can know when its owner is gone, so it is never swept
                (path / LOCK_NAME).unlink(missing_ok=True)
                return cls(path, None)
            if descriptor is not None:
                return cls(path, descriptor)

    @property
    def holds(self) -> tuple[int, ...]:
        return () if self._descriptor is None else (self._descriptor,)

    def close(self) -> None:
        """Removes the folder, as far as that can be done. Idempotent."""
        shutil.rmtree(self.path, ignore_errors=True)
        descriptor, self._descriptor = self._descriptor, None
        if descriptor is not None:
            os.close(descriptor)

    def __enter__(self) -> OwnFolder:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def sweep(kind: str, parent: Path, bury: Callable[[Path], None]) -> None:
    """Removes folders of this kind whose owners are gone. What is in doubt stays: of other users, without a lock."""
    name = re.compile(re.escape(kind) + "[a-z0-9_]{8}")  # as `mkdtemp` makes them
    with suppress(OSError):
        for found in [entry.name for entry in os.scandir(parent) if name.fullmatch(entry.name)]:
            with suppress(OSError, CeleriacError):
                _remove_unowned(parent / found, bury)


def _remove_unowned(path: Path, bury: Callable[[Path], None]) -> None:
    """Raises OSError when it is another's, or is none of ours."""
    folder = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        about = os.fstat(folder)
        if about.st_uid != os.geteuid() or about.st_mode & _WRITABLE_BY_OTHERS:
            return
        lock = os.open(LOCK_NAME, os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=folder)
    finally:
        os.close(folder)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if is_in_place(lock, path / LOCK_NAME):
            bury(path)
            for each in path.iterdir():
                if each.name != LOCK_NAME:  # without its lock, what cannot be removed now could never be
                    _remove(each)
            shutil.rmtree(path)
    finally:
        os.close(lock)


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink()


def _locked(path: Path) -> int | None:
    """A descriptor that holds the lock of a new folder; None when a sweep has met it before it was locked."""
    descriptor = os.open(path / LOCK_NAME, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        if is_in_place(descriptor, path / LOCK_NAME):
            return descriptor
    except OSError:
        os.close(descriptor)
        raise
    os.close(descriptor)
    return None


def is_in_place(descriptor: int, path: Path) -> bool:
    """Whether what is open is still what that path leads to; another process may have removed it, or made it anew."""
    try:
        return os.path.samestat(os.fstat(descriptor), path.lstat())
    except FileNotFoundError:
        return False
