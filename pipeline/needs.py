"""What a pipeline needs of the machine that runs its stages, told before anything starts. Starts nothing itself."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from importlib.util import find_spec
from typing import Final

from pipeline.embedded.java import ensure_java
from pipeline.errors import EnvironmentFault, PipelineError
from pipeline.graph import Node, Source, Transform
from pipeline.programs.checking import find_programs
from pipeline.sources.jdbcaddress import JdbcAddress

REMOTE_VARIABLE: Final = "CELERIAC_SPARK_REMOTE"
"""The Connect server whose Spark runs the DataFrame operators of workers; without one each has a JVM of its own."""

_SPARK: Final = ("pyspark", "pyarrow", "pandas")

IN_A_STREAM: Final = "a streaming query, whose tasks hold no session,"
IN_A_BURST: Final = "a burst, whose tasks hold no session,"
OF_KEYS: Final = "a backfill of keys, which computes their last records without Spark,"
"""Who has no DataFrames, and why; see `refuse_frames`."""


def find_needs(nodes: Iterable[Node], environment: Mapping[str, str] = os.environ) -> None:
    """Raises EnvironmentFault, naming the operator, for a program, an extra, or a Java that is not on this machine."""
    nodes = list(nodes)
    find_programs(nodes)
    frames = next((node for node in nodes if isinstance(node, Transform)), None)
    if frames is None:
        return
    _find_libraries(f"operator {frames.name!r}")
    if environment.get(REMOTE_VARIABLE):
        from pipeline.spark.bulk.connecting import check_remote

        check_remote(environment[REMOTE_VARIABLE])
        return
    _find_java(f"operator {frames.name!r}", environment)


def find_jdbc(source: Source, environment: Mapping[str, str] = os.environ) -> None:
    """What a `read.jdbc` needs where it is fed. Raises EnvironmentFault, naming the source; InputError."""
    _find_libraries(f"source {source.name!r}")
    _find_java(f"source {source.name!r}", environment)
    JdbcAddress.of(source.spec)


def _find_libraries(who: str) -> None:
    missing = [name for name in _SPARK if find_spec(name) is None]
    if missing:
        raise EnvironmentFault(
            f"{who} needs Spark, and {', '.join(missing)} is not installed", hint="pip install 'celeriac[spark]'"
        )


def _find_java(who: str, environment: Mapping[str, str]) -> None:
    try:
        ensure_java(environment=environment)
    except EnvironmentFault as fault:
        raise EnvironmentFault(f"{who}: {fault}", fault.hint) from fault


def refuse_frames(nodes: Iterable[Node], where: str) -> None:
    """Raises PipelineError for a DataFrame operator. `where`: who cannot run it, and why."""
    for node in nodes:
        if isinstance(node, Transform):
            raise PipelineError(
                f"operator {node.name!r} works on DataFrames, and {where} cannot run it",
                hint="docs/dataframes.md says where it runs: on workers, and in bulk",
            )
