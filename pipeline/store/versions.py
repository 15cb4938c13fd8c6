"""The registry of a job's versions, and what its workers are to run."""

from __future__ import annotations

from typing import Literal

import msgspec

from pipeline.errors import DecodingError
from pipeline.store import keys
from pipeline.store.connection import translated
from pipeline.store.losses import unknown_job
from pipeline.store.scripts import Scripts
from pipeline.versions import MOST_VERSIONS, Version, Wanted


class VersionStore:
    """What those who bring a version, follow it or show it need."""

    def __init__(self, scripts: Scripts) -> None:
        self._scripts = scripts

    def add(self, job: str, version: Version, *, submitted: bool | None = None, wants: Wanted | None = None) -> None:
        """Keeps a version. `wants`: what all workers are to run from now on.

        submitted: whether its workers publish; None leaves that, and what they are to run, as it is. Raises
        UnknownJob, StoreError.
        """
        mode = "-" if submitted is None else "1" if submitted else ""
        said = wants.encode() if wants is not None else "-" if submitted is None else ""
        names = [keys.job(job), keys.versions(job), keys.rollout(job)]
        if self._scripts.run("version", names, [msgspec.json.encode(version), MOST_VERSIONS, mode, said])[0] == -5:
            raise unknown_job(job)

    def want(self, job: str, worker: str | Literal["*"], wanted: Wanted | None) -> None:
        """Says what a worker is to run; None: what all do. Of `*` it is all, without exceptions.

        Raises UnknownJob, StoreError.
        """
        said = wanted.encode() if wanted is not None else ""
        if self._scripts.run("rollout", [keys.job(job), keys.rollout(job)], [worker, said])[0] == -5:
            raise unknown_job(job)

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
