"""A job's shadow in Redis: announced, fed, asked, promoted, taken away. Each call names the token of its command."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final, Literal

import msgspec

from pipeline.errors import Busy, JobStateError, ShadowLost
from pipeline.facts import JobRecord
from pipeline.operations import Claim
from pipeline.plan import Plan, echo_name
from pipeline.store import keys
from pipeline.store.claims import claim_lost
from pipeline.store.connection import translated
from pipeline.store.foreign import integer, ours, text_of
from pipeline.store.jobs import JobStore
from pipeline.store.losses import unknown_job
from pipeline.store.scripts import Scripts
from pipeline.versions import MOST_VERSIONS, Version, Wanted

POURED_ENTRIES: Final = 64
"""So many entries at most are given by one call: some milliseconds of Redis."""

_PAGE: Final = 500

Promotion = Literal["promoted", "not yet"]


@dataclass(frozen=True, slots=True)
class Shadow:
    """What Redis keeps of a shadow. job: its id. report: JSON. given_up: its input is not kept any more.

    promoted_at_ms: 0 while it was not.
    """

    token: str
    job: str
    given_up: str
    report: bytes
    answer: str
    promoted_at_ms: int


@dataclass(frozen=True, slots=True)
class Promoting:
    """What a promotion needs. old, new: plans of the job, before and afterwards. groups: as `group_keys` gives them."""

    claim: Claim
    table: int
    old: Plan
    new: Plan
    version: Version
    wanted: Wanted
    groups: Sequence[tuple[str, str]]


class ShadowStore:
    """What is done to the shadow of one job."""

    def __init__(self, scripts: Scripts, job: str) -> None:
        self._scripts = scripts
        self._job = job

    def announce(self, claim: Claim, record: JobRecord, plan: Plan, shadow: str, room_bytes: int) -> int:
        """The job's sinks have echoes from here on, by `plan`; the version of its table then.

        Raises OperationLost, JobStateError when it is not running, Busy, UnknownJob, StoreError.
        """
        args = [claim.token, record.table, plan.encode(), shadow, room_bytes]
        answer = self._scripts.run("shadow", self._names(), args)
        match answer[0]:
            case -1:
                raise claim_lost(self._job)
            case -3:
                raise JobStateError(f"job {self._job!r} is {_text(answer[1])}: only a running job has a shadow")
            case -4:
                raise Busy(f"the partitions of job {self._job!r} were changed just now", hint="try again")
            case -5:
                raise unknown_job(self._job)
            case -8:
                raise Busy(f"job {self._job!r} has a shadow", hint=f"`celeriac shadow {self._job} --drop` drops it")
        return int(answer[1])

    def read(self) -> Shadow | None:
        """The shadow that there is. Raises ForeignData, StoreError."""
        with translated():
            raw = self._scripts.client.hgetall(keys.shadow(self._job))
        if not raw:
            return None
        with ours(keys.shadow(self._job)):
            report = raw.pop(b"report", b"")
            text = text_of(raw)
            at = integer(text, "promoted", 0)
            return Shadow(text["token"], text["job"], text.get("given_up", ""), report, text.get("answer", ""), at)

    def pour(self, token: str, shadow: str, plan: Plan, stage: int, partition: int) -> tuple[int, int]:
        """Gives the shadow the next entries of an entry inbox: (given, still waiting).

        Raises ShadowLost when it cannot get them any more, StoreError.
        """
        at, limits = (shadow, stage, partition), plan.limits
        names = [keys.shadow(self._job), keys.tee(self._job, stage, partition), keys.job(shadow)]
        names += [keys.inbox(*at), keys.meta(*at), keys.log(*at)]
        args = [token, POURED_ENTRIES, limits.inbox_records, limits.inbox_bytes]
        answer = self._scripts.run("pour", names, args)
        match answer[0]:
            case -1:
                raise ShadowLost(f"the shadow of job {self._job!r} was taken away")
            case -2:
                raise ShadowLost(f"the shadow of job {self._job!r} does not work any more")
            case -7:
                raise ShadowLost(f"the shadow of job {self._job!r} has lost its place in the input")
        return int(answer[1]), int(answer[2])

    def report(self, token: str, report: bytes, answer: str = "") -> str:
        """Tells how far the shadow is; what others want of it, or nothing. `answer` is for who wanted something.

        Raises ShadowLost, StoreError.
        """
        found = self._scripts.run("report", [keys.shadow(self._job)], [token, report, answer])
        if found[0] != 1:
            raise ShadowLost(f"the shadow of job {self._job!r} was taken away")
        return _text(found[1])

    def want(self, what: str) -> bool:
        """Asks the command of the shadow for something; False when that is gone.

        Raises JobStateError when there is no shadow, UnknownJob, StoreError.
        """
        answer = self._scripts.run("want", self._names()[:3], [what])
        match answer[0]:
            case -5:
                raise unknown_job(self._job)
            case -1:
                raise JobStateError(
                    f"job {self._job!r} has no shadow", hint=f"`celeriac shadow {self._job} FILE` begins one"
                )
        return bool(answer[0])

    def promote(self, shadow: str, what: Promoting) -> Promotion:
        """Where both have processed the same and nothing is in flight, the shadow's state becomes the job's, and the
        sources that its command holds back flow.

        Raises OperationLost, ShadowLost when one of both does not run, Busy, UnknownJob, StoreError.
        """
        job, places = self._job, what.old.partitions()
        names = [*self._names(), keys.assignment(job), keys.rollout(job), keys.versions(job), keys.job(shadow)]
        names += [keys.dead(job), keys.dead_edits(job), keys.dead(shadow), keys.dead_edits(shadow)]
        for at in places:
            names += [keys.meta(job, *at), keys.log(job, *at), keys.meta(shadow, *at), keys.log(shadow, *at)]
        sources = [stage for stage in what.old.stages if not stage.upstream]
        entries = {stage.index: number for number, stage in enumerate(sources, 1)}
        args: list[Any] = [what.claim.token, what.table, what.new.encode(), what.wanted.encode()]
        args += [msgspec.json.encode(what.version), MOST_VERSIONS, len(places), len(sources)]
        args += [entries.get(stage, "") for stage, _ in places]
        args += [*(stage.name for stage in sources), *(part for pair in what.groups for part in pair)]
        answer = self._scripts.run("promote", names, args)
        match answer[0]:
            case -1:
                raise claim_lost(job)
            case -3:
                raise ShadowLost(f"the job or its shadow is {_text(answer[1])}")
            case -4 | -8:
                raise Busy(f"job {job!r} was changed just now", hint="try again")
            case -5:
                raise unknown_job(job)
            case -6 | -9:
                return "not yet"
        return "promoted"

    def take_away(self, token: str, *, is_own: bool, outcome: str) -> bool:
        """Nothing is left of the shadow, and the sources that it held back flow; False when its command is at work.

        Whoever is killed at this is followed by the next one. `is_own`: by its command itself. The operation ends with
        `outcome`. Raises StoreError.
        """
        store, own = JobStore(self._scripts), "1" if is_own else ""
        while True:
            record = store.read(self._job)
            plan = msgspec.structs.replace(record.plan, has_echoes=False) if record.plan.has_echoes else None
            args = [token, "stop", own, record.table, plan.encode() if plan else ""]
            answer = self._scripts.run("unshadow", self._names(), args)
            if answer[0] != -4:
                break
        if answer[0] != 1:
            return False
        shadow, found = record.shadow.partition(" ")[2], self.read()
        for stage in record.plan.stages:
            if not stage.upstream:
                with suppress(JobStateError):  # it may take no input any more
                    store.pause(record, stage.name, is_paused=False, holder=token)
        self._delete(record.plan)
        if shadow in store.list_ids() or store.finish_removal(shadow):
            store.erase(shadow)
        self._scripts.run("unshadow", self._names(), [token, "forget", own, _outcome(found, outcome)])
        return True

    def _delete(self, plan: Plan) -> None:
        job, names = self._job, []
        for sink in plan.sinks:
            stream = echo_name(sink.name)
            names += [keys.out(job, stream), keys.out_meta(job, stream), keys.out_log(job, stream)]
            names.append(keys.out_waiting(job, stream))
        for stage in plan.stages:
            if not stage.upstream:
                names += [keys.tee(job, stage.index, number) for number in range(stage.partitions)]
        with translated():
            self._scripts.client.unlink(*names)

    def _names(self) -> list[str]:
        job = self._job
        return [keys.job(job), keys.operation(job), keys.shadow(job), keys.control(job)]


def _outcome(found: Shadow | None, outcome: str) -> str:
    """Whoever promoted it may have been killed before it could say so."""
    return "promoted" if found is not None and found.promoted_at_ms else outcome


def _text(raw: bytes) -> str:
    return raw.decode("utf-8", "backslashreplace")[:1000]
