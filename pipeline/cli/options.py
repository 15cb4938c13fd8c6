"""Arguments and options that several commands of `celeriac` share."""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import wraps
from typing import Any

import click

from pipeline.cli.primaries import only_server, server_of
from pipeline.errors import PipelineError
from pipeline.redis_addresses import NETWORK_VARIABLE, Network, in_order, parse_networks, split_servers
from pipeline.spark import settings
from pipeline.store.jobs import JOB_ID

REDIS_VARIABLE = "CELERIAC_REDIS"

_Command = Callable[..., Any]


class _Servers(click.ParamType):  # type: ignore[type-arg]  # older versions of click have no arguments there
    """An address; a variable may hold those of several servers, with spaces between."""

    name = "url"

    def split_envvar_value(self, rv: str) -> list[str]:
        return split_servers(rv)


def redis_option(required: bool, text: str) -> Callable[[_Command], _Command]:
    """The option --redis, or the variable in its place; the command gets `redis_urls`, one for each server.

    What is several addresses of one server comes in the order to try.
    """
    return click.option(
        "--redis",
        "redis_urls",
        metavar="URL",
        type=_Servers(),
        multiple=True,
        envvar=REDIS_VARIABLE,
        required=required,
        show_envvar=True,
        callback=_ordered,
        help=text,
    )


def _ordered(context: click.Context, _parameter: click.Parameter, values: tuple[str, ...]) -> tuple[str, ...]:
    networks = context.meta.get(NETWORK_VARIABLE) or _networks(os.environ.get(NETWORK_VARIABLE, ""))
    return tuple(in_order(value, networks) for value in values)


def _networks(text: str) -> list[Network]:
    try:
        return parse_networks(text)
    except PipelineError as error:
        raise click.BadParameter(f"{error}; {error.hint}") from error


def _note_networks(context: click.Context, _parameter: click.Parameter, value: str | None) -> None:
    if value:
        context.meta[NETWORK_VARIABLE] = _networks(value)


PREFER_NETWORK = click.option(
    "--prefer-network",
    metavar="CIDR",
    is_eager=True,
    expose_value=False,
    envvar=NETWORK_VARIABLE,
    show_envvar=True,
    callback=_note_networks,
    help="Of several addresses of Redis, try those in this network before others, as 10.0.0.0/8.",
)


def job_id(_context: click.Context, _parameter: click.Parameter, value: str | None) -> str | None:
    """Checks a job id, for click."""
    if value is not None and not JOB_ID.match(value):
        raise click.BadParameter(f"{value!r} is no job id: use letters, digits, '-', '_' and '.', at most 100")
    return value


JOB = click.argument("job", metavar="JOB", callback=job_id)
SERVERS = redis_option(True, "Address of the Redis that holds the job. Put one with a password into the variable.")


def SERVER(command: _Command) -> _Command:  # noqa: N802  # it stands among the options
    """As SERVERS; the command gets `redis_url`, that of the server that has its `job`."""

    @SERVERS
    @wraps(command)
    def call(*args: Any, redis_urls: tuple[str, ...], **rest: Any) -> Any:
        job = rest.get("job")
        url = server_of(redis_urls, job) if job is not None else only_server(redis_urls)
        return command(*args, redis_url=url, **rest)

    return call


JSON = click.option("--json", "as_json", is_flag=True, help="Print JSON, for programs.")
DEBUG = click.option("--debug", is_flag=True, expose_value=False, help="Show the traceback of an error.")


def _told_spark(_context: click.Context, _parameter: click.Parameter, lines: tuple[str, ...]) -> None:
    try:
        if lines:
            settings.tell(settings.parse(lines))
    except PipelineError as error:
        raise click.BadParameter("; ".join(filter(None, (str(error), error.hint)))) from error


SPARK_SETTINGS = click.option(
    "--conf",
    metavar="KEY=VALUE",
    multiple=True,
    expose_value=False,
    callback=_told_spark,
    help=f"A setting of Spark, where it is used; may be repeated. Lines of {settings.SETTINGS_VARIABLE} are hidden from"
    " others.",
)
"""For every Spark session of the command, and of what it starts."""
