"""A job on a real Redis for the tests of the store."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest
import redis
from bench import Bench


@pytest.fixture
def make(redis_url: str) -> Iterator[Callable[..., Bench]]:
    """Makes jobs; what they connect is closed after the test."""
    with ExitStack() as stack:

        def job(job: str = "j", **options: Any) -> Bench:
            made = Bench(redis_url, job, **options)
            stack.callback(made.close)
            return made

        yield job


@pytest.fixture
def bench(make: Callable[..., Bench]) -> Bench:
    """A running job named j."""
    return make()


@pytest.fixture
def full_memory(redis_url: str) -> Iterator[Callable[[], None]]:
    """Makes the server refuse every command that needs memory, until the test ends."""
    with redis.Redis.from_url(redis_url) as admin:

        def fill() -> None:
            admin.config_set("maxmemory", 1)

        yield fill
        admin.config_set("maxmemory", 0)
