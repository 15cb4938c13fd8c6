"""Carries a shadow out, step by step: made of a cut of the job, fed, compared, promoted. Starts no process.

Whoever calls holds the job's lifecycle operation, and takes the shadow away at the end, whatever became of it.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import msgspec

from pipeline.errors import JobStateError, ShadowLost
from pipeline.facts import JobFacts, JobRecord
from pipeline.graph import Graph
from pipeline.lifecycle import JobState
from pipeline.operations import Claim
from pipeline.plan import Plan, echo_name, fingerprint
from pipeline.shadowing.comparing import Comparison, Difference, Side, SinkTally
from pipeline.shadowing.holding import (
    group_keys,
    held_back,
    held_plan,
    plan_of,
    shadow_move,
    shadow_of,
    with_echoes,
)
from pipeline.shadowing.letters import NewLetters
from pipeline.shadowing.reading import Listener, LiveResults, Results, ShadowResults, too_much
from pipeline.store.jobs import JobStore
from pipeline.store.scripts import Scripts
from pipeline.store.shadows import Promoting, ShadowStore
from pipeline.versions import Version, Wanted


class Report(msgspec.Struct, frozen=True):
    """How far a shadow is.

    lag: records of the input that the job has processed, or that wait for it, and the shadow has not.
    keys, keys_alike: keys with differences, and those of them whose last results are the same.
    letters: dead letters that the job, and the shadow, have written since the cut; letter_lines: some that only the
    shadow has. lines: what a person should know of its beginning.
    """

    shadow: str
    code: str
    lag: int
    sinks: dict[str, SinkTally]
    first: list[Difference]
    keys: int
    keys_alike: int
    letters: tuple[int, int]
    letter_lines: list[str]
    lines: tuple[str, ...]

    @property
    def compared(self) -> int:
        return sum(tally.compared for tally in self.sinks.values())

    @property
    def different(self) -> int:
        return sum(tally.different for tally in self.sinks.values())

    @property
    def waiting(self) -> tuple[int, int]:
        return sum(t.waiting[Side.LIVE] for t in self.sinks.values()), sum(
            t.waiting[Side.SHADOW] for t in self.sinks.values()
        )


@dataclass(slots=True)
class Shadowing:
    """One shadow of one job. `step` again and again; `report` at times; `try_to_promote` when the job is held back."""

    scripts: Scripts
    claim: Claim
    record: JobRecord
    """The job as it was announced: its plan has echoes."""
    plan: Plan
    """That of the shadow's version, as the job is to have it."""
    version: Version
    room_bytes: int
    live: LiveResults
    given: ShadowResults
    letters: NewLetters
    first: dict[str, int]
    """Sink -> the number of the first result behind the cut."""
    lines: tuple[str, ...]
    server: str
    comparison: Comparison

    @property
    def job(self) -> str:
        return self.record.job

    @property
    def shadow(self) -> str:
        return shadow_of(self.job)

    @property
    def store(self) -> ShadowStore:
        return ShadowStore(self.scripts, self.job)

    def step(self) -> int:
        """Gives the shadow input, and compares what there is; how much was done.

        Raises ShadowLost when the shadow cannot go on, UnknownJob, StoreError.
        """
        return self._pour() + self._compare()

    def check(self) -> None:
        """Raises ShadowLost when the shadow cannot go on, UnknownJob, StoreError."""
        if self.scripts.meet() != self.server:
            raise ShadowLost("the shadow was given up: Redis was restarted. The job goes on", hint="begin it again")
        found = self.store.read()
        if found is None or found.token != self.claim.token:
            raise ShadowLost(f"the shadow of job {self.job!r} was taken away")
        if found.given_up:
            raise too_much(self.room_bytes, "input")
        if self.comparison.held_bytes > self.room_bytes:
            raise too_much(self.room_bytes, "results")
        jobs = JobStore(self.scripts)
        if jobs.state(self.job) is not JobState.RUNNING:
            raise ShadowLost(f"the shadow was dropped: job {self.job!r} is {jobs.state(self.job).value}")
        record = jobs.read(self.shadow)
        if record.state is not JobState.RUNNING:
            raise ShadowLost(
                f"the shadow of job {self.job!r} is {record.state.value}: {record.reason or 'no reason was given'}."
                " The job goes on"
            )

    def report(self) -> Report:
        """Raises StoreError."""
        jobs = JobStore(self.scripts)
        ours, its = jobs.facts(self.job), jobs.facts(self.shadow)
        keys, alike = self.comparison.keys
        letters, letter_lines = self.letters.read()
        return Report(
            shadow=self.shadow,
            code=self.version.code,
            lag=_lag(ours, its),
            sinks=self.comparison.tallies,
            first=self.comparison.first,
            keys=keys,
            keys_alike=alike,
            letters=letters,
            letter_lines=letter_lines,
            lines=self.lines,
        )

    def is_quiet(self) -> bool:
        """Whether both have processed all that they were given, and nothing waits to be compared with something.

        When sources are held back it stays so. Raises as `step`.
        """
        while self.step():
            pass
        jobs = JobStore(self.scripts)
        if not all(_is_at_end(jobs.facts(job)) for job in (self.job, self.shadow)):
            return False
        while self._compare():
            pass
        return _heads(jobs.facts(self.job)) == _heads(jobs.facts(self.shadow))

    def hold(self, record: JobRecord) -> None:
        """Holds back all sources of the job that are not paused; those flow when the shadow is promoted, or taken
        away. One that is paused meanwhile stays so. Raises JobStateError, StoreError.
        """
        jobs = JobStore(self.scripts)
        for source in _sources(record):
            jobs.pause(record, source, is_paused=True, holder=self.claim.token)

    def let_go(self, record: JobRecord) -> None:
        """The job goes on as before. Raises StoreError."""
        jobs = JobStore(self.scripts)
        for source in _sources(record):
            with suppress(JobStateError):
                jobs.pause(record, source, is_paused=False, holder=self.claim.token)

    def try_to_promote(self, target: str) -> bool:
        """The shadow's state is the job's, and its version the only one that works at it; or nothing has changed.

        Raises ShadowLost, OperationLost, Busy, StoreError; after StoreUnavailable it may be called again.
        """
        if self.is_promoted():
            return True  # only the answer was lost
        old = self.record.plan
        version = msgspec.structs.replace(self.version, how="promoted")
        wanted = Wanted(self.version.code, target)
        groups = group_keys(old, self.plan)
        what = Promoting(self.claim, self.record.table, old, self.plan, version, wanted, groups)
        return self.store.promote(self.shadow, what) == "promoted"

    def is_promoted(self) -> bool:
        """Raises StoreError."""
        found = self.store.read()
        return found is not None and found.promoted_at_ms > 0

    def _pour(self) -> int:
        given = 0
        for stage in self.record.plan.stages:
            for number in range(stage.partitions) if not stage.upstream else ():
                poured, _ = self.store.pour(self.claim.token, self.shadow, self.plan, stage.index, number)
                given += poured
        return given

    def _compare(self) -> int:
        return self.add(Side.LIVE, self.live.read()) + self.add(Side.SHADOW, self.given.read())

    def add(self, side: Side, found: list[Results]) -> int:
        """Results that are compared; what was in front of the cut is not."""
        for results in found:
            first = self.first[results.sink]
            if results.first + results.piece.count > first:
                self.comparison.add(side, results.sink, results.piece.partition, results.batch(first))
        return len(found)


@dataclass(frozen=True, slots=True)
class Candidate:
    """The version that is to run beside a job. room_bytes: so much input, and results, may wait for it."""

    graph: Graph
    version: Version
    room_bytes: int
    allow_dropped: bool = False


@dataclass(frozen=True, slots=True)
class Beside:
    """What goes on beside the command of a shadow. between: called now and then while the shadow is being made.

    clock: monotonic seconds. listener: hears the job's results meanwhile.
    """

    between: Callable[[], None] = lambda: None
    clock: Callable[[], float] = time.monotonic
    sleep: Callable[[float], None] = time.sleep
    listener: type[Listener] = Listener


def make_shadow(
    scripts: Scripts, claim: Claim, candidate: Candidate, folder: Path, beside: Beside | None = None
) -> Shadowing:
    """The job's shadow is there, as the job was at one instant, and gets its input from there on. No worker is started.

    `folder` holds the cut for a while. Raises ShadowLost, SavepointError, Busy, OperationLost, StoreError: then
    `ShadowStore.take_away` is next.
    """
    from pipeline.savepoints.export import take_savepoint
    from pipeline.savepoints.places import LocalPlace
    from pipeline.savepoints.reading import Savepoint
    from pipeline.savepoints.restoring import restore_job

    jobs, beside = JobStore(scripts), beside or Beside()
    job, before = claim.job, jobs.read(claim.job)
    graph, room_bytes = candidate.graph, candidate.room_bytes
    plan = plan_of(graph, before.plan)
    shadow = shadow_of(job)
    ShadowStore(scripts, job).announce(claim, before, with_echoes(before.plan, has_echoes=True), shadow, room_bytes)
    record = jobs.read(job)
    sinks = [sink.name for sink in plan.sinks]
    live = LiveResults(scripts.client, job, record.run, sinks)
    listener = beside.listener(live, room_bytes)
    listener.start()
    try:
        place, name = LocalPlace(folder), f"{shadow}-{claim.token}"
        take_savepoint(scripts, record, place, name, shadow=claim.token, clock=beside.clock, between=beside.between)
        savepoint = Savepoint(place, name)
        manifest = savepoint.manifest
        savepoint.manifest = msgspec.structs.replace(manifest, plan=held_plan(manifest.plan))
        held = msgspec.structs.replace(held_plan(plan), fingerprint=fingerprint(held_back(graph)))
        restored = restore_job(
            scripts, savepoint, shadow, held, allow_dropped=candidate.allow_dropped, place=shadow_move
        )
    finally:
        heard = listener.end()
    place.delete(name)
    found = Shadowing(
        scripts=scripts,
        claim=claim,
        record=record,
        plan=plan,
        version=candidate.version,
        room_bytes=room_bytes,
        live=live,
        given=ShadowResults(scripts, shadow, jobs.read(shadow).run, held),
        letters=NewLetters(scripts, job, shadow),
        first={sink: manifest.outputs[echo_name(sink)] for sink in sinks},
        lines=tuple(line for line in restored.lines if line.startswith(("dropped", "new"))),
        server=scripts.server,
        comparison=Comparison(room_bytes // 2),
    )
    found.add(Side.LIVE, heard)
    return found


def _sources(record: JobRecord) -> list[str]:
    return [stage.name for stage in record.plan.stages if not stage.upstream]


def _is_at_end(facts: JobFacts) -> bool:
    return all(part.at_end for part in facts.partitions)


def _heads(facts: JobFacts) -> list[int]:
    entries = {stage.index for stage in facts.record.plan.stages if not stage.upstream}
    return [part.head for part in facts.partitions if part.stage in entries]


def _lag(ours: JobFacts, its: JobFacts) -> int:
    waits = sum(_heads(ours)) - sum(_heads(its))
    return max(0, waits + sum(part.backlog for part in its.partitions))
