"""Moves of partitions: what the leader wants and asks for, what has moved, and which nodes are to have no work."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, Literal

from pipeline.errors import StaleTerm
from pipeline.facts import Aim, Moved
from pipeline.store import keys
from pipeline.store.connection import translated
from pipeline.store.foreign import ours
from pipeline.store.losses import unknown_job
from pipeline.store.scripts import Scripts

MOST_MOVES: Final = 200
"""So many of the last moves are kept."""

MOST_DRAINED: Final = 1_000
"""Nodes of clouds get new names: with more marks than this, those of nodes that were to stop go, the oldest first."""


class MovingStore:
    """The leader's side of moves from owners that live, and what is shown of moves."""

    def __init__(self, scripts: Scripts, job: str) -> None:
        self._scripts = scripts
        self._job = job

    def want(
        self,
        token: str,
        place: tuple[int, int],
        owner: str,
        step: Literal["plan", "ask"],
        aim: tuple[str, str, str, str],
    ) -> bool:
        """Has the partition move from the owner with that token to `aim`: worker, incarnation, nonce, why.

        Only when it is asked for the owner gives it away. False when it has another owner by now, or the job has ended.
        Raises StaleTerm, StoreError.
        """
        return self._collect(token, place, owner, step, *aim)

    def withdraw(self, token: str, place: tuple[int, int], owner: str) -> bool:
        """It stays with the owner with that token, unless it is given away already. Raises StaleTerm, StoreError."""
        return self._collect(token, place, owner, "drop", "", "", "", "")

    def _collect(self, token: str, place: tuple[int, int], owner: str, *rest: str) -> bool:
        job = self._job
        names = [keys.leader(job), keys.moving(job), keys.control(job), keys.meta(job, *place), keys.job(job)]
        answer = self._scripts.run("collect", names, [token, f"{place[0]}.{place[1]}", owner, *rest])
        if answer[0] == -1:
            raise StaleTerm(f"this leader no longer leads job {job!r}")
        return bool(answer[0] == 1)

    def moves(self, count: int = MOST_MOVES) -> list[Moved]:
        """The last ones, newest first. Raises ForeignData, StoreError."""
        with translated():
            raw = self._scripts.client.lrange(keys.moves(self._job), 0, count - 1)
        with ours(keys.moves(self._job)):
            return [_moved(line.decode()) for line in raw]

    def drain(self, node: str, *, stops: bool = False) -> None:
        """Has the workers of the node own nothing; with `stops` its agent ends then. Raises UnknownJob, StoreError."""
        self._mark(node, "stop" if stops else "stay")

    def undrain(self, node: str) -> bool:
        """Lets its workers have work again; False when it was not drained. Raises UnknownJob, StoreError."""
        return self._mark(node, "")

    def _mark(self, node: str, mark: str) -> bool:
        names = [keys.drained(self._job), keys.job(self._job)]
        answer = self._scripts.run("drained", names, [node, mark, MOST_DRAINED])
        if answer[0] == -5:
            raise unknown_job(self._job)
        return bool(answer[0] == 1)

    def is_to_stop(self, node: str) -> bool:
        """Whether the node is drained, and its agent is to end when its workers own nothing. Raises StoreError."""
        with translated():
            mark = self._scripts.client.hget(keys.drained(self._job), node)
        return mark is not None and mark.endswith(b" stop")


def read_aims(job: str, raw: Mapping[Any, Any]) -> dict[str, Aim]:
    """What `moving` holds, by the partition's name. Raises ForeignData."""
    found = {}
    with ours(keys.moving(job)):
        for name, value in raw.items():
            token, worker, incarnation, _nonce, asked, why = value.decode().split("|", 5)
            found[name.decode()] = Aim(token, worker, incarnation, int(asked), why)
    return found


def _moved(line: str) -> Moved:
    at, partition, before, owner, why, how, pause = line.split("|")
    return Moved(int(at), partition, before, owner, why, how, int(pause))
