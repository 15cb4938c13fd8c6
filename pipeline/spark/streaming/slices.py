"""What one micro-batch takes, as Spark keeps it: an offset names for each partition the token, from where, to where.

So a batch that is run again after a crash takes the same slices, under the same tokens, or is refused. Pure.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Final, TypeAlias

from pipeline.errors import DecodingError
from pipeline.positions import Position, Reach
from pipeline.store.backlogs import Backlog
from pipeline.store.ownership import Assigned

Place: TypeAlias = tuple[int, int]

NOTHING: Final[dict[str, Any]] = {"batch": 0, "slices": {}, "known": []}
"""The offset of a query that has not begun."""

_WAITING: Final = frozenset({"w", "g"})
"""Ring flags of partitions that are rung when they can go on."""

_RESTING: Final = frozenset({"backoff", "paused"})


@dataclass(frozen=True, slots=True)
class Slice:
    """What one task takes of one inbox, under the token that its owner has."""

    stage: int
    partition: int
    token: str
    reach: Reach

    @property
    def place(self) -> Place:
        return self.stage, self.partition

    @property
    def name(self) -> str:
        return f"{self.stage}.{self.partition}"


@dataclass(frozen=True, slots=True)
class Served:
    """What a task has done with its slice. end: why it stopped, as a worker's slice does. position: where it stands.

    run, server: of the job and of Redis, when it was last committed; nothing when that is not known.
    wait_seconds: so long the partition is to be left alone, and the reason.
    """

    stage: int
    partition: int
    token: str
    end: str
    position: str
    run: str = ""
    server: str = ""
    wait_seconds: float = 0.0
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Standing:
    """What is known when a batch is planned: the partitions owned, those to be given away, what is in hand and why."""

    rows: Sequence[Assigned]
    asked: Mapping[str, str]
    hands: Mapping[str, str]
    backlogs: Mapping[Place, Backlog]
    still: Collection[int] = ()


def mark_of(row: Assigned) -> str:
    """What an offset keeps of an ownership that has had a slice."""
    return f"{row.stage}.{row.partition} {row.token}"


def planned(
    standing: Standing, known: Collection[str], most_records: int, cuts: Mapping[Place, Position] = MappingProxyType({})
) -> list[Slice]:
    """The slices of the next batch: of all owned partitions that have something to do, and may.

    An ownership that is not `known` gets one in any case: a new owner works once without being rung. A partition that
    has a cut gets none from there on.
    """
    found = []
    for row in sorted(standing.rows, key=lambda row: (row.stage, row.partition)):
        name, backlog = f"{row.stage}.{row.partition}", standing.backlogs.get((row.stage, row.partition))
        if backlog is None or backlog.token != row.token or row.stage in standing.still:
            continue
        is_held = standing.asked.get(name) == row.token or standing.hands.get(name) in _RESTING
        if is_held or backlog.ring in _WAITING or (backlog.is_empty and mark_of(row) in known):
            continue
        cut = cuts.get((row.stage, row.partition))
        if cut is not None and backlog.position.order >= cut.order:
            continue
        end = backlog.end if cut is None else min(backlog.end, cut, key=lambda each: each.order)
        left = backlog.position.records_to(end)
        reach = Reach(backlog.position, end, most_records if left > most_records else sys.maxsize)
        found.append(Slice(row.stage, row.partition, row.token, reach))
    return found


def next_offset(before: Mapping[str, Any], slices: Iterable[Slice], rows: Iterable[Assigned]) -> dict[str, Any]:
    """The offset behind a batch of these slices. No two are equal, so that Spark runs every one."""
    named = {
        each.name: [each.token, str(each.reach.start), str(each.reach.stop), each.reach.records] for each in slices
    }
    return {"batch": int(before.get("batch", 0)) + 1, "slices": named, "known": sorted(map(mark_of, rows))}


def read_cuts(text: str) -> dict[Place, Position]:
    """Those of the data source's option. Raises DecodingError."""
    try:
        return {_place(name): Position.parse(position) for name, position in json.loads(text).items()}
    except (ValueError, TypeError, AttributeError) as error:
        raise DecodingError(f"these are no cuts: {text[:200]}") from error


def slices_in(offset: Mapping[str, Any]) -> list[Slice]:
    """The slices of the batch that ends at this offset. Raises DecodingError for one that is none of ours."""
    try:
        found = []
        for name, (token, start, stop, records) in offset["slices"].items():
            reach = Reach(Position.parse(start), Position.parse(stop), int(records))
            found.append(Slice(*_place(name), str(token), reach))
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise DecodingError(f"an offset in the checkpoint is none of ours: {str(offset)[:200]}") from error
    return found


def _place(name: str) -> Place:
    stage, _, partition = name.partition(".")
    return int(stage), int(partition)
