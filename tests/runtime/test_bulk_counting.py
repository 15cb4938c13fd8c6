"""Counts in front of an exchange in bulk: all that a run gives and tells is what it is where each record crosses."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from pipeline import Pipeline, count, itself, mean, read, write
from pipeline.api import KeyedStream, Stream
from pipeline.codec import decode_batch, encode_batch
from pipeline.plan import StagePlan
from pipeline.policies import dead_letter
from pipeline.records import Batch, Timer
from pipeline.spark.bulk import carrier, counting
from pipeline.spark.bulk.counting import counted_exchanges
from pipeline.spark.bulk.engine import BulkOptions, BulkRun
from pipeline.spark.bulk.rows import are_own_keys, keyed_batch

LINES = [f"{'ab' * (number % 3)} w{number % 17} w{number % 5} {number % 2}" for number in range(90)]


def words_of(line: str) -> list[str]:
    if line.endswith("w3 1"):
        raise ValueError(line)
    return line.split()


def odd_ones(line: str) -> list[Any]:
    """Some of its records cannot be sent, and some keys are none."""
    _, *words = line.split()
    return [{"n": 1j if word == "w7" else word, "k": 1.5 if word == "w4" else word} for word in words]


def by_hand(row: dict[str, Any]) -> Any:
    return row["k"], "k"


def plain(lines: Stream) -> KeyedStream:
    return (
        lines.flat_map(words_of, name="words").key_by(itself(), name="by").aggregate(count(), name="n").last(name="end")
    )


def named(lines: Stream) -> KeyedStream:
    counts = {"one": count(), "two": count()}
    return lines.flat_map(str.split, name="words").key_by(len, name="by").aggregate(name="n", **counts).last(name="end")


def failing(lines: Stream) -> KeyedStream:
    rows = lines.flat_map(odd_ones, name="rows")
    ended = rows.key_by(by_hand, name="by").aggregate(count(), name="n").last(name="end")
    return ended.map_with_key(lambda key, n: 1 // (key[0] != "w2") * n, name="behind")


def twice(lines: Stream) -> KeyedStream:
    first = plain(lines)
    return first.key_by(lambda n: n % 7, name="again").aggregate(count(), name="m").last(name="ends")


FORMS = [plain, named, failing, twice]


class Before:
    """State and timers of an earlier run: of some keys that come again, and of some that do not."""

    def state(self, stage: StagePlan, partition: int) -> Iterator[tuple[str, Any, Any]]:
        if partition == 0 and stage.name == "by":
            yield from [("n", "w1", 5), ("end", "w1", 5), ("n", "gone", 2), ("end", "gone", 2)]

    def timers(self, stage: StagePlan, partition: int) -> Iterator[Timer]:
        if partition == 0 and stage.name == "by":
            yield from [Timer("end", key, 2**53 - 1) for key in ("w1", "gone")]


def told(folder: Path, build: Callable[[Stream], KeyedStream], **options: Any) -> list[Any]:
    """All that a run gives and tells, in order."""
    flow = Pipeline("counted")
    build(flow.source(read.text(folder / "in"), name="lines", on_error=dead_letter())).sink(
        write.jsonl(folder / "out"), name="out"
    )
    given = list[Any]()
    takers = {"out": lambda batch: given.extend(zip(batch.keys or [], batch.values, strict=True))}
    with BulkRun(flow, BulkOptions(partitions=3, takers=takers, keeps_state=True, **options)) as run:
        run.prepare()
        run.compute_here()
        result = run.publish()
        letters = [(each.stage, each.operator, each.kind, each.error, each.payload) for each in result.letters]
        counts = [(each.taken, each.emitted, each.filtered, each.dead, each.sunk) for each in result.stages]
        return [given, letters, counts, list(run.states()), list(run.timers())]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "in").mkdir()
    for number in range(3):
        (tmp_path / "in" / f"{number}.txt").write_text("\n".join(LINES[number::3]))
    return tmp_path


@pytest.mark.parametrize("build", FORMS)
@pytest.mark.parametrize("options", [{}, {"ends_input": False}, {"seed": Before()}], ids=["whole", "open", "seeded"])
@pytest.mark.parametrize("bound", [1 << 30, 10], ids=["at the end", "when full"])
def test_results_state_timers_letters_and_counts_are_those_of_records_that_cross_one_by_one(
    folder: Path,
    build: Callable[[Stream], KeyedStream],
    options: dict[str, Any],
    bound: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(counting, "_MOST_KEYS", bound)
    counted = told(folder, build, **options)
    monkeypatch.setattr(carrier, "counted_exchanges", lambda _graph: {})

    assert counted == told(folder, build, **options)
    assert counted[3]


def exchanges(build: Callable[[Stream], KeyedStream]) -> dict[str, str]:
    flow = Pipeline("counted")
    build(flow.source(read.text("/tmp/never"), name="lines")).sink(write.jsonl("/tmp/never/out"), name="out")
    return counted_exchanges(flow.graph())


def test_only_counts_of_which_the_last_value_alone_is_wanted_are_made_in_front() -> None:
    assert exchanges(plain) == {"by": "n"}
    assert exchanges(twice) == {"by": "n", "again": "m"}
    assert exchanges(lambda lines: lines.key_by(itself(), name="by").aggregate(count(), name="n")) == {}
    assert exchanges(lambda lines: lines.key_by(itself(), name="by").last(name="end")) == {}
    assert (
        exchanges(
            lambda lines: lines.key_by(itself(), name="by").aggregate(a=count(), b=mean(), name="n").last(name="e")
        )
        == {}
    )

    def with_a_map(lines: Stream) -> KeyedStream:
        return lines.key_by(itself(), name="by").map(len, name="sized").aggregate(count(), name="n").last(name="end")

    def with_a_sink(lines: Stream) -> KeyedStream:
        counted = lines.key_by(itself(), name="by").aggregate(count(), name="n")
        counted.sink(write.jsonl("/tmp/never/running"), name="running")
        return counted.last(name="end")

    assert exchanges(with_a_map) == exchanges(with_a_sink) == {}


def test_fewer_rows_cross_than_records(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    crossed = list[int]()
    routed = carrier.BulkEncoder.routed

    def noted(self: Any, edge: str, batch: Batch) -> Any:
        crossed.append(len(batch))
        return routed(self, edge, batch)

    monkeypatch.setattr(carrier.BulkEncoder, "routed", noted)
    told(folder, plain)

    assert sum(crossed) < 100


@pytest.mark.parametrize("value", ["a", 5, b"x", "ä" * 300])
def test_a_record_that_is_its_own_key_comes_back_with_both(value: Any) -> None:
    batch = Batch([value], [value])

    assert are_own_keys(batch)
    assert keyed_batch(encode_batch(Batch([value]))) == batch


@pytest.mark.parametrize(
    ("values", "keys"), [([("a", 1)], None), (["1"], [1]), ([("a",), "b"], None), ([], []), (["a", "b"], ["a", "c"])]
)
def test_others_keep_their_keys(values: list[Any], keys: list[Any] | None) -> None:
    batch = Batch(values, list(values) if keys is None else keys)

    assert not are_own_keys(batch)
    assert keyed_batch(encode_batch(batch)).keys == decode_batch(encode_batch(batch)).keys == batch.keys
