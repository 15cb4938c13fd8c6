"""`celeriac state`: what the keyed operators of a job hold for their keys."""

from __future__ import annotations

from collections.abc import Callable
from itertools import islice
from typing import Any

import click
import msgspec

from pipeline.cli.groups import Group
from pipeline.cli.options import DEBUG, JOB, JSON, SERVER
from pipeline.cli.screen import Screen
from pipeline.client import Client, StateValue
from pipeline.reading.keytext import key_text, parse_key
from pipeline.reading.live import missing_key
from pipeline.sinks.lines import text_of

_Command = Callable[..., Any]
_STAGE = click.argument("stage", metavar="STAGE")
_OPERATOR = click.option("--operator", metavar="NAME", help="Of this operator only.")

_PAGE = 100


@click.group(cls=Group)
def state() -> None:
    """Look at the state of a job's keys, as of the last commit.

    STAGE is a stage's number, the name of its key_by, or that of an operator in it.
    """


@state.command("get")
@JOB
@_STAGE
@click.argument("key", metavar="KEY")
@SERVER
@_OPERATOR
@JSON
@DEBUG
def get_state(job: str, stage: str, key: str, redis_url: str, operator: str | None, as_json: bool) -> None:
    """Show what one key has.

    KEY is text, or the JSON of what is no text: 1 is the number, '"1"' the text; '["a", 1]' is a tuple.
    """
    wanted = parse_key(key)
    with Client(redis_url) as client, Screen(False) as screen:
        found = client.state(job).operators(stage, wanted, operator)
        if not found:
            raise missing_key(f"stage {stage} of job {job}", wanted)
        if as_json:
            screen.records([_json({"key": key_text(wanted), "operators": {n: _value(v) for n, v in found.items()}})])
        elif len(found) == 1:
            screen.records([text_of(value.result) for value in found.values()])
        else:
            screen.records([f"{name}: {text_of(value.result)}" for name, value in found.items()])


@state.command("keys")
@JOB
@_STAGE
@SERVER
@_OPERATOR
@click.option("--prefix", help="Text keys that begin so only.")
@click.option("--limit", type=click.IntRange(1), default=1000, show_default=True, help="Show at most so many.")
@DEBUG
def list_keys(job: str, stage: str, redis_url: str, operator: str | None, prefix: str | None, limit: int) -> None:
    """List the keys of a stage, one a line, in no order, in the form that `state get` takes."""
    with Client(redis_url) as client, Screen(False) as screen:
        keys = client.state(job).keys(stage, prefix, limit + 1, operator)
        shown = islice(keys, limit)
        while page := [key_text(key) for key in islice(shown, _PAGE)]:
            screen.records(page)
        if next(keys, None) is not None:
            screen.note(f"there are more keys than {limit:,}; --limit shows more of them")


def _value(value: StateValue) -> dict[str, Any]:
    return {"result": value.result, "raw": value.raw}


def _json(value: Any) -> str:
    return msgspec.json.encode(value).decode()
