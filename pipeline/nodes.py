"""The nodes of a job, as its workers tell of them: who is there, what they own, how busy they are. Pure."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from pipeline.facts import JobFacts, PartitionFacts, WorkerFacts

NODE_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,79}\Z")

NO_NAME: Final = "use letters, digits, '-', '_' and '.', at most 80"


@dataclass(frozen=True, slots=True)
class NodeRow:
    """One node. workers, live: those it has, and those heard of within the lease. busy: a live worker's mean share."""

    name: str
    workers: int
    live: int
    partitions: int
    busy: float
    is_drained: bool

    @property
    def state(self) -> str:
        if self.is_drained:
            return "draining" if self.partitions else "drained"
        return "working" if self.live else "silent"


def node_rows(facts: JobFacts) -> list[NodeRow]:
    """The nodes of all workers that the job knows, and drained ones without a worker, by name."""
    names = {worker.node for worker in facts.workers} | facts.drained
    return [_row(facts, name) for name in sorted(names)]


def _row(facts: JobFacts, name: str) -> NodeRow:
    workers = [worker for worker in facts.workers if worker.node == name]
    live = [worker for worker in workers if is_live(facts, worker)]
    busy = sum(busy_share(worker) for worker in live) / len(live) if live else 0.0
    return NodeRow(name, len(workers), len(live), len(owned_by(facts, name)), busy, name in facts.drained)


def owned_by(facts: JobFacts, node: str) -> list[PartitionFacts]:
    """The partitions, not done, of the node's workers."""
    workers = {(worker.name, worker.incarnation) for worker in facts.workers if worker.node == node}
    return [part for part in facts.partitions if not part.is_through and (part.owner, part.incarnation) in workers]


def is_live(facts: JobFacts, worker: WorkerFacts) -> bool:
    """True when it was heard of within the lease, and nobody saw it end."""
    return worker.age_seconds < facts.record.plan.limits.lease_seconds and not worker.is_reported_dead


def is_in_use(facts: JobFacts, node: str) -> bool:
    """True while workers live that say that they are of this node."""
    return any(worker.node == node and is_live(facts, worker) for worker in facts.workers)


def able_nodes(facts: JobFacts) -> set[str]:
    """The nodes with workers that may be given partitions."""
    return {
        worker.node
        for worker in facts.workers
        if is_live(facts, worker)
        and not worker.is_leaving
        and worker.report.get("stopping") is not True
        and worker.node not in facts.drained
    }


def busy_share(worker: WorkerFacts) -> float:
    """The share of the last seconds in which it has worked, as it says: 0 to 1."""
    share = worker.report.get("share")
    return min(1.0, max(0.0, share)) if isinstance(share, int | float) and share == share else 0.0


def free_name(facts: JobFacts, host: str) -> str:
    """The host's name, or that with a number, for one more node on it."""
    base = (
        "".join(letter if re.match(r"[A-Za-z0-9_.-]", letter) else "-" for letter in host)[:70].lstrip("_.-") or "node"
    )
    taken = {worker.node for worker in facts.workers if is_live(facts, worker)}
    return next(
        name
        for number in range(1, len(taken) + 2)
        if (name := base if number == 1 else f"{base}-{number}") not in taken
    )
