"""A job from any application: `Client` gives its results, its live state, the readers of its outputs, its dead letters.

It needs neither Celery nor Spark, and reads no pipeline file. Nothing here but its dead letters changes what a job
computes.
"""

from __future__ import annotations

import os
import re
from types import TracebackType
from typing import Final, Self

from pipeline.deadletters import DeadLetters
from pipeline.errors import ReadingError
from pipeline.facts import OutputFacts, ReaderFacts
from pipeline.reading.choosing import choose_output
from pipeline.reading.live import LiveState, StateValue
from pipeline.reading.results import Reading, Result, Results
from pipeline.store.connection import connect, without_password
from pipeline.store.jobs import JobStore
from pipeline.store.letters import DeadLetter
from pipeline.store.outputs import Opening, Start, remove_reader
from pipeline.store.patience import Patience
from pipeline.store.scripts import Scripts
from pipeline.validation import suggestion

__all__ = [
    "Client",
    "DeadLetter",
    "DeadLetters",
    "LiveState",
    "OutputFacts",
    "ReaderFacts",
    "Result",
    "Results",
    "StateValue",
]

REDIS_VARIABLE: Final = "CELERIAC_REDIS"
"""Where the address of Redis comes from when none is given."""

CONSOLE_READER: Final = "console"
"""The name under which `celeriac run` reads console sinks."""

_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}\Z")


class Client:
    """What other programs ask of the jobs on one Redis. Any number of threads may use it, and a forked child too.

    What it gives out (`Results`, `DeadLetters`) belongs to one thread of one process.
    """

    def __init__(self, redis_url: str | None = None, *, outage_seconds: float = 120.0) -> None:
        """Connects to nothing yet. Raises ReadingError without an address, UnsuitableServer for one that is none.

        redis_url: by default what the variable CELERIAC_REDIS says.
        outage_seconds: how long results wait for a Redis that is away; all else raises StoreUnavailable at once.
        """
        url = redis_url or os.environ.get(REDIS_VARIABLE, "")
        if not url:
            raise ReadingError(
                "a client needs the address of Redis",
                hint=f"give it redis_url=, or set the variable {REDIS_VARIABLE}",
            )
        self._url = url
        self._outage_seconds = outage_seconds
        self._redis = connect(url)

    def results(
        self,
        job: str,
        sink: str | None = None,
        reader: str | None = None,
        *,
        start: Start = "begin",
        wait_seconds: float | None = None,
        expire_seconds: float | None = None,
    ) -> Results:
        """The results of a `write.stream` or console sink, from the oldest that is kept on.

        sink: the sink's or the stream's name; needed only where the job has several to read.
        reader: a name under which Redis keeps the place; the job keeps what was not committed under it.
        start: where a new reader begins: "begin", "end", or a position. One that is known goes on where it stood.
        wait_seconds: the iteration pauses when nothing came for so long; 0: it gives what is there; None: it waits for
            the end of the job.
        expire_seconds: the reader is forgotten when it was silent for so long (1 at least); by default one with
            a name never is.

        Raises ReadingError for a wrong name, a sink that is not read here, a start that is not kept; UnknownJob,
        StoreError.
        """
        if reader is not None:
            check_reader(reader)
        if not (start in ("begin", "end") or (type(start) is int and start >= 1)):
            raise ReadingError(f"start cannot be {start!r}", hint='"begin", "end", or a position: 1, 2, 3, ...')
        for name, seconds, least in (("wait_seconds", wait_seconds, 0), ("expire_seconds", expire_seconds, 1)):
            if seconds is not None and not least <= seconds < 1e9:
                raise ReadingError(f"{name} cannot be {seconds!r}", hint=f"seconds, at least {least}")
        scripts = Scripts(self._redis)
        plan = JobStore(scripts).read(job).plan
        output = choose_output(plan, job, sink)
        reading = Reading(self._url, job, output, reader, Opening(start, expire_seconds), wait_seconds)
        return Results(scripts, reading, plan.limits, Patience(self._outage_seconds))

    def state(self, job: str) -> LiveState:
        """What the job's keyed operators hold. Raises UnknownJob, DecodingError, StoreError."""
        return LiveState(Scripts(self._redis), job)

    def dead_letters(self, job: str) -> DeadLetters:
        """What the job has given up: to be edited, replayed, dropped. Raises UnknownJob, DecodingError, StoreError."""
        return DeadLetters.over(Scripts(self._redis), job)

    def outputs(self, job: str) -> tuple[OutputFacts, ...]:
        """The job's output streams: what they keep, and who reads them. Raises UnknownJob, StoreError."""
        return JobStore(Scripts(self._redis)).facts(job).outputs

    def remove_reader(self, job: str, sink: str, reader: str) -> None:
        """Takes a reader out: nothing is kept for it any more, and what waits for it goes on.

        Raises ReadingError if there is none of that name, UnknownJob, StoreError.
        """
        scripts = Scripts(self._redis)
        facts = JobStore(scripts).facts(job)
        output = choose_output(facts.record.plan, job, sink)
        if not remove_reader(scripts, job, output, reader, facts.record.plan.limits):
            known = [each.name for out in facts.outputs if out.name == output for each in out.readers]
            raise ReadingError(
                f"the output {output!r} of job {job!r} has no reader {reader!r}", hint=suggestion(reader, known)
            )

    def close(self) -> None:
        """Closes the connections. Results that are still read open new ones."""
        self._redis.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"Client({without_password(self._url)!r})"


def check_reader(name: str) -> None:
    """Returns for what may be the name of an application's reader. Raises ReadingError."""
    if not _NAME.match(name) or name == CONSOLE_READER:
        raise ReadingError(
            f"{name!r} cannot be a reader's name",
            hint=f"use 1 to 64 letters, digits, '-', '_' and '.'; {CONSOLE_READER!r} is taken",
        )
