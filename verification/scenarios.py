"""The scenarios: who takes part, and what the job does. A new one is a few lines."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Sequence
from contextlib import closing
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final, cast
from urllib.parse import quote

from pipeline import Pipeline, count, hold_key, read, write
from pipeline.graph import Sink, SinkSpec
from pipeline.kernel.contract import Emitted, KeyedOperator, TimerChanges
from pipeline.settings import Limits
from verification.actors import (
    Leader,
    LetterClerk,
    Outside,
    Postman,
    Producer,
    Publisher,
    Reader,
    Rescaler,
    Source,
    Submitter,
    Worker,
)
from verification.backfiller import backfilled, balances, right_from_some_record_on
from verification.burster import bursting
from verification.exporter import Exporter
from verification.shadower import NEW, OLD, shadowed, told_by, versioned
from verification.world import Scenario, World

LINES: Final = ("a b a", "c a b", "b", "d a c", "a", "b c d", "e a", "a b")
_SMALL: Final = Limits(lease_seconds=60.0)
_NARROW: Final = Limits(lease_seconds=60.0, inbox_records=4)


def words(_: Path) -> Pipeline:
    """Lines -> words -> a running count of each word; the second stage holds state."""
    flow = Pipeline("verified")
    words = flow.source(read.producer(), name="in").flat_map(str.split, name="words")
    words.key_by(lambda word: word, name="by_word").aggregate(count(), name="counts").sink(
        write.stream("out"), name="out"
    )
    return flow


def numbers(_: Path) -> Pipeline:
    """[key, number], which must come as 1, 2, 3, ... for each key."""
    flow = Pipeline("verified")
    pairs = flow.source(read.producer(), name="in").key_by(lambda pair: pair[0], name="by_key")
    pairs.map(lambda pair: pair[1], name="number").stateful_map(_in_sequence, name="oracle").sink(
        write.stream("out"), name="out"
    )
    return flow


def _in_sequence(key: Any, number: int, last: int | None) -> tuple[int, int]:
    if number != (last or 0) + 1:
        raise AssertionError(f"{key!r}: {number} came after {last or 0}")
    return number, number


class _Alarm(KeyedOperator):
    """Counts the records of each key, and hands the count out when the input has ended."""

    def process(self, keys: list[Any], values: list[Any], state: dict[Any, Any], timers: TimerChanges) -> Emitted:
        for key in keys:
            state[key] = state.get(key, 0) + 1
            timers.set(key, 1_000)
        return Emitted([], [])

    def on_timer(
        self, keys: Sequence[Any], dues: Sequence[int], state: dict[Any, Any], timers: TimerChanges
    ) -> Emitted:
        return Emitted([state[key] for key in keys], list(range(len(keys))))


def timers(_: Path) -> Pipeline:
    flow = Pipeline("verified")
    words = flow.source(read.producer(), name="in").flat_map(str.split, name="words")
    words.key_by(lambda word: word, name="by_word").process(_Alarm(), name="alarm").sink(
        write.stream("out"), name="out"
    )
    return flow


def fragile(_: Path) -> Pipeline:
    """Numbers of which some cannot be handled."""
    flow = Pipeline("verified")
    keyed = flow.source(read.producer(), name="in").key_by(lambda value: abs(value) % 3, name="by_rest")
    keyed.map(_no_negative, name="checked").aggregate(count(), name="counts").sink(write.stream("out"), name="out")
    return flow


def _no_negative(value: int) -> int:
    if value < 0:
        raise ValueError(f"{value} is negative")
    return value


def _filed(folder: Path) -> Pipeline:
    flow = Pipeline("verified")
    words = flow.source(read.producer(), name="in").flat_map(str.split, name="words")
    words.key_by(lambda word: word, name="by_word").aggregate(count(), name="counts").sink(
        write.jsonl(folder / "result"), name="filed"
    )
    return flow


def _holding(_: Path) -> Pipeline:
    """[key, number] as in `numbers`; a key with a negative one is held until that is mended or dropped."""
    flow = Pipeline("verified")
    pairs = flow.source(read.producer(), name="in").key_by(lambda pair: pair[0], name="by_key", on_error=hold_key())
    pairs.map(lambda pair: _no_negative(pair[1]), name="checked").stateful_map(_growing, name="growing").sink(
        write.stream("out"), name="out"
    )
    return flow


def _growing(key: Any, number: int, last: int | None) -> tuple[int, int]:
    if number <= (last or 0):
        raise AssertionError(f"{key!r}: {number} came after {last}")
    return number, number


def _tabled(folder: Path) -> Pipeline:
    import_module("pipeline.sinks.sql_sink")  # it takes a second, in which a leader does more than in any other run
    flow = Pipeline("verified")
    words = flow.source(read.producer(), name="in").flat_map(str.split, name="words")
    counts = words.key_by(lambda word: word, name="by_word").aggregate(count(), name="counts")
    counts.sink(write.sql(f"sqlite:///{folder}/table.db", "counts", create=True), name="table")
    return flow


def _rows(world: World) -> list[Any]:
    """What the SQL sink has written."""
    path = _sink_of(world).secrets["url"].removeprefix("sqlite:///")
    with closing(sqlite3.connect(path)) as database:
        return sorted(database.execute("select key, value from counts"))


def _called(folder: Path) -> Pipeline:
    """Hands counts to a function that keeps what it is given under its idempotency key, as a service would."""
    flow = Pipeline("verified")
    words = flow.source(read.producer(), name="in").flat_map(str.split, name="words")
    counts = words.key_by(lambda word: word, name="by_word").aggregate(count(), name="counts")
    counts.sink(write.call(partial(_serve, folder), batch=3), name="service")
    return flow


def _serve(folder: Path, records: list[dict[str, Any]]) -> None:
    for record in records:
        path = folder / f"request-{quote(record['idempotency_key'], safe='')}"
        text = json.dumps([record["key"], record["value"]])
        if path.exists() and path.read_text() != text:
            raise AssertionError(f"{path.name} stood for {path.read_text()}, and now for {text}")
        path.write_text(text)


def _requests(world: World) -> list[Any]:
    """What the service was asked to do, each request once."""
    asked = cast(Any, _sink_of(world).fn)
    return sorted(path.read_text() for path in asked.args[0].glob("request-*"))


def _sink_of(world: World) -> SinkSpec:
    return next(node.spec for node in world.graph.nodes if isinstance(node, Sink))


def sequence(keys: str, each: int) -> list[list[Any]]:
    return [[key, number] for number in range(1, each + 1) for key in keys]


_WITH_SQL: Final[Sequence[Scenario]] = (
    (
        Scenario(
            "rows in a database, in one transaction with their position",
            _tabled,
            lambda: (Submitter(), Source([LINES[:2]]), Leader(), Worker(), Outside(_rows)),
            partitions=1,
            limits=_SMALL,
        ),
    )
    if find_spec("sqlalchemy")
    else ()
)
"""The extra `sql` may not be there."""

SCENARIOS: Final[Sequence[Scenario]] = (
    Scenario(
        "append by a producer",
        numbers,
        lambda: (Submitter(), Producer(sequence("a", 4), by=2), Leader(), Worker()),
        partitions=1,
        limits=_SMALL,
        has_pairs=True,
    ),
    Scenario(
        "append by a producer without a name, with ids",
        numbers,
        lambda: (Submitter(), Producer(sequence("a", 4), by=2, has_ids=True), Leader(), Worker()),
        partitions=1,
        limits=_SMALL,
        has_pairs=True,
    ),
    Scenario(
        "source splits with positions",
        words,
        lambda: (Submitter(), Source([LINES[:3], LINES[3:]], by=2, seeks=True), Leader(), Worker()),
        limits=_SMALL,
    ),
    Scenario(
        "commit with state and outputs",
        words,
        lambda: (Submitter(), Source([LINES]), Leader(), Worker("w0"), Worker("w1"), Reader()),
        limits=_SMALL,
    ),
    Scenario(
        "timers that fire at the end of the input",
        timers,
        lambda: (Submitter(), Source([LINES[:3]]), Leader(), Worker()),
        partitions=1,
        limits=_SMALL,
        has_pairs=True,
    ),
    Scenario(
        "inboxes that are full",
        words,
        lambda: (Submitter(), Reader(), Source([LINES], by=3), Leader(), Worker("w0"), Worker("w1")),
        limits=_NARROW,
    ),
    Scenario(
        "tickets lost, doubled and late",
        numbers,
        lambda: (Submitter(), Source([sequence("abc", 4)], by=3), Leader(), Postman(), Worker("w0"), Worker("w1")),
        limits=_SMALL,
    ),
    Scenario(
        "take-over of partitions, from a live worker and a dead one",
        numbers,
        lambda: (
            Submitter(),
            Source([sequence("abc", 8)], by=3),
            Leader(),
            Worker("w0", away=range(6, 10)),
            Worker("w1", joins=5),
            Worker("w2", stays_dead=True),
        ),
        limits=_SMALL,
    ),
    Scenario(
        "other numbers of partitions, up and down, among records",
        numbers,
        lambda: (
            Submitter(),
            Rescaler((3, 1)),
            Producer(sequence("abc", 4), by=3, drains=False),
            Leader(),
            Worker("w0"),
            Worker("w1"),
        ),
        limits=_SMALL,
    ),
    Scenario(
        "move of a partition to a worker that joins",
        numbers,
        lambda: (
            Submitter(),
            Source([sequence("ab", 5)], by=2),
            Leader(),
            Worker("w0"),
            Worker("w1", joins=3),
        ),
        partitions=1,
        limits=_SMALL,
    ),
    Scenario(
        "change of leaders",
        numbers,
        lambda: (
            Submitter(),
            Source([sequence("ab", 8)], by=2),
            Leader("leader-1", away=range(3, 6)),
            Leader("leader-2", away=range(7, 9)),
            Worker(),
        ),
        partitions=1,
        limits=_SMALL,
    ),
    Scenario(
        "dead letters, mended and replayed",
        fragile,
        lambda: (
            Submitter(),
            Producer([1, -2, 3, 4, -5, 6, -7, 8], by=3, drains=False),
            Leader(),
            Worker(),
            LetterClerk({-2: 2, -5: None, -7: 7}, taken=18),
        ),
        partitions=1,
        limits=_SMALL,
    ),
    Scenario(
        "keys held behind dead letters, and let go",
        _holding,
        lambda: (
            Submitter(),
            Producer([["a", 1], ["b", -1], ["b", 2], ["c", -1], ["c", 2]], by=3, drains=False),
            Leader(),
            Worker(),
            LetterClerk({("b", -1): ["b", 1], ("c", -1): None}, taken=10),
        ),
        partitions=1,
        limits=_SMALL,
    ),
    *_WITH_SQL,
    Scenario(
        "calls of a service, under keys that stay",
        _called,
        lambda: (Submitter(), Source([LINES[:3]], by=2), Leader(), Worker(), Outside(_requests)),
        partitions=1,
        limits=_SMALL,
    ),
    Scenario(
        "finish, publish and remove",
        _filed,
        lambda: (Submitter(), Source([LINES]), Leader(), Worker(), Publisher(removes=True)),
        partitions=1,
        limits=_SMALL,
        shows_removal=True,
    ),
    Scenario(
        "a new version beside the job, put in its place",
        lambda _: versioned(OLD),
        lambda: shadowed((NEW,), "promote"),
        partitions=1,
        limits=_SMALL,
        told=told_by,
        is_long=True,
    ),
    Scenario(
        "the version before in its place again, by a second shadow",
        lambda _: versioned(OLD),
        lambda: shadowed((NEW, OLD), "promote"),
        partitions=1,
        limits=_SMALL,
        told=told_by,
        is_long=True,
        begins_behind="shadower: promote",
    ),
    Scenario(
        "a new version beside the job, dropped",
        lambda _: versioned(OLD),
        lambda: shadowed((NEW,), "drop"),
        partitions=1,
        limits=_SMALL,
        is_long=True,
    ),
    Scenario(
        "the state of some keys, computed anew and swapped",
        balances,
        backfilled,
        partitions=1,
        limits=_SMALL,
        told=right_from_some_record_on,
        is_long=True,
    ),
    Scenario(
        "a backlog worked off by a burst, and handed back at its cut",
        numbers,
        bursting,
        partitions=1,
        limits=_SMALL,
        is_long=True,
    ),
    Scenario(
        "a savepoint beside the work, and what is restored from it",
        words,
        lambda: (Submitter(), Source([LINES[:5]], by=1), Leader(), Worker(), Exporter(LINES[:5], begins=3)),
        partitions=1,
        limits=_SMALL,
    ),
)
