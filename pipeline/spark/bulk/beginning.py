"""Where a run on Spark begins and ends in its input: from a savepoint of a live job, and up to a number of records."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pipeline.codec import decode_value, read_timer_member
from pipeline.errors import PipelineError, SavepointError
from pipeline.graph import Graph, Source
from pipeline.keying import groups_of_partition
from pipeline.loader import load_graph
from pipeline.plan import Plan, StagePlan, compile_plan
from pipeline.records import Timer
from pipeline.savepoints.matching import match
from pipeline.savepoints.reading import Savepoint
from pipeline.settings import Limits
from pipeline.sources.layout import open_files
from pipeline.sources.local import ITERABLE_SPLIT
from pipeline.sources.versions import needs_copy
from pipeline.spark.bulk.portions import FilePortions, Range
from pipeline.spark.bulk.reading import read_state, read_timers
from pipeline.spark.bulk.sources import followed_sources
from pipeline.wording import counted

Ranges = dict[str, dict[str, Range]]
"""Source -> split -> which of its records are wanted."""


@dataclass(frozen=True)
class SavepointSeed:
    """The state of a savepoint, read by each task for its partition. All of Spark must see the savepoint at `url`."""

    url: str

    def state(self, stage: StagePlan, partition: int) -> Iterator[tuple[str, Any, Any]]:
        """(operator, key, state) of the keys of this partition. Raises SavepointError."""
        groups = _groups(stage, partition)
        for row in Savepoint.at(self.url).states(groups) if groups else ():
            if row.operator in stage.nodes:
                yield row.operator, row.key, decode_value(row.data)

    def timers(self, stage: StagePlan, partition: int) -> Iterator[Timer]:
        """Those that are open. Raises SavepointError."""
        groups = _groups(stage, partition)
        for row in Savepoint.at(self.url).timers(groups) if groups else ():
            if row.operator in stage.nodes:
                yield read_timer_member(row.member)


@dataclass(frozen=True)
class RunSeed:
    """What another run of the same pipeline, with as many partitions, has come to. All of Spark must see its folders.

    folders: stage -> where that run has written its rows.
    """

    folders: tuple[tuple[int, str], ...]

    def state(self, stage: StagePlan, partition: int) -> Iterator[tuple[str, Any, Any]]:
        """(operator, key, state) of the keys of this partition."""
        for _, operator, key, state in read_state(self._of(stage), partition):
            yield operator, key, state

    def timers(self, stage: StagePlan, partition: int) -> Iterator[Timer]:
        """Those that are open."""
        for _, timer in read_timers(self._of(stage), partition):
            yield timer

    def _of(self, stage: StagePlan) -> list[Path]:
        return [Path(folder) for index, folder in self.folders if index == stage.index]


def _groups(stage: StagePlan, partition: int) -> tuple[int, int] | None:
    groups = groups_of_partition(partition, stage.serving)
    return (groups[0], groups[-1]) if groups else None


def begin_at(
    url: str, target: str, *, allow_dropped: bool = False, allow_edits: bool = False
) -> tuple[Ranges, SavepointSeed]:
    """What a run of the pipeline's file needs to go on where the job of the savepoint has stopped.

    Raises SavepointError, PipelineError, EnvironmentFault.
    """
    savepoint = open_savepoint(url, allow_edits=allow_edits)
    plan = compile_plan(load_graph(target), 1, Limits())
    return rest_of(savepoint, plan, allow_dropped=allow_dropped), SavepointSeed(savepoint.where)


def open_savepoint(url: str, *, allow_edits: bool = False) -> Savepoint:
    """One that a run on Spark can begin with: nothing was in flight, and no dead letter held its key.

    Raises SavepointError, EnvironmentFault.
    """
    savepoint = Savepoint.at(str(Path(url).absolute()) if "://" not in url else url)
    if savepoint.check(allow_edits=allow_edits):
        savepoint.check_rows()
    manifest = savepoint.manifest
    if manifest.in_flight:
        raise SavepointError(
            f"the savepoint {manifest.name} has {counted(manifest.in_flight, 'record')} in flight, and a run on Spark"
            " begins with none",
            hint="take it with `celeriac suspend`, which waits until nothing is in flight",
        )
    if next(savepoint.held(), None) is not None:
        raise SavepointError(
            f"dead letters hold keys in the savepoint {manifest.name}, and a run on Spark has no place for what is"
            " behind them",
            hint="replay or drop them in the live job first: celeriac dead-letters list",
        )
    return savepoint


def rest_of(savepoint: Savepoint, plan: Plan, *, allow_dropped: bool = False) -> Ranges:
    """What the job of the savepoint has not read yet: from each split the records behind the last one.

    Raises SavepointError when the pipeline has no place for what is in it, without `allow_dropped`.
    """
    manifest, facts = savepoint.manifest, savepoint.facts()
    matching = match(manifest.plan, plan)
    if matching.dropped and not allow_dropped:
        raise SavepointError(
            f"the pipeline has no place for what the savepoint {manifest.name} holds:"
            + "".join(f"\n  - {line}" for line in matching.dropped.values()),
            hint="operators are matched by their names: give them the names that they had, or use --allow-dropped",
        )
    prefix = f"n:{manifest.generation}/"
    found: Ranges = {}
    for name, value in facts.get("senders", {}).items():
        source, _, split = name.removeprefix(prefix).partition("/")
        if not name.startswith(prefix) or source not in matching.sources:
            continue
        number, _, partition = value.decode().partition(" ")
        log = facts.get(f"log:{manifest.plan.entry_stage(source).index}.{partition}", {})
        found.setdefault(source, {})[split] = (int(log.get(number, b"0")), None)
    return found


def first_records(graph: Graph, counts: Mapping[str, int], limits: Limits) -> Ranges:
    """The first so many records of sources, in the order of their splits. Those of files are counted here, by reading.

    Raises PipelineError for a source that is none, or that is not read in bulk; InputError.
    """
    sources = {node.name: node for node in graph.nodes if isinstance(node, Source)}
    followed = followed_sources(graph)
    found: Ranges = {}
    for name, count in counts.items():
        if name not in sources or name in followed:
            known = ", ".join(sorted(sources.keys() - followed))
            raise PipelineError(f"no source {name!r} is read in bulk", hint=f"there are: {known}" if known else "")
        spec = sources[name].spec
        if spec.items is not None:
            found[name] = {ITERABLE_SPLIT: (0, count)}
        elif needs_copy(spec):
            raise PipelineError(
                f"the source {name!r} is copied from a database when the run begins, and cannot be cut at a number",
                hint="read a query that ends where you want: read.jdbc(url, 'SELECT * FROM t WHERE ...', ...)",
            )
        else:
            files = open_files(spec)
            found[name] = _first_of_files(FilePortions.of(files), count, limits)
            if files.pin:
                found[name][files.pin] = (0, 0)
    return found


def _first_of_files(portions: FilePortions, count: int, limits: Limits) -> dict[str, Range]:
    found: dict[str, Range] = {split.name: (0, 0) for split in portions.source.splits}
    before, current, last = 0, "", 0
    for number in range(portions.count):
        for piece in portions.read(number, limits):
            if piece.split != current:
                before, current, last = before + last, piece.split, 0
            last = piece.numbers
            if before + last >= count:
                found[current] = (0, count - before)
                return found
            found[current] = (0, None)
    return found
