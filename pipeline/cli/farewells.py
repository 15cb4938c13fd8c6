"""The end of a Redis that a run has started: nodes that joined its job hear first that it is over."""

from __future__ import annotations

import time
from contextlib import suppress
from typing import Final

from pipeline.cli.interrupts import Interrupts
from pipeline.errors import DecodingError, StoreError
from pipeline.lifecycle import WORKING
from pipeline.nodes import is_live
from pipeline.store.jobs import JobStore

FAREWELL_SECONDS: Final = 7.0
"""A node looks at its job twice a second, and gives its workers five seconds to end."""

_LOOK_SECONDS: Final = 0.05


def see_off(store: JobStore, job: str, own_node: str, interrupts: Interrupts) -> None:
    """Waits until the workers of other nodes have said that they end, for FAREWELL_SECONDS at most, or to the next
    Ctrl-C. A node that has not heard of the end of its job would wait for its Redis for ever.

    Does not wait for a job that works yet: nobody leaves that. To be called when the own node has ended.
    """
    before, until = interrupts.count, time.monotonic() + FAREWELL_SECONDS
    with suppress(StoreError, DecodingError):  # Redis is gone, or the job: nobody hears anything
        while _has_others(store, job, own_node) and interrupts.count == before and time.monotonic() < until:
            time.sleep(_LOOK_SECONDS)


def _has_others(store: JobStore, job: str, own_node: str) -> bool:
    facts = store.facts(job)
    return facts.record.state not in WORKING and any(
        is_live(facts, worker) for worker in facts.workers if worker.node != own_node
    )
