"""What users build pipelines with: `Pipeline` collects operators, `Stream` and `KeyedStream` are handles.

It only makes the graph, as frozen data. Running it, and what an operator does, lives elsewhere.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from operator import itemgetter
from os import PathLike
from typing import Any, Literal, Self, overload

from pipeline import validation
from pipeline.aggregates import Aggregation
from pipeline.errors import PipelineError
from pipeline.expressions import Expression
from pipeline.graph import (
    External,
    Filter,
    FlatMap,
    Graph,
    KeyBy,
    Keyed,
    Map,
    MapWithKey,
    Node,
    Sink,
    SinkSpec,
    Source,
    SourceSpec,
    Transform,
    Union,
)
from pipeline.kernel.contract import KeyedOperator
from pipeline.kernel.operators import Aggregate, Last, Reduce, StatefulMap
from pipeline.policies import ErrorPolicy, check_policy, check_unkeyed_policy, dead_letter
from pipeline.pools import POOL
from pipeline.programs import checking
from pipeline.schemas import parse_schema


class Pipeline:
    """A pipeline in the making. Operators are only ever added, in the order of the calls.

        flow = Pipeline("wordcount")
        lines = flow.source(read.text("book.txt"))
        lines.flat_map(str.split).key_by(str.lower).aggregate(count()).sink(write.console())

    An operator without `name=` is named by its kind and the number of that kind so far: `map_1`, `map_2`.
    State belongs to the name, so name the operators whose state must survive a change of the pipeline.
    """

    def __init__(self, name: str, on_error: ErrorPolicy | None = None) -> None:
        """`on_error` is the policy of all stages that have none of their own: `dead_letter()` by default.

        Raises PipelineError when the name is not 1 to 64 letters, digits, '_' or '-', a letter first.
        """
        self.name = validation.check_name(name, "a pipeline")
        self.on_error = check_policy(dead_letter() if on_error is None else on_error, f"the pipeline {name!r}")
        self._nodes: dict[str, Node] = {}
        self._made: Counter[str] = Counter()

    def source(
        self, spec: SourceSpec, name: str | None = None, on_error: ErrorPolicy | None = None, pool: str = POOL
    ) -> Stream:
        """The records that `spec` reads, as made by the functions of `pipeline.read`.

        `on_error` says what is done about records that fail from here to the next `key_by`, its function included.
        `pool` names the workers that run what is between here and the next `key_by`: those of that pool only.
        """
        name = self._choose_name("source", name)
        if not isinstance(spec, SourceSpec):
            raise PipelineError(
                f"the source {name!r} needs what to read, not {spec!r}",
                hint="give it read.text(path), read.csv(path), read.iterable(items), ...",
            )
        validation.check_options(spec.options, f"the source {name!r}")
        policy = check_unkeyed_policy(self.on_error if on_error is None else on_error, name)
        self._add("source", Source(name, spec, policy, validation.check_pool(pool, name)))
        return Stream(self, name)

    def graph(self) -> Graph:
        """The graph of all operators made so far. Raises PipelineError when it cannot run."""
        graph = Graph(self.name, tuple(self._nodes.values()))
        validation.check(graph)
        return graph

    def __repr__(self) -> str:
        return f"Pipeline({self.name!r})"

    def _choose_name(self, kind: str, given: str | None) -> str:
        """The given name, checked, or the next derived one that is free. Nothing is taken by asking."""
        if given is None:
            number = self._made[kind] + 1
            while f"{kind}_{number}" in self._nodes:
                number += 1
            return f"{kind}_{number}"
        name = validation.check_name(given, f"the operator {kind}")
        if name in self._nodes:
            raise validation.duplicate(name)
        return name

    def _add(self, kind: str, node: Node) -> None:
        self._nodes[node.name] = node
        self._made[kind] += 1


@dataclass(frozen=True, slots=True)
class Stream:
    """The records that leave one operator. It is a handle and never changes: each method gives a new stream.

    All methods raise PipelineError, naming the operator, for an argument that cannot work.
    """

    pipeline: Pipeline = field(repr=False)
    name: str
    key_field: str | None = None

    def map(self, fn: Callable[[Any], Any], name: str | None = None) -> Self:
        """value -> fn(value)."""
        name = self.pipeline._choose_name("map", name)
        validation.check_plain_function(fn, ("value",), name)
        return self._then("map", Map(name, (self.name,), fn))

    def filter(self, fn: Callable[[Any], Any], name: str | None = None) -> Self:
        """Keeps the records for which fn(value) is true."""
        name = self.pipeline._choose_name("filter", name)
        validation.check_plain_function(fn, ("value",), name)
        return self._then("filter", Filter(name, (self.name,), fn))

    def flat_map(self, fn: Callable[[Any], Iterable[Any]], name: str | None = None) -> Self:
        """value -> each value of the iterable fn(value), in order. fn may be a generator function."""
        name = self.pipeline._choose_name("flat_map", name)
        validation.check_function(fn, ("value",), name)
        return self._then("flat_map", FlatMap(name, (self.name,), fn))

    @overload
    def external(
        self,
        program: str | Sequence[str | PathLike[str]],
        *,
        protocol: Literal["json"] = "json",
        timeout_seconds: float = 10.0,
        memory_bytes: int | None = None,
        exit_codes: Sequence[int] = (0,),
        name: str | None = None,
    ) -> Self: ...

    @overload
    def external(
        self,
        program: str | Sequence[str | PathLike[str]],
        *,
        protocol: Literal["lines", "forward"],
        timeout_seconds: float = 10.0,
        memory_bytes: int | None = None,
        exit_codes: Sequence[int] = (0,),
        name: str | None = None,
    ) -> Stream: ...

    def external(
        self,
        program: str | Sequence[str | PathLike[str]],
        *,
        protocol: str = "json",
        timeout_seconds: float = 10.0,
        memory_bytes: int | None = None,
        exit_codes: Sequence[int] = (0,),
        name: str | None = None,
    ) -> Stream:
        """The outputs of a program of any language, which reads standard input and writes standard output.

            hellos = lines.external(["grep", "hello"], protocol="lines", exit_codes=(0, 1))
            parsed = hellos.external("python3 -u parse.py")

        docs/external.md describes the protocols. "json": each record is a line {"key": ..., "value": ...} and is
        answered by a line with the list of its outputs, which keep its key. "forward": the lines `key: ` and
        `value: `, answered by `forward` and these two, or by `filter`; outputs are {"key": ..., "value": ...}, the
        stream has no keys then. "lines": the program runs once for each batch of values, on streams without keys.

        The program runs without a shell, once per worker, and must answer a batch within `timeout_seconds`;
        `memory_bytes` limits the address space of each of its processes. It may see a record more than once.
        """
        name = self.pipeline._choose_name("external", name)
        argv = checking.program_argv(program, name)
        codes = tuple(exit_codes) if isinstance(exit_codes, Iterable) else exit_codes
        node = External(name, (self.name,), argv, protocol, timeout_seconds, memory_bytes, codes)
        checking.check_program(node)
        if protocol == "json":
            return self._then("external", node)
        if protocol == "lines" and isinstance(self, KeyedStream):
            raise checking.lines_lose_keys(name)
        self.pipeline._add("external", node)
        return Stream(self.pipeline, name)

    def transform(
        self, fn: Callable[[Any], Any], *, schema: str, batch: int = 8_000, name: str | None = None
    ) -> Stream:
        """The rows of fn(frame), where the frame is a Spark DataFrame of some records; for streams without keys.

            def with_names(flights):
                names = flights.sparkSession.read.parquet("carriers.parquet")
                return flights.join(names, "carrier", "left").select("name", "dep_delay")

            flights.transform(with_names, schema="carrier string, dep_delay double")

        `schema` names the columns that fn gets, as Spark's DDL does; a record is a dict of them. A field that is
        missing is null, others are left out, and a record whose field is of another type fails. Outputs are dicts of
        the columns that fn returns, in the order of its rows, without event times and ids of their own.

        A frame holds records that arrived together, at most `batch` of them, cut in another way at each run. So fn must
        treat each row by itself, as filters, computed columns, explodes and joins with tables do; it must not
        aggregate, sort or number rows. It must be deterministic: it may see a record more than once. A worker with such
        an operator holds a Spark session. docs/dataframes.md says more.
        """
        name = self.pipeline._choose_name("transform", name)
        validation.check_plain_function(fn, ("frame",), name)
        node = Transform(name, (self.name,), fn, parse_schema(schema, f"operator {name!r}"), batch)
        validation.check_transform(node)
        if isinstance(self, KeyedStream):
            raise validation.frames_lose_keys(name)
        self.pipeline._add("transform", node)
        return Stream(self.pipeline, name)

    def branch(self, *predicates: Callable[[Any], Any], name: str | None = None) -> tuple[Self, ...]:
        """One stream for each predicate, and one more for the rest. A record goes to the first that is true.

            late, early, on_time = flights.branch(lambda f: f["delay"] > 0, lambda f: f["delay"] < 0)

        A predicate may be asked more than once about a record, so its answer must depend on the value only.
        The operators are named `<name>_1`, `<name>_2`, ... and `<name>_rest`.
        """
        base = self._branch_name(name)
        if not predicates:
            raise PipelineError(f"the branch {base!r} needs at least one predicate")
        names = [*(f"{base}_{number}" for number in range(1, len(predicates) + 1)), f"{base}_rest"]
        for each in names:
            self.pipeline._choose_name("branch", each)
        for each, predicate in zip(names, predicates, strict=False):
            validation.check_plain_function(predicate, ("value",), each)
        tests = [_first_match(predicates, index) for index in range(len(predicates))]
        tests.append(_no_match(predicates))
        streams = tuple(
            self._then("branch_output", Filter(each, (self.name,), test))
            for each, test in zip(names, tests, strict=True)
        )
        self.pipeline._made["branch"] += 1
        return streams

    def union(self, *others: Stream, name: str | None = None) -> Stream:
        """All records of these streams, without keys. Order holds within each of them only."""
        name = self.pipeline._choose_name("union", name)
        for other in others:
            if not isinstance(other, Stream):
                raise PipelineError(f"the union {name!r} joins streams, not {other!r}")
            if other.pipeline is not self.pipeline:
                raise PipelineError(
                    f"the union {name!r} joins {self.name!r} of the pipeline {self.pipeline.name!r} with "
                    f"{other.name!r} of the pipeline {other.pipeline.name!r}",
                    hint="streams can be joined within one pipeline only",
                )
        inputs = (self.name, *(other.name for other in others))
        if len(inputs) < 2 or len(set(inputs)) < len(inputs):
            raise PipelineError(f"the union {name!r} needs two or more streams, each of them once")
        self.pipeline._add("union", Union(name, inputs))
        return Stream(self.pipeline, name)

    def key_by(
        self,
        key: Callable[[Any], Any] | str,
        name: str | None = None,
        on_error: ErrorPolicy | None = None,
        pool: str = POOL,
    ) -> KeyedStream:
        """Gives each record a key: a function of the value, or the name of a dict's field.

        Records of one key are handled in order, and each key has its own state. A key is text, an integer,
        bytes, or a tuple of these. `key_by("carrier")`, or `key_by(col("carrier"))`, also names the key's column in
        table sinks.
        `on_error` says what is done about records that fail behind it, up to the next `key_by`; `pool` names the
        workers that run what is there: those of that pool only.
        """
        name = self.pipeline._choose_name("key_by", name)
        policy = check_policy(self.pipeline.on_error if on_error is None else on_error, f"operator {name!r}")
        pool = validation.check_pool(pool, name)
        if isinstance(key, str):
            if not key or not validation.is_unicode(key):
                raise PipelineError(f"operator {name!r}: {key!r} cannot be the name of a field")
            node = KeyBy(name, (self.name,), itemgetter(key), key, policy, pool)
        else:
            validation.check_plain_function(key, ("value",), name)
            field = (key.field if isinstance(key, Expression) else None) or "key"
            node = KeyBy(name, (self.name,), key, field, policy, pool)
        self.pipeline._add("key_by", node)
        return KeyedStream(self.pipeline, name, node.field)

    def sink(self, spec: SinkSpec, name: str | None = None) -> None:
        """Writes the records to what `spec` says, as made by the functions of `pipeline.write`."""
        name = self.pipeline._choose_name("sink", name)
        if not isinstance(spec, SinkSpec):
            raise PipelineError(
                f"the sink {name!r} needs where to write, not {spec!r}",
                hint="give it write.console(), write.jsonl(path), write.parquet(path), ...",
            )
        validation.check_options(spec.options, f"the sink {name!r}")
        self.pipeline._add("sink", Sink(name, (self.name,), spec, self.key_field))

    def _refuse_unkeyed(self, *_args: Any, **_kwargs: Any) -> Any:
        raise validation.not_keyed(self.name, "a keyed operator")

    # The methods of KeyedStream, known here so that a forgotten key_by is told and not an AttributeError.
    map_with_key = reduce = aggregate = stateful_map = process = last = _refuse_unkeyed

    def _then(self, kind: str, node: Node) -> Self:
        """Adds the node, and gives its output, keyed as this stream is."""
        self.pipeline._add(kind, node)
        return replace(self, name=node.name)

    def _branch_name(self, given: str | None) -> str:
        if given is not None:
            return validation.check_name(given, "a branch")
        return f"branch_{self.pipeline._made['branch'] + 1}"


@dataclass(frozen=True, slots=True)
class KeyedStream(Stream):
    """A stream whose records have keys. map, filter, flat_map and branch keep the key; union drops it.

    `process` is the core: reduce, aggregate, stateful_map and last are functions over it.
    """

    key_field: str

    def map_with_key(self, fn: Callable[[Any, Any], Any], name: str | None = None) -> Self:
        """value -> fn(key, value). The record keeps its key."""
        name = self.pipeline._choose_name("map_with_key", name)
        validation.check_plain_function(fn, ("key", "value"), name)
        return self._then("map_with_key", MapWithKey(name, (self.name,), fn))

    def process(self, operator: KeyedOperator, name: str | None = None) -> Self:
        """Runs a stateful operator of your own. Its outputs keep their keys."""
        name = self.pipeline._choose_name("process", name)
        if not isinstance(operator, KeyedOperator):
            raise PipelineError(
                f"operator {name!r} needs an instance of a KeyedOperator, not {operator!r}",
                hint="derive a class from pipeline.KeyedOperator, and give an instance of it",
            )
        return self._process("process", name, operator)

    def reduce(self, fn: Callable[[Any, Any], Any], name: str | None = None) -> Self:
        """For each record the running value of its key: the first value, then fn(running, value)."""
        name = self.pipeline._choose_name("reduce", name)
        validation.check_plain_function(fn, ("running", "value"), name)
        return self._process("reduce", name, Reduce(fn))

    def aggregate(
        self,
        aggregation: Aggregation | None = None,
        /,
        name: str | None = None,
        **named: Aggregation,
    ) -> Self:
        """For each record the running result of its key: of one aggregation, or a dict of several.

        by_carrier.aggregate(mean("delay"))
        by_carrier.aggregate(flights=count(), delay=mean("delay"))
        """
        name = self.pipeline._choose_name("aggregate", name)
        if (aggregation is None) == (not named):
            raise PipelineError(
                f"operator {name!r} needs either one aggregation or named ones",
                hint="write .aggregate(count()) or .aggregate(records=count(), average=mean())",
            )
        for each in [aggregation] if aggregation is not None else named.values():
            if not isinstance(each, Aggregation):
                raise PipelineError(
                    f"operator {name!r} needs an aggregation, not {each!r}",
                    hint="call it: count(), mean('field'), ...",
                )
        return self._process("aggregate", name, Aggregate(named if aggregation is None else aggregation))

    def stateful_map(self, fn: Callable[[Any, Any, Any], tuple[Any, Any]], name: str | None = None) -> Self:
        """(key, value) -> output, with fn(key, value, state) -> (output, state).

        The state of a key is None at first, and whatever fn returned last from then on; None deletes it.
        """
        name = self.pipeline._choose_name("stateful_map", name)
        validation.check_plain_function(fn, ("key", "value", "state"), name)
        return self._process("stateful_map", name, StatefulMap(fn))

    def last(self, name: str | None = None) -> Self:
        """The last value of each key, once, when the input has ended."""
        return self._process("last", self.pipeline._choose_name("last", name), Last())

    def _process(self, kind: str, name: str, operator: KeyedOperator) -> Self:
        return self._then(kind, Keyed(name, (self.name,), operator))


def _first_match(predicates: tuple[Callable[[Any], Any], ...], index: int) -> Callable[[Any], Any]:
    earlier, own = predicates[:index], predicates[index]

    def is_first_match(value: Any) -> Any:
        return not any(predicate(value) for predicate in earlier) and own(value)

    return is_first_match


def _no_match(predicates: tuple[Callable[[Any], Any], ...]) -> Callable[[Any], Any]:
    def matches_none(value: Any) -> bool:
        return not any(predicate(value) for predicate in predicates)

    return matches_none
