"""The records of one lane of a producer: when they are due, and that batches which pile up go together in order."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

from pipeline.errors import InboxFull
from pipeline.producing.bounds import Bounds
from pipeline.producing.outgoing import Outgoing
from pipeline.producing.queue import LaneQueue, Packet


def a_queue(taken: int = 0, **bounds: Any) -> LaneQueue:
    given = {"batch_records": 3, "batch_bytes": 1000, "linger_seconds": 5.0} | bounds
    return LaneQueue(SimpleNamespace(taken=taken), Bounds(**given))  # type: ignore[arg-type]


def add(queue: LaneQueue, *values: Any, at: float = 0.0, size: int = 10, id_: str | None = None) -> list[bool]:
    return [queue.add(Outgoing(value, None, 7, id_, size), lambda: at) for value in values]


def taken(queue: LaneQueue, packet: Packet) -> int:
    """The job takes the packet."""
    queue.lane.taken = packet.first + len(packet.batch) - 1
    return queue.settle()


def test_a_first_record_waits_for_others_and_a_full_batch_does_not() -> None:
    queue = a_queue()

    assert queue.due_at(False) == math.inf
    assert add(queue, 1, at=2.0) == [True]
    assert (queue.due_at(False), queue.due_at(True)) == (7.0, -math.inf)
    assert add(queue, 2, 3, at=3.0) == [False, True]
    assert queue.due_at(False) == -math.inf


def test_a_batch_is_full_by_its_bytes_too() -> None:
    queue = a_queue()

    assert add(queue, "large", size=1000) == [True]

    assert queue.due_at(False) == -math.inf


def test_what_waits_behind_a_full_batch_has_its_own_time() -> None:
    queue = a_queue()
    add(queue, 1, 2, 3, at=0.0)
    add(queue, 4, at=4.0)

    packet = queue.pack()

    assert packet.batch.values == [1, 2, 3]
    taken(queue, packet)
    assert queue.due_at(False) == 9.0


def test_batches_that_have_piled_up_go_together_in_order_with_their_ids_and_times() -> None:
    queue = a_queue(taken=100)
    add(queue, 1, 2, 3)
    add(queue, 4, id_="four")
    add(queue, 5, 6, 7)

    packet = queue.pack()

    assert (packet.first, packet.batch.values, packet.batch.times) == (101, [1, 2, 3, 4, 5, 6], [7] * 6)
    assert packet.ids == [None, None, None, "four", None, None]
    assert taken(queue, packet) == packet.size == 60
    assert queue.pack().batch.values == [7]
    assert queue.pack().ids is None


def test_not_more_than_eight_batches_go_together() -> None:
    queue = a_queue()
    add(queue, *range(30))

    assert queue.pack().batch.values == list(range(24))


def test_a_packet_stays_as_it_is_until_it_is_taken_and_what_the_job_has_of_it_counts() -> None:
    queue = a_queue()
    add(queue, *range(6))
    packet = queue.pack()
    queue.lane.taken = 4

    queue.put_off(InboxFull("full"), 3.5)

    assert (queue.taken, len(queue), queue.due_at(True)) == (4, 2, 3.5)
    assert add(queue, 6, 7, 8) == [False] * 3
    assert queue.pack() is packet
    taken(queue, packet)
    assert (queue.taken, len(queue)) == (6, 3)


def test_urgent_records_are_due_until_they_are_taken() -> None:
    queue = a_queue()
    add(queue, 1)
    queue.urgent = queue.accepted

    assert queue.due_at(False) == -math.inf
    taken(queue, queue.pack())
    add(queue, 2, at=1.0)

    assert queue.due_at(False) == 6.0
