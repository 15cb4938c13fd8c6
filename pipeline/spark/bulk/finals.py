"""The final value of each key, computed by Spark itself: files, expressions, key_by, aggregate and last in one groupBy.

Of an entry stage of that form Spark gives what Python gives, whatever the records hold, or says that it is in doubt:
then none of it is used. What enters the keyed stage is, for each key, what `last` would hold at the end.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from operator import itemgetter
from typing import Any, Final

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812

from pipeline.aggregates import Aggregation
from pipeline.expressions import col, itself
from pipeline.graph import Filter, Graph, KeyBy, Keyed, Map, Node
from pipeline.kernel.operators import Aggregate, Last
from pipeline.plan import Plan, StagePlan
from pipeline.records import Batch
from pipeline.routing import Router, payloads
from pipeline.settings import Limits
from pipeline.sources.layout import FileInput
from pipeline.spark.bulk.facts import Counts, NativeFact, encode_fact
from pipeline.spark.bulk.faults import told
from pipeline.spark.bulk.rows import COUNTS, NATIVE, RowBuffer
from pipeline.spark.bulk.scans import DOUBT, HEADER, VALUE, scan, shape_of
from pipeline.spark.bulk.twins import (
    Columns,
    Kind,
    NoTwin,
    Shape,
    Twin,
    any_of,
    leaves,
    magnitude,
    named,
    names,
    single,
    twin_of,
)

_LEVEL: Final = "level"
_RECORDS: Final = "records"
_DOUBTS: Final = "doubts"

_HEAD, _FILTERED, _ARRIVED = 0, 1, 2
"""How far a row came: it is the head of a file, a filter has dropped it, or it has a key."""

_ROWS_A_PAYLOAD: Final = 4_000
_LEAF_BYTES: Final = 1_100
"""What a single value of a record takes beside the texts of its line, literals included."""


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
    steps: tuple[tuple[type[Filter] | type[Map], Twin], ...]
    key: Twin
    parts: tuple[Part, ...]
    most_bytes: int
    operators: tuple[str, str]

    @property
    def key_names(self) -> list[str]:
        return names(self.key.shape, "k")


def finals_of(graph: Graph, plan: Plan, stage: StagePlan, source: FileInput) -> Finals:
    """What computes the entry stage of these files natively. Starts no Spark. Raises NoTwin, which says why not."""
    shape = found = shape_of(source)
    if len(stage.exchanges) != 1 or stage.sinks:
        raise NoTwin("its records go to more than one key_by, or to a sink")
    ((key_name, keyed),) = stage.exchanges.items()
    steps: list[tuple[type[Filter] | type[Map], Twin]] = []
    shapes = [shape]
    node = _only_one_behind(graph, stage.name)
    while isinstance(node, Filter | Map):
        twin = twin_of(node.fn, found)
        if isinstance(node, Map):
            found = twin.shape
            shapes.append(found)
        elif single(twin) is not Kind.BOOL:
            raise NoTwin(f"the filter {node.name!r} takes what is no truth value")
        steps.append((type(node), twin))
        node = _only_one_behind(graph, node.name)
    if not isinstance(node, KeyBy) or node.name != key_name:
        raise NoTwin(f"{node.name!r} is more than a filter or a map")
    key = _key(node, found)
    operators, aggregations = _aggregate_and_last(graph, plan.stage(keyed))
    parts = tuple(_part(each, found) for each in aggregations)
    most_bytes = _most_bytes(shapes, key, plan.limits)
    return Finals(stage.index, keyed, shape, tuple(steps), key, parts, most_bytes, operators)


def frame_of(session: SparkSession, finals: Finals, source: FileInput) -> tuple[DataFrame, int]:
    """One row for each key and each other level, and how many heads of files must be among the rows that are read."""
    scanned = scan(session, source, finals.most_bytes)
    frame = scanned.frame.withColumn(_LEVEL, F.when(F.col(HEADER), _HEAD).otherwise(_ARRIVED)).drop(HEADER)
    shape, prefix, arrived = finals.shape, VALUE, F.col(_LEVEL) == _ARRIVED
    for number, (kind, twin) in enumerate(finals.steps):
        built, doubts = twin.build(named(shape, prefix))
        doubt = (F.col(DOUBT) | (arrived & any_of(doubts))).alias(DOUBT)
        if kind is Filter:
            drops = arrived & ~F.coalesce(*leaves(built), F.lit(False))
            level = F.when(drops, _FILTERED).otherwise(F.col(_LEVEL)).alias(_LEVEL)
            frame = frame.select(*names(shape, prefix), doubt, level)
        else:
            shape, prefix = twin.shape, f"{VALUE}{number}"
            frame = frame.select(*_aliased(built, names(shape, prefix)), doubt, _LEVEL)
    return _grouped(frame, finals, named(shape, prefix)), scanned.headers


def _grouped(frame: DataFrame, finals: Finals, value: Columns) -> DataFrame:
    arrived = F.col(_LEVEL) == _ARRIVED
    key, doubts = finals.key.build(value)
    keys = [F.when(arrived, leaf).alias(name) for leaf, name in zip(leaves(key), finals.key_names, strict=True)]
    doubts += [leaf.isNull() for leaf in leaves(key)]
    given = []
    for place, part in enumerate(finals.parts):
        if part.twin is not None:
            built, more = part.twin.build(value)
            (taken,) = leaves(built)
            given.append(F.when(arrived, taken).alias(f"part_{place}"))
            doubts += [*more, taken.isNull(), *_DOUBTS_OF[part.kind, single(part.twin)](taken)]
    doubt = (F.col(DOUBT) | (arrived & any_of(doubts))).alias(DOUBT)
    rows = frame.select(_LEVEL, *keys, *given, doubt)
    wanted, lost = [], []
    for place, part in enumerate(finals.parts):
        if part.twin is not None:
            result, more = _COMPUTED[part.kind](F.col(f"part_{place}"))
            wanted.append(result.alias(f"part_{place}"))
            lost += more
    counted = F.greatest(F.count_if(F.col(DOUBT)), F.when(arrived & any_of(lost), 1).otherwise(0)).alias(_DOUBTS)
    groups = rows.groupBy(_LEVEL, *finals.key_names).agg(F.count("*").alias(_RECORDS), counted, *wanted)
    # Any order that is the same at every attempt.
    return groups.sortWithinPartitions(_LEVEL, *finals.key_names)


@dataclass(frozen=True)
class FinalRows:
    """What a task does with rows of `frame_of`: encodes keys and the states of their aggregations, and counts.

    keyed: the stage that they are for. is_tuple, width: of the key. kinds: of the aggregations.
    """

    entry: int
    keyed: StagePlan
    limits: Limits
    is_tuple: bool
    width: int
    kinds: tuple[str, ...]

    @classmethod
    def of(cls, finals: Finals, plan: Plan) -> FinalRows:
        kinds = tuple(part.kind for part in finals.parts)
        is_tuple = isinstance(finals.key.shape, tuple)
        return cls(finals.entry, plan.stage(finals.keyed), plan.limits, is_tuple, len(finals.key_names), kinds)

    def run(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        with told():
            context = TaskContext.get()
            assert context is not None
            rows = RowBuffer(self.entry, context.partitionId())
            counts, fact = Counts(rows.stage, rows.partition), NativeFact()
            router = Router(self.keyed.serving)
            keys, values = list[Any](), list[Any]()
            for batch in batches:
                self._take(batch, counts, fact, keys, values)
                if len(keys) >= _ROWS_A_PAYLOAD:
                    self._route(router, Batch(values, keys), rows)
                    keys, values = [], []
                    yield from rows.full()
            self._route(router, Batch(values, keys), rows)
            rows.add_fact(COUNTS, encode_fact(counts))
            rows.add_fact(NATIVE, encode_fact(fact))
            yield from rows.rest()

    def _take(
        self, batch: pa.RecordBatch, counts: Counts, fact: NativeFact, keys: list[Any], values: list[Any]
    ) -> None:
        levels, *columns = [column.to_pylist() for column in batch.columns]
        names_of, (records, doubts, *results) = columns[: self.width], columns[self.width :]
        fact.doubts += sum(doubts)
        states = _states(self.kinds, results, records)
        key_column = zip(*names_of, strict=True) if self.is_tuple else names_of[0]
        for level, key, number, held in zip(levels, key_column, records, states, strict=True):
            if level == _HEAD:
                fact.headers += number
                continue
            counts.taken += number
            if level == _FILTERED:
                counts.filtered += number
                continue
            counts.emitted += number
            keys.append(key)
            values.append((number, held))

    def _route(self, router: Router, batch: Batch, rows: RowBuffer) -> None:
        for number, part in router.split(batch).items():
            for entry in payloads(part, self.limits):
                rows.add(self.keyed.name, number, *entry)


def _states(kinds: Sequence[str], results: Sequence[list[Any]], records: list[int]) -> Iterator[tuple[Any, ...]]:
    """For each row the states of all aggregations."""
    columns = iter(results)
    states = [list(map(_STATES[kind], records if kind == "count" else next(columns), records)) for kind in kinds]
    return zip(*states, strict=True)


def _only_one_behind(graph: Graph, name: str) -> Node:
    behind = [node for node in graph.nodes if name in node.inputs]
    if len(behind) == 1:
        return behind[0]
    raise NoTwin(f"the records of {name!r} go to {len(behind)} operators")


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
    first = _only_one_behind(graph, keyed.name)
    if not isinstance(first, Keyed) or not isinstance(first.operator, Aggregate):
        raise NoTwin(f"{first.name!r} behind key_by is no aggregate")
    second = _only_one_behind(graph, first.name)
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


def _most_bytes(shapes: Sequence[Shape], key: Twin, limits: Limits) -> int:
    """Texts of a record that has no more than this are within the limits in each form that it takes."""
    leaf_count = max(len(names(shape, "")) for shape in shapes) + len(names(key.shape, ""))
    named_bytes = max(_bytes_of_names(shape) for shape in shapes)
    most = (min(limits.record_bytes, limits.entry_bytes) - named_bytes) // (leaf_count + 1) - _LEAF_BYTES
    if most <= 0:
        raise NoTwin("the limits are too narrow for records of so many fields")
    return most


def _bytes_of_names(shape: Shape) -> int:
    if isinstance(shape, dict):
        return sum(len(name.encode()) + 5 + _bytes_of_names(each) for name, each in shape.items())
    return sum(map(_bytes_of_names, shape)) if isinstance(shape, tuple) else 0


def _aliased(columns: Columns, given: Sequence[str]) -> list[Column]:
    return [leaf.alias(name) for leaf, name in zip(leaves(columns), given, strict=True)]


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

_STATES: Final[dict[str, Callable[[Any, int], Any]]] = {
    "count": lambda result, _records: result,
    "total": lambda result, _records: [result, 0, 0.0],
    "mean": lambda result, records: [result, 0, 0.0, records],
    "minimum": lambda result, _records: result,
    "maximum": lambda result, _records: result,
}
"""As `pipeline.aggregates` keeps them."""
