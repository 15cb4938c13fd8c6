"""Runs a whole pipeline on Spark, to its end, and publishes its results. No Redis and no workers.

    from pipeline.spark.bulk.engine import run_bulk
    result = run_bulk("wordcount.py")                       # a session of this process, on all cores
    result = run_bulk(flow, spark, BulkOptions(takers={"counts": handle_batch}))

`run_bulk` is all of it. Who wants something in between uses `BulkRun`, as a context that leaves nothing behind:

    with BulkRun(target, options) as run:
        run.prepare()           # checks, finds the input, stages what only this process can read
        run.compute(session or run.open())   # Spark: every stage once; nothing is published yet
        run.facts               # counts, dead letters, splits and how far they were read
        run.states(), run.timers()   # with keeps_state: what a savepoint holds, read from disk as it is asked for
        run.publish()           # effects, then files

The seam to a live job is in the options: `seed` gives each partition the state that it begins with, `ranges` says which
records of each split are wanted, `keeps_state` has the final state told, and with `ends_input=False` timers that wait
for the end of the input stay open.
"""

from __future__ import annotations

import re
import secrets
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

from msgspec import structs
from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from pipeline.api import Pipeline
from pipeline.codec import decode_batch
from pipeline.errors import EnvironmentFault, PipelineError, RecordFailed
from pipeline.graph import Graph, Source, Transform
from pipeline.plan import STREAM_FORMATS, Plan, SinkPlan, StagePlan, compile_plan
from pipeline.programs.checking import find_programs
from pipeline.publishing import check_effects, check_targets, file_sinks
from pipeline.records import Batch, Timer
from pipeline.settings import Limits
from pipeline.sinks.effects import EFFECT_FORMATS
from pipeline.sinks.lines import console_lines
from pipeline.sinks.links import SinkLinks
from pipeline.sinks.places import FILE_FORMATS, target_path
from pipeline.sinks.publisher import Published, discard, publish
from pipeline.spark.bulk.carrier import Seed, StageTask
from pipeline.spark.bulk.connecting import (
    CARRYING,
    PLANNING,
    READING,
    default_partitions,
    open_session,
    tuned,
)
from pipeline.spark.bulk.definition import Definition, define
from pipeline.spark.bulk.delivering import Delivery
from pipeline.spark.bulk.facts import Counts
from pipeline.spark.bulk.faults import TaskFault, translated, words_of
from pipeline.spark.bulk.finals import Finals, finals_of
from pipeline.spark.bulk.frames import Frames
from pipeline.spark.bulk.fronts import BLOCKS, Front, front_of, is_worth_it
from pipeline.spark.bulk.here import FramesHere
from pipeline.spark.bulk.jobs import SparkThread
from pipeline.spark.bulk.letters import Letter
from pipeline.spark.bulk.output import Selected
from pipeline.spark.bulk.portions import FilePortions, Portions, Range
from pipeline.spark.bulk.reading import Facts, read_edge, read_facts, read_state, read_timers
from pipeline.spark.bulk.sources import (
    check_sources,
    copied_sources,
    followed_sources,
    open_sources,
    remove_copied,
)
from pipeline.spark.bulk.twins import NoTwin
from pipeline.wording import counted

_PIPELINE_LETTERS: Final = 64


def _silent(_text: str) -> None:
    """Nobody wants to know."""


@dataclass(frozen=True)
class BulkOptions:
    """How a pipeline is run.

    partitions: of each keyed stage; 0: two for each core. job: its name in the names of staging files.
    scratch: a folder that all of Spark can see, for what stages hand on; by default a temporary one, or, where Spark
        runs elsewhere, one beside the first file sink.
    takers: sink -> function that gets its batches here, in order, in the place of what the sink does.
    ranges: source -> split -> which of its records are wanted: how many are left out, and how many up to the end.
    leaves_followed: sources that are no files and no iterables are left out: they begin with a live job.
    results: a folder below which each file sink is published, in the place of its own; what streams and the console
        would get is written there as JSON Lines.
    selected: only some keys of one stage are wanted, and no results: other stages are not run. portions: source -> what
        is read of it, in the place of what is there.
    native_bytes: files of less are not worth that Spark reads and aggregates them itself.
    note: told what a person may want to know. shield: entered while what was begun is cleared away.
    """

    partitions: int = 0
    job: str = ""
    scratch: Path | None = None
    takers: Mapping[str, Callable[[Batch], Any]] = field(default_factory=dict)
    seed: Seed | None = None
    ranges: Mapping[str, Mapping[str, Range]] = field(default_factory=dict)
    leaves_followed: bool = False
    results: Path | None = None
    keeps_state: bool = False
    ends_input: bool = True
    selected: Selected | None = None
    portions: Mapping[str, Portions] = field(default_factory=dict)
    native_bytes: int = 16 << 20
    note: Callable[[str], None] = _silent
    shield: Callable[[], AbstractContextManager[Any]] = nullcontext
    limits: Limits = field(default_factory=Limits)


@dataclass(frozen=True, slots=True)
class BulkResult:
    """What a run has done. `published`: of the file sinks. `given`: records that other sinks have taken.

    held: (stage, partition, record as a batch of one) of those that wait behind a dead letter of their key.
    native: for each source nothing where Spark itself has read and aggregated it, or why Python did, as a sentence.
    front: for each other source nothing where Spark itself has dropped what filters in front drop, or why Python did.
    """

    job: str
    plan: Plan
    stages: tuple[Counts, ...]
    published: tuple[tuple[SinkPlan, Published], ...]
    given: Mapping[str, int]
    letters: tuple[Letter, ...]
    held: tuple[tuple[int, int, bytes], ...]
    native: Mapping[str, str]
    front: Mapping[str, str]
    seconds: float


def run_bulk(
    subject: str | Path | Pipeline | Graph, session: SparkSession | None = None, options: BulkOptions | None = None
) -> BulkResult:
    """Runs the pipeline, or that of a file, to its end, on this session or one of its own. Blocks until it is done.

    Raises PipelineError for what the engine cannot run, InputError, SinkError, EnvironmentFault, RecordFailed where a
    policy or too many dead letters fail the run, and KeyboardInterrupt. Nothing is published then, but for what sinks
    with effects had taken by that time.
    """
    with BulkRun(subject, options or BulkOptions()) as run:
        run.prepare()
        run.compute(session or run.open())
        return run.publish()


class BulkRun:
    """One run, from its checks to its results. Belongs to one thread; what it has staged goes with it."""

    graph: Graph
    plan: Plan
    facts: Facts

    def __init__(self, subject: str | Path | Pipeline | Graph, options: BulkOptions, remote: bool = False) -> None:
        """`remote`: Spark runs on other hosts, so scratch must not be a folder of this one alone."""
        self.options = options
        self._subject = subject
        self._is_remote = remote
        self._stack = ExitStack()
        self._started = time.monotonic()
        self._made_at_ms = int(time.time() * 1000)
        self._definition: Definition | None = None
        self._portions: dict[str, Portions] = {}
        self._folders: dict[int, Path] = {}
        self._thread = SparkThread()
        self._refused: list[Letter] = []
        self._natives: dict[int, Finals] = {}
        self._fronts: dict[int, Front] = {}
        self.native: dict[str, str] = {}
        self.front: dict[str, str] = {}
        """As in the result; what is known so far."""
        self.job = options.job
        self.has_published = False
        """Whether `publish` was begun: records may be in tables, and folders there."""
        self.keeps_copies = False
        """Whether a live job goes on with the copies of tables that this run has made, so that they stay."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with self.options.shield():
            self._stack.close()

    def prepare(self) -> None:
        """Loads and checks the pipeline, and gets its input ready. Starts no Spark.

        Raises PipelineError, InputError, SinkError, EnvironmentFault.
        """
        self.graph, self._definition = define(self._subject)
        self.plan = self._compiled(max(1, self.options.partitions))
        self.job = self.job or _job_name(self.plan.pipeline)
        left = self._left_out()
        if self.options.selected is None:
            self._check_sinks()
            check_targets(self.plan)
            check_effects(self.graph, self.plan)
        find_programs(self.graph.nodes)
        self._scratch = self._make_scratch()
        for sink in file_sinks(self.plan) if self.options.selected is None else ():
            self._stack.callback(discard, sink, self.job)
        self._portions, doubts = open_sources(
            self.graph, self._scratch, self.plan.limits, self.options.ranges, left, self.options.portions
        )
        for doubt in doubts:
            self.options.note(f"warning: {doubt}")
        for stage in self.plan.stages:
            if self.plan.source(stage.name) is not None:
                self._choose(stage)

    @property
    def is_native(self) -> bool:
        """Whether Spark itself is to compute a part of it. Known once it is prepared."""
        return bool(self._natives or self._fronts)

    def open(self, opener: Callable[[], SparkSession] = open_session) -> SparkSession:
        """A session of this process, or what `opener` gives. Raises what that raises; takes some seconds."""
        return self._thread.call(opener)

    def compute(self, session: SparkSession, on_stage: Callable[[StagePlan], None] | None = None) -> None:
        """Runs every stage on the session; then `facts` are there.

        `on_stage` is called, from another thread, when the rows of a stage are written.
        Raises the errors of tasks by their type, EnvironmentFault when Spark fails, RecordFailed.
        """
        self._thread.session = session
        try:
            self._thread.call(lambda: self._compute(session, on_stage))
        except (PySparkException, Py4JError) as error:
            raise translated(error) or EnvironmentFault(
                f"Spark failed: {words_of(error)}", hint="its log says more; --debug shows the whole message"
            ) from error
        self.facts = read_facts(list(self._folders.values()))
        self._check_letters()

    def compute_here(self) -> None:
        """As `compute`, in this process and thread: for few records, with `keeps_state` and a number of partitions."""
        wanted = self._wanted()
        tasks = {stage.index: self._task(stage) for stage in wanted}
        frames = FramesHere(self.plan, tasks, self._portions, self._scratch)
        try:
            self._folders = {stage.index: frames.compute(stage) for stage in wanted}
        except TaskFault as error:
            raise translated(error) or error from error
        self.facts = read_facts(list(self._folders.values()))
        self._check_letters()

    def states(self) -> Iterator[tuple[int, str, Any, Any]]:
        """(stage, operator, key, state) of all keys, with `keeps_state`."""
        return read_state(list(self._folders.values()))

    @property
    def folders(self) -> dict[int, Path]:
        """Stage -> where its rows are, while this run is open; of those that were not written, none."""
        return dict(self._folders)

    def timers(self) -> Iterator[tuple[int, Timer]]:
        """(stage, timer) of those that are open, with `keeps_state`."""
        return read_timers(list(self._folders.values()))

    def pins(self) -> dict[str, str]:
        """Source -> the split that says which version of a table it reads; of sources that are tables."""
        files = {name: each.source for name, each in self._portions.items() if isinstance(each, FilePortions)}
        return {name: source.pin for name, source in files.items() if source.pin}

    def publish(self) -> BulkResult:
        """Gives records to sinks with effects, then has the folders of the file sinks appear.

        Raises SinkError, EnvironmentFault, RecordFailed.
        """
        self.has_published = True
        given = self._deliver()
        self._check_letters()
        published = []
        for sink in file_sinks(self.plan):
            if sink.name not in self.options.takers:
                files = self.facts.files.get(sink.name, [])
                run = f"{self._made_at_ms}.0"
                published.append((sink, publish(sink, self.job, files, pipeline=self.plan.pipeline, run=run)))
        return BulkResult(
            self.job,
            self.plan,
            tuple(self.facts.of_stage(stage.index) for stage in self.plan.stages),
            tuple(published),
            given,
            (*self.facts.letters, *self._refused),
            tuple(self.facts.held),
            self.native,
            self.front,
            time.monotonic() - self._started,
        )

    def _compute(self, session: SparkSession, on_stage: Callable[[StagePlan], None] | None) -> None:
        if not self.options.partitions:
            self.plan = self._compiled(default_partitions(session))
        self._copy_tables(session)
        wanted = self._wanted()
        tasks = {stage.index: self._task(stage) for stage in wanted}
        transforms = {node.name: node for node in self.graph.nodes if isinstance(node, Transform)}
        # Filters in front are worth what the session does for plans and code.
        settings = {**CARRYING, **READING, **BLOCKS} if self._fronts else {**CARRYING, **PLANNING}
        with tuned(session, settings) as before:
            own = {name: value for name, value in before.items() if name in PLANNING}
            frames = Frames(
                session, self.plan, tasks, self._portions, self._scratch, own, transforms, self._natives, self._fronts
            )
            for stage in wanted:
                if stage.index in self._natives:
                    self._compute_natively(stage, frames)
                folder = frames.compute(stage)
                if folder is not None:
                    self._folders[stage.index] = folder
                    if on_stage is not None:
                        on_stage(stage)

    def _copy_tables(self, session: SparkSession) -> None:
        self._stack.callback(self._remove_copies)
        for name, portions in copied_sources(self.graph, self.job, session, frozenset(self._portions)):
            self._portions[name] = portions

    def _remove_copies(self) -> None:
        if not self.keeps_copies:
            remove_copied(self.graph, self.job)

    def _wanted(self) -> tuple[StagePlan, ...]:
        """The stages that are run, upstream first."""
        selected = self.options.selected
        return self.plan.stages if selected is None else tuple(reversed(self.plan.up_to(selected.stage)))

    def _compute_natively(self, stage: StagePlan, frames: Frames) -> None:
        doubts = frames.compute_natively(stage)
        if doubts:
            why = f"Spark may compute {doubts:,} of its records otherwise than Python"
            self.native[stage.name] = why
            self.options.note(f"source {stage.name} is read again, by Python: {why}")

    def _choose(self, stage: StagePlan) -> None:
        """Finds out what Spark can compute of an entry stage itself, or why it cannot."""
        try:
            files = self._files_for_spark(stage)
        except NoTwin as why:
            self.native[stage.name] = self.front[stage.name] = str(why)
            return
        try:
            self._natives[stage.index] = finals_of(self.graph, self.plan, stage, files.source)
            self.native[stage.name] = ""
            return
        except NoTwin as why:
            self.native[stage.name] = str(why)
        try:
            front = front_of(self.graph, stage, files.source, self.plan.limits)
            first = next(files.read(0, self.plan.limits), None)
            if first is None or not is_worth_it(front, decode_batch(first.payload)):
                raise NoTwin("the filters keep most of the first records")
            self._fronts[stage.index] = front
            self.front[stage.name] = ""
        except NoTwin as why:
            self.front[stage.name] = str(why)

    def _files_for_spark(self, stage: StagePlan) -> FilePortions:
        portions, options = self._portions.get(stage.name), self.options
        if not isinstance(portions, FilePortions):
            raise NoTwin("it is no source of files")
        if options.keeps_state or options.seed is not None or options.ranges or not options.ends_input:
            raise NoTwin("the run begins or ends with the state of a live job")
        if options.selected is not None:
            raise NoTwin("only some keys are wanted")
        if portions.source.size < options.native_bytes:
            raise NoTwin(f"it has less than {options.native_bytes:,} bytes")
        return portions

    def _compiled(self, partitions: int) -> Plan:
        plan = compile_plan(self.graph, partitions, self.options.limits, cuts_frames=True)
        folder = self.options.results
        return plan if folder is None else structs.replace(plan, sinks=tuple(_redirected(plan.sinks, folder)))

    def _left_out(self) -> frozenset[str]:
        """Sources that are not read. Raises PipelineError when there is no other, or one that cannot be read."""
        if self.options.selected is not None:
            wanted = {stage.name for stage in self._wanted()}
            return frozenset(stage.name for stage in self.plan.stages if not stage.keyed and stage.name not in wanted)
        if not self.options.leaves_followed:
            check_sources(self.graph)
            return frozenset()
        followed = followed_sources(self.graph)
        sources = frozenset(node.name for node in self.graph.nodes if isinstance(node, Source))
        if followed == sources:
            raise PipelineError(
                f"there is no history to read: {', '.join(sorted(sources))} can be read live only",
                hint="add a source of files, or an iterable, and join the two by union",
            )
        for name in sorted(followed):
            self.options.note(f"source {name} is not read here: it begins with the live job")
        return followed

    def _task(self, stage: StagePlan) -> StageTask:
        assert self._definition is not None
        return StageTask(
            self._definition,
            self.plan,
            stage.index,
            self.job,
            frozenset(sink.name for sink in self.plan.sinks if self._is_handed(sink)),
            self.options.keeps_state,
            self.options.ends_input,
            self.options.seed,
            self.options.selected,
        )

    def _is_handed(self, sink: SinkPlan) -> bool:
        """Whether the records of the sink come to this process."""
        if self.options.selected is not None:
            return False
        return sink.format not in FILE_FORMATS or sink.name in self.options.takers

    def _check_sinks(self) -> None:
        for sink in self.plan.sinks:
            if sink.format == "stream" and sink.name not in self.options.takers:
                raise PipelineError(
                    f"the sink {sink.name!r} is a stream that Redis keeps, and the Spark engine has none",
                    hint="write files, or to a database; in Python, takers={...} gives its records to a function",
                )
        unknown = sorted(self.options.takers.keys() - {sink.name for sink in self.plan.sinks})
        if unknown:
            raise PipelineError(f"there is no sink {unknown[0]!r} whose records could be taken")

    def _check_letters(self) -> None:
        most = self.plan.limits.dead_letters
        letters = [*self.facts.letters, *self._refused]
        if len(letters) + len(self.facts.held) > most:
            raise RecordFailed(
                f"the run gave up more than {counted(most, 'record')}; no folder of results is published",
                hint=f"the last of them: {letters[-1].error}" if letters else "held behind others",
            )

    def _deliver(self) -> dict[str, int]:
        links = SinkLinks(self.graph.nodes)
        given: dict[str, int] = {}
        try:
            for stage in self.plan.stages:
                sinks = [sink for sink in self.plan.sinks if sink.name in stage.sinks and self._is_handed(sink)]
                delivery = Delivery(self.job, self._made_at_ms, stage, links, sinks, self.options.note)
                for sink in sinks:
                    rows = read_edge([self._folders[stage.index]], sink.name)
                    if sink.format in EFFECT_FORMATS and sink.name not in self.options.takers:
                        delivery.give(sink.name, rows)
                    else:
                        take = self.options.takers.get(sink.name) or _printer(sink)
                        for batch in (row.batch() for row in rows):
                            take(batch)
                            given[sink.name] = given.get(sink.name, 0) + len(batch)
                given.update({name: given.get(name, 0) + count for name, count in delivery.given.items()})
                self._refused += delivery.letters
        finally:
            links.close()
        return given

    def _make_scratch(self) -> Path:
        """A new folder, which goes at the end of the run."""
        parent = self.options.scratch
        if parent is None and self._is_remote:
            first = next(iter(file_sinks(self.plan)), None)
            parent = target_path(first).parent if first is not None else Path.cwd()
        try:
            if parent is not None:
                parent.mkdir(parents=True, exist_ok=True)
            folder = Path(tempfile.mkdtemp(prefix=".celeriac-bulk-", dir=parent))
        except OSError as error:
            raise EnvironmentFault(f"no scratch folder can be made: {error}", hint="give one: --scratch DIR") from error
        self._stack.callback(shutil.rmtree, folder, ignore_errors=True)
        return folder


def _redirected(sinks: tuple[SinkPlan, ...], folder: Path) -> Iterator[SinkPlan]:
    for sink in sinks:
        path = str(folder.absolute() / sink.name)
        if sink.format in STREAM_FORMATS:
            yield SinkPlan(sink.name, "jsonl", path, {}, sink.key_field)
        else:
            yield structs.replace(sink, path=path) if sink.format in FILE_FORMATS else sink


def _printer(sink: SinkPlan) -> Callable[[Batch], None]:
    return lambda batch: print("\n".join(console_lines(sink, batch)), flush=True)


def _job_name(pipeline: str) -> str:
    name = re.sub(r"[^A-Za-z0-9_.-]", "-", pipeline)[:_PIPELINE_LETTERS]
    return f"{name}-{time.strftime('%Y%m%d-%H%M%S')}-{secrets.token_hex(2)}"
