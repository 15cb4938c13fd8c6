"""`celeriac rescale`: another number of partitions for a keyed stage of a job that goes on meanwhile."""

from __future__ import annotations

import getpass
import socket
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Final

import click

from pipeline.cli.exits import JobFailed
from pipeline.cli.options import DEBUG, JOB, SERVER
from pipeline.cli.progress import duration
from pipeline.errors import PipelineError
from pipeline.facts import JobFacts
from pipeline.operations import Operation, PastOperation, Phase
from pipeline.plan import Plan, StagePlan
from pipeline.store.connection import connect
from pipeline.store.jobs import JobStore
from pipeline.store.operations import MOST_PARTITIONS, OperationStore
from pipeline.store.scripts import Scripts
from pipeline.validation import suggestion
from pipeline.wording import counted

_LOOK_SECONDS: Final = 0.1


@click.command()
@JOB
@click.argument("stage", required=False)
@click.option("--partitions", type=click.IntRange(1, MOST_PARTITIONS), help="How many partitions the stage shall have.")
@click.option(
    "--now", "is_urgent", is_flag=True, help="Do not wait for a short backlog; alone: nor does the one begun."
)
@click.option("--cancel", "is_cancel", is_flag=True, help="Call the one off that still waits.")
@click.option("--no-wait", is_flag=True, help="Return when it is begun; the leader carries it out.")
@click.option(
    "--wait",
    "wait_seconds",
    type=click.FloatRange(0, 86_400),
    default=600.0,
    show_default=True,
    help="Seconds to wait for its end. It goes on after that.",
)
@SERVER
@DEBUG
def rescale(
    job: str,
    stage: str | None,
    partitions: int | None,
    is_urgent: bool,
    is_cancel: bool,
    no_wait: bool,
    wait_seconds: float,
    redis_url: str,
) -> None:
    """Change the number of partitions of a keyed STAGE while records flow.

    The leader waits until the stage's backlog is short, switches, and ends it when all partitions are through. Keys
    that go to another partition wait for what the old one has still before it; nothing else waits.
    """
    scripts = Scripts(connect(redis_url))
    store, jobs = OperationStore(scripts), JobStore(scripts)
    if is_cancel:
        _refuse(stage, partitions, "--cancel")
        jobs.state(job)
        click.echo(f"the {store.call_off(job).change} is called off")
        return
    if partitions is None and is_urgent:
        _refuse(stage, partitions, "--now without --partitions")
        jobs.state(job)
        click.echo(f"the {store.hurry(job).change} waits no longer")
        return
    if stage is None or partitions is None:
        raise click.UsageError("name a stage, and give --partitions")
    record = jobs.read(job)
    id_ = store.begin(record, _chosen(record.plan, job, stage, partitions), partitions, _by(), is_urgent=is_urgent)
    if no_wait:
        click.echo(f"begun; `celeriac status {job}` shows how far it is")
        return
    _follow(lambda: jobs.facts(job), id_, wait_seconds)


def _refuse(stage: str | None, partitions: int | None, option: str) -> None:
    if stage is not None or partitions is not None:
        raise click.UsageError(f"{option} takes the job alone")


def _chosen(plan: Plan, job: str, name: str, partitions: int) -> StagePlan:
    """Raises PipelineError for a stage that there is not, is not keyed, or has that number."""
    keyed = [stage.name for stage in plan.stages if stage.keyed]
    found = next((stage for stage in plan.stages if stage.name == name), None)
    if found is None:
        raise PipelineError(f"job {job!r} has no stage {name!r}", hint=suggestion(name, keyed))
    if not found.keyed:
        raise PipelineError(
            f"{name!r} is a source of job {job!r}: its partitions belong to senders, and are not changed",
            hint=suggestion("", keyed),
        )
    if found.serving == partitions:
        raise PipelineError(f"stage {name!r} of job {job!r} has {counted(partitions, 'partition')} already")
    return found


def _by() -> str:
    with suppress(OSError, KeyError):  # an account without a name
        return f"{getpass.getuser()}@{socket.gethostname()}"
    return socket.gethostname()


def _follow(look: Callable[[], JobFacts], id_: str, seconds: float) -> None:
    """Shows the phases until it has ended. Raises JobFailed when it was called off, given up, or takes too long."""
    until, shown = time.monotonic() + seconds, ""
    while True:
        facts = look()
        operation = facts.operation
        if operation is None or operation.id != id_:
            past = look().record.operations  # the record is read before the operation: it may be the older one
            _tell_end(past[-1] if past else None)
            return
        line = _phase_line(facts, operation)
        if line.partition(":")[0] != shown.partition(":")[0]:
            click.echo(line)
            shown = line
        if time.monotonic() >= until:
            raise JobFailed(
                f"the {operation.about} is not through after {seconds:g} s: {line}",
                hint=f"it goes on; `celeriac status {facts.record.job}` shows how far it is",
            )
        time.sleep(_LOOK_SECONDS)


def _phase_line(facts: JobFacts, operation: Operation) -> str:
    parts = [part for part in facts.partitions if part.stage == operation.stage]
    if operation.phase is Phase.WAITING:
        most = max((part.backlog for part in parts), default=0)
        return f"waiting: the longest inbox of {operation.about.stage} has {counted(most, 'record')}"
    left = sum(part.is_switching for part in parts)
    return f"settling: {left} of {counted(len(parts), 'partition')} not through yet"


def _tell_end(past: PastOperation | None) -> None:
    if past is None or past.outcome != "done":
        raise JobFailed(f"not rescaled: {past.outcome if past else 'it is not known any more'}")
    took = duration((past.at_ms - past.begun_at_ms) / 1000)
    settled = duration((past.at_ms - past.switched_at_ms) / 1000)
    click.echo(f"{past.about.change}: done in {took}, of which {settled} since the switch")
