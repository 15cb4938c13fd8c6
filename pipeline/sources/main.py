"""The feeder process: reads one source into a job. It keeps no state, so it may be killed and started anew.

Exit codes: 0 nothing left to do (or a newer feeder does it), 1 Redis is away (worth a restart), 2 wrong pipeline, 3 bad
input; with 2 and 3 the job has failed and knows why.
"""

from __future__ import annotations

import logging
import os
import signal
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from pipeline.errors import (
    CeleriacError,
    InboxClosed,
    JobRestored,
    JobStateError,
    PipelineError,
    StaleSender,
    StoreFull,
    StoreUnavailable,
    TailLost,
    UnknownJob,
)
from pipeline.facts import JobRecord
from pipeline.graph import Graph, Source
from pipeline.lifecycle import JobState
from pipeline.loader import load_graph
from pipeline.plan import SourcePlan, fingerprint, is_followed
from pipeline.sources.following import follow_source
from pipeline.sources.runner import DEFAULT_MASTER, feed_source
from pipeline.sources.snapshots import owner_of
from pipeline.store.connection import connect
from pipeline.store.jobs import JobStore
from pipeline.store.scripts import Scripts
from pipeline.store.senders import FeedAddress

AWAY: Final = 1
WRONG_PIPELINE: Final = 2
BAD_INPUT: Final = 3

_LATER_SECONDS: Final = 0.01

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class FeederSettings:
    """Which source of which job to feed.

    `target` is the pipeline's file, `reader` empty for the source's own, `master` where Spark runs, empty for here.
    """

    redis_url: str = field(repr=False)
    job: str
    source: str
    target: str
    reader: str = ""
    master: str = ""

    @classmethod
    def from_environment(cls, environment: Mapping[str, str]) -> FeederSettings:
        """Raises PipelineError when a variable is missing."""
        names = ("CELERIAC_REDIS", "CELERIAC_JOB", "CELERIAC_SOURCE", "CELERIAC_PIPELINE")
        missing = [name for name in names if not environment.get(name)]
        if missing:
            raise PipelineError(
                f"the feeder needs {' and '.join(missing)} in its environment",
                hint="it is started by `celeriac run`, not by hand",
            )
        redis_url, job, source, target = (environment[name] for name in names)
        reader, master = (environment.get(name, "") for name in ("CELERIAC_READER", "CELERIAC_SPARK_MASTER"))
        return cls(redis_url, job, source, target, reader, master)


def main() -> int:
    """Feeds the source that the environment names and returns the exit code."""
    signal.signal(signal.SIGTERM, _leave)
    sys.unraisablehook = _leave_later
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    try:
        settings = FeederSettings.from_environment(os.environ)
    except PipelineError as error:
        _log.error("%s (%s)", error, error.hint)
        return WRONG_PIPELINE
    try:
        return run_feeder(settings)
    finally:
        # It ends by itself: SystemExit in the middle of Spark's end would look like a fault in the log.
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGTERM, signal.SIG_IGN)


class _Leaving(SystemExit):
    pass


def _leave(_number: int, _frame: object) -> None:
    """Ends by the ordinary way, so that Spark's JVM and its files go too; a second signal does not cut that short."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    raise _Leaving(0)


def _leave_later(report: sys.UnraisableHookArgs, /) -> None:
    """Python drops what is raised in a finalizer: it is raised once more then, by a signal that comes in a moment."""
    if isinstance(report.exc_value, _Leaving):
        signal.signal(signal.SIGALRM, _leave)
        signal.setitimer(signal.ITIMER_REAL, _LATER_SECONDS)
    else:
        sys.__unraisablehook__(report)


def run_feeder(settings: FeederSettings) -> int:
    """Feeds, and turns what goes wrong into an exit code and, where no restart can help, into a failed job."""
    try:
        store = JobStore(Scripts(connect(settings.redis_url)))
        return _feed(settings, store)
    except (UnknownJob, TailLost) as error:
        _log.error("source=%s ends: %s (%s)", settings.source, error, error.hint)
        return 0  # whoever runs the job sees the same
    except JobRestored as error:
        _log.warning("source=%s begins anew: %s", settings.source, error)
        return AWAY
    except (InboxClosed, StaleSender) as error:
        _log.info("source=%s ends: %s", settings.source, error)
        return 0
    except (StoreUnavailable, StoreFull) as error:
        _log.warning("source=%s gives up for now: %s", settings.source, error)
        return AWAY
    except CeleriacError as error:
        return _fail(settings, error)


def _feed(settings: FeederSettings, store: JobStore) -> int:
    record = store.read(settings.job)
    if record.state is not JobState.RUNNING or settings.source in record.completed_sources:
        _log.info("source=%s has nothing to feed: job %s is %s", settings.source, settings.job, record.state.value)
        return 0
    graph = load_graph(settings.target)
    if fingerprint(graph) != record.plan.fingerprint and not _is_same_source(graph, record, settings.source):
        raise PipelineError(
            f"{settings.target} is another pipeline than the one that job {settings.job!r} was made from",
            hint="run the file as it was, or start a new job",
        )
    address = FeedAddress(settings.redis_url, settings.job, settings.source)
    spec = _source(graph, settings.source).spec
    if is_followed(spec.format, spec.options):
        summary = follow_source(spec, address)
    else:
        owner = owner_of(settings.job, settings.source)
        master = settings.master or DEFAULT_MASTER
        summary = feed_source(spec, address, reader=settings.reader, master=master, owner=owner)
    _log.info("source=%s complete splits=%d records=%d", settings.source, summary.splits, summary.records)
    return 0


def _is_same_source(graph: Graph, record: JobRecord, name: str) -> bool:
    """Whether a feeder of the version before goes on: the job was promoted since, to one with the same sources."""
    source, plan = _source(graph, name), record.plan.source(name)
    return bool(record.code) and plan == SourcePlan(name, source.spec.format, source.spec.options)


def _source(graph: Graph, name: str) -> Source:
    for node in graph.nodes:
        if isinstance(node, Source) and node.name == name:
            return node
    raise PipelineError(f"the pipeline {graph.name!r} has no source {name!r}")


def _fail(settings: FeederSettings, error: CeleriacError) -> int:
    """Ends the job with the reason, unless it takes no input any more: then a late fault does not matter."""
    _log.error("source=%s failed: %s", settings.source, error)
    code = WRONG_PIPELINE if isinstance(error, PipelineError) else BAD_INPUT
    hint = f" ({error.hint})" if error.hint else ""
    try:
        store = JobStore(Scripts(connect(settings.redis_url)))
        if store.state(settings.job) is not JobState.RUNNING:
            return 0
        store.transition(settings.job, JobState.FAILED, f"source {settings.source!r}: {error}{hint}")
    except (JobStateError, UnknownJob) as other:
        _log.info("job=%s has ended already: %s", settings.job, other)
    except (StoreUnavailable, StoreFull) as other:
        _log.warning("job=%s could not be told: %s", settings.job, other)
        return AWAY
    return code


if __name__ == "__main__":
    sys.exit(main())
