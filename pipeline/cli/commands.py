"""The commands, their options, and what those that look at a job or end it do. Turns no error into an exit code."""

from __future__ import annotations

import json
import os
import sys
from importlib import metadata
from pathlib import Path

import click

from pipeline.cli.autoscale import autoscale, scaling_options
from pipeline.cli.backfilling import backfill
from pipeline.cli.bulk import OnSpark, SparkOptions, run_on_spark, spark_options
from pipeline.cli.bursting import burst
from pipeline.cli.control import drain, history, pause, unpause
from pipeline.cli.deadletters import dead_letters
from pipeline.cli.exits import HELP, Exit
from pipeline.cli.health import PING_SECONDS, check_health
from pipeline.cli.interrupts import Interrupts
from pipeline.cli.joining import NODE, worker
from pipeline.cli.listing import list_jobs
from pipeline.cli.nodecommands import moves, node
from pipeline.cli.openings import Beginning
from pipeline.cli.options import DEBUG as _DEBUG
from pipeline.cli.options import JOB as _JOB
from pipeline.cli.options import JSON as _JSON
from pipeline.cli.options import PREFER_NETWORK
from pipeline.cli.options import SERVER as _SERVER
from pipeline.cli.options import job_id as _job_id
from pipeline.cli.options import redis_option as _redis_option
from pipeline.cli.pools import POOLS, PoolWorkers
from pipeline.cli.primaries import server_for
from pipeline.cli.produce import produce_lines
from pipeline.cli.readers import readers
from pipeline.cli.reports import SHOWN_LETTERS, status_json, status_lines
from pipeline.cli.rescaling import rescale
from pipeline.cli.run import RunOptions, run_pipeline
from pipeline.cli.savepoints import savepoint
from pipeline.cli.screen import Screen
from pipeline.cli.shadowing import promote, shadow
from pipeline.cli.state import state
from pipeline.cli.submitting import feed, submit
from pipeline.cli.suspending import resume, suspend
from pipeline.cli.tail import tail
from pipeline.cli.upgrading import upgrade
from pipeline.cli.verifying import verify
from pipeline.errors import InputError, UnknownJob
from pipeline.lifecycle import JobState
from pipeline.producer import Producer
from pipeline.publishing import discard_job
from pipeline.read import READERS
from pipeline.scaling.settings import Scaling
from pipeline.store.books import BookStore
from pipeline.store.connection import connect
from pipeline.store.jobs import JobStore
from pipeline.store.moving import MovingStore
from pipeline.store.scripts import Scripts

FLOWER_VARIABLE = "CELERIAC_FLOWER_AUTH"


def _version(context: click.Context, _parameter: click.Parameter, is_asked: bool) -> None:
    if is_asked:
        try:
            click.echo(f"celeriac {metadata.version('celeriac')}")
        except metadata.PackageNotFoundError:
            click.echo("celeriac, from a checkout that is not installed")
        context.exit()


@click.group(epilog=HELP, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.option("--version", is_flag=True, is_eager=True, expose_value=False, callback=_version, help="Show the version.")
def celeriac() -> None:
    """Exactly-once, keyed, stateful pipelines on Celery and Redis."""


for _group in (
    tail, state, readers, dead_letters, savepoint, verify, drain, pause, unpause,
    suspend, resume, submit, feed, upgrade, shadow, promote, history, autoscale, rescale, burst, worker, node, moves,
    backfill, list_jobs,
):  # fmt: skip
    celeriac.add_command(_group)


@celeriac.command(epilog=HELP)
@click.argument("target", metavar="FILE.py[:NAME]")
@_redis_option(False, "Use this Redis; an address with a password belongs into the variable. Default: one of its own.")
@PREFER_NETWORK
@click.option("--workers", type=click.IntRange(1, 1000), help="Worker processes. Default: the number of cores.")
@scaling_options("--autoscale", "Have the leader change the number of workers, as 1..8, to what the load needs.")
@POOLS
@click.option("--partitions", type=click.IntRange(1, 256), help="Partitions of each stage. Default: 2 for each worker.")
@click.option("--job-id", callback=_job_id, help="Name the job; an unfinished job of that name goes on.")
@click.option("--reader", type=click.Choice(READERS), help="How files are read. Default: what each source says.")
@click.option("--accept-loss", is_flag=True, help="Go on with a job that has halted since Redis lost its last writes.")
@click.option(
    "--from-savepoint", "savepoint_url", metavar="FOLDER", help="Begin a new job with what a savepoint holds."
)
@click.option("--allow-dropped", is_flag=True, help="Leave out what the pipeline has no place for.")
@click.option("--allow-edits", is_flag=True, help="The savepoint was edited; each of its rows is checked.")
@NODE
@spark_options
@click.option("--quiet", is_flag=True, help="Show errors and the records of console sinks only.")
@_DEBUG
@click.pass_obj
def run(
    interrupts: Interrupts,
    target: str,
    redis_urls: tuple[str, ...],
    workers: int | None,
    scaling: Scaling | None,
    pools: dict[str, PoolWorkers],
    partitions: int | None,
    job_id: str | None,
    reader: str | None,
    accept_loss: bool,
    savepoint_url: str | None,
    allow_dropped: bool,
    allow_edits: bool,
    node: str | None,
    spark: SparkOptions | None,
    quiet: bool,
) -> Exit:
    """Run a pipeline here until its input has ended.

    Everything that is missing on this machine is started, and stopped at the end. Without --redis and with
    --job-id the data are kept in .celeriac/ below this folder until the job is finished.

    With --engine spark it runs in bulk on Spark, without Redis and workers, with the same results. With --stream as
    well it is a live job, on Redis, whose partitions a Spark streaming query owns in the place of workers.
    """
    if spark is not None and not spark.is_stream:
        job = OnSpark(target, partitions or 0, spark, Screen(quiet), interrupts)
        with interrupts.deferred():
            return run_on_spark(job, savepoint_url, allow_dropped=allow_dropped, allow_edits=allow_edits)
    if accept_loss and job_id is None:
        raise click.UsageError("--accept-loss needs the --job-id of the job that has halted")
    if savepoint_url is None and (allow_dropped or allow_edits):
        raise click.UsageError("--allow-dropped and --allow-edits go with --from-savepoint")
    main = PoolWorkers(workers if scaling else workers or len(os.sched_getaffinity(0)), scaling)
    most = max(main.most, *(each.most for each in pools.values()), 1)
    options = RunOptions(
        target=target,
        redis_url=server_for(redis_urls, job_id) if any(redis_urls) else None,
        workers=1 if spark else main.count,
        partitions=partitions or (0 if savepoint_url else min(256, 2 * most)),
        job_id=job_id,
        reader=reader or "",
        is_quiet=quiet,
        node=node or "",
        accepts_loss=accept_loss,
        scaling=scaling,
        pools=pools,
        savepoint=Beginning(savepoint_url, allow_dropped, allow_edits) if savepoint_url else None,
        spark=spark,
    )
    with interrupts.deferred():
        return run_pipeline(options, interrupts)


@celeriac.command()
@_JOB
@_SERVER
@_JSON
@_DEBUG
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


@celeriac.command()
@_JOB
@_SERVER
@_DEBUG
def cancel(job: str, redis_url: str) -> None:
    """Stop a job now. It keeps its state, and `run --job-id` goes on with it."""
    store = _store(redis_url)
    if store.state(job) is JobState.CANCELLED:
        click.echo(f"job {job} is cancelled already")
        return
    store.transition(job, JobState.CANCELLED, "celeriac cancel")
    click.echo(f"job {job} is cancelled")


@celeriac.command()
@_JOB
@_SERVER
@click.option("--force", is_flag=True, help="Cancel the job first if it is running.")
@_DEBUG
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
    click.echo(f"job {job} is removed: {count} keys")


@celeriac.command(epilog=HELP)
@_JOB
@_SERVER
@click.option("--source", help="The source's name, where the pipeline has several that take records.")
@click.option("--name", help="A name of this sender that stays through restarts; it fences off an older process.")
@click.option(
    "--wait",
    "wait_seconds",
    type=click.FloatRange(0, 86_400),
    default=60.0,
    show_default=True,
    help="Seconds to wait for a job that is full, or for Redis.",
)
@click.option("--quiet", is_flag=True, help="Show errors only.")
@_DEBUG
def produce(job: str, redis_url: str, source: str | None, name: str | None, wait_seconds: float, quiet: bool) -> Exit:
    """Send records from standard input into a running job, which must read from read.producer().

    One JSON object a line: {"key": "k", "value": 1, "id": "evt-1", "timestamp": 1700000000000}. Only the value is
    needed. It ends when the job has them all. A bad line is named, and nothing behind it is sent.
    """
    if sys.stdin is None:
        raise InputError("standard input is closed", hint="celeriac produce JOB < records.jsonl")
    with Screen(quiet) as screen:
        producer = Producer(job, redis_url, source=source, name=name, full_timeout_seconds=wait_seconds)
        with producer:
            return produce_lines(sys.stdin.buffer, producer, screen.note)


@celeriac.command()
@_SERVER
@click.option("--leader", metavar="NAME", help="A leader process of this name must be at work.")
@click.option("--job", callback=_job_id, help="With --worker: the job that it serves.")
@click.option("--worker", metavar="NAME", help="A worker of this name must be at work, unless the job is not.")
@_DEBUG
def ping(redis_url: str, leader: str | None, job: str | None, worker: str | None) -> None:
    """Check that Redis answers, and that a leader or a worker does its work. For health checks: exit code 0 or 3."""
    if (job is None) != (worker is None):
        raise click.UsageError("--job and --worker go together")
    for line in check_health(Scripts(connect(redis_url, timeout_seconds=PING_SECONDS)), leader, job, worker):
        click.echo(line)


@celeriac.command()
@_SERVER
@click.option(
    "--address", default="127.0.0.1", show_default=True, help="Listen here. Others than loopback need a password."
)
@click.option("--port", type=click.IntRange(0, 65535), default=5555, show_default=True, help="0 takes a free one.")
@click.option("--basic-auth-file", type=click.Path(path_type=Path), help="A file of user:password lines.")
@click.option("--events", is_flag=True, help="Have workers tell of each ticket, for the Tasks page.")
@_DEBUG
def flower(redis_url: str, address: str, port: int, basic_auth_file: Path | None, events: bool) -> None:
    """Show jobs in the browser: Flower with a page for pipelines. Nothing can be changed there.

    The variable CELERIAC_FLOWER_AUTH may hold the user:password lines instead of a file.
    """
    # Not at the top: it needs an extra.
    from pipeline.flower.access import Access, read_credentials
    from pipeline.flower.server import FlowerOptions, serve

    credentials = read_credentials(basic_auth_file, os.environ.get(FLOWER_VARIABLE, ""))
    serve(redis_url, FlowerOptions(Access(address, port, credentials), events), click.echo)


def _store(redis_url: str) -> JobStore:
    return JobStore(Scripts(connect(redis_url)))
