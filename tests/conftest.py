"""A real Redis for the tests: one server a session, empty before each test that asks for its address."""

from __future__ import annotations

import gc
import logging
import os
from collections.abc import Generator, Iterator
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Final
from uuid import uuid4

import pytest
import redis
from hypothesis import settings

from pipeline.embedded.redis import EmbeddedRedis
from tests.e2e.chaos import Site
from tests.strangers import strangers

if TYPE_CHECKING:
    from tests.postgres import PostgresServer

gc.disable()  # until all tests are collected

# No test is timed. The quick profile keeps the suite fit to be run often; the thorough one is a step of .ci/run.
settings.register_profile("quick", max_examples=10, deadline=None)
settings.register_profile("thorough", max_examples=200, deadline=None)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "quick"))


FIRST: Final = (
    "spark/test_bulk_broken.py",
    "spark/test_connect.py",
    "spark/test_bursts.py",
    "compose/test_spark_processes.py",
    "spark/test_stream_query.py",
    "spark/test_examples_on_spark.py",
    "spark/test_backfill.py",
    "spark/test_datasource_writing.py",
    "conformance",
    "spark/test_native_finals.py",
    "spark/test_twins.py",
    "spark/test_bulk_on_spark.py",
    "spark/test_recompute.py",
    "e2e",
    "compose",
    "docs",
    "runtime",
)
"""What takes longest comes first: a long file that is begun last is waited for by an idle machine."""


@pytest.hookimpl(tryfirst=True)
def pytest_runtestloop() -> None:
    """What imports and collecting have made stays to the end: the garbage collector need not look through it."""
    gc.freeze()
    gc.enable()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=lambda item: _place(item.path))


@cache
def _place(path: Path) -> int:
    own = path.relative_to(Path(__file__).parent)
    return next((at for at, name in enumerate(FIRST) if own.is_relative_to(name)), len(FIRST))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Function) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """A story that failed shows what its processes have logged."""
    report = yield
    if report.failed and isinstance(site := item.funcargs.get("site"), Site):
        report.sections += site.last_lines()
    return report


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--redis-fsync", choices=("no", "everysec", "always"), default="no")


@pytest.fixture(autouse=True)
def logging_on() -> Iterator[None]:
    """`celeriac verify` silences its process for good, which here is that of the next tests."""
    yield
    logging.disable(logging.NOTSET)


@pytest.fixture
def loggers_as_before() -> Iterator[None]:
    """Whoever breaks a call of Spark off silences py4j for good, which here is for the next tests."""
    root, py4j = logging.getLogger(), logging.getLogger("py4j")
    filters, level = list(root.filters), py4j.level
    yield
    root.filters[:] = filters
    py4j.setLevel(level)


@pytest.fixture(scope="session")
def redis_server(request: pytest.FixtureRequest) -> Iterator[EmbeddedRedis]:
    """The session's server. A test that kills or fills a server starts one of its own."""
    with EmbeddedRedis.start(fsync=request.config.getoption("--redis-fsync")) as server:
        yield server


@pytest.fixture
def redis_url(request: pytest.FixtureRequest, redis_server: EmbeddedRedis) -> Iterator[str]:
    """The address of an empty server, on which a test leaves no key that is not ours, nor one of a job that is gone."""
    with redis.Redis.from_url(redis_server.url) as client:
        client.flushall()
        yield redis_server.url
        known = [mark.args[0] for mark in request.node.iter_markers("foreign_keys")]
        assert strangers(client, known) == []


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[PostgresServer]:
    """The session's PostgreSQL. A test that breaks a server starts one of its own."""
    from tests.postgres import PostgresServer  # not at the top: most tests need none

    server = PostgresServer()
    server.start()
    yield server
    server.close()


@pytest.fixture
def postgres_url(postgres_server: PostgresServer) -> Iterator[str]:
    """The address of an empty database."""
    name = f"t{uuid4().hex}"
    postgres_server.execute(f"CREATE DATABASE {name} STRATEGY file_copy")
    yield postgres_server.database(name)
    postgres_server.execute(f"DROP DATABASE {name} WITH (FORCE)")


@pytest.fixture(params=["sqlite", "postgresql"])
def database_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The address of an empty database of each kind."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/test.db"
    return str(request.getfixturevalue("postgres_url"))


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    """The folder and the processes of one story, cleared away when it fails."""
    site = Site(tmp_path)
    yield site
    site.close()
