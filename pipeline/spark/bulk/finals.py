"""The final value of each key, computed by Spark itself: files, expressions, key_by, aggregate and last in one groupBy.

Of an entry stage of that form Spark gives what Python gives, whatever the records hold, or says that it is in doubt:
then none of it is used. Each task of the keyed stage gets, of its keys, what `last` would hold at the end.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import chain
from operator import itemgetter
from typing import Final

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812

from pipeline.aggregates import Aggregation
from pipeline.expressions import col, itself
from pipeline.graph import Filter, Graph, KeyBy, Keyed, Map
from pipeline.kernel.operators import Aggregate, Last
from pipeline.keying import GROUPS
from pipeline.plan import Plan, StagePlan
from pipeline.sources.layout import FileInput
from pipeline.spark.bulk.finalrows import ARRIVED, DOUBTFUL, FinalRows
from pipeline.spark.bulk.scans import scan, shape_of, text_doubts
from pipeline.spark.bulk.steps import (
    LEVEL,
    Step,
    aliased,
    level_of,
    most_bytes_of,
    only_one_behind,
    passed,
    step_of,
)
from pipeline.spark.bulk.twins import (
    Kind,
    NoTwin,
    Shape,
    Twin,
    any_of,
    leaves,
    magnitude,
    names,
    single,
    twin_of,
)

_RECORDS: Final = "records"


@dataclass(frozen=True, slots=True)
class Part:
    """One aggregation: its kind, and the twin of what it takes; None for count."""

    kind: str
    twin: Twin | None


@dataclass(frozen=True, slots=True)
class Finals:
    """What a native run of an entry stage computes.

    steps: the filters and maps up to `key_by`. key: the twin of the key. most_bytes: a record with larger texts may be
    too large for the run's limits. operators: the aggregate, and the `last` behind it.
    """

    entry: int
    keyed: int
    shape: Shape
    steps: tuple[Step, ...]
    key: Twin
    parts: tuple[Part, ...]
    most_bytes: int
    operators: tuple[str, str]

    @property
    def key_names(self) -> list[str]:
        return names(self.key.shape, "k")

    @property
    def counts_lines(self) -> bool:
        """Whether each key is a whole line, of which nothing but its copies is counted."""
        is_text = self.shape is Kind.TEXT and not self.steps
        return is_text and self.key.is_value and all(part.twin is None for part in self.parts)


def finals_of(graph: Graph, plan: Plan, stage: StagePlan, source: FileInput) -> Finals:
    """What computes the entry stage of these files natively. Starts no Spark. Raises NoTwin, which says why not."""
    shape = found = shape_of(source)
    if len(stage.exchanges) != 1 or stage.sinks:
        raise NoTwin("its records go to more than one key_by, or to a sink")
    ((key_name, keyed),) = stage.exchanges.items()
    steps: list[Step] = []
    shapes = [shape]
    node = only_one_behind(graph, stage.name)
    while isinstance(node, Filter | Map):
        step = step_of(node, found)
        found = step.shape
        shapes.append(found)
        steps.append(step)
        node = only_one_behind(graph, node.name)
    if not isinstance(node, KeyBy) or node.name != key_name:
        raise NoTwin(f"{node.name!r} is more than a filter or a map")
    key = _key(node, found)
    operators, aggregations = _aggregate_and_last(graph, plan.stage(keyed))
    parts = tuple(_part(each, found) for each in aggregations)
    most_bytes = most_bytes_of(shapes, plan.limits, len(names(key.shape, "")))
    return Finals(stage.index, keyed, shape, tuple(steps), key, parts, most_bytes, operators)


def levelled(session: SparkSession, finals: Finals, source: FileInput) -> tuple[DataFrame, int]:
    """All rows of the files, each with its level, the parts of its key and what is aggregated of it; and how many
    heads of files must be among them.
    """
    scanned = scan(session, source, finals.most_bytes)
    frame, value = passed(scanned, finals.shape, finals.steps)
    key, doubts = finals.key.build(value)
    doubts += [leaf.isNull() for leaf in leaves(key)]
    given = []
    for place, part in enumerate(finals.parts):
        if part.twin is not None:
            built, more = part.twin.build(value)
            (taken,) = leaves(built)
            given.append(taken.alias(f"part_{place}"))
            doubts += [*more, taken.isNull(), *_DOUBTS_OF[part.kind, single(part.twin)](taken)]
    return frame.select(level_of(doubts), *aliased(key, finals.key_names), *given), scanned.headers


def grouped(rows: DataFrame, finals: Finals) -> DataFrame:
    """One row for each key and each other level, of the rows of `levelled`."""
    if finals.counts_lines:
        return _lines_counted(rows, finals)
    arrived = F.col(LEVEL) == ARRIVED
    given = [f"part_{place}" for place, part in enumerate(finals.parts) if part.twin is not None]
    masked = [F.when(arrived, F.col(name)).alias(name) for name in [*finals.key_names, *given]]
    results: dict[str, Column] = {}
    lost: dict[str, Column] = {}
    for place, part in enumerate(finals.parts):
        if part.twin is not None:
            result, doubts = _COMPUTED[part.kind](F.col(f"part_{place}"))
            results[f"part_{place}"] = result
            lost |= {f"lost_{place}_{number}": doubt for number, doubt in enumerate(doubts)}
    wanted = [column.alias(name) for name, column in {**results, **lost}.items()]
    groups = rows.select(LEVEL, *masked).groupBy(LEVEL, *finals.key_names)
    frame = groups.agg(F.count("*").alias(_RECORDS), *wanted)
    return frame.select(level_of([F.col(name) for name in lost]), *finals.key_names, _RECORDS, *results)


def _lines_counted(rows: DataFrame, finals: Finals) -> DataFrame:
    """The same, sooner: of a line all copies are in doubt, or none, so one of them is looked at."""
    (line,) = finals.key_names
    doubt = any_of(text_doubts(F.col(line), finals.most_bytes))
    counted = rows.groupBy(line).agg(F.count("*").alias(_RECORDS))
    return counted.select(F.when(doubt, DOUBTFUL).otherwise(ARRIVED).alias(LEVEL), line, _RECORDS)


def rows_of(finals: Finals, headers: int) -> FinalRows:
    """How tasks read what `placed` gives."""
    kinds = tuple(part.kind for part in finals.parts)
    is_tuple = isinstance(finals.key.shape, tuple)
    return FinalRows(finals.entry, finals.operators, headers, is_tuple, len(finals.key_names), kinds)


def placed(groups: DataFrame, finals: Finals, partitions: int) -> DataFrame:
    """The rows of `grouped`: each key in its partition, and what is no key in all of them, before the first key.

    So a task knows of every doubt before it uses anything.
    """
    everywhere = F.sequence(F.lit(0), F.lit(partitions - 1))
    pids = F.when(F.col(LEVEL) == ARRIVED, F.array(_partition(finals, partitions))).otherwise(everywhere)
    rows = groups.select(F.explode(pids).alias("pid"), "*").repartitionById(partitions, "pid").drop("pid")
    # Any order of keys that is the same at every attempt.
    return rows.sortWithinPartitions(LEVEL, *finals.key_names)


def _partition(finals: Finals, partitions: int) -> Column:
    """As `pipeline.keying` has it."""
    texts = [F.col(name).cast("string") for name in finals.key_names]
    text, shape = texts[0], finals.key.shape
    if isinstance(shape, tuple):
        letters = ["i" if part is Kind.INT else "s" for part in shape]
        parts = zip(letters, texts, strict=True)
        sized = ((F.lit(letter), F.octet_length(each).cast("string"), F.lit(":"), each) for letter, each in parts)
        text = F.concat(*chain.from_iterable(sized))
    group = F.crc32(text.cast("binary")) % GROUPS
    return F.call_function("div", group * partitions, F.lit(GROUPS)).cast("int")


def _key(node: KeyBy, value: Shape) -> Twin:
    function = node.fn
    if isinstance(function, itemgetter):
        name = function.__reduce__()[1]
        if len(name) != 1 or not isinstance(name[0], str):
            raise NoTwin(f"the key of {node.name!r} is no field")
        function = col(name[0])
    twin = twin_of(function, value)
    parts = twin.shape if isinstance(twin.shape, tuple) else (twin.shape,)
    if any(part not in (Kind.INT, Kind.TEXT) for part in parts):
        raise NoTwin(f"the key of {node.name!r} is more than texts and whole numbers")
    return twin


def _aggregate_and_last(graph: Graph, keyed: StagePlan) -> tuple[tuple[str, str], list[Aggregation]]:
    """The names of the stage's aggregate and of the one operator behind it, a `last`; and what is aggregated."""
    if len(keyed.upstream) != 1:
        raise NoTwin(f"more than one stream comes to {keyed.name!r}")
    if keyed.exchanges:
        raise NoTwin("behind last() is another key_by, which gets keys in an order that Spark does not keep")
    first = only_one_behind(graph, keyed.name)
    if not isinstance(first, Keyed) or not isinstance(first.operator, Aggregate):
        raise NoTwin(f"{first.name!r} behind key_by is no aggregate")
    second = only_one_behind(graph, first.name)
    if not isinstance(second, Keyed) or not isinstance(second.operator, Last):
        raise NoTwin(f"{second.name!r} wants running values, and not those of last()")
    return (first.name, second.name), first.operator.parts()


def _part(aggregation: Aggregation, value: Shape) -> Part:
    field = aggregation.field
    if aggregation.kind == "count":
        return Part("count", None)
    twin = twin_of(itself() if field is None else col(field) if isinstance(field, str) else field, value)
    if (aggregation.kind, single(twin)) not in _DOUBTS_OF:
        raise NoTwin(f"{aggregation.name} of {single(twin).name.lower()} is left to Python")
    return Part(aggregation.kind, twin)


# The aggregations: what of a value is in doubt, what Spark computes, and the state that Python would have.


def _no_doubts(_value: Column) -> list[Column]:
    return []


def _doubts_of_floats(value: Column) -> list[Column]:
    """NaN has no order, and of 0.0 and -0.0 Python keeps the one that came first."""
    return [F.isnan(value), (value == 0.0) & (value.cast("string") == "-0.0")]


def _doubts_of_sums(value: Column) -> list[Column]:
    return [value == -(2**63)]


def _summed(value: Column) -> tuple[Column, list[Column]]:
    """Where the magnitudes together stay below 64 bits, so does every sum on the way, in any order."""
    return F.try_sum(value), [F.try_sum(magnitude(value)).isNull()]


_DOUBTS_OF: Final[dict[tuple[str, Kind], Callable[[Column], list[Column]]]] = {
    ("total", Kind.INT): _doubts_of_sums,
    ("mean", Kind.INT): _doubts_of_sums,
    **{(kind, of): _no_doubts for kind in ("minimum", "maximum") for of in (Kind.INT, Kind.TEXT)},
    **{(kind, Kind.FLOAT): _doubts_of_floats for kind in ("minimum", "maximum")},
}
"""(kind of aggregation, type of what it takes) that are computed natively. Sums of floats hang on their order."""

_COMPUTED: Final[dict[str, Callable[[Column], tuple[Column, list[Column]]]]] = {
    "total": _summed,
    "mean": _summed,
    "minimum": lambda value: (F.min(value), []),
    "maximum": lambda value: (F.max(value), []),
}
