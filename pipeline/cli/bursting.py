"""`celeriac burst`: Spark works off the backlog of some partitions of a job, and gives them back; others go on."""

from __future__ import annotations

import secrets
import socket
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from typing import Final

import click

from pipeline.bursts import Lag, Threshold, burst_pool, lags, open_places
from pipeline.cli.bulk import SparkOptions, check_stream
from pipeline.cli.burstcourse import Course
from pipeline.cli.exits import HELP, Exit
from pipeline.cli.interrupts import Interrupts
from pipeline.cli.joining import check_work
from pipeline.cli.moving import table
from pipeline.cli.options import DEBUG, JOB, SERVER, SPARK_SETTINGS
from pipeline.cli.services import MemberProcess, Workspace
from pipeline.errors import CeleriacError, JobStateError, OperationLost, PipelineError, StoreError
from pipeline.facts import JobFacts
from pipeline.loader import file_of
from pipeline.needs import IN_A_BURST
from pipeline.nodes import free_name
from pipeline.operations import About, Claim, Phase
from pipeline.plan import Plan
from pipeline.positions import Position
from pipeline.store.backlogs import read_backlogs
from pipeline.store.claims import ClaimStore
from pipeline.store.connection import connect
from pipeline.store.jobs import JobStore
from pipeline.store.scripts import Scripts
from pipeline.store.versions import VersionStore
from pipeline.validation import suggestion
from pipeline.versions import check_code, whoami
from pipeline.wording import counted

MEASURE_SECONDS: Final = 3.0
"""So long the pace of partitions is measured, where it is asked for."""

DEFAULT_BEHIND: Final = "1000"


def _threshold(_context: click.Context, _parameter: click.Parameter, value: str) -> Threshold:
    text = value.strip()
    with suppress(ValueError):
        if text.endswith("s"):
            seconds = float(text[:-1])
            if 0 < seconds < 1e9:
                return Threshold(seconds=seconds)
        elif int(text) >= 1:
            return Threshold(int(text))
    raise click.BadParameter(f"{value!r}: write records, as 10000, or seconds, as 60s")


def _numbers(_context: click.Context, _parameter: click.Parameter, value: str) -> tuple[int, ...] | None:
    if value == "all":
        return None
    parts = [each.strip() for each in value.split(",")]
    if not all(each.isascii() and each.isdecimal() for each in parts):
        raise click.BadParameter(f"{value!r}: write numbers, as 1,2,5, or all")
    return tuple(sorted(set(map(int, parts))))


@click.command(epilog=HELP)
@JOB
@click.argument("target", metavar="FILE.py[:NAME]")
@SERVER
@click.option("--stage", help="Partitions of this stage only. Default: of all stages of the pool main.")
@click.option(
    "--partitions",
    "numbers",
    metavar="N,N,…|all",
    default="all",
    show_default=True,
    callback=_numbers,
    help="With --stage: these of its partitions.",
)
@click.option(
    "--behind",
    "threshold",
    metavar="RECORDS|SECONDSs",
    default=DEFAULT_BEHIND,
    show_default=True,
    callback=_threshold,
    help="Only partitions with so many records to process; or, as 60s, that need so long at their pace.",
)
@click.option("--master", metavar="URL", help="The Spark master. Default: local[*].")
@SPARK_SETTINGS
@click.option("--dry-run", "is_dry", is_flag=True, help="Show what would be worked off. Changes nothing.")
@click.option("--asked-by", hidden=True, default="")
@DEBUG
@click.pass_obj
def burst(
    interrupts: Interrupts,
    job: str,
    target: str,
    redis_url: str,
    stage: str | None,
    numbers: tuple[int, ...] | None,
    threshold: Threshold,
    master: str | None,
    is_dry: bool,
    asked_by: str,
) -> Exit:
    """Have Spark work off the backlog of partitions that are far behind, while the others go on.

    Each is cut where its inbox ends now. Spark takes it over with its state, works up to the cut, and gives it back to
    the workers, which go on with the next record. FILE.py is the job's own file. Ctrl-C gives back at once.
    """
    if numbers is not None and stage is None:
        raise click.UsageError("--partitions N,N,… needs --stage")
    scripts = Scripts(connect(redis_url))
    check_burst(scripts, job, target, stage, numbers)
    if not is_dry:
        check_stream(SparkOptions(master or None, None, None, is_stream=True))
    jobs = JobStore(scripts)
    facts, found = measured(lambda: jobs.facts(job), stage, numbers, threshold)
    behind = [each for each in found if threshold.is_reached(each)]
    if not behind:
        click.echo(_nothing(facts, found, threshold))
        return Exit.FINISHED
    click.echo("\n".join(_rows(facts.record.plan, behind)), err=not is_dry)
    if is_dry:
        return Exit.FINISHED
    order = _Order(job, target, redis_url, master or "", asked_by or whoami())
    with interrupts.deferred():
        return carry_out(scripts, order, facts, behind, interrupts)


def check_burst(scripts: Scripts, job: str, target: str, stage: str | None, numbers: Sequence[int] | None) -> None:
    """Raises JobStateError when the job does not run, or the stage is paused; PipelineError for another file, or for
    what the job has not.
    """
    record = JobStore(scripts).read(job)
    check_work(scripts, record, target, without_frames=IN_A_BURST)
    check_code(VersionStore(scripts).rollout(job), "", target)
    if stage is None:
        return
    found = next((each for each in record.plan.stages if each.name == stage), None)
    if found is None:
        names = [each.name for each in record.plan.stages]
        raise PipelineError(f"job {job!r} has no stage {stage!r}", hint=suggestion(stage, names))
    if stage in record.still:
        raise JobStateError(
            f"stage {stage} of job {job!r} is paused: nobody works on it, Spark neither",
            hint=f"`celeriac unpause {job} --stage {stage}` lets it go on",
        )
    wrong = [number for number in numbers or () if number >= found.partitions]
    if wrong:
        raise PipelineError(
            f"stage {stage} of job {job!r} has no partition {wrong[0]}", hint=f"they are 0 to {found.partitions - 1}"
        )


def measured(
    look: Callable[[], JobFacts],
    stage: str | None,
    numbers: Sequence[int] | None,
    threshold: Threshold,
    sleep: Callable[[float], None] = time.sleep,
) -> tuple[JobFacts, list[Lag]]:
    """How far the partitions that are asked for are behind; with their pace where the threshold is a time."""
    before = look()
    if threshold.seconds is None:
        return before, lags(before, open_places(before, stage, numbers))
    sleep(MEASURE_SECONDS)
    facts = look()
    return facts, lags(facts, open_places(facts, stage, numbers), before)


def _nothing(facts: JobFacts, found: Sequence[Lag], threshold: Threshold) -> str:
    how = counted(threshold.records, "record") if threshold.seconds is None else f"{threshold.seconds:g} s"
    most = max((each.backlog for each in found), default=0)
    furthest = counted(most, "record")
    return f"no partition of job {facts.record.job} is {how} behind (the furthest is {furthest} behind): nothing to do"


def _rows(plan: Plan, behind: Sequence[Lag]) -> list[str]:
    rows: list[tuple[str, ...]] = [("partition", "stage", "behind", "at its pace")]
    for each in behind:
        pace = "never" if each.seconds == float("inf") else f"{each.seconds:,.0f} s" if each.seconds else "?"
        rows.append((each.name, plan.stage_name(each.place[0]), counted(each.backlog, "record"), pace))
    return table(rows)


@dataclass(frozen=True, slots=True)
class _Order:
    """What is to be carried out. master: empty for the cores of this host."""

    job: str
    target: str
    redis_url: str
    master: str
    by: str

    def __repr__(self) -> str:  # the address may hold a password
        return f"_Order({self.job!r})"

    def variables(self, node: str) -> dict[str, str]:
        """What the node is told that works on it."""
        return {
            "CELERIAC_REDIS": self.redis_url,
            "CELERIAC_JOB": self.job,
            "CELERIAC_PIPELINE": self.target,
            "CELERIAC_NODE": node,
            "CELERIAC_POOL": burst_pool(node),
            "CELERIAC_PROCESSES": "1",
            "CELERIAC_ONCE": "1",
            "CELERIAC_ENGINE": "spark",
            "CELERIAC_STREAM_MASTER": self.master,
            "CELERIAC_BURSTS": "",
        }


def carry_out(scripts: Scripts, order: _Order, facts: JobFacts, behind: Sequence[Lag], interrupts: Interrupts) -> Exit:
    """The burst, from its cut to its end. Raises Busy, JobFailed, OperationLost, EnvironmentFault, StoreError."""
    starts, cuts = cut(scripts, order.job, [each.place for each in behind])
    node = f"{free_name(facts, socket.gethostname())[:60]}.burst-{secrets.token_hex(3)}"
    about = about_burst(order.by, file_of(order.target).name, node, cuts)
    with Undertaken(ClaimStore(scripts), order.job, about) as undertaken, ExitStack() as stack:
        workspace = Workspace.temporary()
        stack.callback(workspace.close)
        member = MemberProcess(order.variables(node), workspace)
        stack.callback(member.close)
        member.start()
        click.echo(f"the {about.change} begins; Spark starts", err=True)
        course = Course(
            JobStore(scripts), undertaken.claims, undertaken.claim, node, starts, cuts, member, interrupts, _say
        )
        undertaken.course = course
        lines = course.run()
    click.echo("\n".join(lines))
    return Exit.INTERRUPTED if course.is_interrupted else Exit.FINISHED


def cut(
    scripts: Scripts, job: str, places: Sequence[tuple[int, int]]
) -> tuple[dict[str, Position], dict[str, Position]]:
    """Partition, as `stage.partition` -> where it stands; and where it ends, which is as far as a burst goes.

    Raises UnknownJob, StoreError.
    """
    _, backlogs = read_backlogs(scripts, job, places)
    named = {f"{stage}.{partition}": each for (stage, partition), each in backlogs.items()}
    starts = {name: each.position for name, each in named.items()}
    return starts, {name: each.end for name, each in named.items()}


def about_burst(by: str, file: str, node: str, cuts: Mapping[str, Position]) -> About:
    """What the leader, and the node, need to know of it."""
    return About("burst", by=by, file=file, node=node, cuts={name: str(end) for name, end in cuts.items()})


class Undertaken:
    """The job's operation while the block lasts. How that has ended is written into the job's history.

    Raises Busy when another one is under way.
    """

    def __init__(self, claims: ClaimStore, job: str, about: About) -> None:
        self.claims = claims
        self.claim: Claim = claims.undertake(job, about, Phase.STARTING)
        self.course: Course | None = None

    def __enter__(self) -> Undertaken:
        return self

    def __exit__(self, _type: object, error: BaseException | None, _trace: object) -> None:
        if isinstance(error, OperationLost):
            return
        outcome = self.course.outcome if self.course is not None else "interrupted"
        if error is not None and outcome == "done":
            outcome = f"given up: {error}" if isinstance(error, CeleriacError) else "interrupted"
        with suppress(StoreError):  # else its claim runs out by itself
            self.claims.end(self.claim, outcome)


def _say(line: str) -> None:
    click.echo(line, err=True)
