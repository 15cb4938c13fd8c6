"""Starts the Python processes of a session of tests, as Spark's own daemon does, so that each of them costs little.

They are forked with all that tasks load, which takes one alone some seconds; and they do not look through that for
garbage behind each task. Stories of how a run begins and ends have Spark's own daemon.
"""

from __future__ import annotations

from importlib import import_module
from types import SimpleNamespace
from typing import Final

from pyspark import daemon

_LOADED: Final = (
    "pandas",
    "pyspark.worker",
    "pyspark.sql.pandas.serializers",
    "pipeline.spark.bulk.engine",
    "pipeline.spark.datasource",
    "pipeline.spark.streaming.source",
    "stages.streaming.task",
)

if __name__ == "__main__":
    for name in _LOADED:
        import_module(name)
    vars(daemon)["gc"] = SimpleNamespace(collect=lambda: 0)
    daemon.manager()
