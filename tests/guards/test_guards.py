"""Guards have teeth: in a copy of the project each guard is taken out by itself; then a test must fail."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.guards.catalog import GUARDS, Guard

pytestmark = pytest.mark.timeout(320)  # a guard is noticed late in a folder of tests, on a busy machine

ROOT = Path(__file__).parents[2]
COPIED = ("pipeline", "stages", "leader", "verification", "tests")


@pytest.fixture(scope="module")
def copy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The project, so that nobody else meets a script without its guard."""
    folder = tmp_path_factory.mktemp("project")
    for name in COPIED:
        shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "pyproject.toml", folder)
    return folder


def run_tests(folder: Path, tests: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", *tests.split()]
    every = {**os.environ, "CELERIAC_TEST_ALL": "1"}
    return subprocess.run(command, cwd=folder, env=every, capture_output=True, text=True, timeout=300, check=False)


@pytest.mark.parametrize("guard", GUARDS, ids=lambda guard: guard.name)
def test_without_the_guard_a_test_fails(copy: Path, guard: Guard) -> None:
    script = copy / guard.path
    whole = script.read_text()
    assert whole.count(guard.line) == 1, f"{guard.path} has no such line, or several: {guard.line}"
    script.write_text(whole.replace(guard.line, guard.instead))
    try:
        done = run_tests(copy, guard.tests)
    finally:
        script.write_text(whole)

    # 1: tests have failed. Any other code says that they could not be run.
    assert done.returncode == 1, f"no test has noticed:\n{done.stdout[-2000:]}{done.stderr[-2000:]}"
    assert re.search(r"\b1 failed\b|\b1 error\b", done.stdout), done.stdout[-2000:]
