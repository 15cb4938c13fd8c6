"""Checks the books of a job again and again; what does not agree is logged, and kept with the job."""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import Final

from pipeline.books import findings
from pipeline.facts import JobFacts
from pipeline.store.books import MOST_ALARMS, BookStore

logger = logging.getLogger(__name__)

LOOK_MS: Final = 1_000
COUNTS_A_SECOND: Final = 20_000
"""Reading this many counts takes Redis a few milliseconds. A job with more is looked at less often."""

SLOWEST_LOOK_MS: Final = 30_000


def look_after_ms(counts: int) -> int:
    """When to look again after a look that has read so many counts."""
    return max(LOOK_MS, min(SLOWEST_LOOK_MS, 1_000 * counts // COUNTS_A_SECOND))


class BookKeeping:
    """Looks once a second, all partitions of a job in one call."""

    name = "books"

    def __init__(self, books: BookStore) -> None:
        self._books = books
        self._look_at_ms = 0
        self._known: set[str] = set()

    def run_once(self, facts: JobFacts, token: str) -> dict[str, int]:
        if facts.now_ms < self._look_at_ms:
            return {}
        books = self._books.read(facts.record)
        self._look_at_ms = facts.now_ms + look_after_ms(books.read)
        self._known.update(alarm.name for alarm in facts.alarms)
        found = [replace(each, at_ms=facts.now_ms) for each in findings(books) if each.name not in self._known]
        if not found:
            return {}
        fresh = self._books.raise_alarms(facts.record.job, token, found)
        self._known.update(alarm.name for alarm in found[:MOST_ALARMS])
        for alarm in fresh:
            logger.error("the books do not balance: job=%s %s", facts.record.job, alarm.text)
        return {"alarms": len(fresh)} if fresh else {}
