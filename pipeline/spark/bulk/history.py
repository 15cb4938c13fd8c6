"""What a running job has read of the files of its sources, as portions for tasks: up to where each sender stands."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from pipeline.errors import InputError, PipelineError
from pipeline.graph import Graph, Source, SourceSpec
from pipeline.plan import Plan, StagePlan, is_followed
from pipeline.sources.growing import paths_of_contents
from pipeline.sources.layout import open_files
from pipeline.sources.opening import growing_formats
from pipeline.spark.bulk.grown import GrownPortions, GrownSplit
from pipeline.spark.bulk.portions import FilePortions, Portions, StagedPortions
from pipeline.store.swaps import Sent

FORMATS = ("text", "json", "csv", "parquet")
"""Of sources whose history is still there."""

_SHOWN = 3


def check_history(plan: Plan, stage: StagePlan) -> None:
    """Raises PipelineError where records of a source that is no file reach the stage."""
    sources = [each for each in (plan.source(each.name) for each in plan.up_to(stage.index)) if each is not None]
    others = sorted(source.name for source in sources if source.format not in FORMATS)
    if others:
        raise PipelineError(
            f"records of {', '.join(others)} reach the stage {stage.name}, and only what is in files can be read again",
            hint="a savepoint can be edited: docs/savepoints.md",
        )


@dataclass(frozen=True)
class History:
    """The sources of a graph, by name. Finds files on this host, which all of Spark must see at the same places."""

    graph: Graph

    def portions(
        self, given: Mapping[str, Mapping[str, Sent]], before: Mapping[str, Mapping[str, Sent]]
    ) -> dict[str, Portions]:
        """Source -> what it has given behind `before`. Raises InputError for what is not there as it was."""
        specs = {node.name: node.spec for node in self.graph.nodes if isinstance(node, Source)}
        return {name: _portions(specs[name], splits, before.get(name, {})) for name, splits in given.items()}


def _portions(spec: SourceSpec, given: Mapping[str, Sent], before: Mapping[str, Sent]) -> Portions:
    nothing = Sent(0)
    wanted = {
        split: (before.get(split, nothing), sent)
        for split, sent in given.items()
        if sent.records > before.get(split, nothing).records
    }
    if is_followed(spec.format, spec.options):
        return _grown(spec, wanted)
    if not wanted:
        return StagedPortions(())
    files = open_files(spec)
    _check(spec, wanted.keys(), {split.name for split in files.splits})
    splits = tuple(split for split in files.splits if split.name in wanted)
    ranges = {split: (start.records, end.records) for split, (start, end) in wanted.items()}
    return FilePortions.of(replace(files, splits=splits), ranges)


def _grown(spec: SourceSpec, wanted: Mapping[str, tuple[Sent, Sent]]) -> GrownPortions:
    positions: dict[str, Any] = {split: end.position for split, (_, end) in wanted.items()}
    paths = paths_of_contents(spec.path, positions)
    _check(spec, wanted.keys(), paths.keys())
    splits = (
        GrownSplit(split, paths[split], start.records, start.position, end.records, end.position)
        for split, (start, end) in sorted(wanted.items())
    )
    return GrownPortions(tuple(splits), growing_formats(spec))


def _check(spec: SourceSpec, wanted: Any, there: Any) -> None:
    missing = sorted(wanted - there)
    if missing:
        shown = ", ".join(missing[:_SHOWN]) + (f" and {len(missing) - _SHOWN:,} more" if len(missing) > _SHOWN else "")
        raise InputError(
            f"{spec.path}: what the job has read is not there as it was: {shown}",
            hint="put the files back where they were, unchanged; run the command in the folder of the job",
        )
