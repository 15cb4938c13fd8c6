"""Which keys of a running job a condition means: SQL over its live state."""

from __future__ import annotations

from typing import Any

from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812

from pipeline.errors import PipelineError
from pipeline.reading.keytext import parse_key
from pipeline.spark import register
from pipeline.spark.bulk.faults import words_of
from pipeline.spark.datasource.faults import error_behind


def keys_where(session: SparkSession, redis_url: str, job: str, stage: str, condition: str, most: int) -> list[Any]:
    """The keys of the stage that have state of which the condition holds, `most` and one at most.

    Raises PipelineError for a condition that Spark does not take, and what reading the state raises.
    """
    register(session)
    try:
        options = {"redis": redis_url, "job": job, "table": "state"}
        state = session.read.format("pipeline").options(**options).load()
        rows = state.where(F.col("stage") == stage).where(condition).select("key").distinct().limit(most + 1).collect()
    except PySparkException as error:
        behind = error_behind(error)
        if behind is not None:
            raise behind from error
        raise PipelineError(
            f"--where: {words_of(error)}",
            hint="the columns are operator, key, value and result, which are text: try_cast(value as bigint) < 0",
        ) from error
    return [parse_key(row["key"]) for row in rows]
