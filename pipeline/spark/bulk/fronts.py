"""Filters in front of Python: which records of files Spark drops, so that Python never makes records of them.

Only what a filter drops for certain is dropped. All else goes through the same operators in Python, what is in doubt
included, and each record has the split and the number that it always has: Python reads the blocks itself, and is told
which of their rows to take.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812

from pipeline.graph import Filter, Graph, Map
from pipeline.plan import StagePlan
from pipeline.records import Batch
from pipeline.settings import Limits
from pipeline.sources.layout import FileInput
from pipeline.sources.splits import SPLIT_BYTES
from pipeline.spark.bulk.finalrows import FILTERED
from pipeline.spark.bulk.scans import NUMBER, PATH, START, is_first, scan, shape_of
from pipeline.spark.bulk.steps import LEVEL, Step, most_bytes_of, passed, step_of
from pipeline.spark.bulk.twins import NoTwin, Shape

BLOCKS: Final = {
    "spark.sql.files.maxPartitionBytes": str(SPLIT_BYTES),
    "spark.sql.files.openCostInBytes": str(SPLIT_BYTES),
}
"""With both Spark has a task for each of our blocks."""

_MOST_KEPT: Final = 0.5
"""Of the first records. Where more are kept it costs more that Spark reads them, too, than it saves."""

_LEAST_BLOCK: Final = 1 << 20
"""On average: each block is a task."""


@dataclass(frozen=True, slots=True)
class Front:
    """What Spark computes of an entry stage: filters, and maps between them."""

    shape: Shape
    steps: tuple[Step, ...]
    most_bytes: int
    nodes: tuple[Filter | Map, ...]


def front_of(graph: Graph, stage: StagePlan, source: FileInput, limits: Limits) -> Front:
    """The filters directly behind the source, and maps before the last of them. Starts no Spark. Raises NoTwin."""
    if stage.sinks:
        raise NoTwin("records go from there to a sink, whose parts are in the order of blocks")
    if source.size < _LEAST_BLOCK * len(source.splits):
        raise NoTwin("its files are small")
    shape = found = shape_of(source)
    nodes: list[Filter | Map] = []
    steps: list[Step] = []
    why = "there is no filter in front that is an expression"
    behind = [node for node in graph.nodes if stage.name in node.inputs]
    while len(behind) == 1 and isinstance(behind[0], Filter | Map):
        try:
            step = step_of(behind[0], found)
        except NoTwin as error:
            why = str(error)
            break
        nodes.append(behind[0])
        steps.append(step)
        found = step.shape
        behind = [node for node in graph.nodes if nodes[-1].name in node.inputs]
    while steps and not steps[-1].is_filter:
        del steps[-1], nodes[-1]
    if not steps:
        raise NoTwin(why)
    return Front(shape, tuple(steps), most_bytes_of([shape], limits), tuple(nodes))


def is_worth_it(front: Front, first: Batch) -> bool:
    """Whether the filters drop so many of these records that Spark should."""
    kept = sum(index in first.faults or _is_kept(front.nodes, value) for index, value in enumerate(first.values))
    return kept <= _MOST_KEPT * len(first)


def _is_kept(nodes: Sequence[Filter | Map], value: Any) -> bool:
    try:
        for node in nodes:
            if isinstance(node, Map):
                value = node.fn(value)
            elif not node.fn(value):
                return False
    except (ArithmeticError, LookupError, TypeError, ValueError):
        return True  # it fails, and Python says why
    return True


def kept(session: SparkSession, front: Front, source: FileInput) -> DataFrame:
    """PATH, START and NUMBER of the rows that are not dropped, and of the first row of each block, in order.

    With BLOCKS each block is a task of its own.
    """
    scanned = scan(session, source, front.most_bytes, has_places=True)
    frame, _ = passed(scanned, front.shape, front.steps)
    return frame.where((F.col(LEVEL) != FILTERED) | is_first()).select(PATH, START, NUMBER)
