"""Where inboxes stand and end, and what a worker has said of itself: for whoever plans its work in another process."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

import msgspec

from pipeline.lifecycle import JobState
from pipeline.positions import Position
from pipeline.store import keys
from pipeline.store.connection import translated
from pipeline.store.foreign import entry_id, integer, ours, text_of
from pipeline.store.losses import unknown_job
from pipeline.store.scripts import Scripts

_FIELDS = ("token", "pos", "rec", "head", "sub", "ring")


@dataclass(frozen=True, slots=True)
class Backlog:
    """One inbox: its owner's token, the next to process, the place behind its last entry; ring as in PartitionFacts."""

    token: str
    position: Position
    end: Position
    ring: str

    @property
    def is_empty(self) -> bool:
        return self.position == self.end


def read_backlogs(
    scripts: Scripts, job: str, places: Collection[tuple[int, int]]
) -> tuple[JobState, dict[tuple[int, int], Backlog]]:
    """The job's state, and how these inboxes stand; those that are not there are left out.

    Raises UnknownJob, StoreError.
    """
    with translated():
        pipe = scripts.client.pipeline(transaction=False)
        pipe.hget(keys.job(job), "state")
        for place in places:
            pipe.hmget(keys.meta(job, *place), _FIELDS)
        state, *rows = pipe.execute()
    if state is None:
        raise unknown_job(job)
    with ours(keys.job(job)):
        found = JobState(state.decode())
    return found, {
        place: _backlog(keys.meta(job, *place), row) for place, row in zip(places, rows, strict=True) if row[1]
    }


def _backlog(key: str, row: list[Any]) -> Backlog:
    with ours(key):
        meta = text_of({name.encode(): value for name, value in zip(_FIELDS, row, strict=True) if value is not None})
        end = Position(f"{integer(meta, 'head', 0) + 1}-{integer(meta, 'sub', 0)}")
        position = Position(entry_id(meta["pos"]), integer(meta, "rec", 0))
        return Backlog(meta.get("token", ""), position, end, meta.get("ring", ""))


def hands_of(scripts: Scripts, job: str, worker: str) -> dict[str, str]:
    """`stage.partition` -> why the worker has it in hand, by its last heartbeat. Raises StoreError."""
    with translated():
        report = scripts.client.hget(keys.workers(job), f"r:{worker}")
    try:
        hand = msgspec.json.decode(report or b"{}", type=dict[str, Any]).get("hand")
    except msgspec.MsgspecError:
        return {}
    found = hand if isinstance(hand, dict) else {}
    return {name: str(each.get("why")) for name, each in found.items() if isinstance(each, dict)}
