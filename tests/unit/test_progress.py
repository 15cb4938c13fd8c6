"""Progress and reports: two moments of a job in, rows and lines out."""

from __future__ import annotations

import json
from dataclasses import replace
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from pipeline import Pipeline, count, read, write
from pipeline.cli.following import memory_pressure
from pipeline.cli.progress import StageRow, duration, plain_line, progress_table, records_read, stage_rows
from pipeline.cli.reports import Result, result_lines, status_json, status_lines
from pipeline.facts import JobFacts, JobRecord, PartitionFacts, WorkerFacts
from pipeline.lifecycle import JobState
from pipeline.plan import SinkPlan, compile_plan
from pipeline.positions import START
from pipeline.records import Batch
from pipeline.settings import Limits
from pipeline.sinks.lines import console_lines
from pipeline.sinks.publisher import Published
from pipeline.store.letters import DeadLetter


def a_partition(stage: int, number: int, **counts: Any) -> PartitionFacts:
    idle = PartitionFacts(
        stage=stage,
        partition=number,
        owner="w0",
        incarnation="1-a",
        token="1.a",
        term=1,
        position=START,
        at_end=False,
        backlog=0,
        backlog_bytes=0,
        ring="",
        queued=0,
        closed=False,
        done=False,
        taken=0,
        emitted=0,
        filtered=0,
        duplicate=0,
        late=0,
        dead=0,
    )
    return replace(idle, **counts)


def a_record(state: JobState = JobState.RUNNING, reason: str = "") -> JobRecord:
    flow = Pipeline("words")
    lines = flow.source(read.iterable(["a b"]), name="lines").flat_map(str.split)
    lines.key_by(lambda word: word, name="by_word").aggregate(count()).sink(write.jsonl("out"), name="result")
    plan = compile_plan(flow.graph(), 2, Limits())
    return JobRecord("words-1", plan, state, reason, 1_000_000, 2_000_000, 0, 1, "r", "open", frozenset())


def some_facts(now_ms: int, *partitions: PartitionFacts, dead_letters: int = 0) -> JobFacts:
    workers = (WorkerFacts("w0", "1-a", 0.3, False, {}), WorkerFacts("w1", "1-b", 9.0, True, {}))
    return JobFacts(a_record(), now_ms, partitions, workers, "l0", dead_letters, {})


def a_letter(operator: str, error: str) -> DeadLetter:
    return DeadLetter("1-0", 0, 0, operator, error, "Traceback ...", b"")


def test_rows_add_up_partitions_and_rates_come_from_the_time_of_the_server() -> None:
    before = some_facts(10_000, a_partition(0, 0, taken=100), a_partition(0, 1, taken=50), a_partition(1, 0))
    after = some_facts(
        12_000,
        a_partition(0, 0, taken=400, emitted=800, backlog=7, done=True),
        a_partition(0, 1, taken=150, emitted=300, backlog=3),
        a_partition(1, 0, taken=10, emitted=1),
        a_partition(1, 1),
    )

    rows = stage_rows(before, after)

    assert rows == (
        StageRow("lines", taken=550, emitted=1100, rate=200.0, backlog=10, done=1, partitions=2),
        StageRow("by_word", taken=10, emitted=1, rate=5.0, backlog=0, done=0, partitions=2),
    )
    assert records_read(after) == 550


def test_the_first_moment_and_a_clock_that_stands_have_no_rate() -> None:
    facts = some_facts(10_000, a_partition(0, 0, taken=100))

    assert [row.rate for row in stage_rows(None, facts)] == [0.0, 0.0]
    assert [row.rate for row in stage_rows(facts, facts)] == [0.0, 0.0]


def test_counts_that_went_back_with_a_lost_tail_show_no_negative_rate() -> None:
    before = some_facts(10_000, a_partition(0, 0, taken=100))
    after = some_facts(11_000, a_partition(0, 0, taken=60))

    assert stage_rows(before, after)[0].rate == 0.0


def test_a_plain_line_names_every_number() -> None:
    row = StageRow("by_word", taken=12_345, emitted=18, rate=2_500.4, backlog=1_000, done=1, partitions=4)

    assert plain_line(row) == "by_word: in 12,345, out 18, 2,500/s, backlog 1,000, done 1/4"


@pytest.mark.parametrize("width", [80, 40])
def test_the_table_fits_the_terminal_and_keeps_its_numbers(width: int) -> None:
    row = StageRow("a_stage_with_quite_a_long_name_indeed", 1_234_567, 89, 100_000.0, 50_000, 3, 16)
    screen = StringIO()

    Console(file=screen, width=width).print(progress_table("words-1  running  12 s", [row], width))

    lines = screen.getvalue().splitlines()
    assert max(len(line) for line in lines) <= width
    numbers = ("1,234,567", "89", "100,000", "50,000", "3/16") if width == 80 else ("1,234,567", "50,000", "3/16")
    assert all(number in screen.getvalue() for number in numbers)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.04, "0.0 s"), (9.94, "9.9 s"), (12.4, "12 s"), (59.7, "1 min 00 s"), (185, "3 min 05 s"), (7200, "2 h 00 min")],
)
def test_durations_are_told_as_people_do(seconds: float, text: str) -> None:
    assert duration(seconds) == text


def test_the_summary_has_what_was_read_written_and_given_up() -> None:
    facts = some_facts(9_000, a_partition(0, 0, taken=1_500, duplicate=2), dead_letters=5)
    letters = [a_letter(f"op{number}", f"ValueError: {number}\nmore") for number in range(3)]
    sinks = [(facts.record.plan.sinks[0], Published(Path("/data/out"), 2, 1, 10))]

    lines = result_lines(Result(facts, sinks, letters, 12.6, 1.2, is_drained=False))

    assert lines == [
        "job words-1 finished",
        "  read: 1,500 records",
        "  result: /data/out (2 files, 1 record)",
        "  duplicates dropped: 2",
        "  dead letters: 5 records given up",
        "    op0: ValueError: 0",
        "    op1: ValueError: 1",
        "    op2: ValueError: 2",
        "    and 2 more",
        "  time: 13 s, of which 1.2 s until the first record",
    ]


def test_a_drained_run_says_that_its_results_are_partial() -> None:
    lines = result_lines(Result(some_facts(9_000), [], [], 1.0, 0.5, is_drained=True))

    assert lines[0] == "job words-1 drained: the results hold what was read until then"


def test_the_status_page_and_its_json_tell_the_same() -> None:
    facts = some_facts(9_000, a_partition(0, 0, taken=7, backlog=2), dead_letters=1)
    failed = replace(facts, record=a_record(JobState.FAILED, "no luck"))

    lines = status_lines(failed, [a_letter("divide", "ZeroDivisionError: x")])
    page = json.loads(json.dumps(status_json(failed, [a_letter("divide", "ZeroDivisionError: x")])))

    assert "state     failed: no luck" in lines
    assert "workers   w0 (heard 0.3 s ago), w1 (dead)" in lines
    assert "    divide: ZeroDivisionError: x" in lines
    assert (page["state"], page["reason"], page["leader"]) == ("failed", "no luck", "l0")
    assert page["stages"][0] == {"name": "lines", "taken": 7, "emitted": 0, "backlog": 2, "partitions": 2, "done": 0}
    assert page["first_dead_letters"][0]["operator"] == "divide"


def test_a_keyed_console_shows_key_and_value_and_another_one_the_value() -> None:
    keyed = SinkPlan("shown", "console", "", {}, "word")
    plain = SinkPlan("shown", "console", "", {}, None)

    assert console_lines(keyed, Batch([1, {"n": 2}], ["a", ("b", 3)])) == ["a: 1", '["b",3]: {"n":2}']
    assert console_lines(plain, Batch(["text", "two\nlines", None, 1.5])) == ["text", "two\\nlines", "null", "1.5"]


@pytest.mark.parametrize(
    ("used", "most", "gate", "expected"),
    [
        (50, 100, "open", ""),
        (75, 100, "closed", "no input is taken"),
        (100, 100, "closed", "the job waits until you raise maxmemory"),
        (100, 0, "open", ""),
    ],
)
def test_a_lack_of_memory_is_said_with_what_it_holds_up(used: int, most: int, gate: str, expected: str) -> None:
    said = memory_pressure(used, most, gate)

    assert (expected in said) if expected else said == ""
