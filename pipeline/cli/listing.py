"""`celeriac list`: the jobs of one Redis server, or of several."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import click

from pipeline.cli.exits import Exit
from pipeline.cli.options import DEBUG, JSON, SERVERS
from pipeline.cli.primaries import look_at_all, twice
from pipeline.cli.reports import job_json, job_line
from pipeline.errors import DecodingError, UnknownJob
from pipeline.facts import JobRecord
from pipeline.store.connection import connect, without_password
from pipeline.store.jobs import JobStore
from pipeline.store.scripts import Scripts
from pipeline.store.versions import VersionStore
from pipeline.wording import counted


@click.command("list")
@SERVERS
@JSON
@DEBUG
def list_jobs(redis_urls: tuple[str, ...], as_json: bool) -> Exit:
    """List the jobs that a Redis holds, oldest first: state, pipeline, version of its code, age.

    With several --redis those of each, below its address. One that cannot be asked is named, and the exit code is 3.
    """
    if len(redis_urls) == 1:
        _show([redis_urls[0]], as_json=as_json, with_servers=False)
        return Exit.FINISHED
    found = look_at_all(redis_urls)
    for shown, why in found.away.items():
        click.echo(f"error: {shown} cannot be asked: {why}", err=True)
    for job, several in twice(found.there).items():
        where = ", ".join(each.shown for each in several)
        click.echo(f"warning: there are several jobs {job!r}: on {where}; commands need the --redis of one", err=True)
    _show([each.url for each in found.there], as_json=as_json, with_servers=True)
    return Exit.ENVIRONMENT if found.away else Exit.FINISHED


def _show(urls: list[str], *, as_json: bool, with_servers: bool) -> None:
    rows: list[dict[str, Any]] = []
    lines: list[str] = []
    for url in urls:
        scripts = Scripts(connect(url))
        store, versions = JobStore(scripts), VersionStore(scripts)
        records = list(_records(store))
        shown = without_password(url)
        rows += [{**job_json(record), "version": _code(versions, record), "redis": shown} for record in records]
        now_ms = store.now_ms()
        lines += [f"{shown}: {counted(len(records), 'job') if records else 'no jobs'}"] if with_servers else []
        lines += [
            f"{'  ' if with_servers else ''}{job_line(record, _code(versions, record), now_ms)}" for record in records
        ]
    if as_json:
        click.echo(json.dumps(rows, indent=2))
    elif lines:
        click.echo("\n".join(lines))
    else:
        click.echo("no jobs", err=True)


def _records(store: JobStore) -> Iterator[JobRecord]:
    """All jobs but those that are being removed just now, and those of other versions, which are named."""
    for job in store.list_ids():
        try:
            yield store.read(job)
        except UnknownJob:
            continue
        except DecodingError as error:
            click.echo(f"warning: {job}: {error}", err=True)


def _code(store: VersionStore, record: JobRecord) -> str:
    """The code version that the job was given last; nothing for one whose versions were not kept."""
    try:
        found = store.versions(record.job, 1)
    except DecodingError as error:
        click.echo(f"warning: {record.job}: {error}", err=True)
        return ""
    return found[-1].code if found else ""
