"""Where savepoints are kept: a local folder, or what fsspec reaches. One folder for each, whole or not there."""

from __future__ import annotations

import errno
import os
import shutil
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, BinaryIO, Final
from urllib.parse import urlsplit

from pipeline.errors import EnvironmentFault, SavepointError
from pipeline.savepoints.manifest import MANIFEST, is_name_of

_DRAFT: Final = ".unfinished"


class Draft(ABC):
    """A savepoint that is being written. Until `publish` it is none."""

    @abstractmethod
    def create(self, path: str) -> BinaryIO:
        """A new file; closing it makes it last."""

    @abstractmethod
    def publish(self, manifest: bytes) -> None:
        """The savepoint is there, whole, when this returns; before that it is not."""

    @abstractmethod
    def discard(self) -> None:
        """Nothing of it is left, as far as that can be done. Never raises for what is gone already."""


class Place(ABC):
    """A folder of savepoints. Raises SavepointError for what the disk or the network refuses."""

    url: str

    @abstractmethod
    def prepare(self) -> None:
        """Before a job is changed for a savepoint: raises for what can be known of the folder before it is written."""

    @abstractmethod
    def begin(self, name: str, job: str) -> Draft:
        """A new savepoint. What exporters of the same job have left unfinished is removed: one exports at a time."""

    @abstractmethod
    def names(self) -> list[str]:
        """Savepoints that are whole, by name."""

    @abstractmethod
    def files(self, name: str, folder: str) -> list[str]:
        """The Parquet files in a folder of a savepoint, as paths in it."""

    @abstractmethod
    def open(self, name: str, path: str) -> Any:
        """A file for reading."""

    @abstractmethod
    def delete(self, name: str) -> None:
        """Takes a savepoint away: its manifest first, so that half of one is none."""

    def read(self, name: str, path: str) -> bytes:
        with self.open(name, path) as file:
            return bytes(file.read())


def place_of(url: str) -> Place:
    """`url` is a path, file://…, or what fsspec knows. Raises EnvironmentFault when that is needed and missing."""
    parts = urlsplit(url)
    if len(parts.scheme) <= 1:
        return LocalPlace(Path(url))
    if parts.scheme == "file":
        return LocalPlace(Path(parts.path))
    return RemotePlace(url)


def savepoint_at(url: str) -> tuple[Place, str]:
    """The place and the name of one savepoint's folder."""
    parent, _, name = url.rstrip("/").rpartition("/")
    if not name:
        raise SavepointError(f"not the folder of a savepoint: {url!r}")
    if "://" not in url:
        path = Path(url).resolve()
        return LocalPlace(path.parent), path.name
    return place_of(parent), name


@contextmanager
def _faults(where: object) -> Iterator[None]:
    try:
        yield
    except FileNotFoundError as error:
        raise SavepointError(
            f"there is no {where}", hint="`celeriac savepoint list FOLDER` shows what is there"
        ) from error
    except (FileExistsError, NotADirectoryError) as error:
        raise SavepointError(
            f"{where}: {error.strerror or error}", hint="savepoints lie in a folder, and that path leads to a file"
        ) from error
    except OSError as error:
        raise SavepointError(f"{where}: {error.strerror or error}") from error


class LocalPlace(Place):
    """A folder on this machine. A savepoint appears by one rename, when all of it is on the disk."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.url = str(folder)

    def prepare(self) -> None:
        with _faults(self.folder):
            self.folder.mkdir(parents=True, exist_ok=True)
            if not os.access(self.folder, os.W_OK | os.X_OK):
                raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))

    def begin(self, name: str, job: str) -> Draft:
        with _faults(self.folder):
            self.folder.mkdir(parents=True, exist_ok=True)
            for path in self.folder.glob(f".*{_DRAFT}"):
                left = path.name[1 : -len(_DRAFT)]
                if left == name or is_name_of(left, job):
                    shutil.rmtree(path, ignore_errors=True)
            draft = self.folder / f".{name}{_DRAFT}"
            draft.mkdir()
        return _LocalDraft(draft, self.folder / name)

    def names(self) -> list[str]:
        if not self.folder.exists():
            return []
        with _faults(self.folder):
            return sorted(
                path.name for path in self.folder.iterdir() if path.name[0] != "." and (path / MANIFEST).is_file()
            )

    def files(self, name: str, folder: str) -> list[str]:
        root = self.folder / name
        return sorted(str(path.relative_to(root)) for path in (root / folder).rglob("*.parquet") if path.is_file())

    def open(self, name: str, path: str) -> Any:
        whole = self.folder / name / path
        with _faults(whole):
            return open(whole, "rb")

    def delete(self, name: str) -> None:
        folder = self.folder / name
        with _faults(folder):
            (folder / MANIFEST).unlink()
            shutil.rmtree(folder)
            _sync(self.folder)


class _LocalDraft(Draft):
    def __init__(self, draft: Path, final: Path) -> None:
        self._draft = draft
        self._final = final

    def create(self, path: str) -> BinaryIO:
        whole = self._draft / path
        with _faults(whole):
            whole.parent.mkdir(parents=True, exist_ok=True)
            return _SyncedFile(whole)  # type: ignore[return-value]

    def publish(self, manifest: bytes) -> None:
        with _faults(self._final):
            with _SyncedFile(self._draft / MANIFEST) as file:
                file.write(manifest)
            for folder in [path for path in self._draft.rglob("*") if path.is_dir()]:
                _sync(folder)
            _sync(self._draft)
            self._draft.rename(self._final)
            _sync(self._final.parent)

    def discard(self) -> None:
        shutil.rmtree(self._draft, ignore_errors=True)


class _SyncedFile:
    """A file that is on the disk when it is closed."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file = open(path, "wb")  # noqa: SIM115 - closed by close

    def __enter__(self) -> _SyncedFile:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def write(self, data: Any) -> int:
        with _faults(self._path):
            return self._file.write(data)

    def close(self) -> None:
        with _faults(self._path):
            if not self._file.closed:
                self._file.flush()
                os.fsync(self._file.fileno())
                self._file.close()


def _sync(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


class RemotePlace(Place):
    """What fsspec reaches. There is no rename there that is whole, so the manifest comes last and goes first."""

    def __init__(self, url: str) -> None:
        try:
            from fsspec.core import url_to_fs
        except ImportError as error:
            raise EnvironmentFault(
                f"{urlsplit(url).scheme}:// needs fsspec", hint="pip install 'celeriac[savepoints]'"
            ) from error
        try:
            self._files, self._root = url_to_fs(url)
        except (ImportError, ValueError) as error:
            raise EnvironmentFault(f"{urlsplit(url).scheme}:// cannot be used: {error}") from error
        self._root = self._root.rstrip("/")
        self.url = url

    def prepare(self) -> None:
        with _faults(self.url):  # what may be written there, only writing tells
            self._files.exists(self._root)

    def begin(self, name: str, job: str) -> Draft:
        with _faults(self.url):
            for found in self._children():
                is_ours = found == name or is_name_of(found, job)
                if is_ours and not self._files.exists(f"{self._root}/{found}/{MANIFEST}"):
                    self._files.rm(f"{self._root}/{found}", recursive=True)
        return _RemoteDraft(self._files, f"{self._root}/{name}")

    def names(self) -> list[str]:
        with _faults(self.url):
            return [name for name in self._children() if self._files.exists(f"{self._root}/{name}/{MANIFEST}")]

    def _children(self) -> list[str]:
        if not self._files.exists(self._root):
            return []
        self._files.invalidate_cache()
        return sorted(path.rstrip("/").rpartition("/")[2] for path in self._files.ls(self._root, detail=False))

    def files(self, name: str, folder: str) -> list[str]:
        root = f"{self._root}/{name}/"
        with _faults(root):
            found = [str(path) for path in self._files.find(root + folder)]
        return sorted(path[path.index(root) + len(root) :] for path in found if path.endswith(".parquet"))

    def open(self, name: str, path: str) -> Any:
        whole = f"{self._root}/{name}/{path}"
        with _faults(whole):
            return self._files.open(whole, "rb")

    def delete(self, name: str) -> None:
        folder = f"{self._root}/{name}"
        with _faults(folder):
            self._files.rm(f"{folder}/{MANIFEST}")
            self._files.rm(folder, recursive=True)


class _RemoteDraft(Draft):
    def __init__(self, files: Any, folder: str) -> None:
        self._files = files
        self._folder = folder

    def create(self, path: str) -> BinaryIO:
        whole = f"{self._folder}/{path}"
        with _faults(whole):
            self._files.makedirs(whole.rpartition("/")[0], exist_ok=True)
            return self._files.open(whole, "wb")  # type: ignore[no-any-return]

    def publish(self, manifest: bytes) -> None:
        with _faults(self._folder), self._files.open(f"{self._folder}/{MANIFEST}", "wb") as file:
            file.write(manifest)

    def discard(self) -> None:
        with suppress(OSError):
            self._files.rm(self._folder, recursive=True)
