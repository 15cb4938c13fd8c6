"""Waits for a Redis that is away: Celery tries again after 2, 4, 6 … 30 s, which may be long after it is back."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

from pipeline.errors import StoreError
from pipeline.store.connection import connect, translated

_LOOK_SECONDS: Final = 0.1
_TIMEOUT_SECONDS: Final = 1.0


def await_server(redis_url: str, is_ending: Callable[[], bool]) -> None:
    """Returns as soon as Redis serves, or `is_ending`. Raises nothing that a server away may cause."""
    with connect(redis_url, timeout_seconds=_TIMEOUT_SECONDS) as client:
        while not is_ending():
            try:
                with translated():
                    client.ping()
                return
            except StoreError:
                time.sleep(_LOOK_SECONDS)
