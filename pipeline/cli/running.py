"""`celeriac run`: its options, and which way a run goes."""

from __future__ import annotations

import os

import click

from pipeline.cli.autoscale import scaling_options
from pipeline.cli.bulk import OnSpark, SparkOptions, run_on_spark, spark_options
from pipeline.cli.exits import HELP, Exit
from pipeline.cli.interrupts import Interrupts
from pipeline.cli.joining import NODE
from pipeline.cli.openings import Beginning
from pipeline.cli.options import DEBUG, PREFER_NETWORK, redis_option
from pipeline.cli.options import job_id as as_job_id
from pipeline.cli.pools import POOLS, PoolWorkers
from pipeline.cli.primaries import server_for
from pipeline.cli.run import RunOptions, run_pipeline
from pipeline.cli.screen import Screen
from pipeline.read import READERS
from pipeline.scaling.settings import Scaling


@click.command(epilog=HELP)
@click.argument("target", metavar="FILE.py[:NAME]")
@redis_option(False, "Use this Redis; an address with a password belongs into the variable. Default: one of its own.")
@PREFER_NETWORK
@click.option("--workers", type=click.IntRange(1, 1000), help="Worker processes. Default: the number of cores.")
@scaling_options("--autoscale", "Have the leader change the number of workers, as 1..8, to what the load needs.")
@POOLS
@click.option("--partitions", type=click.IntRange(1, 256), help="Partitions of each stage. Default: 2 for each worker.")
@click.option("--job-id", callback=as_job_id, help="Name the job; an unfinished job of that name goes on.")
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
@DEBUG
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
