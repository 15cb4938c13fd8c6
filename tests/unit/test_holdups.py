"""What a run says of an output that is full, and what status shows of outputs and their readers."""

from __future__ import annotations

from typing import Any

from pipeline.cli.holdups import PATIENCE_MS, Holdups
from pipeline.cli.reports import output_lines, status_lines
from pipeline.facts import JobFacts, JobRecord, OutputFacts, ReaderFacts
from pipeline.lifecycle import JobState
from pipeline.plan import PROTOCOL, Plan
from pipeline.settings import Limits


def a_reader(name: str = "audit", number: int = 1, **more: Any) -> ReaderFacts:
    given = {"is_temporary": False, "unread": 50_001 - number, "silent_seconds": 7200.0, "expire_seconds": None} | more
    return ReaderFacts(name, next_number=number, **given)


def an_output(*readers: ReaderFacts, waiting: int = 2) -> OutputFacts:
    return OutputFacts("answers", 1, 50_001, 1_000_000, waiting, readers)


def some_facts(now_ms: int, *outputs: OutputFacts) -> JobFacts:
    plan = Plan(PROTOCOL, "shop", "f" * 16, (), (), Limits())
    record = JobRecord("shop", plan, JobState.RUNNING, "", 0, 0, 0, 1, "", "open", frozenset())
    return JobFacts(record, now_ms, (), (), "", 0, {}, outputs)


def test_a_full_output_that_stands_still_is_told_once_with_its_reader_and_the_remedy() -> None:
    holdups, stopped = Holdups(), an_output(a_reader(), a_reader("fast", 50_001))

    said = [holdups.look(some_facts(at, stopped)) for at in (0, PATIENCE_MS - 1, PATIENCE_MS, 2 * PATIENCE_MS)]

    assert said == [
        [],
        [],
        [
            "the output answers is full: 2 partitions of the job wait for the reader audit: "
            "start it, or `celeriac readers remove shop answers audit`"
        ],
        [],
    ]


def test_a_reader_that_is_slow_and_moves_is_ordinary_backpressure() -> None:
    holdups = Holdups()

    said = [holdups.look(some_facts(at * PATIENCE_MS, an_output(a_reader(number=1 + at)))) for at in range(5)]

    assert said == [[]] * 5


def test_after_it_has_moved_it_is_told_again() -> None:
    holdups = Holdups()
    holdups.look(some_facts(0, an_output(a_reader())))
    assert holdups.look(some_facts(PATIENCE_MS, an_output(a_reader())))
    assert holdups.look(some_facts(PATIENCE_MS + 1, an_output(a_reader(), waiting=0))) == []

    assert holdups.look(some_facts(PATIENCE_MS + 2, an_output(a_reader()))) == []
    assert len(holdups.look(some_facts(2 * PATIENCE_MS + 2, an_output(a_reader())))) == 1


def test_status_shows_who_reads_and_whom_a_full_output_waits_for() -> None:
    facts = some_facts(0, an_output(a_reader("fast", 50_001, silent_seconds=0.5), a_reader(), waiting=1))

    lines = status_lines(facts, [])

    assert lines[lines.index("outputs") :] == [
        "outputs",
        "  answers: 50,000 results kept, FULL",
        "    reader fast: at 50,001, 0 results unread, heard 0.5 s ago",
        "    reader audit: at 1, 50,000 results unread, heard 2 h 00 min ago",
        "    1 partition of the job waits for the reader audit: start it, or"
        " `celeriac readers remove shop answers audit`",
    ]


def test_a_reader_without_a_name_is_called_so_and_what_expires_needs_no_hand() -> None:
    viewer = a_reader("_0011", is_temporary=True, expire_seconds=60.0, silent_seconds=3.0)

    assert output_lines("shop", [an_output(viewer), an_output(waiting=0)]) == [
        "answers: 50,000 results kept, FULL",
        "  a reader without a name: at 1, 50,000 results unread, heard 3.0 s ago",
        "  2 partitions of the job wait for the reader _0011: it is forgotten when it stays silent",
        "answers: 50,000 results kept, no readers",
    ]
