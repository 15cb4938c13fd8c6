"""An archive of the classes of Spark, with which each JVM starts in half of the time.

    python -m pipeline.spark.archive     makes it, for this Java and this PySpark: once in an environment

It is kept in the folder of this environment of Python, and goes with that. Without one a JVM starts as it always does.
Java's own name for it is an AOT cache (JEP 514, from Java 25 on), or a dynamic archive of class data sharing (JEP 350),
for which a trimmed Java lacks what it is built upon.
"""

from __future__ import annotations

import os
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

from pipeline.embedded.java import ensure_java, java_major
from pipeline.errors import CeleriacError, EnvironmentFault
from pipeline.spark.classes import archive_path
from pipeline.spark.settings import SETTINGS_VARIABLE

_MADE_BY: Final = {
    "aot": "-XX:+UnlockDiagnosticVMOptions -XX:-DisplayVMOutput -XX:AOTCacheOutput",
    "jsa": "-XX:ArchiveClassesAtExit",
}
_FIRST_WITH_CACHE: Final = 25


def make_archive() -> Path:
    """Has a session do what runs have it do, and its JVM write down the classes that it needed for that.

    For a process of its own, whose JVM is gone then. One that is there stays. Raises EnvironmentFault when there is no
    Spark or no Java, or this makes none, or the folder cannot be written.
    """
    if find_spec("pyspark") is None:
        raise EnvironmentFault("Spark is not installed", hint="pip install 'celeriac[spark]'")
    home = ensure_java()
    kind = kind_for(home)
    path = archive_path(home, kind)
    if path.exists():
        return path
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        own = tempfile.TemporaryDirectory(dir=path.parent, prefix=".making-")
    except OSError as error:
        raise EnvironmentFault(
            f"{path.parent} cannot be written: {error.strerror}", hint="use an environment of your own (python -m venv)"
        ) from error
    with own as name:
        folder = Path(name)
        draft = folder / path.name
        os.environ[SETTINGS_VARIABLE] = f'spark.driver.extraJavaOptions={_MADE_BY[kind]}="{draft}" -Xlog:disable'
        _run_session(folder)
        if not draft.exists():
            raise EnvironmentFault(
                "this Java makes no archive of classes",
                hint="a whole JDK, 17 or newer, makes one, or any Java from 25 on",
            )
        return draft.rename(path)


def kind_for(home: Path) -> str:
    """The kind of archive that the Java of that JAVA_HOME makes best."""
    return "aot" if (java_major(home / "bin/java") or 0) >= _FIRST_WITH_CACHE else "jsa"


def main() -> int:
    """Makes it, and says where it is; the exit code."""
    begun = time.monotonic()
    try:
        path = make_archive()
    except CeleriacError as error:
        print(f"error: {error}\nhint: {error.hint}", file=sys.stderr)
        return 3
    except KeyboardInterrupt:
        return 130
    print(f"{path}: {path.stat().st_size >> 20} MB, after {time.monotonic() - begun:.0f} s")
    return 0


def _run_session(folder: Path) -> None:
    from py4j.protocol import Py4JError

    from pipeline.spark.bulk.jobs import SparkThread
    from pipeline.spark.session import spark_session

    thread = SparkThread()

    def run() -> None:
        session = spark_session("local[2,4]", folder / "jvm.log")
        thread.session = session
        _use(session, folder)
        gateway = session.sparkContext._gateway
        session.stop()
        with suppress(Py4JError, OSError):  # it gives no answer any more
            gateway.jvm.System.exit(0)
        gateway.proc.wait()

    thread.call(run)


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
    from pipeline.embedded.process import end_this_process

    end_this_process(main())
