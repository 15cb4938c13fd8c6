"""All of Spark: the session, the source and the sinks that it carries, and the data source for PySpark users.

PySpark is imported nowhere else, and by this module only when it is asked for.
"""

from __future__ import annotations

from typing import Any


def register(spark: Any) -> None:
    """Makes `format("pipeline")` known to a Spark session. See docs/spark-data-source.md.

    Spark looks for formats in the session of the calling thread: a thread that did not make the session calls this too.
    Raises EnvironmentFault without PySpark 4.2.
    """
    from pipeline.spark.datasource.entry import register_in

    register_in(spark)


def error_behind(error: BaseException) -> Exception | None:
    """The error of ours that an exception of Spark was made of, by its type; None where it was not."""
    from pipeline.spark.datasource import faults

    return faults.error_behind(error)
