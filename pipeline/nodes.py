"""The nodes of a job, as its workers tell of them: who is there, what they own, how busy they are. Pure."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from pipeline.facts import JobFacts, PartitionFacts, WorkerFacts
from pipeline.lifecycle import WORKING
from pipeline.pools import POOL

NODE_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,79}\Z")

NO_NAME: Final = "use letters, digits, '-', '_' and '.', at most 80"


@dataclass(frozen=True, slots=True)
class NodeRow:
    """One node. workers, live: those it has, and those heard of within the lease. busy: a live worker's mean share.

    is_stopped: all of them have said that they end. pools: those of its workers.
    """

    name: str
    workers: int
    live: int
    partitions: int
    busy: float
    is_drained: bool
    pools: tuple[str, ...] = ()
    is_stopped: bool = False

    @property
    def state(self) -> str:
        if self.is_drained:
            return "draining" if self.partitions else "drained"
        if self.live:
            return "working"
        return "stopped" if self.is_stopped else "silent"


def node_rows(facts: JobFacts) -> list[NodeRow]:
    """The nodes of all workers that the job knows, and drained ones without a worker, by name."""
    names = {worker.node for worker in facts.workers} | facts.drained
    return [_row(facts, name) for name in sorted(names)]


def _wait_for(job: str, pool: str) -> str:
    option = "" if pool == POOL else f" --pool {pool}"
    return f"waits for a worker of pool {pool}: start one with `celeriac worker {job} FILE.py{option}`"


def _row(facts: JobFacts, name: str) -> NodeRow:
    workers = [worker for worker in facts.workers if worker.node == name]
    live = [worker for worker in workers if is_live(facts, worker)]
    busy = sum(busy_share(worker) for worker in live) / len(live) if live else 0.0
    pools = tuple(sorted({worker.pool for worker in workers}))
    stopped = bool(workers) and all(worker.is_stopping for worker in workers)
    owned = len(owned_by(facts, name))
    return NodeRow(name, len(workers), len(live), owned, busy, name in facts.drained, pools, stopped)


@dataclass(frozen=True, slots=True)
class PoolRow:
    """One pool. live: its workers that were heard of within the lease. stages: those that it serves, by name.

    wanted: how many workers agents are to keep; None where that is fixed.
    """

    name: str
    live: int
    stages: tuple[str, ...]
    partitions: int
    busy: float
    wanted: int | None


def pool_rows(facts: JobFacts) -> list[PoolRow]:
    """The pools that stages need, upstream first, then those of workers that no stage needs, by name."""
    plan = facts.record.plan
    needed = plan.pools()
    return [_pool_row(facts, name) for name in [*needed, *sorted({one.pool for one in facts.workers} - set(needed))]]


def has_pools(facts: JobFacts) -> bool:
    """Whether pools are anything to speak of."""
    return {*facts.record.plan.pools(), *(worker.pool for worker in facts.workers)} != {POOL}


def _pool_row(facts: JobFacts, name: str) -> PoolRow:
    live = [worker for worker in facts.workers if worker.pool == name and is_live(facts, worker)]
    stages = {stage.index: stage.name for stage in facts.record.plan.stages if stage.pool == name}
    partitions = sum(1 for part in facts.partitions if part.stage in stages and not part.is_through)
    busy = sum(busy_share(worker) for worker in live) / len(live) if live else 0.0
    size = facts.record.scaled.get(name)
    return PoolRow(name, len(live), tuple(stages.values()), partitions, busy, size.workers_wanted if size else None)


def unserved_stages(facts: JobFacts) -> dict[str, str]:
    """Stage -> what it waits for, where partitions have no owner that lives, and its pool has nobody to take them."""
    record = facts.record
    if record.state not in WORKING:
        return {}
    live = {(one.name, one.incarnation) for one in facts.workers if is_live(facts, one)}
    lost = {
        part.stage for part in facts.partitions if (part.owner, part.incarnation) not in live and not part.is_through
    }
    return {
        record.plan.stage_name(index): _wait_for(record.job, pool)
        for index in sorted(lost)
        if not able_nodes(facts, pool := record.plan.pool_of(index))
    }


def owned_by(facts: JobFacts, node: str) -> list[PartitionFacts]:
    """The partitions, not done, of the node's workers: also those that a worker which died and is back had before."""
    workers = {worker.name for worker in facts.workers if worker.node == node}
    return [part for part in facts.partitions if not part.is_through and part.owner in workers]


def is_live(facts: JobFacts, worker: WorkerFacts) -> bool:
    """True when it was heard of within the lease, has not said that it ends, and nobody saw it end."""
    is_heard = worker.age_seconds < facts.record.plan.limits.lease_seconds
    return is_heard and not (worker.is_reported_dead or worker.is_stopping)


def is_in_use(facts: JobFacts, node: str) -> bool:
    """True while workers live that say that they are of this node."""
    return any(worker.node == node and is_live(facts, worker) for worker in facts.workers)


def able_nodes(facts: JobFacts, pool: str | None = None) -> set[str]:
    """The nodes with workers, of the pool if one is named, that may be given partitions."""
    return {worker.node for worker in able_workers(facts, pool)}


def able_workers(facts: JobFacts, pool: str | None = None) -> list[WorkerFacts]:
    """The workers, of the pool if one is named, that may be given partitions."""
    return [
        worker
        for worker in facts.workers
        if is_live(facts, worker)
        and pool in (None, worker.pool)
        and not worker.is_leaving
        and worker.node not in facts.drained
    ]


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
