"""The session of a run: of this process, of a master, or of a Connect server; what cannot be one is told at once."""

from __future__ import annotations

import re
import socket
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from importlib.util import find_spec
from typing import Final
from urllib.parse import urlsplit

from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812

from pipeline.errors import EnvironmentFault, PipelineError
from pipeline.spark import settings
from pipeline.spark.session import DEFAULT_MASTER, spark_session

MASTER: Final = re.compile(
    r"local|local\[(\d+|\*)(, *\d+)?\]|local-cluster\[ *\d+ *, *\d+ *, *\d+ *\]"
    r"|spark://[^/:]+:\d+(,[^/:]+:\d+)*|yarn|k8s://.+"
)
_CONNECT_SECONDS: Final = 5.0
_CONNECT_NEEDS: Final = ("grpc", "google.rpc", "zstandard")

CARRYING: Final = {
    # A row is a batch of some thousand records: Spark's default of rows in one transfer is far too many.
    "spark.sql.execution.arrow.maxRecordsPerBatch": "64",
    "spark.sql.session.timeZone": "UTC",
}
"""Where Spark carries rows from one Python task to the next."""

PLANNING: Final = {
    # Nothing is gained by plans that are made again between shuffles, nor by code that is compiled for some rows.
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.codegen.wholeStage": "false",
}
"""Where it does nothing else."""

READING: Final = {
    "spark.sql.caseSensitive": "true",
    "spark.sql.files.ignoreCorruptFiles": "false",
    "spark.sql.files.ignoreMissingFiles": "false",
}
"""Where it reads files itself: one that cannot be read must not be passed over."""

COMPUTING: Final = {"spark.sql.execution.arrow.maxRecordsPerBatch": "10000", **READING}
"""Where it aggregates them."""


def check_master(master: str) -> str:
    """The master itself. Raises PipelineError for what cannot be one."""
    if MASTER.fullmatch(master):
        return master
    raise PipelineError(
        f"{master!r} is no Spark master",
        hint="give local[*], local[4], spark://host:7077, yarn or k8s://…; a Connect server goes with --remote",
    )


def open_session(master: str | None = None, remote: str | None = None, *, starts_fast: bool = False) -> SparkSession:
    """A session on this machine, unless another `master` is given, or that of a Connect server at `remote`.

    `starts_fast` as for `spark_session`: right where the JVM only carries rows from one Python task to the next.
    Raises PipelineError for an address that cannot be one, EnvironmentFault when there is nobody, or no Java.
    """
    if remote is not None:
        return _remote_session(remote)
    chosen = check_master(master or DEFAULT_MASTER)
    if chosen.startswith("spark://"):
        hosts = chosen.removeprefix("spark://").split(",")
        if not any(_answers(host) for host in hosts):
            raise EnvironmentFault(
                f"the Spark master {chosen} does not answer", hint="start it, or correct the address of --master"
            )
    return spark_session(chosen, starts_fast=starts_fast)


def default_partitions(session: SparkSession) -> int:
    """Two for each core that the session has."""
    cores = session.range(0, 4096).select(F.spark_partition_id().alias("id")).agg(F.max("id")).first()
    return min(256, 2 * (int(cores[0]) + 1)) if cores is not None else 2


@contextmanager
def tuned(session: SparkSession, settings: Mapping[str, str | None]) -> Iterator[Mapping[str, str | None]]:
    """The settings that a run needs. Those of the session, None for one that is not set, are given, and come back."""
    before = {name: session.conf.get(name, None) for name in settings}
    _set(session, settings)
    try:
        yield before
    finally:
        with suppress(Exception):  # the session may have ended
            _set(session, before)


def _set(session: SparkSession, settings: Mapping[str, str | None]) -> None:
    for name, value in settings.items():
        if value is None:
            session.conf.unset(name)
        else:
            session.conf.set(name, value)


def check_remote(remote: str) -> None:
    """Raises PipelineError for an address that cannot be one, EnvironmentFault when something is not installed."""
    parts = urlsplit(remote)
    if parts.scheme != "sc" or not parts.hostname:
        raise PipelineError(f"{_shown(remote)!r} is no Connect server", hint="give sc://host:15002")
    missing = [name for name in _CONNECT_NEEDS if _is_missing(name)]
    if missing:
        raise EnvironmentFault(
            f"Spark Connect needs {', '.join(missing)}, which is not installed", hint="pip install 'celeriac[connect]'"
        )


def _remote_session(remote: str) -> SparkSession:
    check_remote(remote)
    parts = urlsplit(remote)
    if not _answers(f"{parts.hostname}:{parts.port or 15002}"):
        raise EnvironmentFault(
            f"the Connect server {_shown(remote)} does not answer", hint="start it, or correct the address of --remote"
        )
    try:
        session = SparkSession.builder.remote(remote).getOrCreate()
        session.range(1).count()
    except (PySparkException, RuntimeError) as error:
        raise EnvironmentFault(f"the Connect server {_shown(remote)} gives no session: {error}") from error
    for name, value in settings.told().items():
        try:
            session.conf.set(name, value)
        except PySparkException as error:
            raise EnvironmentFault(
                f"the Connect server {_shown(remote)} does not take the setting {name}",
                hint="what belongs to the server's start is set there",
            ) from error
    return session


def _is_missing(module: str) -> bool:
    try:
        return find_spec(module) is None
    except ModuleNotFoundError:
        return True


def _shown(remote: str) -> str:
    """Without what follows the address: a token may be there."""
    return remote.partition(";")[0].partition("/;")[0]


def _answers(address: str) -> bool:
    host, _, port = address.rpartition(":")
    try:
        with socket.create_connection((host, int(port)), timeout=_CONNECT_SECONDS):
            return True
    except (OSError, ValueError):
        return False
