"""Celeriac: exactly-once, keyed, stateful pipelines on Celery and Redis. What users import.

It stays light: it imports neither Redis nor Celery nor Spark.
"""

from pipeline import read, write
from pipeline.aggregates import Aggregation, count, maximum, mean, minimum, total
from pipeline.api import KeyedStream, Pipeline, Stream
from pipeline.errors import CeleriacError, PipelineError
from pipeline.expressions import Expression, col, itself, record, together
from pipeline.kernel.contract import KeyedOperator
from pipeline.policies import ErrorPolicy, dead_letter, fail, hold_key, retry, skip

__all__ = [
    "Aggregation",
    "CeleriacError",
    "ErrorPolicy",
    "Expression",
    "KeyedOperator",
    "KeyedStream",
    "Pipeline",
    "PipelineError",
    "Stream",
    "col",
    "count",
    "dead_letter",
    "fail",
    "hold_key",
    "itself",
    "maximum",
    "mean",
    "minimum",
    "read",
    "record",
    "retry",
    "skip",
    "together",
    "total",
    "write",
]
