"""Where the archive of Spark's classes is, and what a JVM is told of it. Made by `pipeline.spark.archive`."""

from __future__ import annotations

import hashlib
import sys
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Final

_FOLDER: Final = Path(sys.prefix) / "share" / "celeriac"

USED_BY: Final = {"aot": "AOTCache", "jsa": "SharedArchiveFile"}
"""Kind of an archive, which is the suffix of its file -> Java's option for the path of one that is to be used."""


def archive_path(home: Path, kind: str) -> Path:
    """Where the archive for that JAVA_HOME is, or would be: another Java or another PySpark has another one."""
    java = (home / "bin" / "java").resolve()
    spark = find_spec("pyspark")
    facts = f"{java} {java.stat().st_mtime_ns} {version('pyspark')} {spark.origin if spark else ''}"
    return _FOLDER / f"spark-{hashlib.sha256(facts.encode()).hexdigest()[:16]}.{kind}"


def archive_options(home: Path) -> str:
    """What a JVM of Spark from that JAVA_HOME is started with to use the archive; nothing without one."""
    for kind, option in USED_BY.items():
        path = archive_path(home, kind)
        if path.exists():
            # A file that is not there would cost the JVM the archive of its own classes. What it has against one it
            # prints to the standard output, which is what Spark's launcher reads.
            return f' -XX:{option}="{path}" -Xlog:disable -Xlog:all=error:stderr'
    return ""
