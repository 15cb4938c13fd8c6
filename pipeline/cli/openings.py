"""Registering a job, or going on with one that exists. Starts no process."""

from __future__ import annotations

import re
import secrets
import time
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Final

from pipeline.cli.link import Link
from pipeline.errors import EnvironmentFault, JobStateError, JobTaken, PipelineError, UnknownJob
from pipeline.facts import JobFacts, JobRecord
from pipeline.lifecycle import ENDED, JobState
from pipeline.losses import LOST
from pipeline.plan import Plan
from pipeline.store.jobs import JobStore
from pipeline.store.scripts import Scripts

if TYPE_CHECKING:
    from pipeline.savepoints.reading import Savepoint
    from pipeline.savepoints.restoring import Restored

_POLL_SECONDS: Final = 0.1
STARTING_MS: Final = 5_000
"""A run whose workers are not there yet says within this time that it is (`CLAIM_SECONDS`)."""

_PIPELINE_LETTERS: Final = 70
"""Of the pipeline's name in a job id, which has at most 100."""


@dataclass(frozen=True, slots=True)
class Beginning:
    """The savepoint that a new job begins with, and what of it may be otherwise than it was."""

    url: str
    allows_dropped: bool
    allows_edits: bool

    def open(self) -> Savepoint:
        """Raises SavepointError, EnvironmentFault."""
        try:
            from pipeline.savepoints.reading import Savepoint
        except ImportError as error:
            raise EnvironmentFault("savepoints need pyarrow", hint="pip install 'celeriac[savepoints]'") from error
        return Savepoint.at(self.url)

    def restore(self, scripts: Scripts, job: str, plan: Plan) -> Restored:
        """The job exists, and may run, when this returns. Raises as `restore_job`."""
        from pipeline.savepoints.restoring import restore_job

        dropped, edits = self.allows_dropped, self.allows_edits
        return restore_job(scripts, self.open(), job, plan, allow_dropped=dropped, allow_edits=edits)


def partitions_of(savepoint: Savepoint) -> int:
    """How many its stages had."""
    return max(stage.serving for stage in savepoint.manifest.plan.stages)


def new_job_id(pipeline: str, now: time.struct_time) -> str:
    """`<pipeline>-<yyyymmdd-hhmmss>-<4 random>`: sorts by time, and two runs in one second differ."""
    name = re.sub(r"[^A-Za-z0-9_.-]", "-", pipeline).lstrip("_.-")[:_PIPELINE_LETTERS] or "job"
    return f"{name}-{time.strftime('%Y%m%d-%H%M%S', now)}-{secrets.token_hex(2)}"


def open_job(store: JobStore, job: str, plan: Plan, link: Link, *, accepts_loss: bool = False) -> JobRecord:
    """The job, new or found. One that was cancelled, suspended or failed runs again; a finished one stays as it is.

    One that has halted, since Redis has lost writes of it, runs again with `accepts_loss` only, and no other with it.

    Raises PipelineError when it was made from another pipeline, JobStateError when another run works at it, or is
    about to, StoreError. May wait a few seconds for the heartbeats of a killed run to grow old, or for the first ones
    of a run that submits the same job at this moment, and for a Redis that is away; KeyboardInterrupt is raised only
    while it waits.
    """
    record = link.insist(lambda: store.read(job) if accepts_loss else _made_or_found(store, job, plan), above=0)
    if record.restoring:
        raise JobStateError(
            f"the job {job!r} is being restored from {record.restoring}, or that was interrupted",
            hint=f"`celeriac remove {job}` deletes what an interrupted one has left; then restore it anew",
        )
    if record.plan.fingerprint != plan.fingerprint:
        raise PipelineError(
            f"the job {job!r} was made from another pipeline than this file defines now",
            hint="choose another --job-id, or run the file as it was, in the same folder",
        )
    if record.state is JobState.FINISHED:
        return record
    _check_losses(record, accepts_loss=accepts_loss)
    claim = _claim(store, record, link)
    found = link.insist(lambda: store.read(job), above=0)  # another run may have had it until just now
    if found.state is JobState.FINISHED:
        return found
    _check_losses(found, accepts_loss=accepts_loss)
    opened = link.insist(lambda: _going_on(store, found, accepts_loss=accepts_loss), above=0)
    return replace(opened, claim=claim)


def go_on(store: JobStore, record: JobRecord, reason: str = "") -> None:
    """A suspended job runs again, and its input flows. Raises JobStateError, UnknownJob, StoreError."""
    _let_input_flow(store, record)
    store.transition(record.job, JobState.RUNNING, reason)


def _going_on(store: JobStore, found: JobRecord, *, accepts_loss: bool) -> JobRecord:
    """Has a job that is claimed, and was found so, work; as it is then.

    It looks at the job before each change, so it may be called again when no answer has come.
    """
    job, record = found.job, store.read(found.job)
    if record.state is JobState.SUSPENDED:
        _let_input_flow(store, record)  # first: who dies behind it leaves a job that is suspended still
    if accepts_loss:
        if record.generation == found.generation:
            if record.state not in ENDED:
                store.transition(job, JobState.CANCELLED, "to accept its loss")
            store.losses(job).accept(record)
        return store.read(job)
    if record.state in ENDED:
        store.transition(job, JobState.RUNNING)
    if _was_draining(store, job):
        # Its inboxes are closed: it ends as drained, never as if it had read all its input.
        store.transition(job, JobState.DRAINING, "it was draining when it was stopped")
    return store.read(job)


def _let_input_flow(store: JobStore, record: JobRecord) -> None:
    for source in record.paused:
        store.pause(record, source, is_paused=False)


def _made_or_found(store: JobStore, job: str, plan: Plan) -> JobRecord:
    try:
        return store.read(job)
    except UnknownJob:
        with suppress(JobStateError):  # another run has made it just now, or this one, and was not told
            store.create(job, plan)
        return store.read(job)


def _check_losses(record: JobRecord, *, accepts_loss: bool) -> None:
    if record.losses and not accepts_loss:
        raise JobStateError(
            f"the job {record.job!r} has halted: {LOST}" + "".join(f"\n  - {line}" for line in record.losses),
            hint="--accept-loss goes on without them; docs/operations.md says what that means",
        )
    if accepts_loss and not record.losses:
        raise JobStateError(
            f"nothing is known to be lost of the job {record.job!r}",
            hint="leave --accept-loss out: it is for after a loss only",
        )


def _was_draining(store: JobStore, job: str) -> bool:
    """True when the job runs though an entry inbox was closed before its source had been read to the end."""
    partitions = store.facts(job).partitions
    record = store.read(job)  # behind the partitions: an inbox is closed after its source is complete
    unread = {
        stage.index for stage in record.plan.stages if not stage.keyed and stage.name not in record.completed_sources
    }
    return record.state is JobState.RUNNING and any(part.closed and part.stage in unread for part in partitions)


def _claim(store: JobStore, record: JobRecord, link: Link) -> str:
    """The claim of this run, when it has the job: no worker is heard of, and no other run is about to start some."""
    nonce = secrets.token_hex(8)
    lease = record.plan.limits.lease_seconds
    deadline = time.monotonic() + lease + 1.0
    while True:
        facts = link.insist(lambda: store.facts(record.job), above=0)
        alive = [each.name for each in facts.workers if each.age_seconds < lease and not each.is_reported_dead]
        if alive and time.monotonic() > deadline:
            raise JobStateError(
                f"the job {record.job!r} is being run by another process: worker {alive[0]} is alive",
                hint=f"see `celeriac status {record.job}`, or cancel it first",
            )
        if not alive and not _is_starting(facts):
            taking = partial(store.claim, record.job, facts.record.claim, nonce)
            if claim := link.insist(taking, above=0):
                return claim
        if not alive:
            deadline = time.monotonic() + lease + 1.0
        link.pause(_POLL_SECONDS, above=0)


def still_held(job: str, claim: str) -> str:
    """The claim that was said again; nothing stands for one that is lost. Raises JobTaken."""
    if not claim:
        raise JobTaken(
            f"the job {job!r} was taken by another run while Redis was away, which goes on with it",
            hint=f"see `celeriac status {job}`",
        )
    return claim


def _is_starting(facts: JobFacts) -> bool:
    """Whether a run has claimed the job just now, and its first worker may yet come."""
    claimed_ms = int(facts.record.claim.partition(" ")[0] or 0)
    heard_ms = max((facts.now_ms - 1000 * each.age_seconds for each in facts.workers), default=0.0)
    return heard_ms < claimed_ms and facts.now_ms - claimed_ms < STARTING_MS
