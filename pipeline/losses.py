"""How those who remember more see that Redis came back without its last writes. Pure: compares, and words it.

Within one generation of a job positions, heads and counts only grow. Whoever has seen more than Redis has now has seen
writes that are lost.
"""

from __future__ import annotations

from typing import Final

from pipeline.facts import JobFacts, PartitionFacts
from pipeline.positions import Position
from pipeline.wording import counted

LOST: Final = "Redis has lost its last writes"

HINT: Final = "see `celeriac status`; `celeriac run … --job-id JOB --accept-loss` goes on without what is lost"


def is_ahead(remembered: Position, found: Position) -> bool:
    """True when a position that was committed is not there any more."""
    return remembered.order > found.order


def records_between(earlier: Position, later: Position) -> int:
    """Records, where both stand among records; never less than 0."""
    return max(0, earlier.records_to(later))


def partition_line(place: tuple[int, int], who: str, remembered: Position, found: Position) -> str:
    """What is missing of one partition, in one line. `who`: a party and what it did, as `worker w0 had committed`."""
    lost = counted(records_between(found, remembered), "record")
    return f"stage {place[0]} partition {place[1]}: {who} up to {remembered}, Redis has {found} ({lost})"


def losses_since(before: JobFacts, after: JobFacts, who: str) -> list[str]:
    """What the facts seen before have, and those of now have not, in lines. Nothing for another job or generation."""
    if before.record.run != after.record.run:
        return []
    found = {(part.stage, part.partition): part for part in after.partitions}
    lines = [
        line
        for part in before.partitions
        if (now := found.get((part.stage, part.partition))) is not None
        for line in _of_partition(part, now, who)
    ]
    for source in sorted(before.record.completed_sources - after.record.completed_sources):
        lines.append(f"source {source!r}: {who} had seen that all of it was read, Redis has not")
    for source, splits in sorted(before.finished_splits.items()):
        left = after.finished_splits.get(source, 0)
        if left < splits:
            lines.append(f"source {source!r}: {who} had seen {splits:,} finished splits, Redis has {left:,}")
    if after.record.changed_at_ms < before.record.changed_at_ms:
        was, now_is = before.record.state.value, after.record.state.value
        lines.append(f"state: {who} had seen that the job was made {was}, in Redis it is {now_is} from before")
    return lines


def _of_partition(before: PartitionFacts, after: PartitionFacts, who: str) -> list[str]:
    place = (before.stage, before.partition)
    if is_ahead(before.position, after.position):
        return [partition_line(place, f"{who} had seen commits", before.position, after.position)]
    if before.head > after.head:
        lost = counted(before.head - after.head, "record")
        return [
            f"stage {place[0]} partition {place[1]}: {who} had seen records up to {before.head:,}, "
            f"Redis has {after.head:,} ({lost})"
        ]
    if before.closed and not after.closed:
        return [f"stage {place[0]} partition {place[1]}: {who} had seen the end of its input, Redis has not"]
    return []
