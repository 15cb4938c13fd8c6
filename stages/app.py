"""The Celery application of a worker: its settings, the ticket task, and the refusal of other pools.

Only the solo pool may serve our queues: ownership lives in one process and one thread.
"""

from __future__ import annotations

import socket
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar

from celery import Celery, bootsteps
from celery.worker import state

from pipeline.errors import PipelineError
from pipeline.graph import Graph, Transform
from pipeline.loader import load_graph
from pipeline.needs import REMOTE_VARIABLE, find_needs
from pipeline.plan import fingerprint
from pipeline.pools import POOL
from pipeline.shadowing.holding import held_back
from pipeline.store import keys
from pipeline.store.connection import connect
from pipeline.store.jobs import JobStore
from pipeline.store.ownership import Ownership
from pipeline.store.returning import first_address, follow_server
from pipeline.store.scripts import Scripts
from pipeline.store.versions import VersionStore
from pipeline.tickets import TASK, celery_settings
from pipeline.versions import check_code
from stages.owning import Owning
from stages.serving import serve
from stages.worker import Worker

if TYPE_CHECKING:
    from pipeline.spark.transforms import Transforms


@dataclass(frozen=True, slots=True)
class WorkerSettings:
    """What a worker process is told. The address may hold a password, so it comes by the environment, never by argv."""

    redis_url: str
    job: str
    worker: str
    incarnation: str
    pipeline: str
    pool: str = POOL
    """It owns partitions of this pool's stages only."""
    is_sized: bool = False
    """Whether an agent keeps as many of its kind as the leader wants; not for a worker that runs by itself."""
    node: str = ""
    """The node that it runs on."""
    spark_remote: str = field(default="", repr=False)
    """The Connect server whose Spark runs DataFrame operators; without one it has a JVM of its own."""

    @classmethod
    def from_environment(cls, environment: dict[str, str]) -> WorkerSettings:
        """Raises PipelineError that names what is missing."""
        names = ("CELERIAC_REDIS", "CELERIAC_JOB", "CELERIAC_WORKER", "CELERIAC_PIPELINE")
        missing = [name for name in names if not environment.get(name)]
        if missing:
            raise PipelineError(
                f"a worker needs {', '.join(missing)} in its environment", hint="start workers with celeriac run"
            )
        url, job, worker, pipeline = (environment[name] for name in names)
        return cls(
            url,
            job,
            worker,
            environment.get("CELERIAC_INCARNATION", "1-manual"),
            pipeline,
            environment.get("CELERIAC_POOL") or POOL,
            environment.get("CELERIAC_SIZED") == "1",
            environment.get("CELERIAC_NODE") or socket.gethostname(),
            environment.get(REMOTE_VARIABLE, ""),
        )


def make_app(settings: WorkerSettings) -> Celery:
    """Loads the user's pipeline and makes the application that serves it.

    Raises PipelineError, also when the file is not the one that was submitted; EnvironmentFault when an external
    program is not on this machine; StoreError.
    """
    scripts = Scripts(connect(settings.redis_url))
    plan = JobStore(scripts).read(settings.job).plan
    graph = load_graph(settings.pipeline)
    if plan.is_shadow:
        graph = held_back(graph)
    if fingerprint(graph) != plan.fingerprint:
        raise PipelineError(
            f"{settings.pipeline} is not the pipeline that job {settings.job!r} was started with",
            hint="run it under a new job id",
        )
    code = check_code(VersionStore(scripts).rollout(settings.job), settings.worker, settings.pipeline)
    find_needs(graph.nodes)

    def ownership() -> Ownership:
        return Ownership(Scripts(connect(settings.redis_url)), settings.job, settings.worker, settings.incarnation)

    worker = Worker(ownership(), plan, graph, transforms=_transforms(graph, settings.spark_remote))
    worker.code = code
    app = Celery("celeriac-worker", set_as_current=False)
    app.conf.update(celery_settings(first_address(settings.redis_url)))
    app.conf.task_default_queue = keys.worker_queue_name(settings.job, settings.worker)

    def ticket(stage: int, partition: int) -> None:
        serve(worker, stage, partition)

    app.task(name=TASK, ignore_result=True)(ticket)
    app.steps["worker"].add(RefuseOtherPools)
    app.steps["consumer"].add(Owning)
    app.celeriac_await_redis = partial(follow_server, app, settings.redis_url, _is_ending)
    app.celeriac_worker = worker
    app.celeriac_told = {"pool": settings.pool, "sized": settings.is_sized}
    app.celeriac_node = settings.node
    app.celeriac_code = code
    app.celeriac_pulse_ownership = ownership()
    return app


def _transforms(graph: Graph, remote: str) -> Transforms | None:
    """What runs the DataFrame operators of a graph, if it has any; imports PySpark only then."""
    if not any(isinstance(node, Transform) for node in graph.nodes):
        return None
    from pipeline.spark.transforms import Transforms

    return Transforms(graph.nodes, remote)


def _is_ending() -> bool:
    """Whether Celery was told to end this process."""
    return any(flag is not None and flag is not False for flag in (state.should_stop, state.should_terminate))


class RefuseOtherPools(bootsteps.Step):
    """Ends a worker that was started with another pool than solo."""

    requires: ClassVar = {"celery.worker.components:Pool"}

    def __init__(self, parent: Any, **options: Any) -> None:
        super().__init__(parent, **options)
        if parent.pool_cls.__module__ != "celery.concurrency.solo":
            raise SystemExit(
                "error: celeriac workers run with the solo pool only: a partition has one owner, in one process\n"
                "hint: start it with -P solo, and start more workers for more cores"
            )
