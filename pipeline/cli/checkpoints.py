"""Savepoints again and again while a job works: its checkpoints."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

import click

from pipeline.errors import Busy, SavepointError, StoreUnavailable
from pipeline.lifecycle import ENDED, JobState

LOOK_SECONDS: Final = 0.5


def take_again(
    take: Callable[[], None],
    state: Callable[[], JobState],
    every_seconds: float,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> None:
    """Takes one now, and then one every so many seconds until the job has ended; none is made up for.

    The first one must succeed. Later ones that cannot be taken, since Redis is away, the job is busy or the folder
    refuses, are told and tried again when the next is due. Raises what `take` raises at first, UnknownJob when the job
    is removed.
    """
    take()
    due = clock() + every_seconds
    while not _has_ended(state):
        if clock() >= due:
            try:
                take()
            except (Busy, SavepointError, StoreUnavailable) as error:
                click.echo(f"warning: no savepoint this time: {error}", err=True)
            due = clock() + every_seconds
        sleep(max(0.0, min(LOOK_SECONDS, due - clock())))


def _has_ended(state: Callable[[], JobState]) -> bool:
    try:
        return state() in ENDED
    except StoreUnavailable:
        return False
