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
from pipeline.store.versions import VersionStore
from pipeline.validation import suggestion

_LOOK_SECONDS: Final = 0.2
_STAGE = click.option("--stage", metavar="NAME", help="A stage, by the name of its source or key_by.")


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
            why = f": {facts.record.reason}" if facts.record.reason else ""
            click.echo(f"job {job} is drained, and finished{why}")
            return Exit.FINISHED
        case JobState.FAILED | JobState.CANCELLED | JobState.SUSPENDED as state:
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
@_STAGE
@SERVER
@DEBUG
def pause(job: str, source: str | None, stage: str | None, redis_url: str) -> None:
    """Hold back new input of a job, of one SOURCE or of all. What it has taken is processed to the end.

    Its sources and producers wait. With --stage one stage stands still instead: its inboxes fill, and then those before
    it wait. Nothing is lost, and `celeriac unpause` lets it go on.
    """
    _pause(_store(redis_url), job, source, stage, is_paused=True)


@click.command()
@JOB
@click.argument("source", required=False)
@_STAGE
@SERVER
@DEBUG
def unpause(job: str, source: str | None, stage: str | None, redis_url: str) -> None:
    """Let the input of a paused job flow again, of one SOURCE or of all; or let a paused stage go on."""
    _pause(_store(redis_url), job, source, stage, is_paused=False)


@click.command()
@JOB
@SERVER
@JSON
@DEBUG
def history(job: str, redis_url: str, as_json: bool) -> None:
    """Show the states that a job has been in, since when and why, and the versions of its code: the newest 50."""
    scripts = Scripts(connect(redis_url))
    record, versions = JobStore(scripts).read(job), VersionStore(scripts).versions(job)
    if as_json:
        click.echo(json.dumps(history_json(record, versions), indent=2))
    else:
        click.echo("\n".join(history_lines(record, versions)))


def _pause(store: JobStore, job: str, source: str | None, stage: str | None, *, is_paused: bool) -> None:
    if source is not None and stage is not None:
        raise click.UsageError("give a SOURCE or a --stage, not both")
    record = store.read(job)
    if stage is not None:
        names = [each.name for each in record.plan.stages]
        if stage not in names:
            raise PipelineError(f"job {job!r} has no stage {stage!r}", hint=suggestion(stage, names))
        is_news = store.pause_stage(record, stage, is_paused=is_paused)
        click.echo(f"stage {stage} of job {job} {_words(is_paused, is_news=is_news)}")
        return
    if record.state is JobState.SUSPENDED:
        raise JobStateError(
            f"job {job!r} is suspended: it takes no input any more", hint=f"`celeriac resume {job}` has it go on"
        )
    for name in _sources(record, source):
        is_news = store.pause(record, name, is_paused=is_paused)
        click.echo(f"source {name} of job {job} {_words(is_paused, is_news=is_news)}")


def _words(is_paused: bool, *, is_news: bool) -> str:
    if is_paused:
        return "is paused" if is_news else "is paused already"
    return "is not paused" if is_news else "was not paused"


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
