"""State for benchmarks, put into Redis as commits would have put it, and much faster."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Any

from pipeline.codec import encode_value, state_field
from pipeline.keying import group_of
from pipeline.store import keys

_BATCH = 2_000
_REWRITING_SECONDS = 300.0


def fill_state(
    client: Any, job: str, stage: int, operator: str, megabytes: int, value_bytes: int = 1_000
) -> Iterator[tuple[int, bytes]]:
    """State of keys `old-…`, so many megabytes with their names; the (key group, field) of each as it is written.

    Behind the last one Redis is at rest: it rewrites its file when that has grown, beside all that is measured.
    """
    value, size, number = encode_value("v" * value_bytes), 0, 0
    while size < megabytes << 20:
        pipe = client.pipeline(transaction=False)
        for _ in range(_BATCH):
            key = f"old-{number:09}"
            group, field = group_of(key), state_field(operator, key)
            pipe.hset(keys.state(job, stage, group), field, value)
            number, size = number + 1, size + len(field) + len(value)
            yield group, field
        pipe.execute()
    await_rewriting(client)


def fill_states(client: Any, job: str, stage: int, operator: str, states: Iterable[Any]) -> None:
    """State of keys `key-…`, one for each; behind the last one Redis is at rest, as above."""
    numbers = enumerate(states)
    while part := list(islice(numbers, _BATCH)):
        pipe = client.pipeline(transaction=False)
        for number, state in part:
            key = f"key-{number:09}"
            pipe.hset(keys.state(job, stage, group_of(key)), state_field(operator, key), encode_value(state))
        pipe.execute()
    await_rewriting(client)


def await_rewriting(client: Any) -> None:
    """Redis rewrites its file when that has grown, beside all that is measured."""
    deadline = time.monotonic() + _REWRITING_SECONDS
    while any(client.info("persistence")[name] for name in ("aof_rewrite_in_progress", "aof_rewrite_scheduled")):
        if time.monotonic() > deadline:
            raise SystemExit(f"Redis still rewrites its file after {_REWRITING_SECONDS:.0f} s")
        time.sleep(0.1)
