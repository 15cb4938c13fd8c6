"""Console sinks of a run: printed once while nothing fails, at least once in any case, and never in the job's way."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import pytest

from pipeline import Pipeline, read, write
from pipeline.cli.console import Console
from pipeline.errors import InboxFull, StoreUnavailable
from pipeline.settings import Limits
from pipeline.store.outputs import remove_reader
from tests.runtime.harness import FlakyScripts, LocalJob, Moment


@pytest.mark.parametrize("moment", ["before", "after"])
@pytest.mark.parametrize("call", range(1, 8))
def test_a_lost_call_fails_no_job_with_a_console(redis_url: str, call: int, moment: Moment) -> None:
    """The stream is so short that the job stands still when an advance is forgotten."""
    flow = Pipeline("printing")
    flow.source(read.iterable([0]), name="in").sink(write.console(), name="screen")
    printed: list[str] = []
    with LocalJob(redis_url, flow, partitions=1, limits=Limits(inbox_records=3)) as job:
        scripts = FlakyScripts(job.client)
        remove_reader(scripts, "j", "screen", "test", job.limits)
        job._readers.clear()
        job.assign()
        console = Console(scripts, job.jobs.read("j"), printed.extend, pytest.fail)
        scripts.break_call(moment, ahead=call)

        numbers = list(range(20))
        for _ in range(40):
            with suppress(InboxFull):
                while numbers:
                    job.send([numbers[0]])
                    del numbers[0]
            job.run_until_idle()
            attempt(console)

        assert printed == [str(number) for number in range(20)]
        job.assert_drained()


def test_a_console_whose_reader_was_removed_goes_on_and_says_what_it_has_not_shown(redis_url: str) -> None:
    flow = Pipeline("printing")
    flow.source(read.iterable([0]), name="in").sink(write.console(), name="screen")
    printed: list[str] = []
    said: list[str] = []
    with LocalJob(redis_url, flow, partitions=1, limits=Limits(inbox_records=3)) as job:
        remove_reader(job._scripts, "j", "screen", "test", job.limits)
        job._readers.clear()
        job.assign()
        console = Console(job._scripts, job.jobs.read("j"), printed.extend, said.append)
        job.send([0])
        job.run_until_idle()
        console.print_all()
        remove_reader(job._scripts, "j", "screen", "console", job.limits)
        for number in range(1, 11):
            job.send([number])
            job.run_until_idle()

        console.print_all()

        assert printed == ["0", "8", "9", "10"]
        assert said == ["of screen, 7 records cannot be shown: its reader was removed meanwhile"]


def attempt(console: Console) -> Any:
    """What `celeriac run` does about an outage: it looks again in the next round."""
    try:
        return console.print_new()
    except StoreUnavailable:
        return None
