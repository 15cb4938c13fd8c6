"""Reads what a batch is planned by: the assignment table, the positions of inboxes, what the driver has in hand."""

from __future__ import annotations

from collections.abc import Callable

from pipeline.lifecycle import WORKING
from pipeline.spark.streaming.slices import Standing
from pipeline.store.backlogs import hands_of, read_backlogs
from pipeline.store.ownership import Ownership


def read_standing(ownership: Ownership, stage_of: Callable[[str], int]) -> Standing:
    """How all stands that this worker owns; nothing while the job does not work. stage_of: name -> number of a stage.

    Raises UnknownJob, StoreError.
    """
    rows, asked = ownership.table()
    places = [(row.stage, row.partition) for row in rows]
    state, backlogs = read_backlogs(ownership.scripts, ownership.job, places)
    if state not in WORKING:
        return Standing([], {}, {}, {})
    hands = hands_of(ownership.scripts, ownership.job, ownership.worker)
    names, _ = ownership.still_stages()
    return Standing(rows, asked, hands, backlogs, [stage_of(name) for name in names])
