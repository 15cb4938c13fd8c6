"""Numbers that a job is run with. `Limits` is stored with the job, so all its processes agree."""

from __future__ import annotations

from typing import Annotated, TypeAlias

import msgspec

Number: TypeAlias = Annotated[int, msgspec.Meta(ge=0, le=2**53 - 1)]
Seconds: TypeAlias = Annotated[float, msgspec.Meta(ge=0, le=1e9)]
Share: TypeAlias = Annotated[float, msgspec.Meta(ge=0, le=1)]


class Limits(msgspec.Struct, frozen=True):
    """Bounds of one job. Every one exists so that memory stays bounded or a wait ends.

    inbox_records, inbox_bytes: an inbox that holds this much takes no more; one commit may overshoot.
    inbox_low: share of the bound below which those who wait for a full inbox are woken.
    record_bytes: the largest encoded record (key and value together).
    entry_bytes: an inbox entry is closed when it reaches this.
    step_records, step_bytes: the most that one step reads.
    step_outputs: a step is cut short when it has emitted this much; a few hundred records more may be in hand then.
    slice_seconds: how long a worker stays with one partition before others get their turn.
    cache_bytes: decoded state that one worker keeps, estimated by its encoded size.
    lease_seconds: a worker not heard of for this long is replaced; a leader likewise.
    stuck_seconds: one record in hand for longer than this means that its worker is stuck.
    deaths: unclean ends at one record after which it becomes a dead letter.
    dead_letters, dead_letter_bytes: the job fails when it holds more dead letters than this, with the records that
        are held behind them; looked at four times a second, so a few more may be there by then.
    switch_records: a rescale waits until no inbox of its stage holds more; those that get keys then wait for these.
    savepoint_bytes: a savepoint is given up when commits had to keep more than this for it while it was written.
    moves_at_once: so many partitions are moved at a time, away from workers that live.
    collect_seconds: a worker that does not give a partition away within this loses it, unless user code holds it up.
    """

    inbox_records: Number = 50_000
    inbox_bytes: Number = 64 << 20
    inbox_low: Share = 0.5
    record_bytes: Number = 1 << 20
    entry_bytes: Number = 1 << 20
    step_records: Number = 8_000
    step_bytes: Number = 4 << 20
    step_outputs: Number = 50_000
    slice_seconds: Seconds = 0.02
    cache_bytes: Number = 256 << 20
    lease_seconds: Seconds = 2.0
    stuck_seconds: Seconds = 60.0
    deaths: Number = 3
    dead_letters: Number = 10_000
    dead_letter_bytes: Number = 64 << 20
    savepoint_bytes: Number = 512 << 20
    switch_records: Number = 32_000
    moves_at_once: Annotated[int, msgspec.Meta(ge=1, le=65_536)] = 4
    collect_seconds: Seconds = 1.0
