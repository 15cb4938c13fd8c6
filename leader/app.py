"""The Celery application of one leader process: one task, one queue of its own, an embedded beat."""

from __future__ import annotations

from functools import partial
from typing import Any, ClassVar

from celery import Celery, bootsteps
from celery.worker import state
from kombu import Queue

from leader.beat import TICK_SECONDS, Ring, RingingScheduler
from leader.round import Round
from leader.wiring import make_round
from pipeline.store import keys
from pipeline.store.connection import connect
from pipeline.store.returning import first_address, follow_server
from pipeline.store.scripts import Scripts
from pipeline.tickets import TICK, celery_settings


def make_app(redis_url: str, name: str, round_: Round | None = None) -> Celery:
    """An application whose only task runs `round_` once, by default one of its own. Nothing is sent yet."""
    led = make_round(Scripts(connect(redis_url)), name) if round_ is None else round_
    app = Celery("celeriac-leader", set_as_current=False)
    app.conf.update(celery_settings(first_address(redis_url)))
    queue = keys.leader_queue_name(name)
    app.conf.update(
        # Undeclared: a Redis list needs no declaration, and kombu then stores no binding that outlives the queue.
        task_queues=[Queue(queue, no_declare=True)],
        task_default_queue=queue,
        # No answers to broadcasts, so no mailbox is left behind when the process is killed.
        worker_enable_remote_control=False,
        worker_redirect_stdouts=False,
        result_expires=None,  # else beat adds a task that cleans results up
        beat_schedule={"tick": {"task": TICK, "schedule": TICK_SECONDS}},
        beat_scheduler=partial(RingingScheduler, ring=Ring(redis_url, name)),
        beat_max_loop_interval=TICK_SECONDS,
    )

    app.steps["consumer"].add(Waiting)
    app.celeriac_await_redis = partial(follow_server, app, redis_url, _is_ending)

    @app.task(name=TICK, shared=False)  # type: ignore[untyped-decorator]  # celery has no types
    def tick() -> None:
        led.run_once()

    return app


class Waiting(bootsteps.StartStopStep):
    """Waits for Redis when Celery's connection is lost."""

    requires: ClassVar = {"celery.worker.consumer.tasks:Tasks"}

    def stop(self, parent: Any) -> None:
        parent.app.celeriac_await_redis()


def _is_ending() -> bool:
    """Whether Celery was told to end this process."""
    return any(flag is not None and flag is not False for flag in (state.should_stop, state.should_terminate))
