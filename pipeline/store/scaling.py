"""How the workers of a job are scaled: the settings, the wanted number, and the decisions with their facts."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from pipeline.errors import DecodingError, StaleTerm
from pipeline.facts import Scaled
from pipeline.pools import POOL
from pipeline.scaling.decision import MOST_DECISIONS, Decision
from pipeline.scaling.settings import Scaling
from pipeline.store import keys
from pipeline.store.connection import translated
from pipeline.store.losses import unknown_job
from pipeline.store.scripts import Scripts


class ScalingStore:
    """What the run, the leader and whoever shows a job need of its scaling."""

    def __init__(self, scripts: Scripts) -> None:
        self._scripts = scripts

    def configure(self, job: str, scaling: Scaling, workers: int | None = None, pool: str = POOL) -> int:
        """Has a pool scaled; returns how many workers it begins with: `workers`, or as many as it had, in the bounds.

        Raises UnknownJob, StoreError.
        """
        first = "" if workers is None else workers
        args = [msgspec.json.encode(scaling), scaling.minimum, scaling.maximum, first, _suffix(pool)]
        answer = self._scripts.run("autoscale", [keys.job(job)], args)
        if answer[0] == -5:
            raise unknown_job(job)
        return int(answer[1])

    def fix(self, job: str, pool: str = POOL) -> None:
        """Has the number of a pool's workers stay as it is. Raises UnknownJob, StoreError."""
        if self._scripts.run("autoscale", [keys.job(job)], ["", 0, 0, "", _suffix(pool)])[0] == -5:
            raise unknown_job(job)

    def decide(self, job: str, token: str, decision: Decision) -> bool:
        """Keeps the decision, and has agents follow it. False when another number is wanted by now, or it is fixed.

        Raises StaleTerm, StoreError.
        """
        names = [keys.leader(job), keys.job(job), keys.decisions(job)]
        kept = msgspec.json.encode(decision)
        args = [token, decision.before, decision.wanted, kept, MOST_DECISIONS, _suffix(decision.pool)]
        answer = self._scripts.run("scale", names, args)
        if answer[0] == -1:
            raise StaleTerm(f"this leader no longer leads job {job!r}")
        return bool(answer[0] == 1)

    def decisions(self, job: str, count: int = MOST_DECISIONS) -> list[Decision]:
        """The newest ones, newest first. Raises DecodingError, StoreError."""
        with translated():
            raw = self._scripts.client.lrange(keys.decisions(job), 0, count - 1)
        try:
            return [msgspec.json.decode(text, type=Decision) for text in raw]
        except msgspec.MsgspecError as error:
            raise DecodingError(f"a kept decision cannot be read: {error}") from error


def wanted_field(pool: str) -> str:
    """The field of the job's hash with the number of workers that are wanted in the pool."""
    return "workers_wanted" + _suffix(pool)


def scaled_pools(fields: Mapping[str, str]) -> dict[str, Scaled]:
    """The pools, other than `main`, that the fields of a job's hash say are scaled. Raises ValueError, MsgspecError."""
    return {
        pool: Scaled(
            msgspec.json.decode(settings, type=Scaling),
            int(fields.get(wanted_field(pool), 0)),
            int(fields.get("scaled_at" + _suffix(pool), 0)),
        )
        for name, settings in sorted(fields.items())
        if (pool := name.removeprefix("scaling:")) != name
    }


def _suffix(pool: str) -> str:
    """Of the fields of the pool; those of `main` have none, as in jobs that know no pools."""
    return "" if pool == POOL else f":{pool}"
