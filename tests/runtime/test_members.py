"""A member as a process of its own: what it leaves when it is asked to end, also by a terminal that is closed."""

from __future__ import annotations

import signal
import subprocess
import sys
from typing import Final

import pytest

from pipeline.facts import WorkerFacts
from pipeline.loader import load_graph
from pipeline.plan import compile_plan
from pipeline.settings import Limits
from pipeline.store.connection import connect
from pipeline.store.jobs import JobStore
from pipeline.store.scripts import Scripts
from tests.e2e.chaos import Site, wait_until

FLOW: Final = """from pipeline import Pipeline, read, write

flow = Pipeline("leaves")
flow.source(read.producer(), name="in").sink(write.stream("results"), name="out")
"""

LEAVES: Final = """import os
import signal
import tempfile

if os.environ.get("CELERIAC_WORKER") == "w":
    tempfile.mkdtemp(prefix="left-")  # as Spark does, and waits for its end
    signal.pause()
"""


def start(site: Site, redis_url: str, **more: str) -> subprocess.Popen[bytes]:
    """`python -m stages.member` for the job `j`, on which nobody else works."""
    told = {"CELERIAC_REDIS": redis_url, "CELERIAC_JOB": "j", "CELERIAC_PIPELINE": "flow.py", "CELERIAC_WORKER": "w"}
    told |= more
    with open(site.kept_logs / "member.log", "wb") as log:
        return subprocess.Popen(
            [sys.executable, "-m", "stages.member"],
            cwd=site.root / "work",
            env=site.environment(**told),
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )


def workers(store: JobStore) -> list[WorkerFacts]:
    return [each for each in store.facts("j").workers if each.report.get("consuming")]


@pytest.fixture
def store(site: Site, redis_url: str) -> JobStore:
    site.write(FLOW)
    store = JobStore(Scripts(connect(redis_url)))
    graph = load_graph(str(site.root / "work/flow.py"))
    store.create("j", compile_plan(graph, 1, Limits()))
    return store


@pytest.mark.parametrize("number", [signal.SIGHUP, signal.SIGTERM, signal.SIGINT])
def test_a_member_that_is_asked_to_end_ends_its_workers_in_good_order(
    site: Site, redis_url: str, store: JobStore, number: signal.Signals
) -> None:
    member = start(site, redis_url)
    wait_until(lambda: bool(workers(store)), "its worker is there", 60.0)

    member.send_signal(number)

    assert member.wait(30) == 0, (site.kept_logs / "member.log").read_text()
    assert [each.report["stopping"] for each in store.facts("j").workers] == [True]
    site.assert_clean("flow.py")
    store.erase("j")


@pytest.mark.usefixtures("store")
def test_what_spark_leaves_that_is_killed_goes_with_its_node(site: Site, redis_url: str) -> None:
    site.write(LEAVES + FLOW)
    member = start(site, redis_url, CELERIAC_ENGINE="spark")
    wait_until(lambda: bool(list(site.temporary.rglob("left-*"))), "its worker has a file of its own", 60.0)

    member.send_signal(signal.SIGTERM)

    assert member.wait(30) == 0, (site.kept_logs / "member.log").read_text()
    site.assert_clean("flow.py")
