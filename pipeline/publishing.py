"""Publishes all file sinks of a job from what its commits say. Changes no state of the job."""

from __future__ import annotations

from pipeline.facts import JobRecord
from pipeline.graph import Graph
from pipeline.plan import Plan, SinkPlan
from pipeline.sinks.links import SinkLinks
from pipeline.sinks.places import FILE_FORMATS
from pipeline.sinks.publisher import Published, check_target, discard, publish
from pipeline.sinks.staging import StagedFacts
from pipeline.sources.snapshots import owner_of, remove_copies
from pipeline.store.jobs import JobStore


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

    Only for a job in state publishing: its workers commit no more. Each folder appears whole; when one cannot
    be published, those before it stay. Raises SinkError, EnvironmentFault, DecodingError, StoreError.
    """
    staged = store.staged_files(record.job)
    totals = store.log_totals(record)
    return [
        publish(
            sink,
            record.job,
            [StagedFacts.decode(facts) for facts in staged.get(sink.name, [])],
            pipeline=record.plan.pipeline,
            run=record.run,
            published=totals.get(f"r:{sink.name}", 0),
        )
        for sink in file_sinks(record.plan)
    ]


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
