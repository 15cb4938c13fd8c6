"""The archive of classes: made by a session, used by the next ones, and nothing where there is none."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from pipeline.embedded.java import ensure_java
from pipeline.errors import EnvironmentFault
from pipeline.spark import classes
from pipeline.spark.archive import make_archive
from tests.e2e.chaos import ROOT

pytestmark = pytest.mark.timeout(600)

USES = """
from pipeline.spark.session import spark_session

print(spark_session("local[1]").range(3).count())
"""


def a_java(folder: Path) -> Path:
    """A JAVA_HOME that has been there before."""
    (folder / "bin").mkdir(parents=True)
    (folder / "bin/java").touch()
    return folder


def run(*arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "JAVA_TOOL_OPTIONS": "-XX:TieredStopAtLevel=1", **variables}
    command = [sys.executable, *arguments]
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=500, check=False)


def test_a_jvm_takes_its_classes_from_the_archive_of_this_environment(tmp_path: Path) -> None:
    """It is made here, which takes a minute or two, if it has not been before."""
    home = ensure_java()
    made = run("-m", "pipeline.spark.archive")
    log = tmp_path / "classes.log"
    used = run("-c", USES, CELERIAC_SPARK_CONF=f"spark.driver.extraJavaOptions=-Xlog:class+load:file={log}")

    assert used.stdout == "3\n", used.stderr
    [source] = re.findall(r" org\.apache\.spark\.SparkContext source: (.*)", log.read_text())
    if any((home / "lib").rglob("classes.jsa")):
        assert (made.returncode, made.stderr) == (0, "")
        assert made.stdout.startswith(f"{classes.archive_path(home)}: ")
        assert source == "shared objects file (top)"
    else:  # a trimmed Java, which has no archive of its own classes to begin with
        assert made.returncode == 3
        assert "error: this Java makes no archive of classes\nhint: " in made.stderr
        assert source.endswith(".jar")


def test_without_an_archive_a_jvm_has_no_option_and_each_java_has_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(classes, "_FOLDER", tmp_path)
    one, two = a_java(tmp_path / "one"), a_java(tmp_path / "two")

    assert classes.archive_path(one) != classes.archive_path(two)
    assert classes.archive_options(one) == ""

    classes.archive_path(one).touch()
    assert f'-XX:SharedArchiveFile="{classes.archive_path(one)}"' in classes.archive_options(one)
    assert classes.archive_options(two) == ""


def test_a_folder_that_cannot_be_written_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setattr(classes, "_FOLDER", tmp_path / "file" / "below")

    with pytest.raises(EnvironmentFault, match="below cannot be written: Not a directory"):
        make_archive()
