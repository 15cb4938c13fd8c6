"""The garbage collector of the Python processes that run Spark's tasks."""

from __future__ import annotations

import gc
from functools import cache

from pyspark import TaskContext


@cache
def settle() -> None:
    """What a process of Spark has loaded lives on: it looks for garbage behind each task, and need not look there."""
    if TaskContext.get() is not None:
        gc.collect()
        gc.freeze()
