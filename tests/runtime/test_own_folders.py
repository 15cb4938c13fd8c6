"""Temporary folders whose owners were killed go with the next one of their kind, and nothing else does."""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest

from pipeline.embedded import folders
from pipeline.embedded.folders import LOCK_NAME, OwnFolder
from pipeline.errors import SinkError
from tests.e2e.chaos import wait_until

KIND = "celeriac-"

OWNER = """
import subprocess, sys
from pathlib import Path
from pipeline.embedded.folders import OwnFolder
own = OwnFolder.make(sys.argv[1], Path(sys.argv[2]))
(own.path / "junk").mkdir()
child = [sys.executable, "-c", "import sys; sys.stdin.read()"]
if sys.argv[3:]:
    subprocess.Popen(child, pass_fds=own.holds)
print(own.path, flush=True)
sys.stdin.read()
"""


@contextmanager
def owner(parent: Path, *more: str, kind: str = KIND) -> Iterator[tuple[subprocess.Popen[str], Path]]:
    """A process with a folder of its own; with `more` a child has it, too, which ends with the block."""
    command = [sys.executable, "-c", OWNER, kind, str(parent), *more]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdin is not None
    assert process.stdout is not None
    with process.stdin, process.stdout:
        yield process, Path(process.stdout.readline().strip())
        process.kill()
        process.wait()


def left_by_a_killed_one(parent: Path, kind: str = KIND) -> Path:
    with owner(parent, kind=kind) as (_, path):
        pass
    assert (path / "junk").is_dir()
    return path


def make_and_close(parent: Path) -> None:
    OwnFolder.make(KIND, parent).close()


def test_the_folder_of_a_killed_process_goes_and_that_of_a_living_one_stays(tmp_path: Path) -> None:
    with owner(tmp_path) as (_, living):
        dead = left_by_a_killed_one(tmp_path)
        other = left_by_a_killed_one(tmp_path, kind="celeriac-other-")

        make_and_close(tmp_path)

        assert not dead.exists()
        assert (living / "junk").is_dir()
        assert (other / "junk").is_dir()
    make_and_close(tmp_path)
    assert list(tmp_path.iterdir()) == [other]


def test_a_child_that_was_given_the_folder_keeps_it_when_its_owner_was_killed(tmp_path: Path) -> None:
    with owner(tmp_path, "with a child") as (process, path):
        process.kill()
        process.wait()

        make_and_close(tmp_path)

        assert (path / "junk").is_dir()
    wait_until(lambda: not has_owner(path), "the child has ended")
    make_and_close(tmp_path)
    assert not path.exists()


def has_owner(path: Path) -> bool:
    with open(path / LOCK_NAME) as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        return False


def test_what_is_not_surely_ours_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    parent, elsewhere = tmp_path / "tmp", tmp_path / "elsewhere"
    parent.mkdir()
    elsewhere.mkdir()
    target = left_by_a_killed_one(elsewhere)
    (parent / "celeriac-linked00").symlink_to(target)
    (parent / "celeriac-nolock00").mkdir(0o700)
    (parent / "celeriac-notours").mkdir(0o700)
    (parent / "celeriac-notours" / LOCK_NAME).symlink_to(target / LOCK_NAME)
    (parent / "celeriac-afile000").touch()
    shared = left_by_a_killed_one(parent)
    shared.chmod(0o770)
    named = left_by_a_killed_one(parent).rename(parent / "celeriac-of-mine")
    before = sorted(parent.iterdir())

    make_and_close(parent)
    shared.chmod(0o700)
    with monkeypatch.context() as patch:
        patch.setattr(os, "geteuid", lambda: os.getuid() + 1)  # to another user they are another's
        make_and_close(parent)

    assert sorted(parent.iterdir()) == before
    assert (target / "junk").is_dir()
    make_and_close(parent)
    assert sorted(parent.iterdir()) == [path for path in before if path != shared]
    assert named.is_dir()


def test_links_in_a_folder_are_removed_and_not_followed(tmp_path: Path) -> None:
    (tmp_path / "kept").mkdir()
    (tmp_path / "kept" / "file").touch()
    parent = tmp_path / "tmp"
    parent.mkdir()
    dead = left_by_a_killed_one(parent)
    (dead / "link").symlink_to(tmp_path / "kept")

    make_and_close(parent)

    assert not dead.exists()
    assert (tmp_path / "kept" / "file").exists()


def test_a_folder_that_a_sweep_meets_before_it_is_locked_is_replaced_by_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    really, met = fcntl.flock, []

    def flock(descriptor: int, how: int) -> None:
        if how == fcntl.LOCK_EX and not met:
            met.extend(tmp_path.iterdir())
            folders.sweep(KIND, tmp_path, lambda _: None)
        really(descriptor, how)

    monkeypatch.setattr(fcntl, "flock", flock)
    with OwnFolder.make(KIND, tmp_path) as own:
        assert len(met) == 1
        assert not met[0].exists()
        assert own.path.is_dir()
        assert own.path != met[0]
        assert has_owner(own.path)


def test_without_locks_a_folder_is_made_that_no_sweep_takes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(_descriptor: int, _how: int) -> None:
        raise OSError(38, "Function not implemented")

    with monkeypatch.context() as patch:
        patch.setattr(fcntl, "flock", refused)
        own = OwnFolder.make(KIND, tmp_path)

    make_and_close(tmp_path)

    assert own.path.is_dir()
    assert own.holds == ()
    own.close()
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_cannot_be_buried_stays_for_the_next_time(tmp_path: Path) -> None:
    dead = left_by_a_killed_one(tmp_path)
    met = []

    def refuse(path: Path) -> None:
        met.append(path)
        raise SinkError("not now")

    with OwnFolder.make(KIND, tmp_path, bury=refuse):
        pass

    assert met == [dead]
    assert (dead / "junk").is_dir()
    with OwnFolder.make(KIND, tmp_path, bury=met.append):
        assert not dead.exists()
    assert met == [dead, dead]


def test_many_that_begin_and_end_at_once_never_take_one_another_s(tmp_path: Path) -> None:
    def use(number: int) -> bool:
        with OwnFolder.make(KIND, tmp_path) as own:
            mark = own.path / str(number)
            mark.mkdir()
            folders.sweep(KIND, tmp_path, shutil.rmtree)
            return mark.is_dir() and has_owner(own.path)

    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(use, range(200)))
    assert list(tmp_path.iterdir()) == []
