"""A real Redis for the tests: one server a session, empty before each test that asks for its address."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
import redis
from hypothesis import settings

from pipeline.embedded.redis import EmbeddedRedis

# No test is timed. The quick profile keeps the suite fit to be run often; thorough is for a hunt.
settings.register_profile("quick", max_examples=25, deadline=None)
settings.register_profile("thorough", max_examples=500, deadline=None)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "quick"))


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--redis-fsync", choices=("no", "everysec", "always"), default="no")


@pytest.fixture(scope="session")
def redis_server(request: pytest.FixtureRequest) -> Iterator[EmbeddedRedis]:
    """The session's server. A test that kills or fills a server starts one of its own."""
    with EmbeddedRedis.start(fsync=request.config.getoption("--redis-fsync")) as server:
        yield server


@pytest.fixture
def redis_url(redis_server: EmbeddedRedis) -> str:
    """The address of an empty server."""
    with redis.Redis.from_url(redis_server.url) as client:
        client.flushall()
    return redis_server.url
