"""Publishes all file sinks of a job from what its commits say. Changes no state of the job."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from pipeline.facts import JobRecord
from pipeline.graph import Graph
from pipeline.plan import Plan, SinkPlan
from pipeline.sinks.links import SinkLinks
from pipeline.sinks.places import FILE_FORMATS
from pipeline.sinks.publisher import Published, check_target, discard, publish
from pipeline.sinks.staging import StagedFacts
from pipeline.sources.snapshots import owner_of, remove_copies
from pipeline.store.jobs import JobStore

NOTHING_CAME: Final = "drained before anything came to its files: what is there stays"


def file_sinks(plan: Plan) -> list[SinkPlan]:
    """The sinks that end as folders, in the order of the plan."""
    return [sink for sink in plan.sinks if sink.format in FILE_FORMATS]


def check_targets(plan: Plan) -> None:
    """Returns when every file sink may be published where it wants to be. Raises SinkError, EnvironmentFault."""
    for sink in file_sinks(plan):
        check_target(sink)


def check_effects(graph: Graph, plan: Plan) -> None:
    """Returns when every sink that writes elsewhere can be written to: addresses, extras, tables.

    Raises SinkError, EnvironmentFault, PipelineError.
    """
    links = SinkLinks(graph.nodes)
    try:
        links.check(plan.sinks)
    finally:
        links.close()


def publish_job(store: JobStore, record: JobRecord) -> list[Published]:
    """Publishes every file sink, in the order of `file_sinks`; may be repeated, also after a crash.

    None of them for a job that was drained before a record came to any: it must not replace an earlier result by an
    empty one. Only for a job in state publishing: its workers commit no more. Each folder appears whole; when one
    cannot be published, those before it stay. Raises SinkError, EnvironmentFault, DecodingError, StoreError.
    """
    sinks, totals = file_sinks(record.plan), store.log_totals(record)
    raw = store.staged_files(record.job)
    staged = {sink.name: [StagedFacts.decode(facts) for facts in raw.get(sink.name, [])] for sink in sinks}
    parts = {sink.name: totals.get(f"r:{sink.name}", 0) for sink in sinks}
    records = sum(parts.values()) + sum(fact.records for facts in staged.values() for fact in facts)
    if record.is_drained and not records:
        return []
    return [
        publish(
            sink,
            record.job,
            staged[sink.name],
            pipeline=record.plan.pipeline,
            run=record.run,
            published=parts[sink.name],
        )
        for sink in sinks
    ]


def reason_to_finish(plan: Plan, published: Sequence[Published]) -> str:
    """With which the job is finished after `publish_job`: why its file sinks have no results, if so."""
    return NOTHING_CAME if file_sinks(plan) and not published else ""


def discard_job(record: JobRecord) -> None:
    """Removes the staging files of all sinks, once they are published or not wanted, and copies of tables.

    Raises SinkError.
    """
    discard_staged(record.job, record.plan)


def discard_staged(job: str, plan: Plan) -> None:
    """As `discard_job`, of a job that no Redis has any more."""
    for sink in file_sinks(plan):
        discard(sink, job)
    for source in plan.sources:
        if source.format == "jdbc":
            remove_copies(source.options["staging"], owner_of(job, source.name))
