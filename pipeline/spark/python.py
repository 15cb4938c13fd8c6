"""The program that Spark starts as Python on this machine: it finds PySpark where that is installed, compiled.

Spark puts a zip of PySpark's sources in front of the path of each Python process that it starts, and Python keeps
nothing that it compiles out of a zip: the import of what plans a read takes 1.9 s from there, and 0.5 s from here.
A session has a process for each task that runs at once, and one or two for each kind of question to a data source.
Each would also list Spark's archives twice, a tenth of a second each time, so they are not in its path.
"""

from __future__ import annotations

import os
import shlex
import sys
from importlib import import_module
from pathlib import Path
from typing import Final

_ZIPPED: Final = ("pyspark", "py4j")

_PROGRAM: Final = """#!/bin/sh
rest=
set -f
IFS=:
for each in $PYTHONPATH; do
  case "$each" in
    */pyspark.zip | */py4j-*-src.zip | */spark-core_*.jar) ;;
    *) rest="$rest${{each:+:$each}}" ;;
  esac
done
PYTHONPATH={links}$rest exec {python} "$@"
"""


def python_program(folder: Path) -> Path:
    """This Python, with the installed PySpark in front: a program in `folder`, for as long as that is there.

    It is this Python itself where no program may be run from that folder.
    """
    links = folder / "python"
    links.mkdir()
    for name in _ZIPPED:
        (links / name).symlink_to(import_module(name).__path__[0])
    program = folder / "python3"
    program.write_text(_PROGRAM.format(links=shlex.quote(str(links)), python=shlex.quote(sys.executable)))
    program.chmod(0o755)
    return program if os.access(program, os.X_OK) else Path(sys.executable)
