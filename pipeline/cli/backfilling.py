"""`celeriac backfill`: history in bulk on Spark, and a savepoint with which a live job goes on behind it.

With --job it is about some keys of a job that runs: `pipeline.cli.recomputing`.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click
from click.core import ParameterSource

from pipeline.cli.bulk import MASTER_VARIABLE, OnSpark, SparkOptions, need_engine
from pipeline.cli.exits import HELP, Exit
from pipeline.cli.interrupts import Interrupts
from pipeline.cli.options import DEBUG, REDIS_VARIABLE, SPARK_SETTINGS, job_id, redis_option
from pipeline.cli.primaries import server_of
from pipeline.cli.recomputing import Order, Which, recompute_keys
from pipeline.cli.savepoints import FOLDER, summary
from pipeline.cli.screen import Screen
from pipeline.cli.submitting import PARTITIONS
from pipeline.errors import SavepointError
from pipeline.loader import load_graph
from pipeline.settings import Limits

if TYPE_CHECKING:
    from pipeline.savepoints.places import Place
    from pipeline.spark.bulk.engine import BulkRun


_FOR_A_JOB: Final = ("redis_urls", "keys_path", "condition", "operator", "wait_seconds")
_FOR_A_SAVEPOINT: Final = ("folder", "name", "cuts", "results")


@click.command(epilog=HELP)
@click.argument("target", metavar="FILE.py[:NAME]")
@click.option("--to", "folder", metavar="FOLDER", default=FOLDER, show_default=True, help="The savepoint's folder.")
@click.option(
    "--savepoint", "name", metavar="NAME", callback=job_id, help="Its name. Default: pipeline, time, letters."
)
@click.option(
    "--until",
    "cuts",
    metavar="SOURCE=COUNT",
    multiple=True,
    help="Read the first COUNT records of a source only. Default: all that is there.",
)
@click.option(
    "--results",
    type=click.Path(file_okay=False, path_type=Path),
    metavar="FOLDER",
    help="Put the results of the history below this folder. Default: NAME.results.",
)
@click.option(
    "--partitions",
    type=click.IntRange(1, 256),
    default=PARTITIONS,
    show_default=True,
    help="Partitions of each stage; a live job may have others.",
)
@click.option(
    "--master",
    metavar="URL",
    envvar=MASTER_VARIABLE,
    show_envvar=True,
    help="The Spark master. Default: local[*].",
)
@click.option("--remote", metavar="sc://HOST:PORT", help="A Spark Connect server.")
@click.option(
    "--scratch",
    type=click.Path(file_okay=False, path_type=Path),
    help="A folder that all hosts of Spark share, for what stages hand on.",
)
@SPARK_SETTINGS
@click.option(
    "--job",
    metavar="JOB",
    callback=job_id,
    help="Compute the state of some keys of this running job anew, and swap it: with --keys or --where.",
)
@redis_option(False, "With --job: address of the Redis that holds the job.")
@click.option(
    "--keys",
    "keys_path",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    metavar="FILE",
    help="With --job: these keys, one a line, as text or JSON.",
)
@click.option(
    "--where",
    "condition",
    metavar="SQL",
    help="With --job: keys with state of which this holds, as \"operator = 'balance' and value like '-%'\".",
)
@click.option("--operator", metavar="NAME", help="With --job: of the stage that this operator is in.")
@click.option(
    "--wait",
    "wait_seconds",
    type=click.FloatRange(0, 86_400),
    default=60.0,
    show_default=True,
    help="With --job: seconds to wait until nothing is in flight, with the input held back.",
)
@click.option("--quiet", is_flag=True, help="Show errors only.")
@DEBUG
@click.pass_context
def backfill(
    context: click.Context,
    target: str,
    folder: str,
    name: str | None,
    cuts: tuple[str, ...],
    results: Path | None,
    partitions: int,
    master: str | None,
    remote: str | None,
    scratch: Path | None,
    job: str | None,
    redis_urls: tuple[str, ...],
    keys_path: Path | None,
    condition: str | None,
    operator: str | None,
    wait_seconds: float,
    quiet: bool,
) -> Exit:
    """Process what is there already in bulk on Spark, and leave a savepoint for a live job.

    `run` or `submit` with --from-savepoint goes on with the next record of each source. Sources that producers feed, or
    that are followed, are left to it. The savepoint is written last: a backfill that was killed left none, and is run
    again.

    With --job it does another thing: it computes the state of some keys of a running job anew from the files that the
    job has read, and swaps it in at one instant. No results are written, and other keys keep their state.
    """
    _check_mode(context, job)
    interrupts: Interrupts = context.obj
    spark = SparkOptions(None if remote else master or None, remote, scratch)
    if job is not None:
        if (keys_path is None) == (condition is None):
            raise click.UsageError("--job needs --keys FILE or --where SQL")
        if not redis_urls:
            raise click.UsageError(f"--job needs --redis URL, or {REDIS_VARIABLE}")
        which = Which(keys_path, condition, operator)
        order = Order(job, target, server_of(redis_urls, job), which, wait_seconds, partitions, spark)
        return recompute_keys(order, Screen(quiet), interrupts)
    counts = _counts(cuts)
    need_engine()
    from pipeline.savepoints.manifest import new_name
    from pipeline.savepoints.places import place_of
    from pipeline.spark.bulk.beginning import first_records

    graph = load_graph(target)
    place = place_of(folder)
    name = name or new_name(_plain(graph.name), time.localtime())
    if name in place.names():
        raise SavepointError(f"there is a savepoint {name} in {place.url} already", hint="choose another --savepoint")
    more = {
        "ranges": first_records(graph, counts, Limits()),
        "results": results or Path(f"{name}.results"),
        "leaves_followed": True,
        "keeps_state": True,
        "ends_input": False,
        "job": name,
    }
    on_spark = OnSpark(target, partitions, spark, Screen(quiet), interrupts)
    with interrupts.deferred():
        return on_spark.run(more, partial(_handing_over, place=place, name=name, target=target))


def _check_mode(context: click.Context, job: str | None) -> None:
    """Refuses options of the other half of the command. A variable in the place of one may stand."""
    for parameter in context.command.params:
        name = parameter.name or ""
        if context.get_parameter_source(name) is not ParameterSource.COMMANDLINE:
            continue
        if job is None and name in _FOR_A_JOB:
            raise click.UsageError(f"{parameter.opts[-1]} goes with --job")
        if job is not None and name in _FOR_A_SAVEPOINT:
            raise click.UsageError(
                f"{parameter.opts[-1]} makes no sense with --job: no savepoint and no result is written"
            )


@contextmanager
def _handing_over(run: BulkRun, place: Place, name: str, target: str) -> Iterator[list[str]]:
    from pipeline.spark.bulk.handover import handed_over

    words: list[str] = []
    with handed_over(run, place, name) as manifest:
        yield words
    url = f"{place.url.rstrip('/')}/{name}"
    words.append(f"savepoint {url}: {summary(manifest)}")
    words.append(f"go on live, from the next record: celeriac run {target} --from-savepoint {url}")


def _counts(cuts: Iterable[str]) -> dict[str, int]:
    found: dict[str, int] = {}
    for cut in cuts:
        source, is_cut, count = cut.rpartition("=")
        if not is_cut or not source or not count.isdecimal():
            raise click.UsageError(f"--until {cut!r}: give SOURCE=COUNT, as lines=250000")
        if source in found:
            raise click.UsageError(f"--until: the source {source!r} is named twice")
        found[source] = int(count)
    return found


def _plain(name: str) -> str:
    """The pipeline's name as the beginning of a savepoint's."""
    return re.sub(r"[^A-Za-z0-9]", "-", name)[:60].strip("-") or "flow"
