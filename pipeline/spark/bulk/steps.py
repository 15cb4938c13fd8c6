"""Filters and maps that Spark computes, and how far rows come through them: what finals and fronts share."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812

from pipeline.graph import Filter, Graph, Map, Node
from pipeline.settings import Limits
from pipeline.spark.bulk.finalrows import ARRIVED, DOUBTFUL, FILTERED, HEAD
from pipeline.spark.bulk.scans import DOUBT, HEADER, VALUE, Scan
from pipeline.spark.bulk.twins import (
    Columns,
    Kind,
    NoTwin,
    Shape,
    Twin,
    any_of,
    leaves,
    named,
    names,
    single,
    twin_of,
)
from pipeline.wording import counted

LEVEL: Final = "level"

_LEAF_BYTES: Final = 1_100
"""What a single value of a record takes beside the texts of its line, literals included."""


@dataclass(frozen=True, slots=True)
class Step:
    """A filter or a map. `shape` is that of the values behind it."""

    is_filter: bool
    twin: Twin
    shape: Shape


def step_of(node: Filter | Map, value: Shape) -> Step:
    """Raises NoTwin."""
    twin = twin_of(node.fn, value)
    if isinstance(node, Map):
        return Step(False, twin, twin.shape)
    if single(twin) is not Kind.BOOL:
        raise NoTwin(f"the filter {node.name!r} takes what is no truth value")
    return Step(True, twin, value)


def only_one_behind(graph: Graph, name: str) -> Node:
    """The operator that gets the records of another one. Raises NoTwin where there are more."""
    behind = [node for node in graph.nodes if name in node.inputs]
    if len(behind) == 1:
        return behind[0]
    raise NoTwin(f"the records of {name!r} go to {counted(len(behind), 'operator')}")


def passed(scanned: Scan, shape: Shape, steps: Sequence[Step]) -> tuple[DataFrame, Columns]:
    """All rows behind the steps, with LEVEL and their places, and the columns of their value."""
    level = F.when(F.col(HEADER), HEAD).when(F.col(DOUBT), DOUBTFUL).otherwise(ARRIVED)
    frame = scanned.frame.select(*names(shape, VALUE), level.alias(LEVEL), *scanned.places)
    prefix = VALUE
    for number, step in enumerate(steps):
        built, doubts = step.twin.build(named(shape, prefix))
        if step.is_filter:
            level = level_of(doubts, ~F.coalesce(*leaves(built), F.lit(False)))
            frame = frame.select(*names(shape, prefix), level, *scanned.places)
        else:
            shape, prefix = step.shape, f"{VALUE}{number}"
            frame = frame.select(*aliased(built, names(shape, prefix)), level_of(doubts), *scanned.places)
    return frame, named(shape, prefix)


def level_of(doubts: list[Column], drops: Column | None = None) -> Column:
    """The level of a row behind a step: only one that has come so far can be in doubt, or be dropped."""
    level, arrived = F.col(LEVEL), F.col(LEVEL) == ARRIVED
    if drops is not None:
        level = F.when(arrived & drops, FILTERED).otherwise(level)
    return (F.when(arrived & any_of(doubts), DOUBTFUL).otherwise(level) if doubts else level).alias(LEVEL)


def aliased(columns: Columns, given: Sequence[str]) -> list[Column]:
    """The columns of single values by these names."""
    return [leaf.alias(name) for leaf, name in zip(leaves(columns), given, strict=True)]


def most_bytes_of(shapes: Sequence[Shape], limits: Limits, key_parts: int = 0) -> int:
    """Texts of a record that has no more than this are within the limits in each form that it takes. Raises NoTwin."""
    leaf_count = max(len(names(shape, "")) for shape in shapes) + key_parts
    named_bytes = max(_bytes_of_names(shape) for shape in shapes)
    most = (min(limits.record_bytes, limits.entry_bytes) - named_bytes) // (leaf_count + 1) - _LEAF_BYTES
    if most <= 0:
        raise NoTwin("the limits are too narrow for records of so many fields")
    return most


def _bytes_of_names(shape: Shape) -> int:
    if isinstance(shape, dict):
        return sum(len(name.encode()) + 5 + _bytes_of_names(each) for name, each in shape.items())
    return sum(map(_bytes_of_names, shape)) if isinstance(shape, tuple) else 0
