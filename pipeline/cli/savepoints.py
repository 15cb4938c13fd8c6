"""`celeriac savepoint`: taking savepoints of running jobs, and looking at those that are there."""

from __future__ import annotations

import time
from collections.abc import Iterator
from datetime import UTC, datetime
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Any, Final

import click
import msgspec

from pipeline.cli.checkpoints import take_again
from pipeline.cli.groups import Group
from pipeline.cli.options import DEBUG, JOB, JSON, SERVER, job_id
from pipeline.cli.screen import Screen
from pipeline.errors import EnvironmentFault, SavepointError, StoreError
from pipeline.facts import JobRecord
from pipeline.lifecycle import WORKING, JobState
from pipeline.store.connection import connect
from pipeline.store.jobs import JobStore
from pipeline.store.scripts import Scripts
from pipeline.wording import counted

if TYPE_CHECKING:
    from pipeline.savepoints.manifest import Manifest
    from pipeline.savepoints.places import Place
    from pipeline.savepoints.reading import Savepoint
    from pipeline.savepoints.restoring import Restored

FOLDER: Final = "savepoints"
_FOLDER = click.argument("folder", metavar="FOLDER", default=FOLDER)
_SAVEPOINT = click.argument("savepoint_url", metavar="SAVEPOINT")
_PAGE: Final = 500


@click.group(cls=Group)
def savepoint() -> None:
    """Take savepoints of running jobs, and look at those that are there.

    A savepoint is a folder of Parquet files: all that a job was at one instant. `run --from-savepoint` begins a new job
    with it. Folders may be paths, or addresses that fsspec knows, as s3://bucket/savepoints.
    """


@savepoint.command("create")
@JOB
@SERVER
@click.option("--to", "folder", metavar="FOLDER", default=FOLDER, show_default=True, help="Put it below this folder.")
@click.option("--stop", is_flag=True, help="Cancel the job at the instant of the cut: nothing comes behind it.")
@click.option("--keep", type=click.IntRange(1), metavar="N", help="Afterwards delete all but the last N of this job.")
@click.option(
    "--every",
    "every_seconds",
    type=click.FloatRange(1, 604_800),
    metavar="SECONDS",
    help="Take one again and again until the job ends; --keep says how many stay.",
)
@JSON
@DEBUG
def create_savepoint(
    job: str, redis_url: str, folder: str, stop: bool, keep: int | None, every_seconds: float | None, as_json: bool
) -> None:
    """Take a savepoint of a job while it works. It is there, whole, when this ends."""
    if stop and every_seconds is not None:
        raise click.UsageError("--every goes on until the job ends, and --stop ends it")
    need_pyarrow()
    from pipeline.savepoints.places import place_of

    scripts, place = Scripts(connect(redis_url)), place_of(folder)
    take = partial(_take, scripts, job, place, JobState.CANCELLED if stop else None, keep, as_json)
    if every_seconds is None:
        take()
    else:
        take_again(take, lambda: JobStore(scripts).state(job), every_seconds)


def _tell_stopped(store: JobStore, before: JobRecord) -> None:
    """A job that was cancelled for a savepoint which was not written stays so: its processes have ended by then."""
    job = before.job
    try:
        is_stopped = before.state in WORKING and store.state(job) not in WORKING
    except StoreError as error:
        click.echo(f"warning: whether job {job} is cancelled cannot be seen: {error}", err=True)
        return
    if is_stopped:
        click.echo(
            f"warning: job {job} is cancelled, without a savepoint. Redis keeps all of it: `celeriac savepoint create"
            f" {job}` takes one of it as it stands, `celeriac run FILE --job-id {job}` goes on",
            err=True,
        )


def _take(scripts: Scripts, job: str, place: Place, ends: JobState | None, keep: int | None, as_json: bool) -> None:
    from pipeline.savepoints.export import take_savepoint
    from pipeline.savepoints.manifest import new_name

    started = time.monotonic()
    record = JobStore(scripts).read(job)
    try:
        manifest = take_savepoint(scripts, record, place, new_name(job, time.localtime()), ends=ends)
    except BaseException:  # a Ctrl-C, too: it says how the job stands, and goes on
        if ends is not None:
            _tell_stopped(JobStore(scripts), record)
        raise
    seconds = time.monotonic() - started
    for name in _older(place, job, keep) if keep else ():
        place.delete(name)
    if as_json:
        click.echo(msgspec.json.encode(_facts(manifest, place.url)).decode())
    else:
        click.echo(f"savepoint {place.url.rstrip('/')}/{manifest.name}: {summary(manifest)}, in {seconds:.1f} s")
        if ends is not None:
            click.echo(f"job {job} is cancelled: run FILE --from-savepoint goes on as a new job", err=True)


@savepoint.command("list")
@_FOLDER
@click.option("--job", callback=job_id, help="Of this job only.")
@JSON
@DEBUG
def list_savepoints(folder: str, job: str | None, as_json: bool) -> None:
    """List the savepoints below a folder, oldest first."""
    place, found = _all(folder)
    shown = [manifest for manifest in found if job is None or manifest.job == job]
    if as_json:
        click.echo(msgspec.json.encode([_facts(manifest, place.url) for manifest in shown]).decode())
    elif shown:
        click.echo("\n".join(f"{each.name}  {_when(each)}  {summary(each)}" for each in shown))
    else:
        click.echo("no savepoints", err=True)


@savepoint.command("show")
@_SAVEPOINT
@JSON
@DEBUG
def show_savepoint(savepoint_url: str, as_json: bool) -> None:
    """Show what a savepoint holds, and whether its files are as they were written."""
    found = _open(savepoint_url)
    edited = found.edited()
    if as_json:
        click.echo(msgspec.json.encode({**_facts(found.manifest, found.place.url), "edited": edited}).decode())
        return
    manifest = found.manifest
    stages = ", ".join(f"{stage.name} ({stage.serving})" for stage in manifest.plan.stages)
    lines = [
        f"job {manifest.job}, pipeline {manifest.pipeline}, {manifest.state} at {_when(manifest)},"
        f" epoch {manifest.epoch}",
        summary(manifest),
        f"stages (partitions): {stages}",
    ]
    lines += [f"operator {name}: {counted(keys, 'key')}" for name, keys in sorted(manifest.keys.items())]
    lines += [
        f"output {name}: {counted(number - 1, 'result')} before it" for name, number in sorted(manifest.outputs.items())
    ]
    lines += [f"table {table} is not as it was written" for table in edited]
    click.echo("\n".join(lines))


@savepoint.command("diff")
@click.argument("one", metavar="SAVEPOINT")
@click.argument("other", metavar="OTHER")
@click.option("--limit", type=click.IntRange(1), default=100, show_default=True, help="Show at most so many keys.")
@DEBUG
def diff_savepoints(one: str, other: str, limit: int) -> int:
    """Compare the state in two savepoints. Exit code 0: it is the same, 1: it is not."""
    from pipeline.savepoints.difference import differences

    found = differences(_open(one), _open(other))
    shown = list(islice(found, limit + 1))
    with Screen(False) as screen:
        screen.records(shown[:limit])
        if len(shown) > limit:
            screen.note("there is more; --limit shows it")
        if not shown:
            screen.note("the state is the same in both")
    return 1 if shown else 0


@savepoint.command("export")
@_SAVEPOINT
@click.option("--operator", metavar="NAME", help="Of this operator only.")
@DEBUG
def export_savepoint(savepoint_url: str, operator: str | None) -> None:
    """Write the state in a savepoint to standard output, one JSON object a line."""
    from pipeline.savepoints.difference import state_lines

    lines = state_lines(_open(savepoint_url), operator)
    with Screen(False) as screen:
        page: list[str] = []
        for line in lines:
            page.append(line)
            if len(page) == _PAGE:
                screen.records(page)
                page = []
        screen.records(page)


@savepoint.command("delete")
@_SAVEPOINT
@DEBUG
def delete_savepoint(savepoint_url: str) -> None:
    """Delete a savepoint."""
    found = _open(savepoint_url)
    found.place.delete(found.name)
    click.echo(f"savepoint {found.where} is deleted")


def restored_lines(restored: Restored) -> Iterator[str]:
    """What a run says of a job that was restored just now."""
    manifest = restored.manifest
    keys = sum(restored.keys.values())
    yield (
        f"job {restored.job} begins with savepoint {manifest.name} of job {manifest.job}: {counted(keys, 'key')},"
        f" {counted(manifest.in_flight, 'record')} in flight"
    )
    yield from restored.lines


def _open(url: str) -> Savepoint:
    need_pyarrow()
    from pipeline.savepoints.reading import Savepoint

    return Savepoint.at(url)


def _all(folder: str) -> tuple[Place, list[Manifest]]:
    from pipeline.savepoints.manifest import MANIFEST, read_manifest
    from pipeline.savepoints.places import place_of

    place = place_of(folder)
    found = []
    for name in place.names():
        try:
            found.append(read_manifest(place.read(name, MANIFEST), f"{place.url}/{name}"))
        except SavepointError as error:
            click.echo(f"warning: {error}", err=True)
    return place, sorted(found, key=lambda manifest: (manifest.at_ms, manifest.name))


def _older(place: Place, job: str, keep: int) -> list[str]:
    """Savepoints of the job but for the last ones."""
    _, found = _all(place.url)
    return [manifest.name for manifest in found if manifest.job == job][:-keep]


def _facts(manifest: Manifest, url: str) -> dict[str, Any]:
    return {
        "name": manifest.name,
        "where": f"{url.rstrip('/')}/{manifest.name}",
        "job": manifest.job,
        "pipeline": manifest.pipeline,
        "fingerprint": manifest.fingerprint,
        "epoch": manifest.epoch,
        "at_ms": manifest.at_ms,
        "state": manifest.state,
        "keys": manifest.keys,
        "in_flight": manifest.in_flight,
        "letters": manifest.letters,
        "outputs": manifest.outputs,
        "bytes": manifest.size_bytes,
        "partitions": {stage.name: stage.serving for stage in manifest.plan.stages},
    }


def summary(manifest: Manifest) -> str:
    letters = f", {counted(manifest.letters, 'dead letter')}" if manifest.letters else ""
    size = manifest.size_bytes
    shown = f"{size / (1 << 20):,.1f} MiB" if size >= 1 << 20 else f"{size / 1024:,.1f} KiB"
    keys = counted(sum(manifest.keys.values()), "key")
    return f"{keys}, {counted(manifest.in_flight, 'record')} in flight{letters}, {shown}"


def _when(manifest: Manifest) -> str:
    return datetime.fromtimestamp(manifest.at_ms / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")


def need_pyarrow() -> None:
    """Raises EnvironmentFault."""
    try:
        import pyarrow  # noqa: F401
    except ImportError as error:
        raise EnvironmentFault("savepoints need pyarrow", hint="pip install 'celeriac[savepoints]'") from error
