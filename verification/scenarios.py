"""The scenarios: who takes part, and what the job does. A new one is a few lines."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from pipeline import Pipeline, count, read, write
from pipeline.kernel.contract import Emitted, KeyedOperator, TimerChanges
from pipeline.settings import Limits
from verification.actors import Leader, LetterClerk, Postman, Producer, Publisher, Reader, Source, Submitter, Worker
from verification.exporter import Exporter
from verification.world import Scenario

_LINES: Final = ("a b a", "c a b", "b", "d a c", "a", "b c d", "e a", "a b")
_SMALL: Final = Limits(lease_seconds=60.0)
_NARROW: Final = Limits(lease_seconds=60.0, inbox_records=4)


def _words(_: Path) -> Pipeline:
    """Lines -> words -> a running count of each word; the second stage holds state."""
    flow = Pipeline("verified")
    words = flow.source(read.producer(), name="in").flat_map(str.split, name="words")
    words.key_by(lambda word: word, name="by_word").aggregate(count(), name="counts").sink(
        write.stream("out"), name="out"
    )
    return flow


def _numbers(_: Path) -> Pipeline:
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


def _timers(_: Path) -> Pipeline:
    flow = Pipeline("verified")
    words = flow.source(read.producer(), name="in").flat_map(str.split, name="words")
    words.key_by(lambda word: word, name="by_word").process(_Alarm(), name="alarm").sink(
        write.stream("out"), name="out"
    )
    return flow


def _fragile(_: Path) -> Pipeline:
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


def _sequence(keys: str, each: int) -> list[list[Any]]:
    return [[key, number] for number in range(1, each + 1) for key in keys]


SCENARIOS: Final[Sequence[Scenario]] = (
    Scenario(
        "append by a producer",
        _numbers,
        lambda: (Submitter(), Producer(_sequence("a", 4), by=2), Leader(), Worker()),
        partitions=1,
        limits=_SMALL,
        has_pairs=True,
    ),
    Scenario(
        "append by a producer without a name, with ids",
        _numbers,
        lambda: (Submitter(), Producer(_sequence("a", 4), by=2, has_ids=True), Leader(), Worker()),
        partitions=1,
        limits=_SMALL,
        has_pairs=True,
    ),
    Scenario(
        "source splits with positions",
        _words,
        lambda: (Submitter(), Source([_LINES[:3], _LINES[3:]], by=2, seeks=True), Leader(), Worker()),
        limits=_SMALL,
    ),
    Scenario(
        "commit with state and outputs",
        _words,
        lambda: (Submitter(), Source([_LINES]), Leader(), Worker("w0"), Worker("w1"), Reader()),
        limits=_SMALL,
    ),
    Scenario(
        "timers that fire at the end of the input",
        _timers,
        lambda: (Submitter(), Source([_LINES[:3]]), Leader(), Worker()),
        partitions=1,
        limits=_SMALL,
        has_pairs=True,
    ),
    Scenario(
        "inboxes that are full",
        _words,
        lambda: (Submitter(), Reader(), Source([_LINES], by=3), Leader(), Worker("w0"), Worker("w1")),
        limits=_NARROW,
    ),
    Scenario(
        "tickets lost, doubled and late",
        _numbers,
        lambda: (Submitter(), Source([_sequence("abc", 4)], by=3), Leader(), Postman(), Worker("w0"), Worker("w1")),
        limits=_SMALL,
    ),
    Scenario(
        "take-over of partitions, from a live worker and a dead one",
        _numbers,
        lambda: (
            Submitter(),
            Source([_sequence("abc", 8)], by=3),
            Leader(),
            Worker("w0", away=range(6, 10)),
            Worker("w1", joins=5),
            Worker("w2", stays_dead=True),
        ),
        limits=_SMALL,
    ),
    Scenario(
        "change of leaders",
        _numbers,
        lambda: (
            Submitter(),
            Source([_sequence("ab", 8)], by=2),
            Leader("leader-1", away=range(3, 6)),
            Leader("leader-2", away=range(7, 9)),
            Worker(),
        ),
        partitions=1,
        limits=_SMALL,
    ),
    Scenario(
        "dead letters, mended and replayed",
        _fragile,
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
        "finish, publish and remove",
        _filed,
        lambda: (Submitter(), Source([_LINES]), Leader(), Worker(), Publisher(removes=True)),
        partitions=1,
        limits=_SMALL,
        shows_removal=True,
    ),
    Scenario(
        "a savepoint beside the work, and what is restored from it",
        _words,
        lambda: (Submitter(), Source([_LINES[:5]], by=1), Leader(), Worker(), Exporter(_LINES[:5], begins=3)),
        partitions=1,
        limits=_SMALL,
    ),
)
