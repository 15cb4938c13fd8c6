"""Parts of a task on Spark by themselves: its timers, its files, what fails, and errors on their way to the driver."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline import read, routing
from pipeline.codec import decode_batch, encode_batch
from pipeline.errors import InputError, RecordFailed, SinkError
from pipeline.graph import Graph
from pipeline.kernel.contract import KeyedOperator, Step
from pipeline.kernel.operators import StatefulMap
from pipeline.kernel.stage import StageKernel
from pipeline.kernel.testing import graph_of
from pipeline.keying import first_table, group_of
from pipeline.plan import SinkPlan, compile_plan
from pipeline.policies import ErrorPolicy, dead_letter, fail, hold_key, retry, skip
from pipeline.records import Batch, Timer
from pipeline.settings import Limits
from pipeline.sinks.places import staging_folder
from pipeline.sources.layout import open_files
from pipeline.spark.bulk.faults import TaskFault, told, translated
from pipeline.spark.bulk.output import BulkEncoder, TaskFiles
from pipeline.spark.bulk.portions import FilePortions, are_alike, merged
from pipeline.spark.bulk.stepping import BulkStepper
from pipeline.spark.bulk.timers import OpenTimers
from pipeline.store.letters import read_letter


def a_stepper(operator: KeyedOperator, policy: ErrorPolicy, pauses: list[float] | None = None) -> BulkStepper:
    graph: Graph = graph_of(operator)
    plan = compile_plan(graph, 1, Limits())
    stage = plan.stage(1)
    encoder = BulkEncoder(plan, stage, 0, {"out"})
    return BulkStepper(
        StageKernel(graph, stage), encoder, policy, (1, 0), (pauses if pauses is not None else []).append
    )


def halves(_key: str, value: Any, state: Any) -> tuple[Any, Any]:
    """Changes its state before it may fail."""
    state = state or [0]
    state[0] += 1
    return 10 / value, state


def grows(_key: str, value: int, _state: Any) -> tuple[Any, Any]:
    return value, "x" * value


def run(stepper: BulkStepper, values: list[Any], keys: list[str]) -> Any:
    payload = encode_batch(Batch(values, keys))
    return stepper.run(decode_batch(payload), lambda: decode_batch(payload))


def emitted(outcome: Any) -> list[Any]:
    return [value for part in outcome.parts for row in part.rows for value in decode_batch(row[3]).values]


def test_a_record_that_fails_leaves_no_trace_in_the_state_of_its_key() -> None:
    stepper = a_stepper(StatefulMap(halves), dead_letter())

    outcome = run(stepper, [5, 0, 2, 1], ["a", "a", "a", "b"])

    assert emitted(outcome) == [2.0, 5.0, 10.0]
    assert stepper.state == {"op": {"a": [2], "b": [1]}}
    assert [(letter.operator, letter.error) for letter in outcome.letters] == [
        ("op", "ZeroDivisionError: division by zero")
    ]
    assert outcome.letters[0].record().values == [0]
    assert "During handling" not in outcome.letters[0].traceback


def running_total(_key: str, value: int, state: int | None) -> tuple[Any, Any]:
    """Its state is a number, which is noted as it is."""
    if value < 0:
        raise ValueError(value)
    return (state or 0) + value, None if value == 9 else (state or 0) + value


def test_what_a_failed_batch_did_to_numbers_is_taken_back_for_old_new_and_deleted_keys() -> None:
    stepper = a_stepper(StatefulMap(running_total), dead_letter())
    run(stepper, [1, 2], ["old", "deleted"])

    outcome = run(stepper, [5, 9, 3, -1], ["old", "deleted", "new", "bad"])

    assert emitted(outcome) == [6, 11, 3]
    assert stepper.state == {"op": {"old": 6, "new": 3}}
    assert [letter.record().keys for letter in outcome.letters] == [["bad"]]


@pytest.mark.parametrize("times", [False, True])
def test_a_batch_is_parted_by_the_table_of_its_stage_with_more_keys_than_are_remembered(
    times: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(routing, "_KEYS_KEPT", 10)
    router, table = routing.Router(7), first_table(7)
    for keys in ([f"k{number % 23}" for number in range(200)], ["k1", "k2"], []):
        batch = Batch(list(range(len(keys))), list(keys), list(range(len(keys))) if times else None)

        parts = router.split(batch)

        assert sum(map(len, parts.values())) == len(keys)
        for target, part in parts.items():
            places = [place for place, key in enumerate(keys) if table[group_of(key)] == target]
            assert part == Batch(places, [keys[place] for place in places], places if times else None)
            assert places


def test_a_small_input_is_dealt_out_to_several_tasks_in_its_order(tmp_path: Path) -> None:
    for number in range(6):
        (tmp_path / f"{number}.txt").write_text(f"{number} {'x' * (1 << 20)}\n")
    source = open_files(read.text(tmp_path))

    portions = FilePortions.of(source)

    assert [len(places) for places in portions.groups] == [1, 1, 1, 1, 1, 1]
    pieces = [
        piece for number in range(portions.count) for piece in portions.read(number, Limits(record_bytes=4 << 20))
    ]
    assert [value[0] for piece in pieces for value in decode_batch(piece.payload).values] == list("012345")


@pytest.mark.parametrize(
    ("wanted", "expected"),
    [
        ((0, None), [(1, 1_000, 1_000), (1_001, 2_000, 2_000), (2_001, 2_500, 2_500)]),
        ((700, None), [(701, 1_700, 1_700), (1_701, 2_500, 2_500)]),
        ((700, 1_900), [(701, 1_700, 1_700), (1_701, 1_900, 1_900)]),
        ((2_500, None), [(0, 0, 2_500)]),
    ],
)
def test_records_come_in_pieces_of_a_thousand_each_with_the_number_of_its_last_one(
    wanted: tuple[int, int | None], expected: list[tuple[int, int, int]], tmp_path: Path
) -> None:
    (tmp_path / "a.txt").write_text("".join(f"{number}\n" for number in range(1, 2_501)))
    source = open_files(read.text(tmp_path))

    pieces = list(FilePortions.of(source, {source.splits[0].name: wanted}).read(0, Limits()))

    found = [(decode_batch(piece.payload).values or ["0"], piece.numbers) for piece in pieces]
    assert [(int(values[0]), int(values[-1]), number) for values, number in found] == expected


def test_what_is_wrong_with_a_record_says_its_line_in_every_piece(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("".join(f"{'x' * (number == 1_700) * 2_000}\n" for number in range(1, 2_501)))
    source = open_files(read.text(tmp_path))

    pieces = list(FilePortions.of(source).read(0, Limits(record_bytes=1_500)))

    [why] = [why for piece in pieces for why in decode_batch(piece.payload).faults.values()]
    assert why.startswith(f"{tmp_path / 'a.txt'}:1700: the record has 2003 bytes")


def test_records_behind_a_letter_that_holds_their_key_wait() -> None:
    stepper = a_stepper(StatefulMap(halves), hold_key())

    first = run(stepper, [5, 0, 2, 1], ["a", "a", "a", "b"])
    second = run(stepper, [1, 1], ["b", "a"])

    assert (emitted(first), emitted(second)) == ([2.0, 10.0], [10.0])
    assert [decode_batch(data).values for data in first.held + second.held] == [[2], [1]]
    assert stepper.state == {"op": {"a": [1], "b": [2]}}


def test_a_record_is_tried_as_often_as_its_policy_says_with_pauses_between() -> None:
    pauses: list[float] = []
    stepper = a_stepper(StatefulMap(halves), retry(3, first_seconds=1.0, then=skip()), pauses)

    outcome = run(stepper, [0, 1], ["a", "a"])

    assert (outcome.skipped, outcome.letters, emitted(outcome)) == (1, [], [10.0])
    assert len(pauses) == 2
    assert pauses[1] > pauses[0] > 0
    assert stepper.state == {"op": {"a": [1]}}


def test_an_attempt_whose_error_has_several_lines_is_one_line_of_a_letter_that_a_live_job_can_read() -> None:
    def fails(_key: str, _value: Any, _state: Any) -> tuple[Any, Any]:
        raise ValueError("first\nsecond")

    policy = retry(2, first_seconds=0.0, most_seconds=0.0, then=dead_letter())
    [letter] = run(a_stepper(StatefulMap(fails), policy), [1], ["a"]).letters
    fields = {"stage": "1", "partition": "0", "operator": "op", "error": "", "traceback": ""}
    stored = {**fields, "tried": "\n".join(letter.tried)}  # as a savepoint has it
    found = read_letter("1-0", {name.encode(): text.encode() for name, text in stored.items()} | {b"payload": b""})

    assert found.kind == "record"
    assert [line.split(" ", 1)[1] for line in found.tried] == ["1 op: ValueError: first second"]


def test_a_record_that_must_not_fail_ends_the_task() -> None:
    stepper = a_stepper(StatefulMap(halves), retry(2, first_seconds=0.0, most_seconds=0.0, then=fail()))

    with pytest.raises(RecordFailed, match=r"ZeroDivisionError.*\(key 'a'\), tried 2 times"):
        run(stepper, [0, 1], ["a", "a"])


def test_a_state_that_cannot_be_stored_gives_its_record_up() -> None:
    stepper = a_stepper(StatefulMap(grows), dead_letter())

    outcome = run(stepper, [3, 4, 2_000_000], ["a", "a", "a"])

    assert emitted(outcome) == [3, 4]
    assert [letter.error for letter in outcome.letters] == ["the state of key 'a' in 'op' has 2000005 bytes"]
    assert stepper.state == {"op": {"a": "xxxx"}}


def test_timers_fire_by_due_time_and_upstream_first_and_those_that_were_cleared_do_not() -> None:
    timers = OpenTimers(["up", "down"])
    for operator, key, due in (("down", "a", 5), ("up", "b", 5), ("up", "a", 9), ("down", "c", 1), ("up", "x", 2)):
        timers.add([Timer(operator, key, due)])
    timers.change(Step({}, {}, [Timer("up", "d", 3)], [Timer("up", "x", 2)], 0))

    first = timers.take(3)
    timers.change(Step({}, {}, [], first[:2], 0), first)

    assert [(timer.operator, timer.due) for timer in first] == [("down", 1), ("up", 3), ("up", 5)]
    assert [(timer.operator, timer.due) for timer in timers.take(9)] == [("up", 5), ("down", 5), ("up", 9)]
    assert not timers


TIMERS = st.lists(
    st.builds(Timer, st.sampled_from(["up", "down"]), st.sampled_from("abc"), st.integers(1, 3)), max_size=4
)


@given(st.lists(st.tuples(st.sampled_from(["set", "clear", "fire"]), TIMERS), max_size=12))
def test_open_timers_are_those_of_a_list_that_is_sorted_for_each_firing(changes: list[tuple[str, list[Timer]]]) -> None:
    timers, expected = OpenTimers(["up", "down"]), list[Timer]()
    for change, named in changes:
        taken = timers.take(2) if change == "fire" else []
        if change == "fire":
            assert taken == sorted(expected, key=lambda timer: (timer.due, timer.operator == "down"))[:2]
        added = named if change == "set" else []
        cleared = {"set": [], "clear": named, "fire": taken[:1]}[change]

        timers.change(Step({}, {}, added, cleared, 0), taken)

        kept = [timer for timer in expected if timer not in taken] + taken
        expected = list(dict.fromkeys([timer for timer in kept if timer not in cleared] + added))
        assert Counter(timers) == Counter(expected)
        assert bool(timers) == bool(expected)


def test_files_of_two_attempts_have_different_names_and_full_ones_are_rotated(tmp_path: Path) -> None:
    sink = SinkPlan("out", "jsonl", str(tmp_path / "out"), {"rotate_bytes": 4}, None)
    found = []
    for _attempt in range(2):
        files = TaskFiles("job", [sink], 1, 2)
        for lines in (b"1\n", b"22\n", b"3\n"):
            files.write({"out": (lines, 1)})
        found.append(list(files.finish()))
        files.close()

    assert [[facts.records for _, facts in each] for each in found] == [[2, 1], [2, 1]]
    names = {facts.file for each in found for _, facts in each}
    assert len(names) == 4
    assert {path.name for path in staging_folder(sink, "job").iterdir()} == names


@pytest.mark.parametrize("error", [InputError('a "quoted" path\nand more', hint="é: do it"), SinkError("disk")])
def test_an_error_of_ours_comes_through_sparks_text_as_it_was(error: Any) -> None:
    with pytest.raises(TaskFault) as caught, told():
        raise error

    found = translated(RuntimeError(f"[PYTHON_EXCEPTION] Job aborted: {caught.value}\nTraceback ...\n\tat java.lang"))

    assert (type(found), str(found), found.hint if found else "") == (type(error), str(error), error.hint)


def test_an_error_of_spark_itself_is_none_of_ours() -> None:
    assert translated(RuntimeError("[OUT_OF_MEMORY] celeriac-fault:{broken")) is None


def test_only_payloads_with_the_same_columns_are_run_together() -> None:
    plain, timed, faulty = Batch([1], ["a"]), Batch([2], ["b"], [5]), Batch(["x"], ["c"], faults={0: "no number"})

    together = merged([encode_batch(plain), encode_batch(plain)])

    assert (together.values, together.keys) == ([1, 1], ["a", "a"])
    assert [are_alike(plain, other) for other in (plain, timed, faulty)] == [True, False, False]
