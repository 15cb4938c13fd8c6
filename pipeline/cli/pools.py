"""How many workers `celeriac run` keeps in each pool, from its options; and the pool of a node that joins."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import click
import msgspec

from pipeline.errors import PipelineError
from pipeline.plan import Plan
from pipeline.pools import POOL
from pipeline.scaling.settings import MOST_WORKERS, Scaling, parse_range
from pipeline.validation import NAME, suggestion
from pipeline.wording import counted

FOR_ONE: Final = 1
"""Workers of a pool of which nothing is said."""


@dataclass(frozen=True, slots=True)
class PoolWorkers:
    """Workers of one pool: a fixed number, or with `scaling` what the leader makes of it; then None to begin with."""

    count: int | None
    scaling: Scaling | None = None

    @property
    def most(self) -> int:
        return self.scaling.maximum if self.scaling else self.count or 0

    def words(self, workers: int) -> str:
        """With so many just now."""
        shown = counted(workers, "worker")
        return f"{shown}, scaled within {self.scaling.minimum}..{self.scaling.maximum}" if self.scaling else shown


def _read(_context: click.Context, _parameter: click.Parameter, values: tuple[str, ...]) -> dict[str, PoolWorkers]:
    return dict(map(_read_one, values))


def _read_one(text: str) -> tuple[str, PoolWorkers]:
    name, equals, number = text.partition("=")
    if not equals or not NAME.fullmatch(name):
        raise click.BadParameter(f"{text!r}: write NAME=WORKERS, as gpu=2, or gpu=1..4")
    if name == POOL:
        raise click.BadParameter(f"the pool {POOL} is what --workers and --autoscale are for")
    if number.isascii() and number.isdecimal() and int(number) <= MOST_WORKERS:
        return name, PoolWorkers(int(number))
    try:
        return name, PoolWorkers(None, Scaling(*parse_range(number)))
    except PipelineError as error:
        raise click.BadParameter(f"{text!r}: {error.hint}, or a number of workers, also 0") from error


POOLS: Final = click.option(
    "--pool",
    "pools",
    metavar="NAME=WORKERS",
    multiple=True,
    callback=_read,
    help="Workers of a pool, as gpu=2, gpu=1..4 to have them scaled, or gpu=0 for none here. Default: 1 for each pool.",
)


def pool_name(_context: click.Context, _parameter: click.Parameter, value: str | None) -> str:
    """Checks the name of a pool, for click."""
    if value and not NAME.fullmatch(value):
        raise click.BadParameter(f"{value!r} is no name of a pool: letters, digits, '_' and '-', a letter first")
    return value or POOL


ONE_POOL: Final = click.option(
    "--pool",
    metavar="NAME",
    envvar="CELERIAC_POOL",
    show_envvar=True,
    callback=pool_name,
    help="The pool of its workers: they run the stages of that pool only. Default: main.",
)


def check_pool(plan: Plan, pool: str) -> None:
    """Raises PipelineError for a pool that no stage of the job needs."""
    known = plan.pools()
    if pool not in known:
        raise PipelineError(
            f"no stage of the pipeline {plan.pipeline!r} has the pool {pool!r}", hint=suggestion(pool, known)
        )


def all_pools(plan: Plan, main: PoolWorkers, given: Mapping[str, PoolWorkers]) -> dict[str, PoolWorkers]:
    """Pool -> its workers here, for each that a stage needs. One that is not `given` is scaled as `main`, or has one.

    A scaled one takes all but its bounds from `main`, where that is scaled. Raises PipelineError for a pool that no
    stage needs.
    """
    for name in given:
        check_pool(plan, name)
    found = {}
    for name in plan.pools():
        workers = main if name == POOL else given.get(name)
        if workers is None:
            workers = PoolWorkers(None, main.scaling) if main.scaling else PoolWorkers(FOR_ONE)
        if workers.scaling and main.scaling:
            bounds = {"minimum": workers.scaling.minimum, "maximum": workers.scaling.maximum}
            workers = PoolWorkers(workers.count, msgspec.structs.replace(main.scaling, **bounds))
        found[name] = workers
    return found


def kept_pools(plan: Plan, file: Plan) -> list[str]:
    """What to say of stages that a job which goes on runs in another pool than its file says by now."""
    return [
        f"warning: stage {stage.name} stays in the pool {stage.pool}, with which the job was made;"
        f" the file says {now.pool}"
        for stage, now in zip(plan.stages, file.stages, strict=False)
        if stage.pool != now.pool
    ]
