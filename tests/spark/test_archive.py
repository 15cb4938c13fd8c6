"""The archive of classes: made by a session, used by the next ones, and nothing where there is none."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import psutil
import pytest

from pipeline.embedded.java import ensure_java
from pipeline.errors import EnvironmentFault
from pipeline.spark import classes
from pipeline.spark.archive import kind_for, make_archive
from pipeline.spark.cluster import launcher
from tests.e2e.chaos import ROOT

pytestmark = pytest.mark.timeout(600)


def a_java(folder: Path) -> Path:
    """A JAVA_HOME that has been there before."""
    (folder / "bin").mkdir(parents=True)
    (folder / "bin/java").touch()
    return folder


def test_a_jvm_takes_its_classes_from_the_archive_of_this_environment(tmp_path: Path) -> None:
    """It is made here, which takes a minute or two, if it has not been before."""
    home = ensure_java()
    made = subprocess.run(
        [sys.executable, "-m", "pipeline.spark.archive"],
        env={**os.environ, "PYTHONPATH": str(ROOT), "JAVA_TOOL_OPTIONS": "-XX:TieredStopAtLevel=1"},
        capture_output=True,
        text=True,
        timeout=500,
        check=False,
    )
    log = tmp_path / "classes.log"
    options = f"{classes.archive_options(home)} -Xlog:class+load:file={log}"
    program, variables = launcher({**os.environ, "JAVA_HOME": str(home)})
    submit = ["bash", program, "org.apache.spark.deploy.SparkSubmit", "--driver-java-options", options, "--version"]
    subprocess.run(submit, env=variables, capture_output=True, timeout=100, check=True)

    [source] = re.findall(r" org\.apache\.spark\.deploy\.SparkSubmit source: (.*)", log.read_text())
    kind = kind_for(home)
    if kind == "aot" or any((home / "lib").rglob("classes.jsa")):
        assert (made.returncode, made.stderr) == (0, "")
        assert re.fullmatch(rf"{classes.archive_path(home, kind)}: \d+ MB, after \d+ s\n", made.stdout)
        assert source == {"aot": "shared objects file", "jsa": "shared objects file (top)"}[kind]
    else:  # a trimmed Java, which has no archive of its own classes to begin with
        assert made.returncode == 3
        assert "error: this Java makes no archive of classes\nhint: " in made.stderr
        assert source.endswith(".jar")


def test_a_session_maps_the_archive_that_was_there_when_it_started(spark: Any) -> None:
    home = ensure_java()
    path = classes.archive_path(home, kind_for(home))
    java = psutil.Process(spark.sparkContext._gateway.proc.pid)
    was_there = path.exists() and path.stat().st_mtime < java.create_time()

    assert any(each.path == str(path) for each in java.memory_maps()) == was_there


@pytest.mark.parametrize(("kind", "option"), classes.USED_BY.items())
def test_without_an_archive_a_jvm_has_no_option_and_each_java_has_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, option: str
) -> None:
    monkeypatch.setattr(classes, "_FOLDER", tmp_path)
    one, two = a_java(tmp_path / "one"), a_java(tmp_path / "two")

    assert classes.archive_path(one, kind) != classes.archive_path(two, kind)
    assert classes.archive_options(one) == ""

    classes.archive_path(one, kind).touch()
    assert classes.archive_options(one).startswith(f' -XX:{option}="{classes.archive_path(one, kind)}"')
    assert classes.archive_options(two) == ""


def test_a_folder_that_cannot_be_written_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setattr(classes, "_FOLDER", tmp_path / "file" / "below")

    with pytest.raises(EnvironmentFault, match="below cannot be written: Not a directory"):
        make_archive()
