"""`celeriac run` as small steps, from the file to the exit code. Whatever it started is gone at its end."""

from __future__ import annotations

import shlex
import socket
import time
from collections.abc import Iterable
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from typing import Final

from pipeline.cli.bulk import SparkOptions, check_stream, has_engine
from pipeline.cli.console import Console
from pipeline.cli.earlyends import EarlyEnd
from pipeline.cli.exits import Exit, JobFailed
from pipeline.cli.farewells import see_off
from pipeline.cli.filewatch import FileWatch
from pipeline.cli.finishing import Finish
from pipeline.cli.following import Follower
from pipeline.cli.holdups import Holdups
from pipeline.cli.interrupts import Interrupts
from pipeline.cli.link import Link
from pipeline.cli.nodes import NodeSettings
from pipeline.cli.openings import Beginning, new_job_id, open_job, partitions_of, still_held
from pipeline.cli.pools import PoolWorkers, all_pools, kept_pools
from pipeline.cli.reports import accepted_lines
from pipeline.cli.savepoints import restored_lines
from pipeline.cli.screen import Screen
from pipeline.cli.services import NodeProcess, Server, Workspace
from pipeline.errors import CeleriacError, JobTaken, StoreError
from pipeline.facts import JobRecord
from pipeline.graph import Graph, Source
from pipeline.lifecycle import JobState
from pipeline.loader import file_of, load_graph
from pipeline.needs import IN_A_BURST, IN_A_STREAM, find_jdbc, find_needs, refuse_frames
from pipeline.plan import PRODUCER_FORMAT, Plan, compile_plan, is_endless, is_followed
from pipeline.pools import POOL
from pipeline.publishing import check_effects, check_targets, discard_job
from pipeline.scaling.settings import Scaling
from pipeline.settings import Limits
from pipeline.sources.layout import open_files
from pipeline.sources.opening import check_source
from pipeline.sources.versions import needs_copy
from pipeline.store.connection import check_server, connect, without_password
from pipeline.store.jobs import JobStore
from pipeline.store.losses import unknown_job
from pipeline.store.permissions import check_permissions
from pipeline.store.scaling import ScalingStore
from pipeline.store.scripts import Scripts
from pipeline.store.versions import VersionStore
from pipeline.versions import this_version
from pipeline.wording import counted

CANCEL_SECONDS: Final = 2.0
"""What processes get to end after a cancel."""


@dataclass(frozen=True, slots=True)
class RunOptions:
    """The command line of `run`. No `redis_url` means a server of our own; no `job_id` a new one."""

    target: str
    redis_url: str | None = field(repr=False)
    workers: int | None
    """None with `scaling`: as many as the job had, or the fewest."""
    partitions: int
    job_id: str | None
    reader: str
    is_quiet: bool
    accepts_loss: bool = False
    """Whether the job may go on without what Redis has lost."""
    scaling: Scaling | None = None
    """How the number of workers changes; None for one that stays."""
    pools: dict[str, PoolWorkers] = field(default_factory=dict)
    """What is said of pools other than `main`."""
    node: str = ""
    """What its node is called; nothing for the name of the host."""
    savepoint: Beginning | None = None
    """What a new job begins with. `partitions` 0: as many as that has."""
    spark: SparkOptions | None = None
    """Where the streaming query runs that is the one worker; None for workers of Celery."""


def run_pipeline(options: RunOptions, interrupts: Interrupts) -> Exit:
    """Runs the pipeline to its end and publishes its results.

    Raises PipelineError, SinkError, InputError, EnvironmentFault and StoreError for what keeps it from starting,
    JobFailed, and KeyboardInterrupt for a Ctrl-C before the job was registered.
    """
    started_at = time.monotonic()
    with ExitStack() as stack:
        screen = stack.enter_context(Screen(options.is_quiet))
        is_portable = options.job_id is None or options.redis_url is not None
        workspace = Workspace.temporary() if is_portable else Workspace.of_job(options.job_id or "")
        stack.callback(workspace.close)
        if is_portable:  # in the folder of a job another run may be at work
            node = _prepared_node(workspace, stack)
        with interrupts.immediate():
            graph, plan = _planned(options)
            job = options.job_id or new_job_id(plan.pipeline, time.localtime())
        server = Server(options.redis_url) if options.redis_url else Server.start(workspace, job)
        stack.callback(server.close)
        stack.callback(workspace.set_aside)
        if not is_portable:
            node = _prepared_node(workspace, stack)
        scripts = Scripts(connect(server.url))
        with interrupts.immediate():
            _check_server(scripts, server, screen)
            check_inputs(graph, JobStore(scripts), job, screen)
            if options.savepoint is not None:
                for line in restored_lines(options.savepoint.restore(scripts, job, plan)):
                    screen.note(line)
        # Redis has answered: from here on it is waited for. A registered job must not be left to nobody, so until it is
        # in the hands of a Run an interrupt is heard only while Redis is away, or another run has the job.
        link = Link(server, screen, interrupts)
        try:
            record = _opened(link, scripts, job, plan, options)
        except KeyboardInterrupt:
            if options.redis_url or options.job_id:
                screen.warn(f"interrupted; if Redis has the job {job} already, --job-id {job} goes on with it")
            raise
        for line in kept_pools(record.plan, plan):
            screen.warn(line)
        workspace.is_kept = not is_portable
        if server.embedded is not None and is_portable:
            workspace.note_job(job, record.plan)
        run = Run(options, graph, record, scripts, server, workspace, node, screen, interrupts, link, started_at)
        return run.to_end(stack)


def _prepared_node(workspace: Workspace, stack: ExitStack) -> NodeProcess:
    """It ends with the stack. Raises EnvironmentFault."""
    node = NodeProcess(workspace.logs, workspace.scratch, workspace.holds)
    stack.callback(node.close)
    node.prepare()
    return node


def _planned(options: RunOptions) -> tuple[Graph, Plan]:
    """The user's file, and whether its job can be run here. Raises PipelineError, SinkError, EnvironmentFault."""
    graph = load_graph(options.target)
    partitions = options.partitions
    if options.savepoint is not None and not partitions:
        partitions = partitions_of(options.savepoint.open())
    plan = compile_plan(graph, partitions, Limits())
    check_targets(plan)
    check_effects(graph, plan)
    find_needs(graph.nodes)
    if _want_bursts(all_pools(plan, PoolWorkers(options.workers, options.scaling), options.pools).values()):
        refuse_frames(graph.nodes, IN_A_BURST)
    if options.spark is not None:
        check_stream(options.spark)
        refuse_frames(graph.nodes, IN_A_STREAM)
    return graph, plan


def _opened(link: Link, scripts: Scripts, job: str, plan: Plan, options: RunOptions) -> JobRecord:
    """The job, claimed by this run, with what it runs among its versions. Raises as `open_job` and `this_version`."""
    record = open_job(JobStore(scripts), job, plan, link, accepts_loss=options.accepts_loss)
    if record.state is not JobState.FINISHED:
        begun = options.savepoint.url if options.savepoint else ""
        version = this_version("run", options.target, plan.fingerprint, begun)
        link.insist(partial(VersionStore(scripts).add, job, version, submitted=False), above=0)
    return record


def _want_bursts(sizes: Iterable[PoolWorkers]) -> bool:
    return any(size.scaling and size.scaling.burst_behind_seconds for size in sizes)


def _check_server(scripts: Scripts, server: Server, screen: Screen) -> None:
    warnings = check_server(scripts.client)
    check_permissions(scripts.client)
    if server.embedded is None:
        for warning in warnings:
            screen.warn(f"warning: {without_password(server.url)}: {warning}")


def check_inputs(graph: Graph, store: JobStore, job: str, screen: Screen) -> None:
    """A new job must find its input; one that goes on may have read it all."""
    if job in store.list_ids():
        return
    for node in graph.nodes:
        if not isinstance(node, Source) or node.spec.items is not None or node.spec.format == PRODUCER_FORMAT:
            continue
        if is_followed(node.spec.format, node.spec.options):
            check_source(node.spec)
        elif needs_copy(node.spec):
            find_jdbc(node)
        else:
            found = open_files(node.spec)
            if found.doubt():
                screen.warn(f"warning: {node.spec.path}: {found.doubt()}")


@dataclass(slots=True)
class Run:
    """One job in the hands of this process, from its registration to its end."""

    options: RunOptions
    graph: Graph
    record: JobRecord
    scripts: Scripts
    server: Server
    workspace: Workspace
    node: NodeProcess
    screen: Screen
    interrupts: Interrupts
    link: Link
    started_at: float
    workers: dict[str, int] = field(default_factory=dict)
    """How many there are at first, by pool."""
    early: EarlyEnd = field(init=False)
    finish: Finish = field(init=False)

    def __post_init__(self) -> None:
        self.early = EarlyEnd(self.record, self.server, self.workspace, self.screen)
        self.finish = Finish(
            self.record,
            self.scripts,
            self.screen,
            self.interrupts,
            self.link,
            self.early,
            self.server.embedded is None,
            self.started_at,
        )

    @property
    def job(self) -> str:
        return self.record.job

    @property
    def plan(self) -> Plan:
        return self.record.plan

    def to_end(self, stack: ExitStack) -> Exit:
        """Works, publishes and reports.

        Raises JobFailed, JobTaken, BrokenPipeError; any other error fails the job first.
        """
        if self.record.state is JobState.FINISHED:
            code = self.finish.finished_before()
            self.workspace.is_kept = False
            return code
        stack.callback(self.early.discard_unless_kept)
        try:
            self._size()
        except KeyboardInterrupt:
            self.early.cancel("Ctrl-C")
            return Exit.INTERRUPTED
        except StoreError as error:
            raise self.early.failed_by(error) from error
        if self.server.embedded is not None:
            stack.callback(self._see_off)
        stack.callback(self.node.close)  # before the server, on which its processes depend
        self._tell_accepted()
        try:
            return self._work()
        except (KeyboardInterrupt, BrokenPipeError) as error:
            self.early.cancel("its output was closed" if isinstance(error, BrokenPipeError) else "Ctrl-C")
            self.node.close()
            if isinstance(error, BrokenPipeError):
                raise
            return Exit.INTERRUPTED
        except JobTaken:
            self.node.close()
            raise
        except JobFailed:
            self.node.close()
            self.early.show_logs()
            raise
        except CeleriacError as error:
            self.node.close()
            if self.early.was_removed(error):
                discard_job(self.record)  # a worker may have begun a file after the command had cleared the folder
                gone = unknown_job(self.job)
                raise JobFailed(str(gone), hint=gone.hint) from error
            self.early.show_logs()
            raise self.early.failed_by(error) from error

    def _see_off(self) -> None:
        own_node = self.options.node or socket.gethostname()
        see_off(JobStore(Scripts(connect(self.server.url))), self.job, own_node, self.interrupts)

    def _work(self) -> Exit:
        store = JobStore(self.scripts)
        self.interrupts.check()
        console = Console(self.scripts, self.record, self.screen.records, self.screen.warn)
        self._announce()
        file = FileWatch(file_of(self.options.target))
        # Redis may have been away for longer than a claim counts, and another run have come before us.
        held = self.link.insist(lambda: store.hold_claim(self.job, self.record.claim), above=0)
        claim = still_held(self.job, held)
        self.node.start(self._node_settings())
        holdups = Holdups(pool for pool, count in self.workers.items() if count)
        follower = Follower(
            self.job, store, self.link, self.node, console, self.screen, self.interrupts, file, holdups, claim
        )
        facts = follower.until_ended()
        self.screen.end_progress()
        if facts.record.state is not JobState.PUBLISHING:
            return self.early.of_others(facts)
        self.link.insist(console.print_all)
        published = self.finish.publish(facts)
        self.node.close()
        self.workspace.is_kept = False
        ready_at = follower.ready_at or time.monotonic()
        return self.finish.report(published, ready_at - self.started_at, follower.is_drained)

    def _size(self) -> None:
        """Says how many workers there may be, before any is started. Raises UnknownJob, StoreError."""
        store, sizes = ScalingStore(self.scripts), self._sizes()
        for pool in self.record.scaled:
            if pool not in sizes or sizes[pool].scaling is None:
                self.link.insist(partial(store.fix, self.job, pool), above=0)
        for pool, size in sizes.items():
            if size.scaling is None:
                self.workers[pool] = 1 if size.count is None else size.count
            else:
                configure = partial(store.configure, self.job, size.scaling, size.count, pool)
                self.workers[pool] = self.link.insist(configure, above=0)

    def _sizes(self) -> dict[str, PoolWorkers]:
        return all_pools(self.plan, PoolWorkers(self.options.workers, self.options.scaling), self.options.pools)

    def _tell_accepted(self) -> None:
        if self.options.accepts_loss:
            for line in accepted_lines(self.record):
                self.screen.warn(line)

    def _node_settings(self) -> NodeSettings:
        spark = self.options.spark
        is_open = self.record.state is JobState.RUNNING
        names = [source.name for source in self._sources() if source.spec.format != PRODUCER_FORMAT]
        scaled = [pool for pool, size in self._sizes().items() if size.scaling is not None]
        endless = [each.name for each in self._sources() if is_endless(each.spec.format, each.spec.options)]
        return NodeSettings(
            redis=self.server.url,
            job=self.job,
            target=self.options.target,
            workers=self.workers.get(POOL, 0),
            sources=tuple(name for name in names if is_open and name not in self.record.completed_sources),
            reader=self.options.reader,
            logs=str(self.workspace.logs),
            temporary=str(self.workspace.scratch),
            stop_seconds=CANCEL_SECONDS,
            endless=tuple(name for name in names if name in endless),
            is_scaled=POOL in scaled,
            node=self.options.node,
            pools={pool: count for pool, count in self.workers.items() if pool != POOL},
            scaled_pools=tuple(pool for pool in scaled if pool != POOL),
            spark=spark.master or "" if spark else None,
            spark_interval_seconds=spark.interval_seconds if spark else 0.0,
            bursts="" if self._wants_bursts() and has_engine() else None,
        )

    def _wants_bursts(self) -> bool:
        return _want_bursts(self._sizes().values())

    def _sources(self) -> list[Source]:
        return [node for node in self.graph.nodes if isinstance(node, Source)]

    def _announce(self) -> None:
        where = "a Redis of its own" if self.server.embedded is not None else without_password(self.server.url)
        partitions = self.plan.stages[0].partitions
        words = {pool: size.words(self.workers[pool]) for pool, size in self._sizes().items()}
        if self.options.spark is not None:
            words[POOL] = f"Spark on {self.options.spark.shown}"
        workers = "; ".join(text if pool == POOL else f"pool {pool}: {text}" for pool, text in words.items())
        self.screen.note(f"job {self.job}: {workers}, {counted(partitions, 'partition')} a stage, on {where}")
        if self.server.embedded is not None and 0 in self.workers.values():
            self.screen.note(f"nodes on this machine join it with --redis {shlex.quote(self.server.url)}")
        if self._wants_bursts() and not has_engine():
            self.screen.warn(f"warning: no Spark here: bursts wait for `celeriac worker {self.job} FILE.py --bursts`")
        for source in self._sources():
            if source.spec.format == PRODUCER_FORMAT:
                url = shlex.quote(without_password(self.server.url))  # a shell may take ?db=0 for a pattern
                self.screen.note(
                    f"source {source.name} takes records until Ctrl-C: "
                    f"celeriac produce {self.job} --source {source.name} --redis {url}"
                )
            elif is_endless(source.spec.format, source.spec.options):
                self.screen.note(f"source {source.name} is followed until Ctrl-C")
