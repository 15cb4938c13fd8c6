"""Filling a new job from a savepoint. It does not run, and takes no input, before it is whole."""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from itertools import cycle
from typing import Any, Final, Self

from redis.exceptions import ResponseError

from pipeline.errors import JobStateError
from pipeline.lifecycle import JobState
from pipeline.plan import Plan
from pipeline.store import keys
from pipeline.store.ahead import Ahead, begun, packed
from pipeline.store.connection import translated
from pipeline.store.jobs import JobStore
from pipeline.store.pairs import Pairs
from pipeline.store.scripts import Scripts

_MOST_BYTES: Final = 1 << 20
_MOST_VALUES: Final = 4_000
"""Of one transaction, in which Redis does nothing else: some 2 ms."""


_LANES: Final = 3
"""Transactions on their way at once, as many as a page is: Redis does them while the next page is made."""

_MULTI: Final = packed([b"MULTI"])
_EXEC: Final = packed([b"EXEC"])


class RestoreStore:
    """One restore of one job, as a context. Puts are collected, and sent when there is enough, or by `flush`.

    Fields and members go in transactions, some on their way while the next is made: in no order, so none is put twice.
    Redis refuses one whole when the job has changed since it was last seen to be ours. A script does the same for twice
    the time of Redis.
    """

    def __init__(self, scripts: Scripts, job: str) -> None:
        self._scripts = scripts
        self._job = job
        self._nonce = secrets.token_hex(8)
        self._pending: dict[tuple[str, str], list[bytes]] = {}
        self._packed: list[bytes] = []
        self._count = 0
        self._size = 0
        self._lanes = [_Lane(scripts.client, job, self._nonce) for _ in range(_LANES)]
        self._next_lane = cycle(self._lanes)
        self._exits = ExitStack()

    def __enter__(self) -> Self:
        with ExitStack() as exits:
            for lane in self._lanes:
                exits.enter_context(lane)
            self._exits = exits.pop_all()
        return self

    def __exit__(self, kind: type[BaseException] | None, *rest: Any) -> None:
        self._exits.__exit__(kind, *rest)

    def begin(self, plan: Plan, name: str) -> None:
        """Registers the job as one that is being restored. Raises JobStateError if the id is taken, StoreError."""
        JobStore(self._scripts).create(self._job, plan, f"{self._nonce} {name}")
        for lane in self._lanes:
            lane.begin()

    def put(self, command: str, key: str, values: Sequence[Any]) -> None:
        """HSET or ZADD of pairs, or XADD of one entry: id, number of values, values.

        Raises JobStateError when the job was removed meanwhile, StoreError.
        """
        encoded = [value if isinstance(value, bytes) else str(value).encode() for value in values]
        self._add(command, key, encoded, sum(map(len, encoded)))

    def put_pairs(self, key: str, pairs: Pairs, start: int, stop: int) -> None:
        """HSET of the pairs start <= i < stop. Raises as `put`."""
        name = key.encode()
        step = max(1, min(_MOST_VALUES // 2, _MOST_BYTES * (stop - start) // max(1, pairs.size(start, stop))))
        for at in range(start, stop, step):
            end = min(stop, at + step)
            self._packed.append(b"".join((begun([b"HSET", name], 2 * (end - at)), pairs.part(at, end), b"\r\n")))
            self._counted(2 * (end - at), pairs.size(at, end))

    def flush(self) -> None:
        """Sends all that was put; Redis has it when this returns. Raises as `put`."""
        self._send()
        for lane in self._lanes:
            lane.settle()

    def finish(self, state: JobState, fields: Mapping[str, Any]) -> None:
        """The job is whole, and in this state from now on. Raises as `put`."""
        self.flush()
        for lane in self._lanes:
            lane.end()
        args: list[Any] = [self._nonce, state.value]
        for pair in fields.items():
            args += pair
        answer = self._scripts.run("restored", [keys.job(self._job), keys.control(self._job)], args)
        if answer[0] != 1:
            raise _lost(self._job)

    def _add(self, command: str, key: str, values: Sequence[bytes], size: int) -> None:
        self._pending.setdefault((command, key), []).extend(values)
        self._counted(len(values), size)

    def _counted(self, values: int, size: int) -> None:
        self._count += values
        self._size += size
        if self._size >= _MOST_BYTES or self._count >= _MOST_VALUES:
            self._send()

    def _send(self) -> None:
        pending, self._pending, self._count, self._size = self._pending, {}, 0, 0
        commands, self._packed = self._packed, []
        for (command, key), values in pending.items():
            if command == "XADD":
                answer = self._scripts.run("fill", [keys.job(self._job), key], [self._nonce, *values])
                if answer[0] != 1:
                    raise _lost(self._job)
            else:
                commands.append(packed([command.encode(), key.encode(), *values]))
        if commands:
            next(self._next_lane).send(commands)


class _Lane:
    """A connection that watches the job of a restore, as a context. Transactions go one by one. Raises as `put`."""

    def __init__(self, client: Any, job: str, nonce: str) -> None:
        self._ahead = Ahead(client)
        self._job = job
        self._nonce = nonce.encode()
        self._under_way: list[bytes] = []
        job_key = keys.job(job).encode()
        self._watching = [packed([b"WATCH", job_key]), packed([b"HGET", job_key, b"restoring"])]

    def __enter__(self) -> Self:
        self._ahead.__enter__()
        return self

    def __exit__(self, kind: type[BaseException] | None, *rest: Any) -> None:
        self._ahead.__exit__(kind, *rest)

    def begin(self) -> None:
        self._ahead.send_packed(self._watching)

    def send(self, commands: Sequence[bytes]) -> None:
        """One transaction of these, as `packed` makes them, behind the one before."""
        self.settle()
        self._under_way = [_MULTI, *commands, _EXEC, *self._watching]
        self._ahead.send_packed(self._under_way)

    def settle(self) -> None:
        """What was sent is done when this returns, and the job was still ours then."""
        while self._ahead.is_awaited:
            answers = self._ahead.answers()
            if (answers[-1] or b"").partition(b" ")[0] != self._nonce:
                raise _lost(self._job)
            if not self._under_way:
                return
            done = answers[-3]
            if done is None:  # something else of the job has changed: nothing was done
                self._ahead.send_packed(self._under_way)
                continue
            self._under_way = []
            with translated():
                for each in done:
                    if isinstance(each, ResponseError):
                        raise each

    def end(self) -> None:
        """The job is not watched any longer. What was sent is settled."""
        self._ahead.send([("UNWATCH",)])
        self._ahead.answers()


def _lost(job: str) -> JobStateError:
    return JobStateError(f"job {job!r} was removed, or restored by another process, while it was restored")
