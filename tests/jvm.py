"""The JVMs of tests: their options, and an archive of the classes of Spark, with which each starts in half the time.

    python -m tests.jvm     makes the archive for this Java and this PySpark, unless it is there: once on a machine

It is kept in the folder of this environment of Python, and goes with that. Without one, and with a Java that makes
none, a JVM starts as it always does.
"""

from __future__ import annotations

import hashlib
import os
import sys
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Any, Final

_SMALL: Final = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
"""None lives long enough for the second compiler or for G1."""

PYTHON: Final = "spark.python.daemon.module=tests.spark.daemon"
"""The setting with which the Python processes of a session cost little."""

FAST: Final = {"CELERIAC_SPARK_FAST_START": "1", "CELERIAC_SPARK_CONF": PYTHON}
"""Variables of a command in a story that is not about how Spark starts."""

_FOLDER: Final = Path(sys.prefix) / "celeriac-tests"


def options() -> str:
    """JAVA_TOOL_OPTIONS of every JVM of a test."""
    path = _archive()
    # A file that is not there would cost the JVM the archive of its own classes. What it has against one it prints to
    # the standard output, which is what Spark's launcher reads.
    return f"{_SMALL} -XX:SharedArchiveFile={path} -Xlog:disable" if path.exists() else _SMALL


@cache
def _archive() -> Path:
    """Where the archive is, or would be: another Java or another PySpark has another one."""
    from pipeline.embedded.java import ensure_java
    from pipeline.errors import EnvironmentFault

    try:
        java = (ensure_java() / "bin" / "java").resolve()
    except EnvironmentFault:
        return _FOLDER / "none"
    facts = f"{java} {java.stat().st_mtime_ns} {version('pyspark')}"
    return _FOLDER / f"spark-{hashlib.sha256(facts.encode()).hexdigest()[:16]}.jsa"


def make() -> None:
    """Has a session do what tests have it do, and its JVM write down the classes that it needed for that."""
    path = _archive()
    if path.exists():
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_suffix(f".{os.getpid()}")
    os.environ["JAVA_TOOL_OPTIONS"] = f"{_SMALL} -Xlog:disable"
    os.environ["CELERIAC_SPARK_CONF"] = f"spark.driver.extraJavaOptions=-XX:ArchiveClassesAtExit={draft}"
    from py4j.protocol import Py4JError

    from pipeline.spark.session import spark_session

    with tempfile.TemporaryDirectory() as folder:
        tempfile.tempdir = folder  # of the session, too
        session = spark_session("local[2,4]", Path(folder) / "jvm.log")
        _use(session, Path(folder))
        gateway = session.sparkContext._gateway
        session.stop()
        with suppress(Py4JError, OSError):  # it gives no answer any more
            gateway.jvm.System.exit(0)
        gateway.proc.wait()
    if draft.exists():
        draft.rename(path)
    os._exit(0)  # what would stop the session at the end of this process finds none


def _use(session: Any, folder: Path) -> None:
    """Stages as a run in bulk has them, files, and streams."""
    from pipeline import Pipeline, count, itself, read, write
    from pipeline.spark.bulk.engine import BulkOptions, run_bulk

    (folder / "in").mkdir()
    (folder / "in/a.csv").write_text("k,n\n" + "a,1\nb,2\n" * 20)
    for native_bytes in (0, 1 << 30):
        flow = Pipeline("archived")
        keyed = flow.source(read.text(folder / "in"), name="in").key_by(itself(), name="by")
        keyed.aggregate(count(), name="n").last(name="end").sink(write.jsonl(folder / f"out-{native_bytes}"), name="o")
        run_bulk(flow, session, BulkOptions(partitions=2, native_bytes=native_bytes))
    frame = session.read.option("header", True).csv(str(folder / "in")).selectExpr("k", "cast(n as int) n")
    frame.repartition(2, "k").sortWithinPartitions("k").write.json(str(folder / "json"))
    frame.groupBy("k").count().join(frame, "k").toArrow()
    stream = session.readStream.schema("k string, n int").json(str(folder / "json"))
    writer = stream.writeStream.trigger(availableNow=True)
    writer.option("checkpointLocation", str(folder / "one")).foreachBatch(
        lambda batch, _: batch.mapInArrow(_same, batch.schema).collect()
    ).start().awaitTermination()
    writer.option("checkpointLocation", str(folder / "two")).format("parquet").start(
        str(folder / "parquet")
    ).awaitTermination()


def _same(batches: Iterator[Any]) -> Iterator[Any]:
    yield from batches


if __name__ == "__main__":
    make()
