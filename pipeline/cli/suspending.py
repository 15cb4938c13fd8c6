"""`celeriac suspend` and `resume`: a job that stands still, with a savepoint of that instant, and goes on."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

import click

from pipeline.cli.exits import HELP, Exit, JobFailed
from pipeline.cli.openings import go_on
from pipeline.cli.options import DEBUG, JOB, SERVER, job_id
from pipeline.cli.reports import in_flight
from pipeline.cli.savepoints import FOLDER, need_pyarrow, summary
from pipeline.errors import JobStateError, NotQuiet, StoreError
from pipeline.facts import JobRecord
from pipeline.lifecycle import JobState
from pipeline.store.connection import connect
from pipeline.store.jobs import JobStore
from pipeline.store.scripts import Scripts

if TYPE_CHECKING:
    from pipeline.savepoints.manifest import Manifest
    from pipeline.savepoints.places import Place

LOOK_SECONDS: Final = 0.2


@click.command(epilog=HELP)
@JOB
@SERVER
@click.option("--to", "folder", metavar="FOLDER", default=FOLDER, show_default=True, help="The savepoint's folder.")
@click.option("--savepoint", "name", metavar="NAME", callback=job_id, help="Its name. Default: job, time, letters.")
@click.option(
    "--wait",
    "wait_seconds",
    type=click.FloatRange(0, 86_400),
    default=60.0,
    show_default=True,
    help="Seconds to wait until nothing is in flight. After that the job goes on as before.",
)
@DEBUG
def suspend(job: str, redis_url: str, folder: str, name: str | None, wait_seconds: float) -> Exit:
    """Hold a job's input back, wait until nothing is in flight, take a savepoint, and end it as suspended.

    No window fires before its time. `celeriac resume JOB` lets it go on; `run` or `submit` with --from-savepoint
    goes on elsewhere, or with another pipeline. When the time is over first, the partitions that still have
    records are named.
    """
    need_pyarrow()
    from pipeline.savepoints.manifest import new_name
    from pipeline.savepoints.places import place_of

    scripts = Scripts(connect(redis_url))
    place, name = place_of(folder), name or new_name(job, time.localtime())
    record = JobStore(scripts).read(job)
    manifest = suspend_job(scripts, record, place, name, wait_seconds)
    click.echo(f"job {job} is suspended; savepoint {place.url.rstrip('/')}/{manifest.name}: {summary(manifest)}")
    return Exit.FINISHED


def suspend_job(
    scripts: Scripts,
    record: JobRecord,
    place: Place,
    name: str,
    wait_seconds: float,
    sleep: Callable[[float], None] = time.sleep,
) -> Manifest:
    """The job is suspended, and its savepoint is whole, when this returns. Of one that is suspended already only the
    savepoint is taken.

    Whatever keeps it from that lets the job go on. Raises JobFailed when it is not quiet in time, JobStateError when it
    does not run, SavepointError, StoreError.
    """
    from pipeline.savepoints.export import take_savepoint

    store, job = JobStore(scripts), record.job
    if record.state is JobState.SUSPENDED:
        return take_savepoint(scripts, record, place, name)
    if record.state is not JobState.RUNNING:
        raise JobStateError(f"job {job!r} is {record.state.value}: only a running job can be suspended")
    until = time.monotonic() + wait_seconds
    with _held_back(store, record):
        while True:
            try:
                return take_savepoint(scripts, record, place, name, ends=JobState.SUSPENDED)
            except NotQuiet as error:
                if time.monotonic() >= until:
                    raise JobFailed(
                        f"job {job} is not quiet after {wait_seconds:g} s: {in_flight(store.facts(job))}",
                        hint=f"it goes on; `celeriac suspend {job}` tries again, `celeriac status {job}` shows more",
                    ) from error
            sleep(min(LOOK_SECONDS, max(0.0, until - time.monotonic())))


@contextmanager
def _held_back(store: JobStore, record: JobRecord) -> Iterator[None]:
    """In the body no source gives anything new; when it fails, those that nobody else has paused go on."""
    holder = secrets.token_hex(8)
    sources = [stage.name for stage in record.plan.stages if not stage.upstream]
    is_done = False
    try:
        for source in sources:
            store.pause(record, source, is_paused=True, holder=holder)
        yield
        is_done = True
    finally:
        if not is_done:
            _let_go(store, record, sources, holder)


def _let_go(store: JobStore, record: JobRecord, sources: list[str], holder: str) -> None:
    """A job that is suspended already, of which the savepoint was not written, goes on as well."""
    try:
        state = store.state(record.job)
        if state not in (JobState.RUNNING, JobState.SUSPENDED):
            return  # it takes no input any more
        for source in sources:
            store.pause(record, source, is_paused=False, holder=holder)
        if state is JobState.SUSPENDED:  # last: who dies before that leaves a job that `resume` has go on
            store.transition(record.job, JobState.RUNNING, "its savepoint was not written")
    except StoreError as error:
        job = record.job
        click.echo(
            f"warning: job {job} is still held back: {error}; when Redis is there again: celeriac unpause {job}, or"
            f" celeriac resume {job} when `celeriac status {job}` says that it is suspended",
            err=True,
        )


@click.command()
@JOB
@SERVER
@DEBUG
def resume(job: str, redis_url: str) -> None:
    """Let a suspended job go on where it stands, with all that Redis keeps of it.

    Its workers must be there, or come: services take it up by themselves; `celeriac run FILE --job-id JOB` starts some.
    To go on from the savepoint, elsewhere or with another pipeline: `submit` or `run` with --from-savepoint.
    """
    store = JobStore(Scripts(connect(redis_url)))
    record = store.read(job)
    if record.state is not JobState.SUSPENDED:
        raise JobStateError(
            f"job {job!r} is {record.state.value}, not suspended",
            hint=f"`celeriac unpause {job}` lets paused input flow; `run` with --job-id goes on with an ended job",
        )
    go_on(store, record, "celeriac resume")
    click.echo(f"job {job} goes on")
    if not record.is_submitted:
        click.echo(f"hint: nobody works at it unless workers are there: celeriac run FILE --job-id {job}", err=True)
