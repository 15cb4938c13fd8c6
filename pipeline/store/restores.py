"""Filling a new job from a savepoint. It does not run, and takes no input, before it is whole."""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from typing import Any, Final

from pipeline.errors import JobStateError
from pipeline.lifecycle import JobState
from pipeline.plan import Plan
from pipeline.store import keys
from pipeline.store.jobs import JobStore
from pipeline.store.scripts import Scripts

_MOST_BYTES: Final = 1 << 20
_MOST_VALUES: Final = 4_000


class RestoreStore:
    """One restore of one job. Puts are collected, and sent when there is enough, or by `flush`."""

    def __init__(self, scripts: Scripts, job: str) -> None:
        self._scripts = scripts
        self._job = job
        self._nonce = secrets.token_hex(8)
        self._pending: dict[tuple[str, str], list[Any]] = {}
        self._size = 0

    def begin(self, plan: Plan, name: str) -> None:
        """Registers the job as one that is being restored. Raises JobStateError if the id is taken, StoreError."""
        JobStore(self._scripts).create(self._job, plan, f"{self._nonce} {name}")

    def put(self, command: str, key: str, values: Sequence[Any]) -> None:
        """HSET or ZADD of pairs, or XADD of one entry: id, number of values, values.

        Raises JobStateError when the job was removed meanwhile, StoreError.
        """
        held = self._pending.setdefault((command, key), [])
        held.extend(values)
        self._size += sum(len(value) if isinstance(value, str | bytes) else 8 for value in values)
        if self._size >= _MOST_BYTES or len(held) >= _MOST_VALUES:
            self.flush()

    def flush(self) -> None:
        """Sends all that was put. Raises as `put`."""
        pending, self._pending, self._size = self._pending, {}, 0
        for (command, key), values in pending.items():
            self._sent(self._scripts.run("fill", [keys.job(self._job), key], [self._nonce, command, *values]))

    def finish(self, state: JobState, fields: Mapping[str, Any]) -> None:
        """The job is whole, and in this state from now on. Raises as `put`."""
        self.flush()
        args: list[Any] = [self._nonce, state.value]
        for pair in fields.items():
            args += pair
        self._sent(self._scripts.run("restored", [keys.job(self._job), keys.control(self._job)], args))

    def _sent(self, answer: list[Any]) -> None:
        if answer[0] != 1:
            raise JobStateError(f"job {self._job!r} was removed, or restored by another process, while it was restored")
