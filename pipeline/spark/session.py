"""The Spark session of this process, made when first needed. Never at import, never in a prefork parent."""

from __future__ import annotations

import atexit
import logging
import os
import shlex
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final

import pipeline
from pipeline.embedded.folders import OwnFolder
from pipeline.embedded.java import ensure_java, options_for_temporary_files
from pipeline.errors import EnvironmentFault
from pipeline.spark import settings
from pipeline.spark.classes import archive_options
from pipeline.spark.python import python_program

try:
    from py4j.protocol import Py4JError
    from pyspark import SparkConf, SparkContext
    from pyspark.errors import PySparkException
    from pyspark.java_gateway import launch_gateway
    from pyspark.logger import PySparkLogger
    from pyspark.sql import SparkSession
except ImportError as error:
    raise EnvironmentFault("Spark is not installed", hint="pip install 'celeriac[spark]'") from error

DEFAULT_MASTER: Final = "local[*,4]"
"""All cores, and four attempts at a task: plain `local[*]` never retries."""

FAST_START_VARIABLE: Final = "CELERIAC_SPARK_FAST_START"
"""Set to 1, the JVM starts sooner and peaks lower: for tests and small input."""

_LOUD: Final = ("DataFrameQueryContextLogger", "SQLQueryContextLogger")
"""They write each exception to standard error once more, with the stack of the JVM."""

_LOG_TAIL: Final = 2_000
_SUBMIT_VARIABLE: Final = "PYSPARK_SUBMIT_ARGS"

_lock = threading.Lock()  # a session is made once: that changes the environment of the process
_made: dict[int, SparkSession] = {}  # by process id, under the lock; Spark knows it in the making thread only


def spark_session(
    master: str = DEFAULT_MASTER, log_path: Path | None = None, starts_fast: bool = False
) -> SparkSession:
    """The session of this process, for all its threads; made at the first call, later arguments are ignored.

    It leaves nothing in the current folder: its files go to a temporary one, which goes with the process.
    With `starts_fast` the JVM starts sooner and peaks lower, as with FAST_START_VARIABLE.
    What the JVM logs goes to `log_path`, or to a file in that folder. Takes some seconds the first time.
    It has the settings of `pipeline.spark.settings`. Raises PipelineError for one of these that cannot be,
    EnvironmentFault when there is no Java or Spark does not start.
    """
    with _lock:
        running = SparkSession.getActiveSession() or _made.get(os.getpid())
        if running is not None:
            make_active(running)
            return running
        own = OwnFolder.make("celeriac-spark-")
        atexit.register(own.close)
        folder = own.path
        (folder / "java").mkdir()
        log = log_path or folder / "jvm.log"
        wanted = settings.told()
        # On a cluster Python is where this one is, and the folder is not there.
        python = python_program(folder) if master.startswith("local") else Path(sys.executable)
        _set_environment(folder, python)
        conf = SparkConf().setMaster(master).setAppName("celeriac")
        for name, value in _configuration(folder, master, starts_fast).items():
            if name not in wanted:
                conf.set(name, value)
        try:
            with _submitted_with(wanted, folder), log.open("ab") as file:
                # What this process itself says meanwhile, by other threads too, must not go to that file.
                gateway = launch_gateway(conf, {"stderr": file})
                session = SparkSession(SparkContext(conf=conf, gateway=gateway))
        except (PySparkException, Py4JError, RuntimeError, OSError) as error:
            raise EnvironmentFault(
                f"Spark did not start: {error}\n{_tail(log)}",
                hint="see the lines above; Java must be 17 or newer",
            ) from error
        for name in _LOUD:
            PySparkLogger.getLogger(name).setLevel(logging.CRITICAL)
        atexit.register(_stop, session)  # runs before the folder is removed
        _made[os.getpid()] = session
        return session


def make_active(session: Any) -> None:
    """Makes it the session of this thread for Spark itself too, which knows it in the making thread only.

    Without that Spark finds no data source that was registered with it, nor a driver in a jar of `ADD JAR`. One of
    Connect has no threads to be known in.
    """
    if not is_connect(session):
        jvm, inner = session._jvm, session._jsparkSession
        SparkSession._get_j_spark_session_class(jvm).setActiveSession(inner)
        jvm.java.lang.Thread.currentThread().setContextClassLoader(inner.sharedState().jarClassLoader())


def is_connect(session: Any) -> bool:
    """Whether it is one of a Connect server, which has no JVM here."""
    return not hasattr(session, "_jsparkSession")


def _set_environment(folder: Path, python: Path) -> None:
    """For the JVM, which inherits it, and for the Python workers that the JVM starts."""
    os.environ["JAVA_HOME"] = str(ensure_java())
    os.environ["PYSPARK_PYTHON"] = str(python)  # its default is whatever python3 is on PATH
    os.environ["PYSPARK_DRIVER_PYTHON"] = str(python)
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    os.environ.setdefault("SPARK_LOCAL_DIRS", str(folder / "local"))
    package_root = str(Path(pipeline.__path__[0]).parent)
    paths = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    if package_root not in paths:
        os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [package_root, *paths]))


def _configuration(folder: Path, master: str, starts_fast: bool) -> dict[str, str]:
    ours = {
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.log.level": "ERROR",
        "spark.sql.shuffle.partitions": "2",
        "spark.sql.catalogImplementation": "in-memory",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.caseSensitive": "true",
        "spark.sql.warehouse.dir": str(folder / "warehouse"),
    }
    if master.startswith("local"):
        ours |= {"spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1"}
    fast = " -XX:TieredStopAtLevel=1" if starts_fast or os.environ.get(FAST_START_VARIABLE) == "1" else ""
    # Drivers of databases give times in the zone of their JVM. What a user sets as extraJavaOptions comes behind these.
    temporary = options_for_temporary_files(folder / "java")
    archive = archive_options(Path(os.environ["JAVA_HOME"]))
    ours["spark.driver.defaultJavaOptions"] = f"-Duser.timezone=UTC {temporary}{fast}{archive}"
    ours["spark.executor.defaultJavaOptions"] = "-Duser.timezone=UTC"
    return ours


@contextmanager
def _submitted_with(wanted: Mapping[str, str], folder: Path) -> Iterator[None]:
    """What PySpark starts its JVM with. Settings of the builder are arguments of that process, for all to see."""
    before = os.environ.get(_SUBMIT_VARIABLE)
    if wanted:
        path = folder / "settings.properties"
        settings.write_properties(wanted, path)
        files = f"--properties-file {shlex.quote(str(path))} --load-spark-defaults"
        os.environ[_SUBMIT_VARIABLE] = f"{files} {before or 'pyspark-shell'}"
    try:
        yield
    finally:
        if before is None:
            os.environ.pop(_SUBMIT_VARIABLE, None)
        else:
            os.environ[_SUBMIT_VARIABLE] = before


def _tail(log: Path) -> str:
    return log.read_bytes()[-_LOG_TAIL:].decode(errors="replace") if log.exists() else ""


def _stop(session: Any) -> None:
    """Stops the session and Spark's Python workers with it, ends the JVM and waits: no process outlives this one."""
    # PySpark names the JVM's process here only.
    gateway = session.sparkContext._gateway
    process = getattr(gateway, "proc", None)
    with suppress(Py4JError, OSError):  # the JVM may have ended before, by a signal
        session.stop()
        gateway.shutdown()
    if process is not None:
        process.kill()
        process.wait()
