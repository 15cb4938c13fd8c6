"""`celeriac worker`: joins a node to a running job. It becomes the node's agent, which keeps its workers running."""

from __future__ import annotations

import os
import socket
import sys
import time
from collections.abc import Callable
from typing import Final, NoReturn

import click

from pipeline.cli.bulk import SparkOptions, check_stream
from pipeline.cli.exits import HELP
from pipeline.cli.options import DEBUG, JOB, PREFER_NETWORK, SERVER, SPARK_SETTINGS
from pipeline.cli.pools import ONE_POOL, check_pool
from pipeline.cli.services import checkout_path
from pipeline.errors import JobStateError, PipelineError
from pipeline.facts import JobFacts, JobRecord
from pipeline.lifecycle import WORKING
from pipeline.loader import load_graph
from pipeline.needs import IN_A_BURST, IN_A_STREAM, find_needs, refuse_frames
from pipeline.nodes import NO_NAME, NODE_NAME, free_name, is_in_use
from pipeline.plan import fingerprint
from pipeline.pools import POOL
from pipeline.store.connection import check_server, connect
from pipeline.store.jobs import JobStore
from pipeline.store.permissions import check_permissions
from pipeline.store.scripts import Scripts
from pipeline.wording import counted

_LOOK_SECONDS: Final = 0.2
_SPARE_SECONDS: Final = 1.0


def node_name(_context: click.Context, _parameter: click.Parameter, value: str | None) -> str | None:
    """Checks the name of a node, for click."""
    if value is not None and not NODE_NAME.match(value):
        raise click.BadParameter(f"{value!r} is no name of a node: {NO_NAME}")
    return value


NODE: Final = click.option(
    "--node",
    metavar="NAME",
    envvar="CELERIAC_NODE",
    show_envvar=True,
    callback=node_name,
    help="Name this node; each agent of a job has a name of its own. Default: the host's.",
)


@click.command(epilog=HELP)
@JOB
@click.argument("target", metavar="FILE.py[:NAME]")
@SERVER
@PREFER_NETWORK
@click.option("--workers", type=click.IntRange(1, 1000), help="Worker processes. Default: the number of cores.")
@ONE_POOL
@NODE
@click.option(
    "--engine",
    type=click.Choice(("celery", "spark")),
    default="celery",
    show_default=True,
    help="spark: the node is a Spark streaming query, as one worker.",
)
@click.option(
    "--bursts",
    "offers_bursts",
    is_flag=True,
    help="Have the node begin the bursts that the autoscaler decides.",
)
@click.option("--master", metavar="URL", help="With --engine spark or --bursts: the Spark master. Default: local[*].")
@SPARK_SETTINGS
@DEBUG
def worker(
    job: str,
    target: str,
    redis_url: str,
    workers: int | None,
    pool: str,
    node: str | None,
    engine: str,
    offers_bursts: bool,
    master: str | None,
) -> NoReturn:
    """Join a node to a running job, until the job ends or Ctrl-C, which gives its partitions away.

    Its workers are given partitions that others have; each of those pauses for some milliseconds. FILE.py is the job's
    own file. Leader and sources stay where `celeriac run` is. With --engine spark the partitions that it is given are
    worked on by Spark, and go back to other workers when it ends.
    """
    is_spark = engine == "spark"
    if master and not is_spark and not offers_bursts:
        raise click.UsageError("--master goes with --engine spark, or with --bursts")
    if workers and is_spark:
        raise click.UsageError("--workers makes no sense with --engine spark: the streaming query is one worker")
    if is_spark or offers_bursts:
        check_stream(SparkOptions(master or None, None, None, is_stream=True))
    scripts = Scripts(connect(redis_url))
    store = JobStore(scripts)
    record = store.read(job)
    check_work(scripts, record, target, without_frames=IN_A_STREAM if is_spark else IN_A_BURST if offers_bursts else "")
    check_pool(record.plan, pool)
    name = chosen_name(lambda: store.facts(job), node)
    count = 1 if is_spark else workers or len(os.sched_getaffinity(0))
    what = "a streaming query of Spark" if is_spark else counted(count, "worker")
    of_pool = "" if pool == POOL else f" of pool {pool}"
    click.echo(f"node {name} joins job {job} with {what}{of_pool}", err=True)
    if name in store.facts(job).drained:
        click.echo(f"it is drained: `celeriac node undrain {job} {name}` lets it have work", err=True)
    sys.stderr.flush()
    variables = {
        "CELERIAC_REDIS": redis_url,
        "CELERIAC_JOB": job,
        "CELERIAC_PIPELINE": target,
        "CELERIAC_NODE": name,
        "CELERIAC_POOL": pool,
        "CELERIAC_PROCESSES": str(count),
        "CELERIAC_ONCE": "1",
        "CELERIAC_ENGINE": engine,
        "CELERIAC_STREAM_MASTER": master or "",
        "CELERIAC_BURSTS": "1" if offers_bursts else "",
    }
    environment = {key: value for key, value in os.environ.items() if key != "CELERIAC_WORKER"}
    os.execve(
        sys.executable, [sys.executable, "-P", "-m", "stages.member"], {**environment, **checkout_path(), **variables}
    )


def check_work(scripts: Scripts, record: JobRecord, target: str, *, without_frames: str = "") -> None:
    """Whether this process can work at the job by that file, on this machine.

    without_frames: who cannot run operators of DataFrames, and why, where that is so.

    Raises JobStateError when the job does not work, PipelineError for another file, EnvironmentFault, StoreError.
    """
    if record.state not in WORKING:
        raise JobStateError(f"job {record.job!r} is {record.state.value}: there is nothing to work on")
    graph = load_graph(target)
    if fingerprint(graph) != record.plan.fingerprint:
        raise PipelineError(
            f"{target} is not the pipeline that job {record.job!r} was started with",
            hint="give the file that it was run with",
        )
    if without_frames:
        refuse_frames(graph.nodes, without_frames)
    find_needs(graph.nodes)
    check_server(scripts.client)
    check_permissions(scripts.client)


def chosen_name(
    look: Callable[[], JobFacts],
    wanted: str | None,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> str:
    """The name of the node that joins. Raises JobStateError when the wanted one is taken.

    An agent that has just been killed counts as living for the time of a lease: so long it is waited for.
    """
    facts = look()
    if wanted is None:
        return free_name(facts, socket.gethostname())
    until = clock() + facts.record.plan.limits.lease_seconds + _SPARE_SECONDS
    while is_in_use(facts, wanted):
        if clock() >= until:
            raise JobStateError(
                f"job {facts.record.job!r} has a node {wanted!r} already, which is at work",
                hint="each agent needs a name of its own: give another --node",
            )
        sleep(_LOOK_SECONDS)
        facts = look()
    return wanted
