"""The commands `celeriac dead-letters …`. What they print and choose is in `pipeline.cli.letters`."""

from __future__ import annotations

import json
import time

import click

from pipeline.cli.exits import Exit
from pipeline.cli.groups import Group
from pipeline.cli.letters import chosen, letter_json, letter_lines, list_lines, new_value, replay_all
from pipeline.cli.options import DEBUG, JOB, JSON, SERVER
from pipeline.plan import Plan
from pipeline.store.connection import connect
from pipeline.store.jobs import JobStore
from pipeline.store.letters import LetterStore
from pipeline.store.scripts import Scripts


@click.group("dead-letters", cls=Group)
def dead_letters() -> None:
    """Records that were given up: look at them, correct them, put them back, or drop them."""


_IDS = click.argument("ids", metavar="[ID]...", nargs=-1)
_ALL = click.option("--all", "takes_all", is_flag=True, help="All of the job.")
_OPERATOR = click.option("--operator", metavar="NAME", help="Those of one operator.")


@dead_letters.command("list")
@JOB
@SERVER
@_OPERATOR
@JSON
@DEBUG
def list_letters(job: str, redis_url: str, operator: str | None, as_json: bool) -> None:
    """List them, oldest first: id, age, operator, key, what is held behind, error. With --json one object a line."""
    plan, letters = _letters(redis_url, job)
    found = (letter for letter in letters.read() if operator is None or letter.operator == operator)
    if as_json:
        for letter in found:
            click.echo(json.dumps(letter_json(plan, letter), ensure_ascii=False))
        return
    is_empty = True
    for line in list_lines(plan, found, time.time_ns() // 1_000_000):
        click.echo(line)
        is_empty = False
    if is_empty:
        click.echo("no dead letters", err=True)


@dead_letters.command("show")
@JOB
@click.argument("id_", metavar="ID")
@SERVER
@JSON
@DEBUG
def show_letter(job: str, id_: str, redis_url: str, as_json: bool) -> None:
    """Show one: the record, the error with its traceback, and the attempts."""
    plan, letters = _letters(redis_url, job)
    letter = letters.get(id_)
    text = json.dumps(letter_json(plan, letter), indent=2) if as_json else "\n".join(letter_lines(plan, letter))
    click.echo(text)


@dead_letters.command("edit")
@JOB
@click.argument("id_", metavar="ID")
@SERVER
@click.option("--value", metavar="JSON", help="The new value. Without it your editor ($EDITOR) opens.")
@DEBUG
def edit_letter(job: str, id_: str, redis_url: str, value: str | None) -> None:
    """Give one another value, which a replay takes. Its key stays, since the key decides where it belongs."""
    _plan, letters = _letters(redis_url, job)
    letters.edit(letters.get(id_), new_value(letters, id_, value))
    click.echo(f"{id_} is edited; `celeriac dead-letters replay {job} {id_}` sends it")


@dead_letters.command("replay")
@JOB
@_IDS
@SERVER
@_ALL
@_OPERATOR
@DEBUG
def replay_letters(job: str, ids: tuple[str, ...], redis_url: str, takes_all: bool, operator: str | None) -> Exit:
    """Put records back where they failed, in order, each once, with all that is held behind them.

    One that fails again is a new dead letter.
    """
    _plan, letters = _letters(redis_url, job)
    done, faults = replay_all(letters, chosen(letters, ids, takes_all, operator))
    click.echo(f"{done} replayed")
    for fault in faults:
        click.echo(f"not replayed: {fault}", err=True)
    return Exit.USAGE if faults else Exit.FINISHED


@dead_letters.command("drop")
@JOB
@_IDS
@SERVER
@_ALL
@_OPERATOR
@DEBUG
def drop_letters(job: str, ids: tuple[str, ...], redis_url: str, takes_all: bool, operator: str | None) -> None:
    """Delete them for good. What is held behind them goes on."""
    _plan, letters = _letters(redis_url, job)
    click.echo(f"{letters.drop(chosen(letters, ids, takes_all, operator))} dropped")


def _letters(redis_url: str, job: str) -> tuple[Plan, LetterStore]:
    scripts = Scripts(connect(redis_url))
    record = JobStore(scripts).read(job)
    return record.plan, LetterStore(scripts, record)
