"""`celeriac upgrade`: new functions under a running job, one worker after the other."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Final, Self

import click

from pipeline.cli.exits import HELP, Exit, JobFailed
from pipeline.cli.options import DEBUG, JOB, SERVER
from pipeline.differences import plan_differences
from pipeline.errors import (
    CeleriacError,
    JobStateError,
    OperationLost,
    PipelineError,
    StoreError,
    StoreUnavailable,
)
from pipeline.facts import JobFacts, JobRecord, WorkerFacts
from pipeline.lifecycle import WORKING, JobState
from pipeline.loader import load_graph
from pipeline.needs import find_needs
from pipeline.operations import About, Phase
from pipeline.plan import compile_plan
from pipeline.store.claims import ClaimStore
from pipeline.store.connection import connect
from pipeline.store.jobs import JobStore
from pipeline.store.scripts import Scripts
from pipeline.store.versions import VersionStore
from pipeline.versions import ALL, Version, Wanted, this_version, wanted_for, whole_target
from pipeline.wording import counted

LOOK_SECONDS: Final = 0.2
RENEW_SECONDS: Final = 2.0
MISSED_SECONDS: Final = 5.0
STABLE_SECONDS: Final = 2.0
"""A worker that lives so long with the new version has begun to work with it."""


@click.command(epilog=HELP)
@JOB
@click.argument("target", metavar="FILE.py[:NAME]")
@SERVER
@click.option(
    "--wait",
    "wait_seconds",
    type=click.FloatRange(1, 3600),
    default=30.0,
    show_default=True,
    help="Seconds for each worker to come back with the new version. Else the upgrade halts.",
)
@DEBUG
def upgrade(job: str, target: str, redis_url: str, wait_seconds: float) -> Exit:
    """Have the workers of a job run new functions: another version of its file, with the same operators.

    One after the other gives its partitions away, ends, and comes back with the new file, which must lie at the same
    path on each of their machines. To go back, upgrade to the old file.
    """
    scripts = Scripts(connect(redis_url))
    store = JobStore(scripts)
    record = store.read(job)
    check_upgrade(record, target)
    version = this_version("upgraded", target, record.plan.fingerprint)
    with Holding(ClaimStore(scripts), job, version) as holding:
        wanted = Wanted(version.code, whole_target(target))
        Upgrade(store, VersionStore(scripts), record, wanted, click.echo, holding).run(version, wait_seconds)
    return Exit.FINISHED


def check_upgrade(record: JobRecord, target: str) -> None:
    """Returns when the file may be the job's next version; changes nothing.

    Raises PipelineError when it cannot be loaded, or defines other operators, with what differs; EnvironmentFault when
    a program is missing; JobStateError when the job is finished.
    """
    graph = load_graph(target)
    find_needs(graph.nodes)
    plan = compile_plan(graph, 1, record.plan.limits)
    lines = plan_differences(record.plan, plan)
    if lines:
        raise PipelineError(
            f"{target} is another pipeline than job {record.job!r} has; workers of both cannot work side by side:"
            + "".join(f"\n  - {line}" for line in lines),
            hint=f"`celeriac suspend {record.job}`, then `run` or `submit` this file with --from-savepoint",
        )
    if record.state is JobState.FINISHED:
        raise JobStateError(f"job {record.job!r} is finished")


class Holding:
    """The job's lifecycle operation, as long as the block lasts. How the block ends is written into its history.

    Raises Busy when another one is under way, JobStateError.
    """

    def __init__(
        self, claims: ClaimStore, job: str, version: Version, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._claims = claims
        self._clock = clock
        about = About("upgrade", by=version.by, code=version.code, file=version.file)
        self.claim = claims.undertake(job, about, Phase.ROLLING)
        self._said_at = clock()
        self._said: tuple[Phase, int, int] = (Phase.ROLLING, 0, 0)

    def say(self, phase: Phase, done: int, total: int) -> None:
        """It is so far. While Redis is away, `keep` says it later. Raises OperationLost when it was taken for gone."""
        self._said = (phase, done, total)
        with suppress(StoreUnavailable):
            self._claims.renew(self.claim, *self._said)
            self._said_at = self._clock()

    def keep(self) -> None:
        """To be called again and again. Raises as `say`."""
        if self._clock() - self._said_at >= RENEW_SECONDS:
            self.say(*self._said)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, _type: object, error: BaseException | None, _trace: object) -> None:
        if isinstance(error, OperationLost):
            return
        outcome = "done"
        if error is not None:
            outcome = f"halted: {error}" if isinstance(error, CeleriacError) else "interrupted"
        try:
            self._claims.end(self.claim, outcome)
        except StoreError:
            if error is None:
                raise


@dataclass(slots=True)
class Upgrade:
    """One upgrade of one job. When it was interrupted, another one to the same version goes on with it."""

    store: JobStore
    versions: VersionStore
    record: JobRecord
    wanted: Wanted
    say: Callable[[str], None]
    holding: Holding
    clock: Callable[[], float] = time.monotonic
    sleep: Callable[[float], None] = time.sleep

    @property
    def job(self) -> str:
        return self.record.job

    def run(self, version: Version, wait_seconds: float) -> None:
        """All workers run the version when this returns. Raises JobFailed when one does not come back with it: then
        the others stay with the version that they had; OperationLost.
        """
        before = self.versions.versions(self.job, 1)
        self.versions.add(self.job, version, claim=self.holding.claim)
        changed = 0
        while (worker := self._next(changed)) is not None:
            old = self._of(worker)
            self._want(worker.name, self.wanted)
            self.say(f"worker {worker.name}: {old.code or 'an unknown version'} -> {self.wanted.code}")
            if not self._has_come_back(worker, wait_seconds):
                self._halt(worker, old, before[-1] if before else None, changed, wait_seconds)
            changed += 1
        self.holding.say(Phase.FINISHING, changed, changed)
        self._want(ALL, self.wanted)
        self._settle(wait_seconds)
        self.say(f"job {self.job} runs version {self.wanted.code}: {counted(changed, 'worker')} changed")

    def _next(self, changed: int) -> WorkerFacts | None:
        """A worker that is there and does not run the version."""
        facts = self._facts()
        if facts.record.state not in WORKING:
            return None
        left = [each for each in _living(facts) if each.report.get("code") != self.wanted.code]
        self.holding.say(Phase.ROLLING, changed, changed + len(left))
        return left[0] if left else None

    def _want(self, worker: str, wanted: Wanted) -> None:
        self.versions.want(self.job, worker, wanted, claim=self.holding.claim)

    def _of(self, worker: WorkerFacts) -> Wanted:
        """What the worker runs now."""
        said = wanted_for(self.versions.rollout(self.job), worker.name)
        code = str(worker.report.get("code", ""))
        return said if said is not None and said.code == code else Wanted(code)

    def _has_come_back(self, before: WorkerFacts, wait_seconds: float) -> bool:
        """True when it has lived for a while with the new version, or the job has ended; False when not in time."""
        until = self.clock() + wait_seconds
        seen, since = "", 0.0
        while (now := self.clock()) < until:
            facts = self._facts()
            if facts.record.state not in WORKING:
                return True  # it has ended meanwhile: nobody works at it any more
            found = next((each for each in _living(facts) if each.name == before.name), None)
            if found is None or found.report.get("code") != self.wanted.code:
                seen = ""
            elif found.incarnation != seen:
                seen, since = found.incarnation, now
            elif now - since >= STABLE_SECONDS:
                return True
            self.sleep(LOOK_SECONDS)
        return False

    def _settle(self, wait_seconds: float) -> None:
        """Those that died meanwhile come back with the version, too."""
        until, since = self.clock() + wait_seconds, self.clock()
        while (now := self.clock()) < until and now - since < STABLE_SECONDS:
            facts = self._facts()
            if facts.record.state not in WORKING:
                return
            is_missed = any(_is_missed(each) for each in facts.workers if each not in _living(facts))
            if is_missed or any(each.report.get("code") != self.wanted.code for each in _living(facts)):
                since = now
            self.sleep(LOOK_SECONDS)

    def _halt(self, worker: WorkerFacts, old: Wanted, version: Version | None, changed: int, seconds: float) -> None:
        self._want(worker.name, old)
        if version is not None and not changed:
            halted = Version("upgrade halted", version.code, version.fingerprint, version.file, version.by)
            self.versions.add(self.job, halted, claim=self.holding.claim)
        others = (
            f"version {self.wanted.code} is kept by {counted(changed, 'worker')}, the others"
            if changed
            else "all workers"
        )
        raise JobFailed(
            f"the upgrade of job {self.job} has halted: worker {worker.name} has not come back with version"
            f" {self.wanted.code} within {seconds:g} s, and goes back to {old.code or 'its file'};"
            f" {others} go on as before",
            hint="its log says why. `celeriac upgrade` with the mended file tries again, with the old one it goes back",
        )

    def _facts(self) -> JobFacts:
        while True:
            try:
                self.holding.keep()
                return self.store.facts(self.job)
            except StoreUnavailable:
                self.sleep(LOOK_SECONDS)


def _is_missed(worker: WorkerFacts) -> bool:
    """Whether a dead one was there just now, and did not end in good order."""
    return worker.age_seconds < MISSED_SECONDS and worker.report.get("stopping") is not True


def _living(facts: JobFacts) -> list[WorkerFacts]:
    lease = facts.record.plan.limits.lease_seconds
    return [
        each
        for each in facts.workers
        if each.age_seconds < lease and not each.is_reported_dead and each.report.get("stopping") is not True
    ]
