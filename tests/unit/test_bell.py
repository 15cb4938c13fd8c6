"""The bell by which the heartbeat's thread wakes Celery's hub."""

from __future__ import annotations

import fcntl
import threading
import time

import pytest
from kombu.asynchronous import Hub

from stages.bell import Bell

# A hub of kombu leaves sockets of its own to the garbage collector.
pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")


def test_a_hub_that_sleeps_is_woken_by_another_thread_and_hears_many_rings_once() -> None:
    hub, bell, heard = Hub(), Bell(), []
    bell.hang(hub, lambda: heard.append(threading.get_ident()))
    loop = hub.create_loop()

    fcntl.fcntl(bell._hand, fcntl.F_SETPIPE_SZ, 4_096)
    for _ in range(5_000):  # more than there is room for
        bell.ring()
    deadline = time.monotonic() + 20.0
    while not heard and time.monotonic() < deadline:
        next(loop)
    assert set(heard) == {threading.get_ident()}
    assert len(heard) <= 2

    before = len(heard)
    threading.Timer(0.05, bell.ring).start()
    while len(heard) == before and time.monotonic() < deadline:
        next(loop)
    assert len(heard) == before + 1


def test_a_hub_that_was_made_anew_hears_it_again() -> None:
    bell, heard = Bell(), []
    for number in range(2):
        hub = Hub()
        bell.hang(hub, lambda number=number: heard.append(number))  # type: ignore[misc]
        loop = hub.create_loop()
        bell.ring()
        deadline = time.monotonic() + 20.0
        while number not in heard and time.monotonic() < deadline:
            next(loop)
        hub.close()

    assert heard == [0, 1]
