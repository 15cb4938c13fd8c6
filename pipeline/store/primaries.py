"""Several Redis servers, each with jobs of its own: which one holds a job, and how much work each has."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from pipeline.lifecycle import WORKING
from pipeline.redis_addresses import database, split_addresses
from pipeline.store import keys
from pipeline.store.connection import connect, translated, without_password
from pipeline.store.jobs import JobStore
from pipeline.store.scripts import Scripts

LOOK_SECONDS: Final = 3.0
"""How long one of them may take to answer: the others are asked after it."""


@dataclass(frozen=True, slots=True)
class Primary:
    """One server, or one database of it. identity: the same for all addresses of it. jobs: ids, also of jobs that are
    removed just now. working: how many of them work.
    """

    url: str = field(repr=False)
    identity: tuple[str, int]
    jobs: frozenset[str]
    working: int

    @property
    def shown(self) -> str:
        return without_password(self.url)


def look_at(url: str) -> Primary:
    """Raises StoreError, UnsuitableServer."""
    with connect(url, timeout_seconds=LOOK_SECONDS) as client:
        ids = JobStore(Scripts(client)).list_ids()
        with translated():
            run_id = client.info("server")["run_id"]
            pipe = client.pipeline(transaction=False)
            for job in ids:
                pipe.hget(keys.job(job), "state")
            states = pipe.execute(raise_on_error=False)
    working = [state.value.encode() for state in WORKING]
    identity = run_id, database(split_addresses(url)[0])
    return Primary(url, identity, frozenset(ids), sum(state in working for state in states))
