"""`celeriac submit` and `feed`: a job on a cluster that is there, and the reading of its sources as a service."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

import click

from pipeline.cli.exits import HELP, Exit, JobFailed
from pipeline.cli.health import heard_leaders
from pipeline.cli.interrupts import Interrupts
from pipeline.cli.nodes import NodeSettings
from pipeline.cli.openings import Beginning, new_job_id, partitions_of
from pipeline.cli.options import DEBUG, JOB, SERVER, SERVERS, SPARK_SETTINGS, job_id
from pipeline.cli.primaries import server_for
from pipeline.cli.run import check_inputs
from pipeline.cli.savepoints import restored_lines
from pipeline.cli.screen import Screen
from pipeline.cli.services import NodeProcess
from pipeline.embedded.folders import OwnFolder
from pipeline.errors import PipelineError, StoreUnavailable
from pipeline.facts import JobRecord
from pipeline.graph import Graph, KeyBy, Source
from pipeline.lifecycle import JobState
from pipeline.loader import load_graph
from pipeline.needs import find_needs
from pipeline.plan import PRODUCER_FORMAT, Plan, compile_plan, fingerprint, is_endless
from pipeline.pools import POOL
from pipeline.publishing import check_effects, check_targets
from pipeline.read import READERS
from pipeline.settings import Limits
from pipeline.store.connection import check_server, connect, without_password
from pipeline.store.jobs import JobStore
from pipeline.store.permissions import check_permissions
from pipeline.store.scripts import Scripts
from pipeline.store.versions import VersionStore
from pipeline.versions import Wanted, this_version

PARTITIONS: Final = 8
_LOOK_SECONDS: Final = 0.5


@click.command(epilog=HELP)
@click.argument("target", metavar="FILE.py[:NAME]")
@SERVERS
@click.option("--job-id", "job", callback=job_id, help="Name the job, as its workers know it. Default: a new name.")
@click.option("--partitions", type=click.IntRange(1, 256), help="Partitions of each stage. Default: 8.")
@click.option("--from-savepoint", "savepoint_url", metavar="FOLDER", help="Begin with what a savepoint holds.")
@click.option("--allow-dropped", is_flag=True, help="Leave out what the pipeline has no place for.")
@click.option("--allow-edits", is_flag=True, help="The savepoint was edited; each of its rows is checked.")
@DEBUG
def submit(
    target: str,
    redis_urls: tuple[str, ...],
    job: str | None,
    partitions: int | None,
    savepoint_url: str | None,
    allow_dropped: bool,
    allow_edits: bool,
) -> Exit:
    """Register a job for leaders and workers that run already, print its id, and end.

    Its workers, as `python -m stages.member`, take it up by its id, and one of them publishes its results. Files,
    tables and topics are read by `celeriac feed`. Of several --redis it is the one with the least work.
    """
    if savepoint_url is None and (allow_dropped or allow_edits):
        raise click.UsageError("--allow-dropped and --allow-edits go with --from-savepoint")
    beginning = Beginning(savepoint_url, allow_dropped, allow_edits) if savepoint_url else None
    graph = load_graph(target)
    plan = _plan(graph, partitions, beginning)
    redis_url = server_for(redis_urls, job)
    name = job or new_job_id(plan.pipeline, time.localtime())
    scripts = Scripts(connect(redis_url))
    with Screen(False) as screen:
        for warning in check_server(scripts.client):
            screen.warn(f"warning: {without_password(redis_url)}: {warning}")
        check_permissions(scripts.client)
        check_inputs(graph, JobStore(scripts), name, screen)
        version = this_version("submitted", target, plan.fingerprint, savepoint_url or "")
        if beginning is None:
            JobStore(scripts).create(name, plan)
        else:
            for line in restored_lines(beginning.restore(scripts, name, plan)):
                screen.note(line)
        VersionStore(scripts).add(name, version, submitted=True, wants=Wanted(version.code))
        for line in _what_next(graph, name, target, heard_leaders(scripts)):
            screen.note(line)
    click.echo(name)
    return Exit.FINISHED


def _plan(graph: Graph, partitions: int | None, beginning: Beginning | None) -> Plan:
    """Raises PipelineError, SinkError, EnvironmentFault, SavepointError for what would not work."""
    if partitions is None and beginning is not None:
        partitions = partitions_of(beginning.open())
    plan = compile_plan(graph, partitions or PARTITIONS, Limits())
    check_targets(plan)
    check_effects(graph, plan)
    find_needs(graph.nodes)
    return plan


def _what_next(graph: Graph, job: str, target: str, leaders: list[str]) -> Iterator[str]:
    pools = sorted({node.pool for node in graph.nodes if isinstance(node, Source | KeyBy)} - {POOL})
    if leaders:
        yield f"leaders: {', '.join(leaders)}"
    else:
        yield "no leader is heard of: nothing happens until one runs (python -m leader.main)"
    yield f"workers take it up that were started with CELERIAC_JOB={job} (python -m stages.member)"
    for pool in pools:
        yield f"some stages need workers of the pool {pool}, with CELERIAC_POOL={pool} besides"
    for source in sources_of(graph):
        if source.spec.format == PRODUCER_FORMAT:
            yield f"source {source.name} takes records from producers: celeriac produce {job} --source {source.name}"
    fed = [source.name for source in fed_sources(graph)]
    if fed:
        yield f"nobody reads {', '.join(fed)} until a feeder runs: celeriac feed {job} {target}"
    yield f"follow it: celeriac status {job}, celeriac tail {job}; end it: celeriac drain {job}"


def sources_of(graph: Graph) -> list[Source]:
    return [node for node in graph.nodes if isinstance(node, Source)]


def fed_sources(graph: Graph) -> list[Source]:
    """The sources that a process of ours reads."""
    return [source for source in sources_of(graph) if source.spec.format != PRODUCER_FORMAT]


@click.command(epilog=HELP)
@JOB
@click.argument("target", metavar="FILE.py[:NAME]")
@SERVER
@click.option("--reader", type=click.Choice(READERS), help="How files are read. Default: what each source says.")
@SPARK_SETTINGS
@DEBUG
@click.pass_obj
def feed(interrupts: Interrupts, job: str, target: str, redis_url: str, reader: str | None) -> Exit:
    """Read the sources of a submitted job, until all is read or the job takes no more.

    It may be a service: it waits while the job does not run, and one that is killed goes on, when it is started again,
    exactly where it stood. Its own end does not end the job.
    """
    store = JobStore(Scripts(connect(redis_url)))
    record, graph = store.read(job), load_graph(target)
    if fingerprint(graph) != record.plan.fingerprint:
        raise PipelineError(
            f"{target} is another pipeline than the one that job {job!r} was made from",
            hint="feed it with its own file",
        )
    names = [source.name for source in fed_sources(graph)]
    if not names:
        click.echo(f"job {job} has no source that is read by us: applications send to it", err=True)
        return Exit.FINISHED
    endless = tuple(each.name for each in sources_of(graph) if is_endless(each.spec.format, each.spec.options))
    with OwnFolder.make("celeriac-feed-") as folder, interrupts.immediate():
        paths = {name: folder.path / name for name in ("logs", "tmp")}
        for path in paths.values():
            path.mkdir()
        settings = NodeSettings(
            redis=redis_url,
            job=job,
            target=target,
            workers=0,
            sources=tuple(names),
            reader=reader or "",
            logs=str(paths["logs"]),
            temporary=str(paths["tmp"]),
            endless=endless,
            has_leader=False,
        )
        _feed_until_over(store, job, names, settings, folder.holds)
    click.echo(f"job {job}: nothing is left to read", err=True)
    return Exit.FINISHED


def _feed_until_over(store: JobStore, job: str, names: list[str], settings: NodeSettings, holds: Sequence[int]) -> None:
    """Raises JobFailed, UnknownJob, EnvironmentFault; KeyboardInterrupt."""
    node: NodeProcess | None = None
    try:
        while True:
            try:
                record = store.read(job)
            except StoreUnavailable:
                time.sleep(_LOOK_SECONDS)
                continue
            if _is_over(record, names):
                return
            if record.state is JobState.RUNNING and node is None:
                node = NodeProcess(Path(settings.logs), Path(settings.temporary), holds)
                node.start(settings)
            elif record.state is not JobState.RUNNING and node is not None:
                node.close()
                node = None
            if node is not None:
                node.revive()
            time.sleep(_LOOK_SECONDS)
    finally:
        if node is not None:
            node.close()


def _is_over(record: JobRecord, names: list[str]) -> bool:
    if record.state is JobState.FAILED:
        raise JobFailed(f"the job {record.job} failed: {record.reason or 'no reason was given'}")
    is_closed = record.state in (JobState.DRAINING, JobState.PUBLISHING, JobState.FINISHED)
    return is_closed or record.completed_sources >= set(names)
