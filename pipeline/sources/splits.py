"""Which files a source has, and the splits that they are read in. A split's name depends on no reader."""

from __future__ import annotations

import glob
import hashlib
import os
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from pipeline.errors import InputError

SPLIT_BYTES: Final = 8 << 20
"""Length of a block. A job that goes on reading after a restart must use the same."""

_LEAST_BYTES: Final = 2 << 20
"""Below this a task costs Spark more than its work."""

_TASKS: Final = 16
"""A small input is dealt out to about so many tasks, whatever the cores: what a task reads must not depend on them."""

COMPRESSED: Final = frozenset({".gz", ".bz2"})
"""File name endings whose files are unpacked while reading and are one split each."""

HIDDEN: Final = ("_", ".")
"""How names begin that folders and globs leave out."""

UNREADABLE: Final = frozenset({".deflate", ".lz4", ".snappy", ".xz", ".zip", ".zst"})


@dataclass(frozen=True, slots=True)
class Split:
    """The block [start, start + length) of one file, as it was at `modified_ns`. `path` is absolute."""

    path: str
    size: int
    modified_ns: int
    start: int
    length: int

    @property
    def end(self) -> int:
        return self.start + self.length

    @property
    def is_compressed(self) -> bool:
        return is_compressed(self.path)

    @property
    def name(self) -> str:
        """Stable identity from path, size, modification time and start: a changed file is another sender."""
        facts = f"{self.path}\0{self.size}\0{self.modified_ns}\0{self.start}".encode("utf-8", "surrogateescape")
        base = re.sub(r"[^A-Za-z0-9._-]", "_", Path(self.path).name)[:40]
        return f"{base}@{self.start}-{hashlib.sha256(facts).hexdigest()[:16]}"


def is_compressed(path: str | Path) -> bool:
    return Path(path).suffix in COMPRESSED


def find_files(pattern: str | Path) -> list[Path]:
    """The files of a path, a folder or a glob, as sorted absolute paths.

    A folder gives its files, not those of its sub-folders. Names that begin with `_` or `.` are left out in
    folders and globs. `**` in a glob descends.
    Raises InputError when nothing is found or a file may not be read.
    """
    text = os.path.expanduser(str(pattern))  # noqa: PTH111 - a glob is no path yet
    if "://" in text:
        raise InputError(
            f"{text}: only files on this machine's file systems can be read", hint="mount it, or copy it here"
        )
    path = Path(text)
    if path.is_file():
        found = [path]
    elif path.is_dir():
        found = [entry for entry in _entries(path) if _is_visible(entry) and entry.is_file()]
        if not found:
            raise InputError(f"the folder {text} has no files to read", hint="name a folder or glob with files in it")
    else:
        names = glob.glob(text, recursive=True)  # noqa: PTH207 - Path.glob refuses absolute patterns
        found = [entry for entry in map(Path, names) if _is_visible(entry) and entry.is_file()]
        if not found:
            raise InputError(f"{text}: there is no such file or folder", hint="check the path of the source")
    return sorted(_checked(entry) for entry in found)


def plan_splits(files: Iterable[Path], split_bytes: int = SPLIT_BYTES) -> list[Split]:
    """The blocks of the files, in order; an empty file has none. Raises InputError if a file is gone."""
    splits = []
    for path in files:
        facts = _stat(path)
        step = facts.st_size if is_compressed(path) else split_bytes
        splits += [
            Split(str(path), facts.st_size, facts.st_mtime_ns, start, min(step, facts.st_size - start))
            for start in range(0, facts.st_size, max(step, 1))
        ]
    return splits


def portions_of(splits: Sequence[Split]) -> tuple[range, ...]:
    """The places of consecutive splits that one task of Spark reads. Whatever the cores, they are the same.

    Small files share a task: up to the length of a block, or less where that would leave cores without one.
    """
    portions, first, size = [], 0, 0
    most = min(SPLIT_BYTES, max(_LEAST_BYTES, sum(split.length for split in splits) // _TASKS))
    for place, split in enumerate(splits):
        if size and size + split.length > most:
            portions.append(range(first, place))
            first, size = place, 0
        size += split.length
    if splits:
        portions.append(range(first, len(splits)))
    return tuple(portions)


def check_unchanged(split: Split) -> None:
    """Raises InputError when the file is no longer the one that the split was made of."""
    facts = _stat(Path(split.path))
    if (facts.st_size, facts.st_mtime_ns) != (split.size, split.modified_ns):
        raise InputError(
            f"{split.path} was changed while it was being read",
            hint="write input under another name and rename it when it is complete; then start the job anew",
        )


def _entries(folder: Path) -> list[Path]:
    try:
        return list(folder.iterdir())
    except OSError as error:
        raise InputError(f"the folder {folder} cannot be read: {error.strerror}") from error


def _is_visible(path: Path) -> bool:
    return not path.name.startswith(HIDDEN)


def _checked(path: Path) -> Path:
    if not os.access(path, os.R_OK):
        raise InputError(f"{path} may not be read by this user", hint="change its permissions")
    if path.suffix in UNREADABLE:
        raise InputError(
            f"{path}: files compressed as {path.suffix} are not supported",
            hint="use .gz or .bz2, or unpack it",
        )
    if any(mark in str(path) for mark in "\n\r"):
        raise InputError(f"{str(path)!r}: a file name may not hold a line break", hint="rename the file")
    return path.absolute()


def _stat(path: Path) -> os.stat_result:
    try:
        return path.stat()
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror}", hint="keep the input while it is read") from error
