"""`celeriac status`, `cancel` and `remove`: one job is looked at, or ended."""

from __future__ import annotations

import json

import click

from pipeline.cli.options import DEBUG, JOB, JSON, SERVER
from pipeline.cli.reports import SHOWN_LETTERS, status_json, status_lines
from pipeline.errors import UnknownJob
from pipeline.lifecycle import JobState
from pipeline.publishing import discard_job
from pipeline.store.books import BookStore
from pipeline.store.connection import connect
from pipeline.store.jobs import JobStore
from pipeline.store.moving import MovingStore
from pipeline.store.scripts import Scripts
from pipeline.wording import counted


@click.command()
@JOB
@SERVER
@JSON
@DEBUG
def status(job: str, redis_url: str, as_json: bool) -> None:
    """Show one job: state, stages, workers, dead letters, and whether its books balance."""
    scripts = Scripts(connect(redis_url))
    store = JobStore(scripts)
    facts = store.facts(job)
    books = BookStore(scripts).read(facts.record)
    moved = MovingStore(scripts, job).moves()
    letters = store.dead_letters(job, SHOWN_LETTERS) if facts.dead_letters else []
    if as_json:
        click.echo(json.dumps(status_json(facts, letters, books), indent=2))
    else:
        click.echo("\n".join(status_lines(facts, letters, books, moved)))


@click.command()
@JOB
@SERVER
@DEBUG
def cancel(job: str, redis_url: str) -> None:
    """Stop a job now. It keeps its state, and `run --job-id` goes on with it."""
    store = _store(redis_url)
    if store.state(job) is JobState.CANCELLED:
        click.echo(f"job {job} is cancelled already")
        return
    store.transition(job, JobState.CANCELLED, "celeriac cancel")
    click.echo(f"job {job} is cancelled")


@click.command()
@JOB
@SERVER
@click.option("--force", is_flag=True, help="Cancel the job first if it is running.")
@DEBUG
def remove(job: str, redis_url: str, force: bool) -> None:
    """Delete everything that Redis and the folders of its sinks keep of an ended job, but not its results."""
    store = _store(redis_url)
    try:
        record = store.read(job)
    except UnknownJob:
        if not store.finish_removal(job):
            raise
        click.echo(f"job {job} is removed: an earlier removal was interrupted, and is finished now")
        return
    # Not cancelled first: whoever runs it would take that for its end, and miss that the job is gone.
    count = store.erase(job) if force else store.remove(job)
    discard_job(record)
    click.echo(f"job {job} is removed: {counted(count, 'key')}")


def _store(redis_url: str) -> JobStore:
    return JobStore(Scripts(connect(redis_url)))
