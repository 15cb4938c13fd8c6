"""Waits for a Redis that is away: Celery tries again after 2, 4, 6 … 30 s, which may be long after it is back."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, Final

from pipeline.errors import StoreError
from pipeline.redis_addresses import split_addresses
from pipeline.store.connection import connect, translated
from pipeline.store.reaching import reach_of
from pipeline.tickets import broker_url

_LOOK_SECONDS: Final = 0.1
_TIMEOUT_SECONDS: Final = 1.0


def await_server(redis_url: str, is_ending: Callable[[], bool]) -> str:
    """The address under which Redis serves, as soon as it does; the first one when `is_ending`.

    Raises nothing that a server away may cause.
    """
    with connect(redis_url, timeout_seconds=_TIMEOUT_SECONDS) as client:
        while not is_ending():
            try:
                with translated():
                    client.ping()
                break
            except StoreError:
                time.sleep(_LOOK_SECONDS)
        reach = reach_of(client)
        return reach.last if reach else redis_url


def follow_server(app: Any, redis_url: str, is_ending: Callable[[], bool]) -> None:
    """Waits as `await_server`; then Celery's next connection goes to the address that has answered."""
    app.conf.broker_url = broker_url(await_server(redis_url, is_ending))


def first_address(redis_url: str) -> str:
    """The address that answers now, for who can have only one; the first when none does. Raises UnsuitableServer."""
    if len(split_addresses(redis_url)) < 2:
        return redis_url
    asked = iter((False, True))
    return await_server(redis_url, lambda: next(asked, True))
