"""The graph that a user's pipeline becomes: frozen data. Behaviour lives in `pipeline.kernel` and the engines."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from pipeline.kernel.contract import KeyedOperator
from pipeline.policies import GIVE_UP, ErrorPolicy
from pipeline.pools import POOL
from pipeline.schemas import Column


@dataclass(frozen=True, slots=True)
class SourceSpec:
    """What a source reads. `path` is a file, folder or glob.

    `format` is text, csv, json, parquet, delta, jdbc, iterable, producer, generator, sql, redis_stream or kafka.
    `options` holds JSON values only (column names, delimiter, engine, ...) and enters the plan, which others may read.
    `items` makes the values of an iterable source, `fn` those of a generator source. `secrets` (addresses with
    passwords) and the functions stay in the processes that load the graph.
    """

    format: str
    path: str = ""
    options: dict[str, Any] = field(default_factory=dict)
    items: Callable[[], Iterable[Any]] | None = None
    fn: Callable[[Any], Iterable[tuple[Any, Any]]] | None = None
    secrets: dict[str, str] = field(default_factory=dict, repr=False)


@dataclass(frozen=True, slots=True)
class SinkSpec:
    """Where a sink writes. `format` is console, stream, text, jsonl, csv, parquet, delta, sql, http, call or kafka.

    `options` holds JSON values and enters the plan, which others may read. `secrets` (addresses with passwords,
    headers) and `fn`, the function of a call sink, stay in the processes that load the graph.
    """

    format: str
    path: str = ""
    options: dict[str, Any] = field(default_factory=dict)
    secrets: dict[str, str] = field(default_factory=dict, repr=False)
    fn: Callable[[list[dict[str, Any]]], Any] | None = None


@dataclass(frozen=True, slots=True)
class Source:
    """`on_error` is the policy of the stage that begins here, `pool` that of its workers."""

    name: str
    spec: SourceSpec
    on_error: ErrorPolicy = GIVE_UP
    pool: str = POOL

    @property
    def inputs(self) -> tuple[str, ...]:
        return ()


@dataclass(frozen=True, slots=True)
class Map:
    """value -> fn(value)."""

    name: str
    inputs: tuple[str, ...]
    fn: Callable[[Any], Any]


@dataclass(frozen=True, slots=True)
class MapWithKey:
    """(key, value) -> fn(key, value); the key stays."""

    name: str
    inputs: tuple[str, ...]
    fn: Callable[[Any, Any], Any]


@dataclass(frozen=True, slots=True)
class Filter:
    """Keeps the records for which fn(value) is true."""

    name: str
    inputs: tuple[str, ...]
    fn: Callable[[Any], Any]


@dataclass(frozen=True, slots=True)
class FlatMap:
    """value -> the values of the iterable fn(value), in order."""

    name: str
    inputs: tuple[str, ...]
    fn: Callable[[Any], Iterable[Any]]


@dataclass(frozen=True, slots=True)
class KeyBy:
    """Gives each record the key fn(value). `field` names the key's column in table sinks.

    `on_error` is the policy of the stage that begins here, `pool` that of its workers; the function itself belongs to
    the stage before.
    """

    name: str
    inputs: tuple[str, ...]
    fn: Callable[[Any], Any]
    field: str = "key"
    on_error: ErrorPolicy = GIVE_UP
    pool: str = POOL


@dataclass(frozen=True, slots=True)
class Keyed:
    """A stateful operator on a keyed stream. Its outputs keep the key."""

    name: str
    inputs: tuple[str, ...]
    operator: KeyedOperator


@dataclass(frozen=True, slots=True)
class External:
    """A program of the user on standard input and output; see `pipeline.programs`.

    argv: the program and its arguments; no shell is involved.
    protocol: "json" keeps the key; behind "lines" and "forward" the stream has none.
    timeout_seconds: for a batch, and for a record that is tried alone.
    memory_bytes: address space of each of its processes, or None for no limit.
    exit_codes: those of a program that did its work; for "lines" only, as the others never end.
    """

    name: str
    inputs: tuple[str, ...]
    argv: tuple[str, ...]
    protocol: str = "json"
    timeout_seconds: float = 10.0
    memory_bytes: int | None = None
    exit_codes: tuple[int, ...] = (0,)


@dataclass(frozen=True, slots=True)
class Transform:
    """A function of Spark DataFrames on a stream without keys; see `pipeline.spark.transforms`.

    columns: those of the frame that fn gets; a record is a dict of them. batch: the most records in one frame.
    """

    name: str
    inputs: tuple[str, ...]
    fn: Callable[[Any], Any]
    columns: tuple[Column, ...]
    batch: int


@dataclass(frozen=True, slots=True)
class Union:
    """All records of its inputs, unkeyed; order holds within each input only."""

    name: str
    inputs: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Sink:
    """`key_field` is the key's column name, or None where the input is not keyed."""

    name: str
    inputs: tuple[str, ...]
    spec: SinkSpec
    key_field: str | None


Node: TypeAlias = Source | Map | MapWithKey | Filter | FlatMap | KeyBy | Keyed | External | Transform | Union | Sink


@dataclass(frozen=True, slots=True)
class Graph:
    """Nodes in the order of their making, so every input stands before its users."""

    name: str
    nodes: tuple[Node, ...]

    def node(self, name: str) -> Node:
        """Raises KeyError."""
        for node in self.nodes:
            if node.name == name:
                return node
        raise KeyError(name)
