"""Files that grow, and folders that get new ones: finds them, knows them again, and says what became of them.

A file is known by its inode, whatever its name is: a rename is a rotation and not another file. Each content that an
inode holds has a sender of its own, `<inode>.<number>`; its marks say which one it is (`pipeline.sources.filemarks`).
"""

from __future__ import annotations

import glob
import logging
import os
import stat
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from pipeline.errors import InputError, SourceAway
from pipeline.sources.endless import After, Memory, Portion, Reader, nothing
from pipeline.sources.filemarks import find_mark
from pipeline.sources.growingfile import FormatOf, GrowingFile
from pipeline.sources.splits import COMPRESSED, HIDDEN, UNREADABLE
from pipeline.wording import counted

ABANDONED_SECONDS: Final = 30.0
"""How long a file that has left is watched after its last change; then its last line counts as whole."""

REST_SECONDS: Final = 30.0
"""How long a quiet file is kept open."""

FORGET_SECONDS: Final = 7 * 86_400.0
"""How long the sender of a file that has gone is kept: until then it may come back without being read twice."""

_LOOK_SHARE: Final = 10
"""Looking through folders takes at most one part in so many of the time."""

_NOT_FOLLOWED: Final = (*COMPRESSED, *UNREADABLE)
_FLAGS: Final = os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC

_log = logging.getLogger(__name__)

Key = tuple[int, int]
"""Device and inode."""

Found = dict[Key, tuple[str, os.stat_result]]


@dataclass(slots=True)
class Growing:
    """One file, as it is known while it is there. A `pipeline.sources.growingfile.Watched`.

    is_given: somebody reads it, or tries to. is_held: it is open. is_at_end: nothing of it is unread, as far as known.
    is_drained: it was read to its end after it had left.
    at_rest: its size and time when it was read to its end and closed. left_at: when it was moved away or deleted.
    """

    files: GrowingFiles = field(repr=False)
    key: Key
    path: str
    name: str
    is_given: bool = False
    is_held: bool = False
    is_at_end: bool = False
    is_drained: bool = False
    at_rest: tuple[int, int] | None = None
    unread_bytes: int = 0
    left_at: float | None = None
    changed_at: float = 0.0

    def note_change(self) -> None:
        self.changed_at, self.is_at_end = self.files.clock(), False

    def note_end(self, unread_bytes: int) -> None:
        self.is_at_end, self.unread_bytes = True, unread_bytes
        self.is_drained = self.left_at is not None

    def note_closed(self) -> None:
        self.is_held = False

    def is_abandoned(self) -> bool:
        quiet_since = max(self.changed_at, self.left_at or 0.0)
        return self.left_at is not None and self.files.clock() - quiet_since >= ABANDONED_SECONDS

    def must_rest(self) -> bool:
        is_quiet = self.files.clock() - self.changed_at >= REST_SECONDS
        return self.left_at is None and (self.files.is_crowded or is_quiet)

    def rest(self, size: int, modified_ns: int) -> None:
        self.is_given = False
        self.at_rest = (size, modified_ns)
        if self.left_at is not None:
            self.files.drop(self)

    def start_over(self, why: str, lost_bytes: int) -> None:
        lost = f"; of it, at least {counted(lost_bytes, 'byte')} could not be read" if lost_bytes else ""
        _log.warning("%s %s: it is read from its beginning%s", self.path, why, lost)
        self.is_given = self.is_at_end = False
        self.at_rest = None
        self.files.forget_later(self.name)
        self.name = self.files.next_name(self.key)


@dataclass(frozen=True, slots=True)
class FileSplit:
    """One content of one file. A `pipeline.sources.endless.Split`."""

    file: Growing
    name: str

    def open(self, position: Any) -> Reader:
        return self.file.files.open(self.file, position)


class _NoReader:
    """Of a file that has gone, or holds something else, before it was opened."""

    def read(self) -> Portion:
        return nothing(After.RESTING)

    def close(self) -> None:
        pass


@dataclass(slots=True)
class GrowingFiles:
    """A `pipeline.sources.endless.Source` of a file, a folder or a glob. `clock` is monotonic seconds."""

    pattern: str
    formats: FormatOf
    memory: Memory
    poll_seconds: float
    clock: Callable[[], float] = time.monotonic
    is_crowded: bool = False
    _files: dict[Key, Growing] = field(default_factory=dict)
    _names: dict[int, list[str]] = field(default_factory=dict)
    """Inode -> the names of its contents, oldest first."""
    _gone: dict[str, float] = field(default_factory=dict)
    """The names of contents that no file here has -> since when."""
    _told: set[str] = field(default_factory=set)
    _look_at: float = 0.0
    _is_new: bool = True
    _is_single: bool | None = None

    def look(self, room: int) -> Sequence[FileSplit]:
        if self._is_new:
            self._remember()
        started = self.clock()
        if started >= self._look_at:
            self._scan()
            self._look_at = self.clock() + _LOOK_SHARE * (self.clock() - started)
        waiting = [file for file in self._files.values() if not file.is_given and file.at_rest is None]
        if self._is_single and any(self._comes_first(file) for file in self._files.values()):
            waiting = [file for file in waiting if file.left_at is not None]
        self.is_crowded = len(waiting) > room
        given = waiting[:room]
        for file in given:
            file.is_given, file.changed_at = True, self.clock()
        return [FileSplit(file, file.name) for file in given]

    @staticmethod
    def _comes_first(file: Growing) -> bool:
        """A file that was rotated away is read to its end before the new one begins."""
        return file.left_at is not None and (not file.is_given or (file.is_held and not file.is_drained))

    def forgettable(self) -> Sequence[str]:
        before = self.clock() - FORGET_SECONDS
        names = [name for name, since in self._gone.items() if since <= before]
        for name in names:
            del self._gone[name]
            kept = self._names.get(_inode(name), [])
            if name in kept:
                kept.remove(name)
        return names

    def close(self) -> None:
        pass

    def open(self, file: Growing, position: Any) -> Reader:
        """Raises SourceAway when it cannot be opened, InputError for a bad header."""
        if self._files.get(file.key) is not file:
            return _NoReader()  # it is gone, and that was told
        try:
            descriptor = os.open(file.path, _FLAGS)
        except OSError as error:
            raise _cannot_open(file.path, error) from error
        try:
            is_it = _key(os.fstat(descriptor)) == file.key
            mark = find_mark(descriptor, position) if is_it else None
            if mark is not None:
                reader = GrowingFile(file, descriptor, mark, self.formats)
                file.is_held = True
                return reader
        except OSError as error:
            os.close(descriptor)
            raise _cannot_open(file.path, error) from error
        except InputError:
            os.close(descriptor)
            raise
        os.close(descriptor)
        if not is_it:
            raise SourceAway(f"{file.path} is another file now")  # the next look finds where this one is
        file.start_over("was cut, or holds something else than it did", 0)
        return _NoReader()

    def next_name(self, key: Key) -> str:
        """A name for another content of the inode."""
        names = self._names.setdefault(key[1], [])
        names.append(f"{key[1]:x}.{int(names[-1].rpartition('.')[2]) + 1 if names else 0}")
        return names[-1]

    def drop(self, file: Growing) -> None:
        """The file has left and is read to its end."""
        _log.info("%s is read to its end and has left", file.path)
        self._files.pop(file.key, None)
        self.forget_later(file.name)

    def forget_later(self, name: str) -> None:
        """No file here has this content any more."""
        self._gone[name] = self.clock()

    def _remember(self) -> None:
        """Takes up what was read by an earlier process, and looks for files that were moved away meanwhile."""
        for name in self.memory.splits():
            self._names.setdefault(_inode(name), []).append(name)
            self._gone[name] = self.clock()
        for names in self._names.values():
            names.sort(key=lambda name: int(name.rpartition(".")[2]))
        found = self._found()
        self._is_new = False
        self._take_in(found)
        inodes = set(self._names) - {inode for _, inode in self._files}
        for path, facts in self._elsewhere(inodes, found.values()):
            known = self._known_name(path, facts.st_ino)
            if known is not None:
                self._add(_key(facts), path, known).left_at = self.clock()

    def _scan(self) -> None:
        """Sees what is there now. Raises SourceAway, and then nothing is taken for gone."""
        found = self._found()
        self._take_in(found)
        now = self.clock()
        left = [file for key, file in self._files.items() if key not in found and file.left_at is None]
        for file in left:
            file.left_at = now
        closed = {file.key[1]: file for file in self._files.values() if file.left_at is not None and not file.is_held}
        for path, facts in self._elsewhere(set(closed), found.values()):
            file = closed.pop(facts.st_ino)
            file.path, file.at_rest = path, None  # it is watched for a while: its writer may not know yet
        for file in closed.values():
            if file.unread_bytes or not file.is_at_end:
                _log.warning("%s is gone; what was not read of it is lost", file.path)
            self.drop(file)

    def _take_in(self, found: Found) -> None:
        new = []
        for key, (path, facts) in found.items():
            file = self._files.get(key)
            if file is None:
                new.append((facts.st_mtime_ns, path, key))
                continue
            file.path, file.left_at = path, None
            if file.at_rest is not None and file.at_rest != (facts.st_size, facts.st_mtime_ns):
                file.at_rest = None
        for _, path, key in sorted(new):
            self._add(key, path, self._known_name(path, key[1]) or self.next_name(key))

    def _add(self, key: Key, path: str, name: str) -> Growing:
        self._gone.pop(name, None)
        file = self._files[key] = Growing(self, key, path, name)
        return file

    def _known_name(self, path: str, inode: int) -> str | None:
        """The newest content of the inode, held by no other file, of which this file holds what was read."""
        names = [name for name in self._names.get(inode, ()) if name in self._gone]
        if not names:
            return None
        try:
            descriptor = os.open(path, _FLAGS)
        except OSError:
            return names[-1]  # whoever opens it later looks again
        try:
            fitting = (
                name for name in reversed(names) if find_mark(descriptor, self.memory.position(name)) is not None
            )
            return next(fitting, None)
        finally:
            os.close(descriptor)

    def _found(self) -> Found:
        """The files of the pattern. Raises SourceAway."""
        found: Found = {}
        for path in self._paths():
            try:
                facts = os.stat(path)  # noqa: PTH116 - of thousands of files, several times a second
            except FileNotFoundError:
                continue
            except OSError as error:
                raise SourceAway(f"{path} cannot be looked at: {error.strerror}") from error
            if stat.S_ISREG(facts.st_mode):
                found.setdefault(_key(facts), (path, facts))
            elif self._is_single:
                raise InputError(f"{path} is no ordinary file", hint="what a pipe gives, `celeriac produce` can send")
        return found

    def _paths(self) -> Iterable[str]:
        path = Path(self.pattern)
        if self._is_single is None and path.exists():
            self._is_single = not path.is_dir()
        try:
            if self._is_single:
                if path.is_dir():
                    raise SourceAway(f"{path} is a folder now", hint="put the file back")
                path.parent.stat()
                return [self.pattern]
            if path.is_dir():
                return self._readable(entry.path for entry in os.scandir(path))
            if not glob.has_magic(self.pattern):
                raise SourceAway(f"{path} is not there", hint="it is read as soon as it is")
            next(each for each in path.parents if not glob.has_magic(str(each))).stat()
        except OSError as error:
            raise SourceAway(f"{path} cannot be looked at: {error.strerror}") from error
        return self._readable(glob.iglob(self.pattern, recursive=True))  # noqa: PTH207 - as in splits

    def _readable(self, paths: Iterator[str]) -> list[str]:
        """Without hidden files, and without compressed ones: those are old logs, or cannot be read by offset."""
        found = []
        for path in paths:
            name = path.rpartition("/")[2]
            if name.startswith(HIDDEN):
                continue
            if name.endswith(_NOT_FOLLOWED):
                suffix = Path(name).suffix
                self._tell_once(f"{suffix} files are not followed, for example {path}", suffix)
            else:
                found.append(path)
        return found

    def _elsewhere(
        self, inodes: set[int], found: Iterable[tuple[str, os.stat_result]]
    ) -> Iterator[tuple[str, os.stat_result]]:
        """Files beside those of the pattern that have one of these inodes: they were renamed out of it."""
        if not inodes:
            return
        folders = {path.rpartition("/")[0] or "/" for path, _ in found}
        parent = str(Path(self.pattern).parent)
        if not glob.has_magic(parent):
            folders.add(parent)
        for folder in folders:
            try:
                entries = [entry for entry in os.scandir(folder) if entry.inode() in inodes]
                for entry in entries:
                    facts = entry.stat()
                    if stat.S_ISREG(facts.st_mode):
                        inodes = inodes - {facts.st_ino}
                        yield entry.path, facts
            except OSError as error:
                _log.info("%s cannot be searched: %s", folder, error.strerror)

    def _tell_once(self, text: str, key: str) -> None:
        if key not in self._told:
            self._told.add(key)
            _log.warning("%s", text)


def paths_of_contents(pattern: str, positions: Mapping[str, Any]) -> dict[str, str]:
    """Name of a content that was read up to a position -> the whole path of the file that holds it; those that are not
    found are left out. Raises SourceAway, InputError.
    """
    files = GrowingFiles(pattern, FormatOf(None), _Positions(positions), 0.0)
    found: dict[str, str] = {}
    while given := files.look(sys.maxsize):
        found.update({split.name: str(Path(split.file.path).absolute()) for split in given if split.name in positions})
    return found


@dataclass(frozen=True, slots=True)
class _Positions:
    """A `pipeline.sources.endless.Memory`."""

    known: Mapping[str, Any]

    def splits(self) -> list[str]:
        return list(self.known)

    def position(self, split: str) -> Any:
        return self.known[split]


def _cannot_open(path: str, error: OSError) -> SourceAway:
    return SourceAway(f"{path} cannot be opened: {error.strerror}", hint="check the file and its permissions")


def _key(facts: os.stat_result) -> Key:
    return facts.st_dev, facts.st_ino


def _inode(name: str) -> int:
    return int(name.partition(".")[0], 16)
