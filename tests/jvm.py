"""The JVMs of tests: their options. Each starts in half the time behind `python -m pipeline.spark.archive`."""

from __future__ import annotations

from functools import cache
from typing import Final

from pipeline.embedded.java import ensure_java
from pipeline.errors import EnvironmentFault

_SMALL: Final = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
"""None lives long enough for the second compiler or for G1."""

PYTHON: Final = "spark.python.daemon.module=tests.spark.daemon"
"""The setting with which the Python processes of a session cost little."""

FAST: Final = {"CELERIAC_SPARK_FAST_START": "1", "CELERIAC_SPARK_CONF": PYTHON}
"""Variables of a command in a story that is not about how Spark starts."""


@cache
def options() -> str:
    """JAVA_TOOL_OPTIONS of every JVM of a test."""
    from pipeline.spark.classes import archive_options  # not at the top: most tests need no Spark

    try:
        return f"{_SMALL}{archive_options(ensure_java())}"
    except EnvironmentFault:
        return _SMALL
