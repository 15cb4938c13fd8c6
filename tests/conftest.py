"""A real Redis for the tests: one server a session, empty before each test that asks for its address."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
import redis

from pipeline.embedded.redis import EmbeddedRedis
from pipeline.errors import EnvironmentFault


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--redis-fsync", choices=("no", "everysec", "always"), default="no")


@pytest.fixture(scope="session")
def redis_server(request: pytest.FixtureRequest) -> Iterator[EmbeddedRedis]:
    """The session's server. A test that kills or fills a server starts one of its own."""
    try:
        server = EmbeddedRedis.start(fsync=request.config.getoption("--redis-fsync"))
    except EnvironmentFault as fault:
        if os.environ.get("CI"):
            raise
        pytest.skip(f"{fault} ({fault.hint})")
    with server:
        yield server


@pytest.fixture
def redis_url(redis_server: EmbeddedRedis) -> str:
    """The address of an empty server."""
    with redis.Redis.from_url(redis_server.url) as client:
        client.flushall()
    return redis_server.url
