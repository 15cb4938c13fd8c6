"""Commands that steer a job from outside: `drain`, `pause`, `unpause`; and `history`, which shows what became of it."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from typing import Final

import click

from pipeline.cli.exits import HELP, Exit, JobFailed
from pipeline.cli.options import DEBUG, JOB, JSON, SERVER
from pipeline.cli.reports import history_json, history_lines, undrained
from pipeline.errors import JobStateError, PipelineError
from pipeline.facts import JobFacts, JobRecord
from pipeline.lifecycle import ENDED, JobState
from pipeline.store.connection import connect
from pipeline.store.jobs import JobStore
from pipeline.store.scripts import Scripts
from pipeline.validation import suggestion

_LOOK_SECONDS: Final = 0.2


@click.command(epilog=HELP)
@JOB
@SERVER
@click.option(
    "--wait",
    "wait_seconds",
    type=click.FloatRange(0, 86_400),
    default=60.0,
    show_default=True,
    help="Seconds to wait for the end. The job goes on draining after that.",
)
@DEBUG
def drain(job: str, redis_url: str, wait_seconds: float) -> Exit:
    """End a job's input, and wait until all that it has taken is processed and published.

    Windows and timers that are open fire. When the time is over first, the partitions that still have records are
    named, and nothing is lost.
    """
    store = _store(redis_url)
    if store.state(job) is JobState.RUNNING:
        store.transition(job, JobState.DRAINING, "celeriac drain")
    facts = until_drained(lambda: store.facts(job), wait_seconds)
    match facts.record.state:
        case JobState.FINISHED:
            click.echo(f"job {job} is drained, and finished")
            return Exit.FINISHED
        case JobState.FAILED | JobState.CANCELLED as state:
            raise JobStateError(f"job {job!r} is {state.value}: {facts.record.reason or 'no reason was given'}")
    raise JobFailed(
        f"job {job} is not drained after {wait_seconds:g} s: {undrained(facts)}",
        hint=f"it goes on; `celeriac drain {job}` waits again, `celeriac status {job}` shows more",
    )


def until_drained(
    look: Callable[[], JobFacts],
    seconds: float,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> JobFacts:
    """The facts with which the job has ended, or those after so many seconds. Raises what `look` raises."""
    until = clock() + seconds
    while (facts := look()).record.state not in ENDED and clock() < until:
        sleep(_LOOK_SECONDS)
    return facts


@click.command()
@JOB
@click.argument("source", required=False)
@SERVER
@DEBUG
def pause(job: str, source: str | None, redis_url: str) -> None:
    """Hold back new input of a job, of one SOURCE or of all. What it has taken is processed to the end.

    Its sources and producers wait. Nothing is lost, and `celeriac unpause` lets them go on.
    """
    _pause(_store(redis_url), job, source, is_paused=True)


@click.command()
@JOB
@click.argument("source", required=False)
@SERVER
@DEBUG
def unpause(job: str, source: str | None, redis_url: str) -> None:
    """Let the input of a paused job flow again, of one SOURCE or of all."""
    _pause(_store(redis_url), job, source, is_paused=False)


@click.command()
@JOB
@SERVER
@JSON
@DEBUG
def history(job: str, redis_url: str, as_json: bool) -> None:
    """Show the states that a job has been in, since when and why; the newest 50."""
    record = _store(redis_url).read(job)
    click.echo(json.dumps(history_json(record), indent=2) if as_json else "\n".join(history_lines(record)))


def _pause(store: JobStore, job: str, source: str | None, *, is_paused: bool) -> None:
    record = store.read(job)
    for name in _sources(record, source):
        is_news = store.pause(record, name, is_paused=is_paused)
        what = "paused" if is_paused else "not paused"
        click.echo(f"source {name} of job {job} is {what}" + ("" if is_news else " already"))


def _sources(record: JobRecord, wanted: str | None) -> list[str]:
    """Raises PipelineError for one that the job does not have."""
    names = [stage.name for stage in record.plan.stages if not stage.upstream]
    if wanted is None:
        return names
    if wanted not in names:
        raise PipelineError(f"job {record.job!r} has no source {wanted!r}", hint=suggestion(wanted, names))
    return [wanted]


def _store(redis_url: str) -> JobStore:
    return JobStore(Scripts(connect(redis_url)))
