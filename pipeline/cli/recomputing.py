"""`celeriac backfill --job`: the state of some keys of a running job, computed anew from history and swapped in."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cache, partial
from pathlib import Path
from typing import Any, Final, Self

from pipeline.cli.bulk import SHOWN_LETTERS, SparkOptions, need_engine
from pipeline.cli.exits import Exit, JobFailed
from pipeline.cli.interrupts import Interrupts
from pipeline.cli.joining import check_work
from pipeline.cli.progress import duration
from pipeline.cli.reports import error_line, in_flight
from pipeline.cli.screen import Screen
from pipeline.errors import (
    CeleriacError,
    JobStateError,
    NotQuiet,
    OperationLost,
    PipelineError,
    RecordFailed,
    StoreError,
    StoreUnavailable,
)
from pipeline.facts import JobFacts, JobRecord
from pipeline.lifecycle import JobState
from pipeline.loader import file_of, load_graph
from pipeline.needs import OF_KEYS
from pipeline.operations import About, Claim, Phase
from pipeline.plan import Plan, StagePlan
from pipeline.reading.choosing import choose_stage, states_of
from pipeline.recomputing.course import Course, Swapped, Wanted
from pipeline.recomputing.keyfile import MOST_KEYS, check_count, read_keys
from pipeline.store.claims import ClaimStore
from pipeline.store.connection import connect
from pipeline.store.jobs import JobStore
from pipeline.store.scripts import Scripts
from pipeline.store.versions import VersionStore
from pipeline.versions import check_code, whoami
from pipeline.wording import counted

RENEW_SECONDS: Final = 2.0


@dataclass(frozen=True, slots=True)
class Which:
    """Keys of a file, or those with state of which a condition holds. operator: of their stage."""

    path: Path | None
    condition: str | None
    operator: str | None


@dataclass(frozen=True, slots=True)
class Order:
    """What is to be done."""

    job: str
    target: str
    redis_url: str
    which: Which
    wait_seconds: float
    partitions: int
    spark: SparkOptions

    def __repr__(self) -> str:  # the address may hold a password
        return f"Order({self.job!r})"


def recompute_keys(order: Order, screen: Screen, interrupts: Interrupts) -> Exit:
    """The state of the keys is what history gives, or nothing is changed.

    Raises PipelineError, ReadingError, JobStateError, LetterError, JobFailed, EnvironmentFault, InputError, StoreError.
    """
    keys = read_keys(order.which.path) if order.which.path is not None else None
    engine = need_engine()
    from pipeline.spark.bulk.history import check_history

    scripts = Scripts(connect(order.redis_url))
    record = JobStore(scripts).read(order.job)
    if record.state is not JobState.RUNNING:
        raise JobStateError(f"job {order.job!r} is {record.state.value}: only state of a running job is swapped")
    check_work(scripts, record, order.target, without_frames=OF_KEYS)
    code = check_code(VersionStore(scripts).rollout(order.job), "", order.target)
    check_workers(JobStore(scripts).facts(order.job), code, order.target)
    stage = stage_of(record.plan, order.job, order.which.operator)
    check_history(record.plan, stage)
    with screen, interrupts.deferred():
        found: list[Course] = []
        try:
            with interrupts.immediate():
                session = cache(partial(_session, engine, order.spark))
                keys = keys if keys is not None else _keys(session(), order, stage)
                if not keys:
                    screen.note(f"no key of stage {stage.name} is meant: nothing to do")
                    return Exit.FINISHED
                work = _Work(order, scripts, record, _wanted(record.plan, stage, keys), screen, interrupts)
                swapped = work.run(session, found.append)
        except KeyboardInterrupt:
            done = "the state is swapped all the same" if found and found[0].is_swapped else "nothing is changed"
            screen.warn(f"cancelled the backfill of job {order.job}: {done}")
            return Exit.INTERRUPTED
        for line in lines_of(record.plan, stage, swapped):
            screen.note(line)
        return _letters(record.plan, swapped, order.job, screen)


def check_workers(facts: JobFacts, code: str, target: str) -> None:
    """Raises PipelineError when some run another version: what comes after the swap would be theirs."""
    lease = facts.record.plan.limits.lease_seconds
    living = [each for each in facts.workers if each.age_seconds < lease and not each.is_reported_dead]
    others = {each.name: str(each.report["code"]) for each in living if each.report.get("code") not in (None, "", code)}
    if others:
        name, other = next(iter(others.items()))
        job = facts.record.job
        raise PipelineError(
            f"{file_of(target).name} is version {code}, and worker {name} of job {job!r} runs version {other}",
            hint=f"have the workers run it first: celeriac upgrade {job} {target}",
        )


def stage_of(plan: Plan, job: str, operator: str | None) -> StagePlan:
    """The stage that the operator is in, or the only one with state. Raises ReadingError, PipelineError."""
    if operator is not None:
        return choose_stage(plan, job, operator)[0]
    stages = sorted({state.stage for state in states_of(plan)})
    if not stages:
        raise PipelineError(f"job {job!r} keeps no state by key")
    if len(stages) > 1:
        names = ", ".join(f"{state.operator} ({plan.stage_name(state.stage)})" for state in states_of(plan))
        raise PipelineError(f"job {job!r} has several stages with state: {names}", hint="name one by --operator")
    return plan.stage(stages[0])


def _session(engine: Any, spark: SparkOptions) -> Any:
    from pipeline.spark.bulk.jobs import SparkThread

    return SparkThread().call(lambda: engine.open_session(spark.master, spark.remote, starts_fast=True))


def _keys(session: Any, order: Order, stage: StagePlan) -> frozenset[Any]:
    from pipeline.spark.bulk.choosing import keys_where
    from pipeline.spark.bulk.jobs import SparkThread

    thread, condition = SparkThread(), order.which.condition or ""
    thread.session = session
    keys = thread.call(lambda: keys_where(session, order.redis_url, order.job, stage.name, condition, MOST_KEYS))
    check_count(len(keys))
    return frozenset(keys)


def _wanted(plan: Plan, stage: StagePlan, keys: frozenset[Any]) -> Wanted:
    return Wanted(stage, tuple(state.operator for state in states_of(plan) if state.stage == stage.index), keys)


@dataclass(frozen=True, slots=True)
class _Work:
    """One order with all that it needs."""

    order: Order
    scripts: Scripts
    record: JobRecord
    wanted: Wanted
    screen: Screen
    interrupts: Interrupts

    def run(self, session: Callable[[], Any], begun: Callable[[Course], None]) -> Swapped:
        """Raises JobFailed for what comes while it is computed, else as `recompute_keys`."""
        from pipeline.spark.bulk.engine import BulkOptions
        from pipeline.spark.bulk.output import Selected
        from pipeline.spark.bulk.recompute import SparkRecompute

        order, wanted = self.order, self.wanted
        about = About(
            "backfill", wanted.stage.name, by=whoami(), file=file_of(order.target).name, keys=len(wanted.keys)
        )
        options = BulkOptions(
            partitions=order.partitions,
            scratch=order.spark.scratch,
            limits=self.record.plan.limits,
            keeps_state=True,
            ends_input=False,
            note=self.screen.warn,
            shield=self.interrupts.deferred,
        )
        selected = Selected(wanted.stage.index, wanted.keys)
        graph = load_graph(order.target)
        recompute = SparkRecompute(order.target, graph, session, selected, options, order.spark.is_elsewhere)
        with Undertaken(order.redis_url, order.job, about) as undertaken, recompute:

            def say(phase: Phase, done: int, total: int) -> None:
                undertaken.say(phase, done, total)
                self.screen.note(_progress(phase, done, total))

            # A rescale may have ended before this operation began; none begins from here on.
            record = JobStore(self.scripts).read(order.job)
            course = Course(
                self.scripts,
                record,
                undertaken.claim,
                replace(wanted, stage=record.plan.stage(wanted.stage.index)),
                recompute,
                order.wait_seconds,
                say,
                self.interrupts.deferred,
            )
            begun(course)
            try:
                return course.run()
            except NotQuiet as error:
                facts = JobStore(self.scripts).facts(order.job)
                indices = {stage.index for stage in self.record.plan.up_to(wanted.stage.index)}
                parts = tuple(part for part in facts.partitions if part.stage in indices)
                raise JobFailed(
                    f"the state is not swapped, {error}: {in_flight(replace(facts, partitions=parts))}",
                    hint=error.hint or f"the input flows again; `celeriac status {order.job}` shows more",
                ) from error
            except RecordFailed as error:
                raise JobFailed(f"the state is not swapped: {error}", hint=error.hint) from error


class Undertaken:
    """The job's operation while the block lasts, kept by a thread. How that has ended is written into its history.

    Raises Busy when another one is under way.
    """

    def __init__(self, redis_url: str, job: str, about: About) -> None:
        self._claims = ClaimStore(Scripts(connect(redis_url)))
        self.claim: Claim = self._claims.undertake(job, about, Phase.RECOMPUTING)
        self._said: tuple[Phase, int, int] = (Phase.RECOMPUTING, 0, 0)
        self._lost: OperationLost | None = None
        self._lock = threading.Lock()  # of the connection, and of what was said
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._keep, name="claim", daemon=True)

    def say(self, phase: Phase, done: int, total: int) -> None:
        """It is so far. Raises OperationLost when it was taken for gone."""
        with self._lock:
            if self._lost is not None:
                raise self._lost
            self._said = (phase, done, total)
            with suppress(StoreUnavailable):
                self._claims.renew(self.claim, *self._said)

    @property
    def is_lost(self) -> bool:
        """It was taken for gone: `say` raises that."""
        return self._lost is not None

    def _keep(self) -> None:
        while not self._stop.wait(RENEW_SECONDS):
            with self._lock:
                try:
                    self._claims.renew(self.claim, *self._said)
                except OperationLost as error:
                    self._lost = error
                    return
                except StoreError:
                    continue  # its claim runs out, or Redis is there again

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, _type: object, error: BaseException | None, _trace: object) -> None:
        self._stop.set()
        self._thread.join()
        if isinstance(error, OperationLost):
            return
        outcome = (
            "done" if error is None else f"given up: {error}" if isinstance(error, CeleriacError) else "interrupted"
        )
        with suppress(StoreError):  # else its claim runs out by itself
            self._claims.end(self.claim, outcome)


def _progress(phase: Phase, done: int, total: int) -> str:
    if phase is Phase.SWAPPING and done == total:
        return "the input is held back until all of it is processed"
    return f"reading {counted(total - done, 'record')} of history" + (f", behind {done:,}" if done else "")


def lines_of(plan: Plan, stage: StagePlan, swapped: Swapped) -> Iterator[str]:
    """What was done."""
    parts = [
        f"{count:,} {words}"
        for count, words in (
            (swapped.changed, "changed"),
            (swapped.added, "added"),
            (swapped.removed, "removed, as they have no history"),
            (swapped.same, "as before"),
            (swapped.unknown, "without any state, before and now"),
        )
        if count
    ]
    records = counted(swapped.records, "record")
    yield f"stage {stage.name}: the state of these keys is what {records} of history give: {', '.join(parts)}"
    yield f"the input was held back for {duration(swapped.held_seconds)}"
    behind = _behind(plan, stage)
    if behind:
        yield f"stages behind it keep their state, and get nothing of this: {', '.join(behind)}"


def _behind(plan: Plan, stage: StagePlan) -> list[str]:
    """Stages with state that its records reach."""
    reached = set(stage.exchanges.values())
    for each in plan.stages:
        if each.index in reached:
            reached.update(each.exchanges.values())
    with_state = {state.stage for state in states_of(plan)}
    return [plan.stage_name(index) for index in sorted(reached & with_state)]


def _letters(plan: Plan, swapped: Swapped, job: str, screen: Screen) -> Exit:
    """Keeps what was given up, and says so."""
    if not swapped.failed:
        return Exit.FINISHED
    from pipeline.cli.bulk import free_path
    from pipeline.spark.bulk.kept import write_letters

    path = free_path(Path.cwd() / f"{job}.backfill.dead-letters.jsonl")
    write_letters(path, plan, swapped.failed)
    screen.warn(f"{counted(len(swapped.failed), 'record')} of the history failed, and not in the state; kept in {path}")
    lines = [
        error_line(letter.operator or plan.stage_name(letter.stage), letter.error, letter.traceback)
        for letter in swapped.failed[:SHOWN_LETTERS]
    ]
    for line in dict.fromkeys(lines):
        screen.warn(line)
    return Exit.DEAD_LETTERS
