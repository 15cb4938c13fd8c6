"""Looks at jobs for the pages: at most once a second each, whoever asks how often. Makes answers, raises nothing."""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, Final

import msgspec

from pipeline.errors import CeleriacError, DecodingError, StoreError, StoreUnavailable, UnknownJob
from pipeline.facts import JobFacts, JobRecord
from pipeline.flower.history import History
from pipeline.flower.picture import SHOWN_LETTERS, job_picture, jobs_picture
from pipeline.store.jobs import JobStore
from pipeline.store.letters import DeadLetter

FRESH_SECONDS: Final = 0.8
"""An answer serves for this long, so many viewers cost Redis as much as one that asks each second."""

SHOWN_JOBS: Final = 100
KEPT_ANSWERS: Final = 32
KEPT_JOBS: Final = 16


@dataclass(frozen=True, slots=True)
class Answer:
    """An HTTP status and its JSON. A failure is `{"error": …, "hint": …}`."""

    status: int
    body: bytes


@dataclass(slots=True)
class _Seen:
    """What is remembered of one job: its history, and its oldest dead letters without the records in them."""

    history: History = field(default_factory=History)
    letters: list[DeadLetter] = field(default_factory=list)
    letter_count: int = 0


class Watch:
    """What the pages show, from one store. For one thread, which its calls may block as long as the store's may.

    It remembers a bounded number of answers and jobs, those asked for last. `clock` is monotonic seconds.
    """

    def __init__(self, store: JobStore, clock: Callable[[], float] = time.monotonic) -> None:
        self._store = store
        self._clock = clock
        self._answers: OrderedDict[str, tuple[float, Answer]] = OrderedDict()
        self._seen: OrderedDict[str, _Seen] = OrderedDict()

    def jobs(self) -> Answer:
        """The list of jobs."""
        return self._fresh("", self._list)

    def job(self, job: str) -> Answer:
        """One job; 404 when there is none of that id."""
        return self._fresh(job, lambda: self._look(job))

    def _fresh(self, key: str, make: Callable[[], dict[str, Any]]) -> Answer:
        known = self._answers.get(key)
        if known is not None and self._clock() - known[0] < FRESH_SECONDS:
            return known[1]
        try:
            answer = Answer(200, msgspec.json.encode(make()))
        except UnknownJob as error:
            self._seen.pop(key, None)
            answer = _failure(404, error)
        except StoreUnavailable as error:
            answer = _failure(503, error)
        except (StoreError, DecodingError) as error:
            answer = _failure(500, error)
        self._answers[key] = (self._clock(), answer)
        self._answers.move_to_end(key)
        _drop_oldest(self._answers, KEPT_ANSWERS)
        return answer

    def _list(self) -> dict[str, Any]:
        jobs = self._store.list_ids()
        records: list[JobRecord] = []
        unreadable = []
        for job in jobs[-SHOWN_JOBS:]:
            try:
                records.append(self._store.read(job))
            except UnknownJob:
                continue  # removed meanwhile
            except DecodingError:
                unreadable.append(job)
        return jobs_picture(records, len(jobs), unreadable)

    def _look(self, job: str) -> dict[str, Any]:
        facts = self._store.facts(job)
        seen = self._seen.setdefault(job, _Seen())
        self._seen.move_to_end(job)
        _drop_oldest(self._seen, KEPT_JOBS)
        seen.history.add(facts)
        self._read_letters(facts, seen)
        return job_picture(facts, seen.letters, seen.history)

    def _read_letters(self, facts: JobFacts, seen: _Seen) -> None:
        """Only when there are others to show: each comes with its record, which may be a megabyte."""
        count = facts.dead_letters
        if count < seen.letter_count or len(seen.letters) < min(count, SHOWN_LETTERS):
            letters = self._store.dead_letters(facts.record.job, SHOWN_LETTERS)
            seen.letters = [replace(letter, payload=b"") for letter in letters]
        seen.letter_count = count


def _failure(status: int, error: CeleriacError) -> Answer:
    return Answer(status, msgspec.json.encode({"error": str(error), "hint": error.hint}))


def _drop_oldest(kept: OrderedDict[str, Any], most: int) -> None:
    while len(kept) > most:
        kept.popitem(last=False)
