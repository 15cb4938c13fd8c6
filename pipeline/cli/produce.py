"""`celeriac produce`: records from standard input, one JSON object a line, into a running job."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import datetime
from typing import Any, BinaryIO, Final

import click
import msgspec

from pipeline.cli.exits import HELP, Exit, JobFailed
from pipeline.cli.options import DEBUG, JOB, SERVER
from pipeline.cli.screen import Screen
from pipeline.codec import shown
from pipeline.errors import CeleriacError, EncodingError, InboxClosed, InboxFull, InputError, JobStateError
from pipeline.producer import Producer
from pipeline.validation import suggestion
from pipeline.wording import counted

LINE_BYTES: Final = 16 << 20
"""A longer line is refused before all of it is read: no record may be that large."""

_PROGRESS_SECONDS: Final = 5.0
_FIELDS: Final = ("key", "value", "id", "timestamp")

_decoder = msgspec.json.Decoder()


@dataclass(frozen=True, slots=True)
class Line:
    """What one line says, not checked yet: the producer does that."""

    key: Any
    value: Any
    id: Any
    timestamp: Any


@click.command(epilog=HELP)
@JOB
@SERVER
@click.option("--source", help="The source's name, where the pipeline has several that take records.")
@click.option("--name", help="A name of this sender that stays through restarts; it fences off an older process.")
@click.option(
    "--wait",
    "wait_seconds",
    type=click.FloatRange(0, 86_400),
    default=60.0,
    show_default=True,
    help="Seconds to wait for a job that is full, or for Redis.",
)
@click.option("--quiet", is_flag=True, help="Show errors only.")
@DEBUG
def produce(job: str, redis_url: str, source: str | None, name: str | None, wait_seconds: float, quiet: bool) -> Exit:
    """Send records from standard input into a running job, which must read from read.producer().

    One JSON object a line: {"key": "k", "value": 1, "id": "evt-1", "timestamp": 1700000000000}. Only the value is
    needed. It ends when the job has them all. A bad line is named, and nothing behind it is sent.
    """
    if sys.stdin is None:
        raise InputError("standard input is closed", hint="celeriac produce JOB < records.jsonl")
    with Screen(quiet) as screen:
        producer = Producer(job, redis_url, source=source, name=name, full_timeout_seconds=wait_seconds)
        with producer:
            return produce_lines(sys.stdin.buffer, producer, screen.note)


def produce_lines(
    stream: BinaryIO, producer: Producer, note: Callable[[str], None], clock: Callable[[], float] = time.monotonic
) -> Exit:
    """Sends every line and flushes. `note` gets progress, not more than once in some seconds, and the result.

    A line that cannot be sent ends it: the lines before are flushed, then JobFailed names the number. Raises JobFailed
    also when the job stays full, JobStateError when it takes no input, UnknownJob, StoreError. Waits for the stream
    as long as it takes.
    """
    try:
        producer.flush()  # connects: whoever types should not find out behind the first line
        count, told_at = 0, clock()
        for number, text in enumerate(cut_lines(stream), 1):
            if not text.strip():
                continue
            try:
                line = parse_line(text)
                producer.send(line.key, line.value, line.timestamp, line.id)
            except (InputError, EncodingError) as error:
                raise _given_up(producer, number, error) from error
            count += 1
            if clock() - told_at >= _PROGRESS_SECONDS:
                told_at = clock()
                note(f"{counted(count - producer.pending, 'record')} taken")
        durability = producer.flush()
    except InboxClosed as error:
        raise JobStateError(str(error), hint=error.hint or f"see `celeriac status {producer.job}`") from error
    except InboxFull as error:
        raise JobFailed(str(error), hint=error.hint) from error
    note(f"{counted(count, 'record')} taken by job {producer.job} (durability: {durability})")
    return Exit.FINISHED


def _given_up(producer: Producer, number: int, error: CeleriacError) -> JobFailed:
    """The error for a bad line, once all lines before it are safe. Raises what keeps them from that."""
    producer.flush()
    return JobFailed(f"line {number}: {error}; all lines before it were taken", hint=error.hint)


def cut_lines(stream: BinaryIO) -> Iterator[bytes]:
    """The lines of the stream, one of more than LINE_BYTES cut off behind that. Raises InputError."""
    try:
        while text := stream.readline(LINE_BYTES + 1):
            yield text
    except OSError as error:
        raise InputError(f"standard input cannot be read: {error.strerror}") from error


def parse_line(text: bytes) -> Line:
    """Raises InputError for what is no JSON object with `value` and at most `key`, `id` and `timestamp` beside it."""
    hint = 'one JSON object a line: {"key": "k", "value": 1, "id": "evt-1", "timestamp": 1700000000000}'
    if len(text) > LINE_BYTES:
        raise InputError(f"it is longer than {LINE_BYTES:,} bytes")
    try:
        found = _decoder.decode(text)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise InputError(f"it is no JSON: {error}", hint=hint) from error
    if not isinstance(found, dict):
        raise InputError(f"it is no JSON object but {shown(found, 80)}", hint=hint)
    for name in found:
        if name not in _FIELDS:
            raise InputError(f"there is no field {shown(name, 80)}", hint=suggestion(name, _FIELDS))
    if "value" not in found:
        raise InputError("the field 'value' is missing", hint=hint)
    return Line(_key(found.get("key")), found["value"], found.get("id"), _timestamp(found.get("timestamp")))


def _key(key: Any) -> Any:
    """JSON has no tuples: a list as a key is one."""
    return tuple(_key(part) for part in key) if isinstance(key, list) else key


def _timestamp(timestamp: Any) -> Any:
    if not isinstance(timestamp, str):
        return timestamp
    try:
        return datetime.fromisoformat(timestamp)
    except ValueError as error:
        raise InputError(
            f"timestamp: {shown(timestamp, 80)} is no time",
            hint="whole milliseconds since 1970, or like 2024-01-31T12:00:00Z",
        ) from error
