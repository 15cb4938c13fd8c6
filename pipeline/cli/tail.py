"""`celeriac tail`: the results of a job as lines, while it works or afterwards."""

from __future__ import annotations

from typing import Any, Final

import click
import msgspec

from pipeline.cli.exits import Exit
from pipeline.cli.interrupts import Interrupts
from pipeline.cli.options import DEBUG, JOB, JSON, SERVER
from pipeline.cli.screen import Screen
from pipeline.client import Client, Result, Results
from pipeline.lifecycle import JobState
from pipeline.sinks.lines import text_of
from pipeline.store.outputs import Start

_CHUNK: Final = 1000
_NO_JSON: Final = (TypeError, ValueError, OverflowError, RecursionError, msgspec.MsgspecError)


def _start(_context: click.Context, _parameter: click.Parameter, value: str | None) -> Start | None:
    match value:
        case None | "begin" | "end":
            return value
        case _ if value.isdecimal() and int(value) >= 1:
            return int(value)
    raise click.BadParameter(f"{value!r} is neither 'begin' nor 'end' nor a position (1, 2, 3, ...)")


@click.command()
@JOB
@click.argument("sink", required=False)
@SERVER
@click.option(
    "--from", "start", metavar="PLACE", callback=_start, help="begin (the default), end, or a position: 1, 2, 3, ..."
)
@click.option("--reader", metavar="NAME", help="Keep the place under this name, and go on there next time.")
@click.option("--count", type=click.IntRange(1), help="End after so many results.")
@click.option("--no-follow", "follows", flag_value=False, default=True, help="End when all that is there is printed.")
@JSON
@DEBUG
@click.pass_obj
def tail(
    interrupts: Interrupts,
    job: str,
    sink: str | None,
    redis_url: str,
    start: Start | None,
    reader: str | None,
    count: int | None,
    follows: bool,
    as_json: bool,
) -> Exit:
    """Print the results of a job: those of SINK, a write.stream or console sink, as they come.

    It ends when the job has ended. A job is never held up by it for more than a minute: without --reader the place is
    given up when the output blocks for so long. With --reader the job keeps what was not printed yet, and stops when
    that is too much: `celeriac readers remove` ends it.
    """
    with Screen(False) as screen, Client(redis_url) as client:
        wait_seconds = None if follows else 0.0
        with client.results(job, sink, reader, start=start or "begin", wait_seconds=wait_seconds) as results:
            if start is not None and not results.is_new:
                screen.note(
                    f"the reader {reader} goes on where it stood, at {results.next_position}; --from is for new ones"
                )
            print_results(results, count, as_json, screen, interrupts)
            if results.state in (JobState.FAILED, JobState.CANCELLED, JobState.SUSPENDED):
                screen.note(f"the job {job} is {results.state.value}")
    return Exit.FINISHED


def print_results(
    results: Results,
    count: int | None,
    as_json: bool,
    screen: Screen,
    interrupts: Interrupts,
) -> None:
    """Shows results until they end, or `count` of them, committing what was shown. A Ctrl-C says where to go on.

    The first one lets what is being printed come to its end, so that the place is exact; a second one does not.
    """
    make = json_line if as_json else line
    position = results.next_position
    last = None if count is None else position + count
    try:
        while chunk := results.take(_CHUNK if last is None else min(_CHUNK, last - position)):
            with interrupts.immediate(above=1):
                screen.records([make(result) for result in chunk])
                position = results.next_position
                results.commit()
            interrupts.check()
            if position == last:
                return
    except KeyboardInterrupt:
        screen.note(f"stopped; the next position is {position}")
        raise


def line(result: Result) -> str:
    """`key: value` on a keyed stream, else the value: text as it is, all else as JSON."""
    text = text_of(result.value)
    return text if result.key is None else f"{text_of(result.key)}: {text}"


def json_line(result: Result) -> str:
    """One JSON object. Bytes are base64 text, and what has no JSON form is the text that Python shows for it."""
    return _json({"position": result.position, "key": _plain(result.key), "value": _plain(result.value)})


def _plain(value: Any) -> Any:
    try:
        return msgspec.Raw(msgspec.json.encode(value))
    except _NO_JSON:
        return repr(value)


def _json(value: Any) -> str:
    return msgspec.json.encode(value).decode()
