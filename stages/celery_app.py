"""`celery -A stages.celery_app`: the application of one worker for Celery's own command, from the same environment.

Workers are started with `python -m stages.main`, which says what is wrong without a traceback.
"""

from __future__ import annotations

import os

from stages.app import WorkerSettings, make_app

app = make_app(WorkerSettings.from_environment(dict(os.environ)))
