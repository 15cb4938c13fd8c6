"""What a node agent tells and asks: a death it saw, whether the server answers, when a worker was last
heard of, how many workers are wanted, and whether one that is to end still owns something."""

from __future__ import annotations

from typing import Final

from pipeline.errors import StoreError, StoreUnavailable
from pipeline.facts import JobFacts
from pipeline.pools import POOL
from pipeline.store import keys
from pipeline.store.connection import translated
from pipeline.store.jobs import JobStore
from pipeline.store.scaling import wanted_field
from pipeline.store.scripts import Scripts
from pipeline.store.versions import VersionStore
from pipeline.versions import Wanted

_NO_FIELD: Final = "-"
"""A job has no field of that name: to delete it is a write that changes nothing."""


def incarnations(facts: JobFacts) -> dict[str, int]:
    """Worker -> the number of its newest incarnation."""
    numbers = ((worker.name, worker.incarnation.partition("-")[0]) for worker in facts.workers)
    return {name: int(number) for name, number in numbers if number.isdecimal()}


class AgentLink:
    """One agent's link to one job."""

    def __init__(self, scripts: Scripts, job: str) -> None:
        self._scripts = scripts
        self._jobs = JobStore(scripts)
        self._job = job

    def report_death(self, name: str, incarnation: str) -> None:
        """Raises StoreError."""
        self._scripts.run("death", [keys.workers(self._job), keys.job(self._job)], [name, incarnation])

    def is_up(self) -> bool:
        """Whether the server answers and takes writes: without them each worker of Celery ends at its start.

        What it refuses otherwise, or finds in the place of our key, is an answer, too.
        """
        try:
            with translated():
                self._scripts.client.hdel(keys.job(self._job), _NO_FIELD)
        except StoreUnavailable:
            return False
        except StoreError:
            pass  # said by whoever needs what is refused
        return True

    def run_id(self) -> str:
        """Of the server that answers now. Raises StoreError."""
        return self._jobs.run_id()

    def incarnations(self) -> dict[str, int]:
        """Worker -> the number of its newest incarnation. Raises StoreError, UnknownJob."""
        return incarnations(self._jobs.facts(self._job))

    def heard_from(self, name: str) -> float | None:
        """Seconds since the worker's last heartbeat by the server's clock.

        None if it was never heard of, or says itself that Celery's own connection is down. Raises StoreError.
        """
        for worker in self._jobs.facts(self._job).workers:
            if worker.name == name and worker.report.get("consuming", True):
                return worker.age_seconds
        return None

    def workers_wanted(self, pool: str = POOL) -> int | None:
        """How many workers of the pool agents are to keep; None where the number is fixed. Raises StoreError."""
        with translated():
            wanted = self._scripts.client.hget(keys.job(self._job), wanted_field(pool))
        return None if wanted is None else int(wanted)

    def rollout(self) -> dict[str, Wanted]:
        """Worker, or `*` -> the version of the pipeline that it is to run. Raises StoreError."""
        return VersionStore(self._scripts).rollout(self._job)

    def has_others(self, name: str) -> bool:
        """Whether another worker is there that could take what this one owns. Raises StoreError, UnknownJob."""
        facts = self._jobs.facts(self._job)
        lease = facts.record.plan.limits.lease_seconds
        pools = {each.pool for each in facts.workers if each.name == name}
        return any(
            each.name != name
            and each.pool in pools
            and each.age_seconds < lease
            and not (each.is_reported_dead or each.is_leaving)
            for each in facts.workers
        )

    def mark_leaving(self, name: str, incarnation: str, *, is_leaving: bool) -> bool:
        """Has the leader give the worker's partitions away, or lets it have some again.

        False when this incarnation was never heard of, so that it owns nothing. Raises StoreError.
        """
        args = [name, incarnation, "1" if is_leaving else "0"]
        answer = self._scripts.run("leaving", [keys.workers(self._job), keys.job(self._job)], args)
        return bool(answer[0] == 1)

    def owns(self, name: str, incarnation: str) -> bool:
        """Whether this incarnation owns partitions that are not done. Raises StoreError, UnknownJob."""
        parts = self._jobs.facts(self._job).partitions
        return any((part.owner, part.incarnation) == (name, incarnation) and not part.is_through for part in parts)
