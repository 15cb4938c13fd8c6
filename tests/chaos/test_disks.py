"""Disks that refuse: full while rows are staged, full while they are published, read-only, and two of them."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.e2e.chaos import Site

BIG = """
from pipeline import Pipeline, read, write

flow = Pipeline("big")
rows = [f"{{n:>10}}" + "x" * 990 for n in range({rows})]
flow.source(read.iterable(rows), name="in").sink(write.text("{out}"), name="rows")
"""

Mount = Callable[[str], Path]


@pytest.fixture
def mount(tmp_path: Path) -> Iterator[Mount]:
    """Mounts a file system in memory of its own, with options."""
    mounted: list[Path] = []

    def make(options: str) -> Path:
        folder = tmp_path / f"disk{len(mounted)}"
        folder.mkdir()
        subprocess.run(["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(folder)], check=True)
        mounted.append(folder)
        return folder

    yield make
    for folder in mounted:
        subprocess.run(["umount", "-l", str(folder)], check=True)


def test_a_disk_that_fills_up_while_rows_are_staged_fails_the_job_and_says_so(site: Site, mount: Mount) -> None:
    disk = mount("size=2m")
    site.write(BIG.format(rows=20_000, out=disk / "out"))
    run = site.start("flow.py", "--workers", "1")
    run.finish(code=1)

    assert "No space left on device" in run.said()
    assert "free some space on that disk" in run.said()
    assert "Traceback" not in run.said()
    assert not (disk / "out").exists()


def test_a_disk_that_fills_up_while_rows_are_published_leaves_nothing_half_and_then_goes_on(
    site: Site, mount: Mount, redis_url: str
) -> None:
    disk = mount("size=3m")
    site.write(BIG.format(rows=2_000, out=disk / "out"))
    options = ("--workers", "1", "--redis", redis_url, "--job-id", "big")
    run = site.start("flow.py", *options)
    run.finish(code=1)
    assert "No space left on device" in run.said()
    assert "Traceback" not in run.said()
    assert not (disk / "out").exists()

    subprocess.run(["mount", "-o", "remount,size=20m", str(disk)], check=True)
    again = site.start("flow.py", *options)
    again.finish()

    rows = sorted(line for part in (disk / "out").glob("part-*") for line in part.read_text().splitlines())
    assert [int(row[:10]) for row in rows] == list(range(2_000))


def test_a_folder_that_cannot_be_written_is_told_before_anything_starts(site: Site, mount: Mount) -> None:
    disk = mount("size=1m")
    subprocess.run(["mount", "-o", "remount,ro", str(disk)], check=True)
    site.write(BIG.format(rows=10, out=disk / "out"))

    run = site.start("flow.py", "--workers", "1")
    run.finish(code=2)

    assert f"error: cannot write {disk / 'out'}: {disk} cannot be written" in run.said()
    assert "hint: " in run.said()
    assert "Traceback" not in run.said()


def test_a_result_behind_a_link_to_another_disk_is_whole(site: Site, mount: Mount) -> None:
    disk = mount("size=20m")
    (site.root / "work").mkdir()
    (site.root / "work" / "elsewhere").symlink_to(disk)
    site.write(BIG.format(rows=1_000, out="elsewhere/out"))

    run = site.start("flow.py", "--workers", "1")
    run.finish()

    rows = [line for part in (disk / "out").glob("part-*") for line in part.read_text().splitlines()]
    assert sorted(int(row[:10]) for row in rows) == list(range(1_000))
