"""Runs Flower in this process until SIGTERM or Ctrl-C. Its options are set here, never read from argv or a file."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from pipeline.errors import EnvironmentFault
from pipeline.flower.access import Access
from pipeline.flower.watch import Watch
from pipeline.store.connection import connect
from pipeline.store.jobs import JobStore
from pipeline.store.returning import first_address
from pipeline.store.scripts import Scripts
from pipeline.tickets import celery_settings

try:
    from celery import Celery
    from flower.options import default_options
    from flower.urls import settings as flower_settings

    from pipeline.flower.pages import PipelineFlower
except ImportError as error:
    raise EnvironmentFault("Flower is not installed", hint="pip install 'celeriac[flower]'") from error

KEPT_TASKS: Final = 10_000
"""Rows of the Tasks page: one for each partition and term."""

STORE_SECONDS: Final = 2.0
"""How long a page waits for Redis."""


@dataclass(frozen=True, slots=True)
class FlowerOptions:
    """`has_events`: have all workers tell of each ticket, for the Tasks page; it costs them about 0.2 ms a ticket."""

    access: Access
    has_events: bool


def serve(redis_url: str, options: FlowerOptions, announce: Callable[[str], None]) -> None:
    """Serves until SIGTERM or SIGINT; calls `announce` with the address of the page when it can be opened.

    Raises StoreError when Redis cannot be reached at the start, EnvironmentFault when the port is taken.
    """
    logging.basicConfig(level=logging.WARNING, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    # It warns at each page while no worker runs, which is no fault.
    logging.getLogger("flower.inspector").setLevel(logging.ERROR)
    # And at each try while Redis is away, with a traceback; the pages, and each request's line, say so.
    logging.getLogger("kombu.mixins").setLevel(logging.ERROR)
    # Flower looks at it in each request: it would open /api to every web page that the viewer visits.
    os.environ.pop("FLOWER_UNAUTHENTICATED_API", None)
    store = JobStore(Scripts(connect(redis_url, timeout_seconds=STORE_SECONDS)))
    store.ping()
    asyncio.run(_serve(redis_url, options, Watch(store), announce))


async def _serve(redis_url: str, options: FlowerOptions, watch: Watch, announce: Callable[[str], None]) -> None:
    stopped = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        loop.add_signal_handler(number, stopped.set)
    access = options.access
    application = PipelineFlower(
        access, watch, options=_flower_options(options), capp=_celery(redis_url), **flower_settings
    )
    try:
        port = application.start_http_server()
    except OSError as error:
        raise EnvironmentFault(
            f"nothing can listen on {access.address}:{access.port}: {error.strerror or error}",
            hint="choose another --port or --address",
        ) from error
    host = f"[{access.address}]" if ":" in access.address else access.address
    announce(f"http://{host}:{port}/pipelines")
    await application.run(stopped)


def _flower_options(options: FlowerOptions) -> Any:
    """Flower's own options, which are global to a process."""
    values = {
        "address": options.access.address,
        "port": options.access.port,
        "basic_auth": list(options.access.credentials),
        "enable_events": options.has_events,
        "read_only": True,
        "max_tasks": KEPT_TASKS,
    }
    for name, value in values.items():
        setattr(default_options, name, value)
    return default_options


def _celery(redis_url: str) -> Celery:
    app = Celery("celeriac-flower", set_as_current=False)
    settings = celery_settings(first_address(redis_url))
    settings["broker_transport_options"]["client_name"] = "celeriac-flower"
    app.conf.update(settings)
    return app
