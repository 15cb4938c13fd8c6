"""Jobs on several Redis servers: the one that holds a job, and the one that is to hold a new one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import click

from pipeline.errors import PipelineError, StoreError, StoreUnavailable, UnknownJob
from pipeline.store.connection import connect, without_password
from pipeline.store.jobs import NO_JOB
from pipeline.store.primaries import Primary, look_at


@dataclass(frozen=True, slots=True)
class Primaries:
    """The servers that answer, each once, and those that cannot be asked, as they may be shown, with why."""

    there: tuple[Primary, ...]
    away: dict[str, StoreError]

    @property
    def away_words(self) -> str:
        return "; ".join(f"{shown} cannot be asked: {why}" for shown, why in self.away.items())

    def with_job(self, job: str) -> list[Primary]:
        return [each for each in self.there if job in each.jobs]


def look_at_all(urls: Sequence[str]) -> Primaries:
    """Raises UnsuitableServer for what is no address."""
    for url in urls:
        connect(url).close()
    there: dict[tuple[str, int], Primary] = {}
    away: dict[str, StoreError] = {}
    for url in urls:
        try:
            found = look_at(url)
        except StoreError as error:
            away[without_password(url)] = error
        else:
            there.setdefault(found.identity, found)
    return Primaries(tuple(there.values()), away)


def server_of(urls: Sequence[str], job: str) -> str:
    """The address of the server that has the job; without a look where there is only one.

    Raises UnknownJob, StoreUnavailable when it may be on one that is away, PipelineError when it is on several.
    """
    if len(urls) == 1:
        return urls[0]
    all_of_them = look_at_all(urls)
    if found := _only(all_of_them, job):
        if all_of_them.away:
            click.echo(f"warning: {all_of_them.away_words}", err=True)
        return found.url
    if all_of_them.away:
        raise _unknown_there(all_of_them, job)
    raise UnknownJob(f"there is no job {job!r} on {_named(all_of_them.there)}", hint=NO_JOB)


def server_for(urls: Sequence[str], job: str | None) -> str:
    """The address of the server for a job that is begun: the one that has it, else the one with the least work.

    `job`: None for one whose id will be new. Raises StoreUnavailable when none answers, or when the job may be on one
    that is away; PipelineError when it is on several.
    """
    if len(urls) == 1:
        return urls[0]
    all_of_them = look_at_all(urls)
    found = _only(all_of_them, job) if job is not None else None
    if found is not None:
        return found.url
    if all_of_them.away and (job is not None or not all_of_them.there):
        raise _unknown_there(all_of_them, job)
    if all_of_them.away:
        click.echo(f"warning: {all_of_them.away_words}", err=True)
    least = min(all_of_them.there, key=lambda each: (each.working, len(each.jobs)))
    click.echo(f"on {least.shown}, which has {least.working} of the jobs that work", err=True)
    return least.url


def only_server(urls: Sequence[str]) -> str:
    """Raises UsageError when there are several."""
    if len(urls) > 1:
        raise click.UsageError("this command is for one Redis: give --redis once (commas are for ways to one server)")
    return urls[0]


def twice(there: Sequence[Primary]) -> dict[str, list[Primary]]:
    """The ids that several servers have, each with these."""
    ids = sorted(set().union(*(each.jobs for each in there)))
    found = {job: [each for each in there if job in each.jobs] for job in ids}
    return {job: several for job, several in found.items() if len(several) > 1}


def _only(all_of_them: Primaries, job: str) -> Primary | None:
    found = all_of_them.with_job(job)
    if len(found) > 1:
        raise PipelineError(
            f"there are several jobs {job!r}: on {_named(found)}",
            hint="give the --redis of the one that you mean, and only that",
        )
    return found[0] if found else None


def _unknown_there(all_of_them: Primaries, job: str | None) -> StoreUnavailable:
    if job is None:
        return StoreUnavailable(all_of_them.away_words)
    where = f"job {job!r} is not on {_named(all_of_them.there)}, and " if all_of_them.there else ""
    return StoreUnavailable(
        f"{where}{all_of_them.away_words}", hint="is it up? A --redis that is given alone is not compared with others"
    )


def _named(there: Sequence[Primary]) -> str:
    return ", ".join(each.shown for each in there)
