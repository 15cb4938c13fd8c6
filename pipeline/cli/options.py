"""Arguments and options that several commands of `celeriac` share."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import click

from pipeline.store.jobs import JOB_ID

REDIS_VARIABLE = "CELERIAC_REDIS"

_Command = Callable[..., Any]


def redis_option(required: bool, text: str) -> Callable[[_Command], _Command]:
    """The option --redis, or the variable in its place."""
    return click.option(
        "--redis", "redis_url", metavar="URL", envvar=REDIS_VARIABLE, required=required, show_envvar=True, help=text
    )


def job_id(_context: click.Context, _parameter: click.Parameter, value: str | None) -> str | None:
    """Checks a job id, for click."""
    if value is not None and not JOB_ID.match(value):
        raise click.BadParameter(f"{value!r} is no job id: use letters, digits, '-', '_' and '.', at most 100")
    return value


JOB = click.argument("job", metavar="JOB", callback=job_id)
SERVER = redis_option(True, "Address of the Redis that holds the job. Put one with a password into the variable.")
JSON = click.option("--json", "as_json", is_flag=True, help="Print JSON, for programs.")
DEBUG = click.option("--debug", is_flag=True, expose_value=False, help="Show the traceback of an error.")
