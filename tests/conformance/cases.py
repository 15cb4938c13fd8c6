"""Pipelines that together use every operator of the API, with inputs drawn by chance. Each runs on all engines.

Order is kept per key and per sender. So where a second key is another one, what is behind it does not depend on the
order in which records of several partitions come.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from pipeline import (
    Aggregation,
    ErrorPolicy,
    KeyedOperator,
    Pipeline,
    Stream,
    count,
    hold_key,
    maximum,
    mean,
    minimum,
    read,
    retry,
    skip,
    total,
    write,
)
from pipeline.kernel.contract import Emitted, TimerChanges
from pipeline.records import MAX_TIME

PROGRAM = """
import json, sys
for line in sys.stdin:
    record = json.loads(line)
    value = record["value"]
    if value["n"] == 13:
        sys.exit(3)
    print(json.dumps([value["n"]] * (value["n"] % 3)), flush=True)
"""
FORWARD = """
import sys
while True:
    key, value = sys.stdin.readline(), sys.stdin.readline()
    if not value:
        break
    print("filter" if "3" in value else "forward\\n" + key + value.rstrip("\\n"), flush=True)
"""


@dataclass(frozen=True)
class Case:
    """`covers`: methods of streams and functions of the API that it uses. `build` gives a stream to the sinks.

    values: how many records, drawn by `draw`. partitions: of each stage.
    """

    name: str
    covers: frozenset[str]
    build: Callable[[Stream], None]
    draw: Callable[[random.Random], Any]
    values: int = 200
    partitions: int = 3
    policy: ErrorPolicy | None = None

    def pipeline(self, values: Sequence[Any]) -> Pipeline:
        flow = Pipeline("conformance", on_error=self.policy) if self.policy else Pipeline("conformance")
        # Sources have no keys to hold.
        stream = flow.source(read.iterable(list(values)), name="in", on_error=skip() if self.policy else None)
        self.build(stream)
        return flow

    def drawn(self, seed: int) -> list[Any]:
        rng = random.Random(f"{self.name} {seed}")
        return [self.draw(rng) for _ in range(self.values)]


def out(stream: Stream, name: str = "out") -> None:
    stream.sink(write.stream(name), name=name)


def pair(rng: random.Random) -> dict[str, Any]:
    return {"k": f"k{rng.randrange(12)}", "n": rng.randrange(-50, 50)}


def numbers(rng: random.Random) -> dict[str, Any]:
    number = rng.choice([rng.randrange(-(10**9), 10**9), rng.uniform(-1e6, 1e6), rng.randrange(10)])
    return {"k": rng.randrange(7), "n": number}


def a_key(rng: random.Random) -> Any:
    number = rng.randrange(5)
    return rng.choice([number, str(number), b"%d" % number, ("t", number), (number, (b"x", "é"))])


def keyed_pair(rng: random.Random) -> list[Any]:
    return [rng.randrange(1000), rng.choice(["a", "é", "𝄞", ""]) * rng.randrange(4)]


def words(rng: random.Random) -> str:
    return " ".join(rng.choice(["to", "be", "or", "not", "Be"]) for _ in range(rng.randrange(6)))


def doubtful(rng: random.Random) -> dict[str, Any]:
    return {"k": f"k{rng.randrange(6)}", "n": rng.choice([1, 2, 3, "bad", None])}


def seldom_doubtful(rng: random.Random) -> dict[str, Any]:
    return {"k": f"k{rng.randrange(6)}", "n": "bad" if rng.randrange(20) == 0 else rng.choice([1, 2, 3, None])}


class Session(KeyedOperator):
    """Closes a session `gap` after its last record, by timers that are moved; some are left to the end of the input."""

    def process(self, keys: list[Any], values: list[Any], state: dict[Any, Any], timers: TimerChanges) -> Emitted:
        made: list[Any] = []
        origins: list[int] = []
        for index, (key, value) in enumerate(zip(keys, values, strict=True)):
            held = state.get(key)
            if held is not None:
                timers.clear(key, held[1])
            held = state[key] = [(held[0] if held else 0) + 1, MAX_TIME if value["n"] % 5 == 0 else value["n"] + 1000]
            timers.set(key, held[1])
            if value["n"] % 7 == 0:
                made.append(["seen", held[0]])
                origins.append(index)
        return Emitted(made, origins)

    def on_timer(
        self, keys: Sequence[Any], dues: Sequence[int], state: dict[Any, Any], timers: TimerChanges
    ) -> Emitted:
        made = []
        for key, due in zip(keys, dues, strict=True):
            made.append(["closed", state[key][0], due])
            if state[key][0] % 2 and due < MAX_TIME - 5:
                state[key][0] += 1
                state[key][1] = due + 3
                timers.set(key, due + 3)
            else:
                del state[key]
        return Emitted(made, list(range(len(made))))


def strict(value: Any) -> Any:
    return value["n"] + 0


def longest(key: str, value: Any, state: Any) -> tuple[Any, Any]:
    state = {"seen": [], "sum": 0} if state is None else state
    state["seen"] = [*state["seen"], value["n"]][-5:]
    state["sum"] += value["n"]
    return [key, list(state["seen"]), state["sum"]], None if state["sum"] > 200 else state


def product() -> Aggregation:
    return Aggregation(
        "product()", lambda: [1], lambda held, value: [held[0] * value["n"] % 9973], lambda held: held[0]
    )


def _stateless(stream: Stream) -> None:
    split = (
        stream.flat_map(str.split, name="words").map(str.lower, name="lower").filter(lambda w: w != "or", name="no_or")
    )
    out(split.key_by(lambda word: word, name="by").map_with_key(lambda key, value: [key, len(value)], name="with_key"))
    out(split, "plain")


def _aggregations(stream: Stream) -> None:
    keyed = stream.key_by("k", name="by")
    several = keyed.aggregate(
        n=count(), sum=total("n"), mean=mean("n"), least=minimum("n"), most=maximum("n"), name="several"
    )
    out(several)
    for make in (total, mean, minimum, maximum):
        out(keyed.aggregate(make("n"), name=f"one_{make.__name__}"), make.__name__)
    out(keyed.aggregate(count(), name="one_count"), "count")


def _branches(stream: Stream) -> None:
    small, large, rest = stream.branch(lambda v: v["n"] < -20, lambda v: v["n"] > 20, name="size")
    joined = small.map(lambda v: {**v, "n": -v["n"]}, name="turned").union(large, name="joined")
    out(
        joined.key_by("k", name="by")
        .map(lambda v: v["n"], name="number")
        .aggregate(total(), name="sum")
        .last(name="end")
    )
    out(
        rest.key_by(lambda v: v["n"] % 4, name="by_rest").aggregate(count(), name="counted").last(name="end_rest"),
        "rest",
    )


def _two_keys(stream: Stream) -> None:
    first = stream.key_by("k", name="by_key").aggregate(total("n"), name="sums").last(name="final")
    second = first.key_by(lambda value: value % 3, name="by_rest").aggregate(count(), name="counted")
    out(first, "first")
    out(second)
    out(second.last(name="final_count"), "last")


def _same_key_again(stream: Stream) -> None:
    first = stream.key_by("k", name="by").reduce(lambda held, v: {"k": v["k"], "n": held["n"] + v["n"]}, name="run")
    again = first.key_by("k", name="again").stateful_map(longest, name="longest")
    out(again)


def _doubtful(stream: Stream) -> None:
    keyed = stream.key_by("k", name="by").map(strict, name="strict").aggregate(total(), name="sum")
    out(keyed)
    out(keyed.last(name="end"), "last")


def _frames(stream: Stream) -> None:
    """One in an entry stage, and one behind a union in a keyed stage. Rows have no order behind one in bulk."""

    def copied(frame: Any) -> Any:
        return frame.selectExpr("k", "n * 10 as n", "explode(array(1, 2)) as copy").where("n + copy != 11")

    def renamed(frame: Any) -> Any:
        return frame.selectExpr("*", "case when k in ('k1', 'k2') then 'few' else 'many' end as kind")

    copies = stream.transform(copied, schema="k string, n long", batch=15, name="copied")
    out(copies, "copies")
    counted = copies.key_by("k", name="by").aggregate(count(), name="count")
    ends = counted.last(name="end").map_with_key(lambda key, n: {"k": key, "n": n}, name="row")
    both = ends.union(copies, name="both").transform(renamed, schema="k string, n int not null", name="named")
    out(both, "renamed")
    out(both.key_by("kind", name="again").aggregate(total("n"), name="sum").last(name="ends"), "sums")


CASES = [
    Case(
        "stateless",
        frozenset({"source", "map", "filter", "flat_map", "key_by", "map_with_key", "sink"}),
        _stateless,
        words,
    ),
    Case(
        "aggregations",
        frozenset({"aggregate", "count", "total", "mean", "minimum", "maximum"}),
        _aggregations,
        numbers,
        values=120,
    ),
    Case(
        "an aggregation of the user's own",
        frozenset({"aggregate"}),
        lambda stream: out(stream.key_by("k", name="by").aggregate(product(), name="product")),
        pair,
    ),
    Case(
        "every type of key",
        frozenset({"key_by", "reduce", "last"}),
        lambda stream: out(
            stream.key_by(
                lambda v: (v[0] % 3, ("x", b"y")) if v[0] % 2 else [str, int][v[0] % 4 // 2](v[0] % 5), name="by"
            ).reduce(lambda held, value: [held[0] + value[0], (held[1] + value[1])[-8:]], name="run")
        ),
        keyed_pair,
    ),
    Case("branch and union", frozenset({"branch", "union", "last", "aggregate"}), _branches, pair),
    Case("two keyed stages", frozenset({"aggregate", "last"}), _two_keys, pair),
    Case("the same key again", frozenset({"reduce", "stateful_map"}), _same_key_again, pair),
    Case(
        "timers of an operator of the user's own",
        frozenset({"process"}),
        lambda stream: out(stream.key_by("k", name="by").process(Session(), name="session")),
        pair,
    ),
    Case(
        "a program",
        frozenset({"external"}),
        lambda stream: out(
            stream.key_by("k", name="by")
            .external([sys.executable, "-c", PROGRAM], name="repeat")
            .aggregate(total(), name="sum")
        ),
        pair,
        values=60,
        partitions=2,
    ),
    Case(
        "programs without keys",
        frozenset({"external"}),
        lambda stream: out(
            stream.external(["grep", "-v", "not"], protocol="lines", exit_codes=(0, 1), name="grep").external(
                [sys.executable, "-c", FORWARD], protocol="forward", name="forward"
            )
        ),
        words,
        values=60,
        partitions=1,
    ),
    Case("dead letters", frozenset({"dead_letter"}), _doubtful, doubtful),
    Case("records that are skipped", frozenset({"skip"}), _doubtful, doubtful, policy=skip()),
    Case("keys that are held", frozenset({"hold_key"}), _doubtful, doubtful, policy=hold_key()),
    Case(
        "records that are tried again",
        frozenset({"retry"}),
        _doubtful,
        doubtful,
        values=60,
        policy=retry(3, first_seconds=0.0, most_seconds=0.0),
    ),
]

FRAMES = Case("functions of DataFrames", frozenset({"transform"}), _frames, seldom_doubtful, values=24, partitions=2)
"""Not among the cases above: a worker needs a session for it, and tasks without Spark have none; see test_seam."""

EXEMPT = frozenset({"fail"})
"""It ends the run; see test_bulk_errors."""
