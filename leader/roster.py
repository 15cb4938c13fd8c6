"""Reads what workers say of themselves: who lives, leaves or is stuck, what each has in hand. Decides nothing."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from pipeline.facts import WorkerFacts

Identity: TypeAlias = tuple[str, str]
"""One process that ever worked: (worker name, incarnation)."""


@dataclass(frozen=True, slots=True)
class Hand:
    """A record that a worker has in hand. `partition` is `stage.partition`, `why` what it is doing with it."""

    partition: str
    position: str
    age_ms: int
    why: str


def identity(worker: WorkerFacts) -> Identity:
    return worker.name, worker.incarnation


def is_live(worker: WorkerFacts, lease_seconds: float) -> bool:
    """True when it was heard of within the lease, and nobody saw it end."""
    return worker.age_seconds < lease_seconds and not worker.is_reported_dead


def hands(worker: WorkerFacts) -> list[Hand]:
    """Records in hand; what cannot be read is left out, since a report may come from a newer version."""
    reported = worker.report.get("hand")
    if not isinstance(reported, dict):
        return []
    found = []
    for partition, hand in reported.items():
        if isinstance(hand, dict) and isinstance(hand.get("since_ms"), int | float):
            found.append(Hand(partition, str(hand.get("position")), int(hand["since_ms"]), str(hand.get("why"))))
    return found


def stuck_hands(worker: WorkerFacts, stuck_seconds: float) -> list[Hand]:
    """Records that user code has held for too long; who waits for something else is not stuck."""
    return [hand for hand in hands(worker) if hand.why == "running" and hand.age_ms > stuck_seconds * 1000]


def at_work(worker: WorkerFacts) -> frozenset[str]:
    """The partitions, as `stage.partition`, that it works at right now."""
    slices = worker.report.get("slices")
    return frozenset(name for name in slices if isinstance(name, str)) if isinstance(slices, list) else frozenset()


def comes_back(worker: WorkerFacts) -> frozenset[str]:
    """The partitions that it serves again by itself: it is at work there, waits for a time, or its stage is paused."""
    return at_work(worker) | frozenset(hand.partition for hand in hands(worker) if hand.why in ("backoff", "paused"))


def waiting(worker: WorkerFacts) -> frozenset[str]:
    """The partitions that go on when they are rung: they found an inbox full, or are to be given keys first."""
    return frozenset(hand.partition for hand in hands(worker) if hand.why in ("full", "gated"))
