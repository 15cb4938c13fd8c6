"""The books of a job as lines and as JSON values: what its leader has found, and what they say just now. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pipeline.books import Books, balance_line, findings
from pipeline.facts import Alarm

IMBALANCE = "BOOKS DO NOT BALANCE"


def disagreements(books: Books, kept: Sequence[Alarm]) -> list[Alarm]:
    """All that is wrong: what was kept, oldest first, then what else is found now."""
    known = {alarm.name for alarm in kept}
    return [*kept, *(alarm for alarm in findings(books) if alarm.name not in known)]


def book_lines(books: Books, kept: Sequence[Alarm]) -> list[str]:
    """One line when the books balance, else one for each disagreement."""
    wrong = disagreements(books, kept)
    return [alarm_line(alarm) for alarm in wrong] or [balance_line(books)]


def alarm_line(alarm: Alarm) -> str:
    return f"{IMBALANCE}: {alarm.text}"


def books_json(books: Books, kept: Sequence[Alarm]) -> dict[str, Any]:
    """The books in `celeriac status --json`. `found_ms` is null for what the leader has not found yet."""
    wrong = disagreements(books, kept)
    return {
        "balance": not wrong,
        "alarms": [
            {
                "stage": alarm.stage or None,
                "partition": alarm.partition if alarm.stage else None,
                "text": alarm.text,
                "found_ms": alarm.at_ms or None,
            }
            for alarm in wrong
        ],
    }
