"""`celeriac autoscale`: the last decisions about a job's workers, or what would be decided now; and `run`'s options."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import replace
from functools import wraps
from typing import Any, Final

import click
import msgspec

from pipeline.cli.options import DEBUG, JOB, JSON, SERVER
from pipeline.cli.pools import check_pool
from pipeline.cli.scaling import bounds, decision_lines, scaling_lines
from pipeline.errors import JobStateError, PipelineError
from pipeline.facts import JobFacts
from pipeline.lifecycle import WORKING
from pipeline.pools import POOL
from pipeline.scaling.decision import Decision, decide
from pipeline.scaling.history import History
from pipeline.scaling.load import Load
from pipeline.scaling.policies import Choice, Kind, choose
from pipeline.scaling.settings import POLICIES, Scaling, parse_range
from pipeline.store.connection import connect
from pipeline.store.jobs import JobStore
from pipeline.store.scaling import ScalingStore
from pipeline.store.scripts import Scripts

LOOK_SECONDS: Final = 0.5

_Command = Callable[..., Any]


def scaling_options(name: str, text: str) -> Callable[[_Command], _Command]:
    """The options of a scaling. The command gets one `scaling`, None where none of the bounds is given."""

    def decorate(command: _Command) -> _Command:
        @wraps(command)
        def call(*args: Any, scale: str | None, policy: str | None, **rest: Any) -> Any:
            times = {"catch_up_seconds": rest.pop("catch_up_seconds"), "cooldown_seconds": rest.pop("cooldown_seconds")}
            times["burst_behind_seconds"] = rest.pop("burst_behind_seconds")
            return command(*args, scaling=_scaling(name, scale, policy, times), **rest)

        options = [
            click.option(name, "scale", metavar="MIN..MAX", help=text),
            click.option(
                "--autoscale-policy", "policy", type=click.Choice(POLICIES), help="How it is decided. Default: ds2."
            ),
            click.option(
                "--catch-up",
                "catch_up_seconds",
                type=click.FloatRange(1, 86_400),
                help="Seconds in which a backlog is to be gone. Default: 60.",
            ),
            click.option(
                "--cooldown",
                "cooldown_seconds",
                type=click.FloatRange(1, 86_400),
                help="Seconds between two changes at least. Default: 30.",
            ),
            click.option(
                "--burst-behind",
                "burst_behind_seconds",
                type=click.FloatRange(10, 86_400),
                help="Have Spark work off partitions that need more seconds with the most workers. Default: never.",
            ),
        ]
        for option in reversed(options):
            call = option(call)
        return call

    return decorate


def _scaling(name: str, scale: str | None, policy: str | None, times: dict[str, float | None]) -> Scaling | None:
    given: dict[str, Any] = {key: value for key, value in {"policy": policy, **times}.items() if value is not None}
    if scale is None:
        if given:
            raise click.UsageError(
                f"--autoscale-policy, --catch-up, --cooldown and --burst-behind need {name} MIN..MAX"
            )
        return None
    try:
        minimum, maximum = parse_range(scale)
    except PipelineError as error:
        raise click.BadParameter(f"{error}: {error.hint}", param_hint=name) from error
    return Scaling(minimum, maximum, **given)


@click.command()
@JOB
@SERVER
@click.option(
    "--dry-run", "is_dry", is_flag=True, help="Measure the job now, and show what would be done. Changes nothing."
)
@scaling_options(
    "--workers", "With --dry-run: other bounds than the job's own. Default for a fixed number: 1..partitions."
)
@click.option("--pool", metavar="NAME", help="With --dry-run: the pool to judge. Default: main.")
@click.option(
    "--seconds",
    type=click.FloatRange(2, 600),
    default=10.0,
    show_default=True,
    help="With --dry-run: how long to measure.",
)
@click.option("--last", type=click.IntRange(1, 100), default=5, show_default=True, help="Show so many decisions.")
@JSON
@DEBUG
def autoscale(
    job: str,
    redis_url: str,
    is_dry: bool,
    scaling: Scaling | None,
    pool: str | None,
    seconds: float,
    last: int,
    as_json: bool,
) -> None:
    """Show how the number of a job's workers was decided: the last changes, each with the facts it was made from."""
    if scaling is not None and not is_dry:
        raise click.UsageError("--workers goes with --dry-run; celeriac run --autoscale has a job scaled")
    if pool is not None and not is_dry:
        raise click.UsageError("--pool goes with --dry-run; the decisions about all pools are shown")
    scripts = Scripts(connect(redis_url))
    if is_dry:
        decision, line = _dry_run(JobStore(scripts), job, scaling, seconds, pool or POOL)
        click.echo(json.dumps(msgspec.to_builtins(decision), indent=2) if as_json else line)
        return
    facts = JobStore(scripts).facts(job)
    decisions = ScalingStore(scripts).decisions(job, last)
    if as_json:
        click.echo(json.dumps(msgspec.to_builtins(decisions), indent=2))
        return
    fixed = "the number of workers is fixed; celeriac run --autoscale MIN..MAX has a job scaled"
    click.echo("\n".join(scaling_lines(facts.record, facts.now_ms)) or fixed)
    for decision in decisions:
        click.echo("\n".join(decision_lines(decision)))


def _dry_run(store: JobStore, job: str, given: Scaling | None, seconds: float, pool: str) -> tuple[Decision, str]:
    """What a policy decides on what a pool does now, and the page of it.

    Raises JobStateError, UnknownJob, PipelineError for a pool that the job has not.
    """
    check_pool(store.read(job).plan, pool)
    history, until = History(), time.monotonic() + seconds
    while True:
        facts = store.facts(job)
        if facts.record.state not in WORKING:
            raise JobStateError(f"job {job!r} is {facts.record.state.value}: there is nothing to measure")
        history.add(facts)
        if time.monotonic() >= until:
            break
        time.sleep(LOOK_SECONDS)
    size = facts.record.scaled.get(pool)
    scaling = given or (size.scaling if size else _widest(facts, pool))
    load = _load(history, facts, scaling, seconds, pool)
    decision = decide(facts, scaling, load, pool)
    choice = (
        choose(load, scaling)
        if load
        else Choice(Kind.UNKNOWN, decision.before, "a worker came or went while it was measured")
    )
    before = load.wanted if load else decision.before
    said = choice.kind, before, choice.wanted, choice.why
    shown = Decision(facts.now_ms, *said, scaling.policy, load, choice.needs, pool)
    notes = [f"it would wait: {decision.why}"] if size and decision.kind is Kind.WAITING and shown.is_change else []
    return shown, "\n".join([f"{bounds(scaling)}, nothing is changed", *decision_lines(shown), *notes])


def _widest(facts: JobFacts, pool: str) -> Scaling:
    """For a pool whose number of workers is fixed: as many as there are partitions would have something to do."""
    plan = facts.record.plan
    useful = sum(1 for part in facts.partitions if plan.pool_of(part.stage) == pool)
    return Scaling(1, max(1, min(1000, useful)))


def _load(history: History, facts: JobFacts, scaling: Scaling, seconds: float, pool: str) -> Load | None:
    """Of all looks. Where no agent changes the number, all workers are those that could be more or fewer."""
    wide = msgspec.structs.replace(scaling, window_seconds=seconds + 1, warm_up_seconds=0.0)
    load = history.load(facts, wide, pool)
    if load is None or pool in facts.record.scaled:
        return load
    there = load.workers + load.others
    return replace(load, workers=there, others=0, wanted=there)
