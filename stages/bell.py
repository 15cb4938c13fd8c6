"""Wakes the hub of a Celery worker from another thread: what is only queued there waits up to a second for an event."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import suppress
from typing import Any


class Bell:
    """A pipe that the hub reads. It lives as long as the process; a hub that was made anew is told of it again."""

    def __init__(self) -> None:
        self._ears, self._hand = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)

    def ring(self) -> None:
        """Has the hub call back soon, once for all that ring before it does. For any thread."""
        with suppress(BlockingIOError):  # it is full of rings that were not heard yet
            os.write(self._hand, b"!")

    def hang(self, hub: Any, callback: Callable[[], None]) -> None:
        """Has the hub call this when it rings. To be called on the hub's thread."""

        def heard() -> None:
            with suppress(BlockingIOError):
                os.read(self._ears, 65_536)
            callback()

        hub.add_reader(self._ears, heard)
