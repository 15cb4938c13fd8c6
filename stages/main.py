"""`python -m stages.main`: one worker process. What it serves comes by the environment (see WorkerSettings)."""

from __future__ import annotations

import logging
import os
import socket
import sys

from pipeline.errors import CeleriacError
from stages.app import WorkerSettings, make_app
from stages.supervision import REPLACED


def main() -> int:
    """Runs until SIGTERM; the exit code of Celery's worker, 3 when it cannot start, REPLACED when it was refused."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    logging.getLogger("celery").setLevel(logging.WARNING)
    try:
        settings = WorkerSettings.from_environment(dict(os.environ))
        app = make_app(settings)
    except CeleriacError as error:
        print(f"error: {error}\nhint: {error.hint}" if error.hint else f"error: {error}", file=sys.stderr)
        return 3
    node = f"{{{settings.job}}}.{settings.worker}@{socket.gethostname()}"
    # Celery's own heartbeat stays: without it a worker cannot be told to send task events (`celeriac flower --events`).
    # Not by Celery's command, which imports all of its others, and Flower, before it starts one.
    worker = app.Worker(hostname=node, pool="solo", loglevel=logging.WARNING, without_gossip=True, without_mingle=True)
    worker.start()
    return REPLACED if app.celeriac_worker.is_replaced else worker.exitcode or 0


if __name__ == "__main__":
    sys.exit(main())
