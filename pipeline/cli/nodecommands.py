"""`celeriac node`: the nodes of a job, and giving one's work away; `celeriac moves`: partitions that have moved."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import asdict
from typing import Final

import click

from pipeline.cli.exits import HELP, JobFailed
from pipeline.cli.groups import Group
from pipeline.cli.moving import moves_cells, moves_line, table
from pipeline.cli.options import DEBUG, JOB, JSON, SERVER
from pipeline.errors import JobStateError, PipelineError
from pipeline.facts import JobFacts
from pipeline.lifecycle import WORKING
from pipeline.nodes import able_nodes, has_pools, node_rows, owned_by
from pipeline.pools import POOL
from pipeline.store.connection import connect
from pipeline.store.jobs import JobStore
from pipeline.store.moving import MovingStore
from pipeline.store.scripts import Scripts
from pipeline.validation import suggestion
from pipeline.wording import counted

_LOOK_SECONDS: Final = 0.1
_NAMED: Final = 10
"""So many partitions are named in a message; of more the number is enough."""

_NODE = click.argument("node", metavar="NODE")


@click.group(cls=Group)
def node() -> None:
    """Show the nodes of a job, and drain one: give its partitions to others.

    A node is an agent and its workers: that of `celeriac run`, one of `celeriac worker`, a container.
    """


@node.command("list")
@JOB
@SERVER
@JSON
@DEBUG
def list_nodes(job: str, redis_url: str, as_json: bool) -> None:
    """List the nodes of a job: workers that live, partitions, how busy they are, state."""
    facts = JobStore(Scripts(connect(redis_url))).facts(job)
    rows = node_rows(facts)
    if as_json:
        click.echo(json.dumps([{**asdict(row), "state": row.state} for row in rows], indent=2))
    elif rows:
        cells = [("node", "workers", "partitions", "busy", "state", "pools")]
        cells += [
            (
                row.name or "?",
                f"{row.live}/{row.workers}",
                str(row.partitions),
                f"{row.busy:.0%}",
                row.state,
                " ".join(row.pools),
            )
            for row in rows
        ]
        click.echo("\n".join(table(cells if has_pools(facts) else [row[:-1] for row in cells])))
    else:
        click.echo("no nodes", err=True)


@node.command("drain", epilog=HELP)
@JOB
@_NODE
@SERVER
@click.option(
    "--wait",
    "wait_seconds",
    type=click.FloatRange(0, 86_400),
    default=60.0,
    show_default=True,
    help="Seconds to wait until it owns nothing. It goes on after that.",
)
@click.option("--stop", is_flag=True, help="Have the agent of `celeriac worker` end when its workers own nothing.")
@DEBUG
def drain_node(job: str, node: str, redis_url: str, wait_seconds: float, stop: bool) -> None:
    """Give all partitions of a node to others, some at a time, and wait until it owns none.

    It stays drained, whatever its workers and leaders do, until `celeriac node undrain`. When the time is over first,
    the partitions that are left are named; nothing is lost, and it goes on.
    """
    scripts = Scripts(connect(redis_url))
    store, moving = JobStore(scripts), MovingStore(scripts, job)
    mark_drained(lambda: store.facts(job), moving, node, stops=stop)
    left = until_empty(lambda: store.facts(job), node, wait_seconds, lambda line: click.echo(line, err=True))
    if left:
        named = ", ".join(left[:_NAMED]) + (f" and {len(left) - _NAMED} more" if len(left) > _NAMED else "")
        raise JobFailed(
            f"node {node} is not drained after {wait_seconds:g} s: it still owns {named}",
            hint=f"it goes on; `celeriac node drain {job} {node}` waits again, `celeriac node list {job}` shows more",
        )
    click.echo(f"node {node} of job {job} owns nothing" + (", and its agent ends" if stop else ""))


@node.command("undrain")
@JOB
@_NODE
@SERVER
@DEBUG
def undrain_node(job: str, node: str, redis_url: str) -> None:
    """Let a drained node have work again. Its workers are given partitions as if they were new."""
    was_drained = MovingStore(Scripts(connect(redis_url)), job).undrain(node)
    click.echo(f"node {node} of job {job} is not drained" + ("" if was_drained else ", and was not"))


@click.command()
@JOB
@SERVER
@click.option("--last", type=click.IntRange(1, 200), default=20, show_default=True, help="Show so many moves.")
@JSON
@DEBUG
def moves(job: str, redis_url: str, last: int, as_json: bool) -> None:
    """Show which partitions have moved to another worker, why, and how long each stood still; the newest first."""
    scripts = Scripts(connect(redis_url))
    JobStore(scripts).state(job)
    found = MovingStore(scripts, job).moves()
    if as_json:
        click.echo(json.dumps([asdict(moved) for moved in found[:last]], indent=2))
    elif found:
        click.echo("\n".join([moves_line(found), *table(moves_cells(found[:last]))]))
    else:
        click.echo("no partition has moved", err=True)


def mark_drained(look: Callable[[], JobFacts], moving: MovingStore, node: str, *, stops: bool) -> None:
    """Has the node drained. Raises PipelineError for an unknown one, JobStateError when nobody could take its work."""
    facts = look()
    if facts.record.state not in WORKING:
        raise JobStateError(f"job {facts.record.job!r} is {facts.record.state.value}: nothing moves in it")
    names = [row.name for row in node_rows(facts)]
    if node not in names:
        raise PipelineError(f"job {facts.record.job!r} has no node {node!r}", hint=suggestion(node, names))
    was_drained = node in facts.drained
    if not was_drained:
        _check_others(facts, node)
    moving.drain(node, stops=stops)
    try:
        if not was_drained:
            _check_others(look(), node)  # somebody may have drained all others meanwhile
    except JobStateError:
        moving.undrain(node)
        raise


def _check_others(facts: JobFacts, node: str) -> None:
    """Raises JobStateError when nobody else could take what the node has, now or later."""
    plan = facts.record.plan
    needed = {plan.pool_of(part.stage) for part in facts.partitions if not part.is_through}
    for pool in sorted({worker.pool for worker in facts.workers if worker.node == node} & needed):
        if not able_nodes(facts, pool) - {node}:
            others = "" if plan.pools() == [POOL] else f" of pool {pool}"
            raise JobStateError(
                f"node {node!r} is the last one{others} of job {facts.record.job!r} that may have work",
                hint="join another one first (`celeriac worker`), or undrain one; `celeriac drain` ends the job",
            )


def until_empty(
    look: Callable[[], JobFacts],
    node: str,
    seconds: float,
    tell: Callable[[str], None],
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> list[str]:
    """Waits until the node owns nothing, and tells how far it is; the partitions that are left after so many seconds.

    Raises what `look` raises.
    """
    until, told = clock() + seconds, -1
    while True:
        facts = look()
        left = [part.name for part in owned_by(facts, node)]
        if not left or facts.record.state not in WORKING or clock() >= until:
            return left if facts.record.state in WORKING else []
        if len(left) != told:
            told = len(left)
            tell(f"node {node}: {counted(told, 'partition')} left")
        sleep(_LOOK_SECONDS)
