"""`celeriac ping`, for health checks. Changes nothing."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import click

from pipeline.cli.options import DEBUG, SERVER
from pipeline.cli.options import job_id as as_job_id
from pipeline.errors import EnvironmentFault, UnknownJob
from pipeline.lifecycle import WORKING
from pipeline.store.connection import connect
from pipeline.store.jobs import JobStore
from pipeline.store.leadership import LeaderRegistry
from pipeline.store.scripts import Scripts

PING_SECONDS: Final = 3.0
"""How long Redis may take to answer."""

LEADER_SECONDS: Final = 5.0
"""A leader says that it is there each 0.25 s; after this long it is stuck, cut off or gone."""


@click.command()
@SERVER
@click.option("--leader", metavar="NAME", help="A leader process of this name must be at work.")
@click.option("--job", callback=as_job_id, help="With --worker: the job that it serves.")
@click.option("--worker", metavar="NAME", help="A worker of this name must be at work, unless the job is not.")
@DEBUG
def ping(redis_url: str, leader: str | None, job: str | None, worker: str | None) -> None:
    """Check that Redis answers, and that a leader or a worker does its work. For health checks: exit code 0 or 3."""
    if (job is None) != (worker is None):
        raise click.UsageError("--job and --worker go together")
    for line in check_health(Scripts(connect(redis_url, timeout_seconds=PING_SECONDS)), leader, job, worker):
        click.echo(line)


def check_health(scripts: Scripts, leader: str | None, job: str | None, worker: str | None) -> Iterator[str]:
    """A line for each thing that is well. Raises EnvironmentFault for one that is not, StoreError for Redis."""
    store = JobStore(scripts)
    store.ping()
    yield "Redis answers"
    if leader is not None:
        yield f"leader {leader} was heard of {_leader_seconds(scripts, leader):.1f} s ago"
    if job is not None and worker is not None:
        yield _worker_line(store, job, worker)


def heard_leaders(scripts: Scripts) -> list[str]:
    """The leaders that are at work. Raises StoreError."""
    return LeaderRegistry(scripts, "").others(LEADER_SECONDS)


def _leader_seconds(scripts: Scripts, leader: str) -> float:
    seconds = LeaderRegistry(scripts, leader).heard_seconds()
    if seconds is None or seconds > LEADER_SECONDS:
        when = "was never heard of, or has left" if seconds is None else f"was last heard of {seconds:.0f} s ago"
        raise EnvironmentFault(f"leader {leader} {when}", hint="see its log")
    return seconds


def _worker_line(store: JobStore, job: str, worker: str) -> str:
    try:
        facts = store.facts(job)
    except UnknownJob:
        return f"worker {worker} waits for job {job}"
    if facts.record.state not in WORKING:
        return f"worker {worker} has nothing to do: job {job} is {facts.record.state.value}"
    for each in facts.workers:
        if each.name == worker and not each.is_reported_dead:
            if each.age_seconds < facts.record.plan.limits.lease_seconds:
                return f"worker {worker} was heard of {each.age_seconds:.1f} s ago"
            raise EnvironmentFault(
                f"worker {worker} was last heard of {each.age_seconds:.0f} s ago", hint="see its log"
            )
    raise EnvironmentFault(f"worker {worker} does not work at job {job}", hint="see its log")
