"""`celeriac shadow` and `promote`: a new version beside the job that runs, compared with it, and put in its place."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import replace
from functools import partial
from typing import Final, TypeAlias

import click
import msgspec

from pipeline.cli.exits import HELP, Exit, JobFailed
from pipeline.cli.interrupts import Interrupts
from pipeline.cli.nodes import NodeSettings
from pipeline.cli.options import DEBUG, JOB, JSON, SERVER
from pipeline.cli.savepoints import need_pyarrow
from pipeline.cli.services import NodeProcess
from pipeline.embedded.folders import OwnFolder
from pipeline.errors import CeleriacError, JobStateError, PipelineError, StoreError, UnknownJob
from pipeline.facts import JobRecord
from pipeline.graph import Graph
from pipeline.lifecycle import JobState
from pipeline.loader import load_graph
from pipeline.needs import find_needs
from pipeline.operations import About, Claim, Phase
from pipeline.savepoints.matching import match
from pipeline.shadowing.carrying import Beside, Candidate, Report, Shadowing, make_shadow
from pipeline.shadowing.comparing import difference_lines
from pipeline.shadowing.course import Course, Wish
from pipeline.shadowing.holding import plan_of, shadow_differences, shadow_of
from pipeline.store.claims import ClaimStore
from pipeline.store.connection import connect
from pipeline.store.jobs import JobStore
from pipeline.store.scripts import Scripts
from pipeline.store.shadows import ShadowStore
from pipeline.store.versions import VersionStore
from pipeline.versions import Version, this_version, whole_target
from pipeline.wording import counted

ROOM_MIB: Final = 64
KEEP_SECONDS: Final = 2.0
LOOK_SECONDS: Final = 0.2
TAKEN_AWAY_SECONDS: Final = 30.0


@click.command(epilog=HELP)
@JOB
@click.argument("target", metavar="[FILE.py[:NAME]]", required=False)
@SERVER
@click.option("--workers", type=click.IntRange(1, 1000), default=1, show_default=True, help="Of the shadow, here.")
@click.option(
    "--room",
    "room_mib",
    type=click.IntRange(1, 65_536),
    default=ROOM_MIB,
    show_default=True,
    metavar="MIB",
    help="Give it up when more input, or results, than this wait for it.",
)
@click.option("--allow-dropped", is_flag=True, help="Leave out the state of operators that FILE has not.")
@click.option("--drop", is_flag=True, help="Drop the shadow that there is: the job goes on as it was.")
@JSON
@DEBUG
@click.pass_obj
def shadow(
    interrupts: Interrupts,
    job: str,
    target: str | None,
    redis_url: str,
    workers: int,
    room_mib: int,
    allow_dropped: bool,
    drop: bool,
    as_json: bool,
) -> Exit:
    """Run another version of a job beside it, on the same input, and compare what both give their sinks.

    Nothing that FILE.py gives its sinks leaves Redis. It begins with the job's state as it is now. The command stays
    while the shadow does; Ctrl-C drops it. Without FILE it shows how far the shadow is. `celeriac promote JOB` puts it
    in the job's place.
    """
    scripts = Scripts(connect(redis_url))
    if target is None:
        return drop_shadow(scripts, job) if drop else show_shadow(scripts, job, as_json=as_json)
    if drop:
        raise click.UsageError("--drop goes without FILE")
    need_pyarrow()
    graph = load_graph(target)
    version = check_shadow(JobStore(scripts).read(job), graph, target, allow_dropped=allow_dropped)
    settings = NodeSettings(
        redis=redis_url,
        job=shadow_of(job),
        target=target,
        workers=workers,
        sources=(),
        reader="",
        logs="",
        temporary="",
    )
    candidate = Candidate(graph, version, room_mib << 20, allow_dropped)
    with Shadowed(scripts, job, version) as shadowed, interrupts.immediate():
        course = shadowed.carry(candidate, whole_target(target), partial(_node, settings))
    if course is None:
        click.echo(f"the shadow of job {job} is dropped")
    else:
        click.echo(
            f"job {job} is promoted to version {version.code}; input was held back for {course.held_seconds:.1f} s"
        )
    return Exit.FINISHED


def check_shadow(record: JobRecord, graph: Graph, target: str, *, allow_dropped: bool) -> Version:
    """The version, which may be the job's shadow. Changes nothing.

    Raises PipelineError with what keeps it from that, which may be state that it has no operator for, without
    `allow_dropped`; EnvironmentFault, JobStateError.
    """
    find_needs(graph.nodes)
    if record.state is not JobState.RUNNING:
        raise JobStateError(f"job {record.job!r} is {record.state.value}: only a running job has a shadow")
    plan = plan_of(graph, record.plan)
    lines = shadow_differences(record.plan, plan)
    if lines:
        raise PipelineError(
            f"{target} cannot be a shadow of job {record.job!r}: only functions and operators may be others:"
            + "".join(f"\n  - {line}" for line in lines),
            hint=f"`celeriac suspend {record.job}`, then `run` or `submit` this file with --from-savepoint",
        )
    dropped = match(record.plan, plan).dropped
    if dropped and not allow_dropped:
        raise PipelineError(
            f"{target} has no place for what job {record.job!r} holds:"
            + "".join(f"\n  - {line}" for line in dropped.values()),
            hint="operators are matched by their names: give them the names that they have in the job, or leave their"
            " state out with --allow-dropped",
        )
    return this_version("shadow", target, plan.fingerprint)


Node: TypeAlias = Callable[[Shadowing, OwnFolder], AbstractContextManager[Callable[[], None]]]
"""The node of a shadow while the block lasts, with a folder for its files; what looks after it."""


class Shadowed:
    """The job's lifecycle operation while its shadow lives. At the end of the block nothing of the shadow is left."""

    def __init__(self, scripts: Scripts, job: str, version: Version, beside: Beside | None = None) -> None:
        self._scripts = scripts
        self._beside = beside or Beside()
        self._job = job
        self._version = version
        self._outcome = ""
        about = About("shadow", by=version.by, code=version.code, file=version.file)
        self.claim: Claim = ClaimStore(scripts).undertake(job, about, Phase.COPYING)
        self._kept_at = self._beside.clock()

    def __enter__(self) -> Shadowed:
        return self

    def __exit__(self, _type: object, error: BaseException | None, _trace: object) -> None:
        if error is not None:
            self._outcome = f"given up: {error}" if isinstance(error, CeleriacError) else "interrupted"
        try:
            self._end()
        except StoreError:
            if error is None:
                raise

    def _end(self) -> None:
        """Whatever server answers: another one than before is no reason to leave something behind."""
        scripts = self._scripts.anew()
        try:
            if JobStore(scripts).read(self._job).shadow:
                ShadowStore(scripts, self._job).take_away(self.claim.token, is_own=True, outcome=self._outcome)
            else:
                ClaimStore(scripts).end(self.claim, self._outcome)
        except UnknownJob:  # removed meanwhile: its shadow goes, too
            with suppress(UnknownJob):
                JobStore(scripts).erase(shadow_of(self._job))

    def carry(self, candidate: Candidate, target: str, node: Node) -> Course | None:
        """The shadow from its beginning to its end; its course when it was promoted. Raises as `Course.run` does."""
        beside = self._beside
        with OwnFolder.make("celeriac-shadow-") as folder:
            one = make_shadow(self._scripts, self.claim, candidate, folder.path, replace(beside, between=self._keep))
            VersionStore(self._scripts).add(one.shadow, self._version)
            with node(one, folder) as tend:
                course = Course(one, target, tend=tend, clock=beside.clock, sleep=beside.sleep)
                self._outcome = course.run()
        return course if self._outcome == "promoted" else None

    def _keep(self) -> None:
        self._beside.between()
        now = self._beside.clock()
        if now - self._kept_at >= KEEP_SECONDS:
            self._kept_at = now
            ClaimStore(self._scripts).renew(self.claim, Phase.COPYING, 0, 0)


@contextmanager
def _node(settings: NodeSettings, one: Shadowing, folder: OwnFolder) -> Iterator[Callable[[], None]]:
    """Processes of this one."""
    logs, temporary = folder.path / "logs", folder.path / "tmp"
    logs.mkdir()
    temporary.mkdir()
    for line in one.lines:
        click.echo(line, err=True)
    placed = msgspec.structs.replace(settings, logs=str(logs), temporary=str(temporary))
    node = NodeProcess(logs, temporary, folder.holds)
    try:
        node.start(placed)
        click.echo(_announcement(one), err=True)
        yield partial(_revive, node)
    finally:
        node.close()


def _revive(node: NodeProcess) -> None:
    node.revive()


def _announcement(one: Shadowing) -> str:
    return (
        f"version {one.version.code} runs beside job {one.job}: `celeriac shadow {one.job}` shows how far it is,"
        f" `celeriac promote {one.job}` puts it in its place, Ctrl-C drops it"
    )


def show_shadow(scripts: Scripts, job: str, *, as_json: bool) -> Exit:
    """Raises JobStateError when there is none."""
    JobStore(scripts).read(job)
    found = ShadowStore(scripts, job).read()
    if found is None:
        raise JobStateError(f"job {job!r} has no shadow", hint=f"`celeriac shadow {job} FILE` begins one")
    if as_json:
        click.echo(found.report.decode() or "{}")
    elif not found.report:
        click.echo(f"the shadow of job {job} is being made")
    else:
        click.echo("\n".join(report_lines(job, msgspec.json.decode(found.report, type=Report))))
    return Exit.FINISHED


def report_lines(job: str, report: Report) -> Iterator[str]:
    yield f"version {report.code} runs beside job {job}, {counted(report.lag, 'record')} behind"
    for name, tally in report.sinks.items():
        words = [f"{counted(tally.compared, 'result')} compared", f"{tally.equal:,} equal"]
        words += [f"{tally.moved:,} in another order"] if tally.moved else []
        words += [f"{tally.different:,} otherwise"] if tally.different else []
        words.append(f"{sum(tally.waiting):,} wait for their counterparts")
        yield f"sink {name}: {', '.join(words)}"
    if report.keys:
        keys = counted(report.keys, "key")
        yield f"results of {keys} are otherwise; the last ones of {report.keys_alike:,} are alike"
    if any(report.letters):
        yield f"dead letters since it began: {report.letters[0]:,} of the job, {report.letters[1]:,} of the new version"
    yield from (f"only of the new version: {line}" for line in report.letter_lines)
    yield from difference_lines(report.first)
    yield from report.lines


def drop_shadow(scripts: Scripts, job: str) -> Exit:
    """Returns when nothing of it is left. Raises JobStateError when there is none, JobFailed."""
    store = ShadowStore(scripts, job)
    if not store.want(msgspec.json.encode(Wish("drop")).decode()):
        token = JobStore(scripts).read(job).shadow.partition(" ")[0]
        store.take_away(token, is_own=False, outcome="dropped")
    until = time.monotonic() + TAKEN_AWAY_SECONDS
    while JobStore(scripts).read(job).shadow:
        if time.monotonic() > until:
            raise JobFailed(f"the shadow of job {job} is still there after {TAKEN_AWAY_SECONDS:g} s", hint="try again")
        time.sleep(LOOK_SECONDS)
    click.echo(f"the shadow of job {job} is dropped")
    return Exit.FINISHED


@click.command(epilog=HELP)
@JOB
@SERVER
@click.option("--accept-differences", is_flag=True, help="Results that are otherwise are meant to be.")
@click.option(
    "--wait",
    "wait_seconds",
    type=click.FloatRange(0, 86_400),
    default=60.0,
    show_default=True,
    help="Seconds until both have processed all, with the input held back. After that the job goes on as before.",
)
@DEBUG
def promote(job: str, redis_url: str, accept_differences: bool, wait_seconds: float) -> Exit:
    """Put the shadow of a job in its place, where both have processed the same input.

    The job goes on under its own id, with the state of the shadow, its own senders, outputs and their readers; its
    workers start anew with the new file, which must lie at the same path on each of their machines.
    """
    scripts = Scripts(connect(redis_url))
    store, jobs = ShadowStore(scripts, job), JobStore(scripts)
    jobs.read(job)  # that there is no such job is told first
    if not store.want(msgspec.json.encode(Wish("promote", accept_differences, wait_seconds)).decode()):
        raise JobStateError(
            f"the command of the shadow of job {job!r} is gone: the shadow cannot be promoted",
            hint=f"the leader takes it away; then begin it again: celeriac shadow {job} FILE",
        )
    until = time.monotonic() + wait_seconds + TAKEN_AWAY_SECONDS
    while time.monotonic() < until:
        found = store.read()
        if found is not None and found.answer:
            raise JobFailed(f"job {job} is not promoted: {found.answer}", hint=f"`celeriac shadow {job}` shows more")
        record = jobs.read(job)
        if not record.shadow:
            return _promoted(record)
        time.sleep(LOOK_SECONDS)
    raise JobFailed(f"job {job} is not promoted yet", hint=f"`celeriac status {job}` shows how far it is")


def _promoted(record: JobRecord) -> Exit:
    past = next((each for each in reversed(record.operations) if each.about.kind == "shadow"), None)
    outcome = past.outcome if past is not None else "nothing is known of it"
    if outcome != "promoted":
        raise JobFailed(f"job {record.job} is not promoted; its shadow: {outcome}")
    click.echo(f"job {record.job} is promoted to version {record.code}")
    return Exit.FINISHED
