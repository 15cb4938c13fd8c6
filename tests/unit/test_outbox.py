"""The thread of a producer that never has nothing to send."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Sequence
from typing import Any, cast

import msgspec

from pipeline.producing.bounds import Bounds
from pipeline.producing.outbox import Outbox
from pipeline.producing.outgoing import Outgoing
from pipeline.store.durability import Durability
from pipeline.store.senders import Feed, Lane

MOST = 10_000
"""Records after which the busy thread has had its chance to say that it is there."""


class BusyLane:
    """Hands over another record each time that one was appended, until it is told to stop, or after MOST."""

    name = "busy"

    def __init__(self) -> None:
        self.taken = 0
        self.outbox: Outbox | None = None
        self.is_ready = threading.Event()
        self.is_over = threading.Event()

    def append(self, first: int, batch: Sequence[Any], ids: object = None) -> None:
        self.taken += len(batch)
        self.is_ready.wait(10)
        if self.taken == MOST:
            self.is_over.set()
        elif not self.is_over.is_set():
            assert self.outbox is not None
            assert self.outbox.offer(a_record())

    def leave(self) -> bool:
        return True


class WatchedFeed:
    def __init__(self, lane: BusyLane) -> None:
        self.lane = lane
        self.visits = 0

    def visit(self, _lanes: object) -> None:
        self.visits += 1
        self.lane.is_over.set()

    def durability(self) -> Durability:
        return Durability.ALWAYS

    def close(self) -> None:
        return


def a_record() -> Outgoing:
    return Outgoing(msgspec.Raw(b"\x01"), None, 0, None, 1)


def test_a_producer_that_always_has_something_to_send_says_that_it_is_there() -> None:
    lane = BusyLane()
    feed = WatchedFeed(lane)
    ticks = itertools.count()
    outbox = Outbox(
        cast(Feed, feed),
        [cast(Lane, lane)],
        Bounds(batch_records=1, linger_seconds=0),
        leaves=True,
        clock=lambda: float(next(ticks)),
    )
    lane.outbox = outbox
    lane.is_ready.set()
    outbox.put(a_record(), 1000)

    assert lane.is_over.wait(30)
    outbox.close(1e9)
    assert feed.visits >= 1
    assert lane.taken < MOST
