"""The registry of a job's versions, and what its workers are to run."""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from pipeline.errors import DecodingError
from pipeline.operations import Claim
from pipeline.store import keys
from pipeline.store.claims import claim_lost
from pipeline.store.connection import translated
from pipeline.store.losses import unknown_job
from pipeline.store.scripts import Scripts
from pipeline.versions import MOST_VERSIONS, Version, Wanted


class VersionStore:
    """What those who bring a version, follow it or show it need."""

    def __init__(self, scripts: Scripts) -> None:
        self._scripts = scripts

    def add(
        self,
        job: str,
        version: Version,
        *,
        submitted: bool | None = None,
        wants: Wanted | None = None,
        claim: Claim | None = None,
    ) -> None:
        """Keeps a version. `wants`: what all workers are to run from now on.

        submitted: whether its workers publish; None leaves that, and what they are to run, as it is. claim: of the
        upgrade that brings it. Raises OperationLost when that is not its own any more, UnknownJob, StoreError.
        """
        mode = "-" if submitted is None else "1" if submitted else ""
        said = wants.encode() if wants is not None else "-" if submitted is None else ""
        names = [keys.job(job), keys.versions(job), keys.rollout(job), keys.operation(job)]
        args = [msgspec.json.encode(version), MOST_VERSIONS, mode, said, claim.token if claim else ""]
        _check(job, self._scripts.run("version", names, args))

    def want(self, job: str, worker: str | Literal["*"], wanted: Wanted | None, *, claim: Claim | None = None) -> None:
        """Says what a worker is to run; None: what all do. Of `*` it is all, without exceptions.

        claim: of the upgrade that says so. Raises OperationLost when that is not its own any more, UnknownJob,
        StoreError.
        """
        said = wanted.encode() if wanted is not None else ""
        names = [keys.job(job), keys.rollout(job), keys.operation(job)]
        _check(job, self._scripts.run("rollout", names, [worker, said, claim.token if claim else ""]))

    def rollout(self, job: str) -> dict[str, Wanted]:
        """Worker, or `*` -> what it is to run. Raises StoreError."""
        with translated():
            raw = self._scripts.client.hgetall(keys.rollout(job))
        return {
            name.decode("utf-8", "replace"): Wanted.decode(said.decode("utf-8", "replace"))
            for name, said in raw.items()
        }

    def versions(self, job: str, count: int = MOST_VERSIONS) -> list[Version]:
        """Oldest first. Raises DecodingError, StoreError."""
        with translated():
            raw = self._scripts.client.lrange(keys.versions(job), 0, count - 1)
        found = []
        for line in reversed(raw):
            at, _, text = line.partition(b" ")
            try:
                found.append(msgspec.structs.replace(msgspec.json.decode(text, type=Version), at_ms=int(at)))
            except (msgspec.MsgspecError, ValueError) as error:
                raise DecodingError(f"{keys.versions(job)} holds what is no version: {error}") from error
        return found


def _check(job: str, answer: list[Any]) -> None:
    match answer[0]:
        case -1:
            raise claim_lost(job)
        case -5:
            raise unknown_job(job)
