"""`celeriac run --engine spark`: its options, and the run in bulk from the file to the exit code. PySpark is an extra.

With `--stream` it is a live run, whose one worker is a Spark streaming query.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import wraps
from importlib.util import find_spec
from itertools import chain, count
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import click
from click.core import ParameterSource

from pipeline.cli.exits import Exit, JobFailed
from pipeline.cli.interrupts import Interrupts
from pipeline.cli.options import SPARK_SETTINGS
from pipeline.cli.progress import duration
from pipeline.cli.reports import error_line, given_words, published_words
from pipeline.cli.screen import Screen
from pipeline.errors import CeleriacError, EnvironmentFault
from pipeline.records import Batch
from pipeline.sinks.lines import console_lines
from pipeline.wording import counted

if TYPE_CHECKING:
    from pipeline.plan import Plan, StagePlan
    from pipeline.spark.bulk.engine import BulkResult, BulkRun

ENGINES: Final = ("celery", "spark")

MASTER_VARIABLE: Final = "CELERIAC_SPARK_MASTER"

SHOWN_LETTERS: Final = 3

_FOR_SPARK: Final = frozenset(
    {
        "target",
        "partitions",
        "engine",
        "master",
        "remote",
        "scratch",
        "conf",
        "savepoint_url",
        "allow_dropped",
        "allow_edits",
        "quiet",
        "debug",
    }
)
"""Parameters of the command that the Spark engine has a use for in bulk."""

_FOR_STREAM: Final = (_FOR_SPARK - {"remote", "scratch"}) | {
    "redis_urls",
    "prefer_network",
    "job_id",
    "reader",
    "accept_loss",
    "node",
    "stream",
    "interval_seconds",
}
"""And those that it has a use for with --stream."""

_SPARK_ONLY: Final = ("master", "remote", "scratch", "stream", "interval_seconds")

_STREAM_ONLY: Final = ("interval_seconds",)


@dataclass(frozen=True, slots=True)
class SparkOptions:
    """Where Spark runs: here, at a master, or behind a Connect server. `scratch`: a folder that all of it can see.

    is_stream: a live job, whose partitions a streaming query owns; its batches begin `interval_seconds` apart at least.
    """

    master: str | None
    remote: str | None
    scratch: Path | None
    is_stream: bool = False
    interval_seconds: float = 0.0

    @property
    def shown(self) -> str:
        """Without what follows the address of a server: a token may be there."""
        return (self.remote or self.master or "this machine").partition(";")[0]

    @property
    def is_elsewhere(self) -> bool:
        """Whether tasks run on other hosts."""
        return self.remote is not None or (self.master is not None and not self.master.startswith("local"))


def spark_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """The options of the Spark engine; the command gets `spark`, None for the live engine."""

    @click.option(
        "--engine",
        type=click.Choice(ENGINES),
        default="celery",
        show_default=True,
        help="celery: live, on Redis and workers; spark: in bulk, on Spark, or with --stream live on Spark.",
    )
    @click.option(
        "--master",
        metavar="URL",
        envvar=MASTER_VARIABLE,
        show_envvar=True,
        help="With --engine spark: the Spark master. Default: local[*].",
    )
    @click.option("--remote", metavar="sc://HOST:PORT", help="With --engine spark: a Spark Connect server.")
    @click.option(
        "--scratch",
        type=click.Path(file_okay=False, path_type=Path),
        help="With --engine spark: a folder that all its hosts share, for what stages hand on.",
    )
    @SPARK_SETTINGS
    @click.option(
        "--stream", is_flag=True, help="With --engine spark: live, on Redis, with a streaming query as the worker."
    )
    @click.option(
        "--interval",
        "interval_seconds",
        type=click.FloatRange(0, 3600),
        default=0.0,
        show_default=True,
        help="With --stream: seconds between the beginnings of batches.",
    )
    @wraps(command)
    def with_spark(
        *args: Any,
        engine: str,
        master: str | None,
        remote: str | None,
        scratch: Path | None,
        stream: bool,
        interval_seconds: float,
        **options: Any,
    ) -> Any:
        _check(engine, stream, click.get_current_context())
        # An empty variable is none; one that is set says nothing against a server that is named.
        master = None if remote else master or None
        spark = SparkOptions(master, remote, scratch, stream, interval_seconds) if engine == "spark" else None
        return command(*args, spark=spark, **options)

    return with_spark


def _check(engine: str, stream: bool, context: click.Context) -> None:
    """Refuses options of the other engine. A variable in the place of one may stand."""
    for parameter in context.command.params:
        name = parameter.name or ""
        if context.get_parameter_source(name) is not ParameterSource.COMMANDLINE:
            continue
        if engine != "spark" and name in _SPARK_ONLY:
            raise click.UsageError(f"{parameter.opts[-1]} goes with --engine spark")
        if engine != "spark":
            continue
        if stream and name not in _FOR_STREAM:
            why = "the streaming query is its one worker, and runs in this process' own Spark"
            raise click.UsageError(f"{parameter.opts[-1]} makes no sense with --engine spark --stream: {why}")
        if not stream and name in _STREAM_ONLY:
            raise click.UsageError(f"{parameter.opts[-1]} goes with --stream")
        if not stream and name not in _FOR_SPARK:
            raise click.UsageError(
                f"{parameter.opts[-1]} makes no sense with --engine spark, which has no Redis and no workers"
            )
    given = [context.get_parameter_source(name) is ParameterSource.COMMANDLINE for name in ("master", "remote")]
    if all(given):
        raise click.UsageError("give either --master or --remote")


def check_stream(spark: SparkOptions) -> None:
    """Raises PipelineError for a master that cannot be one, EnvironmentFault when Spark is not installed."""
    need_engine()
    from pipeline.spark.bulk.connecting import check_master

    if spark.master:
        check_master(spark.master)


Around: TypeAlias = "Callable[[BulkRun], AbstractContextManager[list[str]]]"
"""What is done before and after the results are published; the lines that say so are complete at its end."""


def _nothing(_run: BulkRun) -> AbstractContextManager[list[str]]:
    return nullcontext([])


@dataclass(frozen=True, slots=True)
class OnSpark:
    """A pipeline that is to run on Spark. `partitions` 0: two for each core."""

    target: str
    partitions: int
    spark: SparkOptions
    screen: Screen
    interrupts: Interrupts

    def run(self, more: Mapping[str, Any], around: Around = _nothing) -> Exit:
        """Runs it and publishes its results; `around` that, and says what it has done.

        `more`: further options of the run. Raises what keeps it from starting by its type, JobFailed for what comes
        later.
        """
        engine = need_engine()
        screen, spark, interrupts = self.screen, self.spark, self.interrupts
        console: dict[str, Callable[[Batch], None]] = {}
        options = engine.BulkOptions(
            partitions=self.partitions,
            scratch=spark.scratch,
            takers=console,
            note=screen.warn,
            shield=interrupts.deferred,
            **more,
        )
        with screen, engine.BulkRun(self.target, options, remote=spark.is_elsewhere) as run:
            try:
                with interrupts.immediate():
                    run.prepare()
                    console.update(_printers(run.plan, screen))
                    screen.note(f"run {run.job}: Spark on {spark.shown}")
                    starts_fast = not run.is_native  # the compiler pays where the JVM computes
                    session = run.open(lambda: engine.open_session(spark.master, spark.remote, starts_fast=starts_fast))
                    result, words = _work(run, session, screen, around)
            except KeyboardInterrupt:
                done = "what it had published by then stays" if run.has_published else "nothing is published"
                screen.warn(f"cancelled run {run.job}: {done}")
                return Exit.INTERRUPTED
            for line in [*result_lines(result), *words]:
                screen.note(line)
            return _report_letters(result, screen)


def run_on_spark(job: OnSpark, savepoint_url: str | None, *, allow_dropped: bool, allow_edits: bool) -> Exit:
    """Runs it to its end, from its beginning or from a savepoint. Raises as `OnSpark.run`, SavepointError."""
    if savepoint_url is None:
        return job.run({})
    need_engine()
    from pipeline.spark.bulk.beginning import begin_at

    ranges, seed = begin_at(savepoint_url, job.target, allow_dropped=allow_dropped, allow_edits=allow_edits)
    return job.run({"ranges": ranges, "seed": seed, "leaves_followed": True})


def has_engine() -> bool:
    """Whether Spark is installed; imports nothing."""
    return find_spec("pyspark") is not None


def need_engine() -> Any:
    """The module of the engine. Raises EnvironmentFault when Spark is not installed."""
    try:
        from pipeline.spark.bulk import engine
    except ModuleNotFoundError as error:
        raise EnvironmentFault(f"Spark needs {error.name}", hint="pip install 'celeriac[spark]'") from error
    return engine


def _work(run: BulkRun, session: Any, screen: Screen, around: Around) -> tuple[BulkResult, list[str]]:
    def tell(stage: StagePlan) -> None:
        screen.note(f"stage {stage.name} is computed")

    try:
        run.compute(session, tell)
        with around(run) as words:
            result = run.publish()
        return result, words
    except (BrokenPipeError, KeyboardInterrupt):
        raise
    except CeleriacError as error:
        raise JobFailed(f"the run {run.job} failed: {error}", hint=error.hint) from error


def _printers(plan: Plan, screen: Screen) -> dict[str, Callable[[Batch], None]]:
    return {
        sink.name: lambda batch, sink=sink: screen.records(console_lines(sink, batch))  # type: ignore[misc]
        for sink in plan.sinks
        if sink.format == "console"
    }


def result_lines(result: BulkResult) -> list[str]:
    """The summary at the end: what each stage did, and where the results are."""
    stages = list(zip(result.plan.stages, result.stages, strict=True))
    read = sum(counts.taken for stage, counts in stages if not stage.upstream)
    lines = [f"run {result.job} finished", f"  read: {counted(read, 'record')}"]
    for stage, counts in stages:
        line = f"  stage {stage.name}: in {counts.taken:,}, out {counts.emitted:,}"
        for number, words in ((counts.filtered, "filtered"), (counts.dead, "given up"), (counts.skipped, "skipped")):
            line += f", {words} {number:,}" if number else ""
        if result.native.get(stage.name) == "":
            lines.append(f"{line}, by Spark itself")
            continue
        front = ", filtered by Spark first" if result.front.get(stage.name) == "" else ""
        lines.append(f"{line}, {counts.seconds:.1f} s of work{front}")
    lines += [f"  {sink.name}: {published_words(published)}" for sink, published in result.published]
    plans = {sink.name: sink for sink in result.plan.sinks}
    lines += [f"  {name}: {given_words(plans[name], count)}" for name, count in result.given.items()]
    return [*lines, f"  time: {duration(result.seconds)}"]


def _report_letters(result: BulkResult, screen: Screen) -> Exit:
    """Keeps what was given up in a file, and says so."""
    if not result.letters:
        return Exit.FINISHED
    from pipeline.spark.bulk.kept import write_letters

    path = free_path(Path.cwd() / f"{result.job}.dead-letters.jsonl")
    write_letters(path, result.plan, result.letters, result.held)
    held = f", {counted(len(result.held), 'record')} held behind" if result.held else ""
    screen.warn(f"  dead letters: {counted(len(result.letters), 'record')} given up{held}, kept in {path}")
    names = [letter.operator or result.plan.stage_name(letter.stage) for letter in result.letters[:SHOWN_LETTERS]]
    lines = [
        error_line(name, letter.error, letter.traceback)
        for name, letter in zip(names, result.letters[:SHOWN_LETTERS], strict=True)
    ]
    for line in dict.fromkeys(lines):
        screen.warn(line)
    return Exit.DEAD_LETTERS


def free_path(path: Path) -> Path:
    """The path, or one beside it: an earlier run may have had the same name."""
    numbered = (path.with_name(f"{path.stem}-{number}{path.suffix}") for number in count(2))
    return next(each for each in chain([path], numbered) if not each.exists())
