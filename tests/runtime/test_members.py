"""A member as a process of its own: under which name it works, and what it leaves when it is asked to end."""

from __future__ import annotations

import json
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import closing
from typing import Final

import psutil
import pytest

from pipeline.facts import WorkerFacts
from pipeline.loader import load_graph
from pipeline.nodes import is_live, node_rows
from pipeline.plan import compile_plan
from pipeline.records import Batch
from pipeline.settings import Limits
from pipeline.store.connection import connect
from pipeline.store.jobs import JobStore
from pipeline.store.moving import MovingStore
from pipeline.store.ownership import Ownership
from pipeline.store.scripts import Scripts
from pipeline.store.senders import FeedAddress
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


HELD: Final = """import signal
from pipeline import Pipeline, read, write

def held(value):
    signal.pause()

flow = Pipeline("leaves")
flow.source(read.producer(), name="in").map(held, name="held").sink(write.stream("results"), name="out")
"""


def start(site: Site, redis_url: str, log: str = "member", **more: str) -> subprocess.Popen[bytes]:
    """`python -m stages.member` for the job `j`, as the worker `w` unless it is told otherwise."""
    told = {"CELERIAC_REDIS": redis_url, "CELERIAC_JOB": "j", "CELERIAC_PIPELINE": "flow.py", "CELERIAC_WORKER": "w"}
    with open(site.kept_logs / f"{log}.log", "ab") as file:
        return subprocess.Popen(
            [sys.executable, "-m", "stages.member"],
            cwd=site.root / "work",
            env=site.environment(**told | more),
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=file,
            start_new_session=True,
        )


def said(site: Site, log: str = "member") -> str:
    return (site.kept_logs / f"{log}.log").read_text()


def kill(member: subprocess.Popen[bytes]) -> None:
    """kill -9 of the agent, and so of its worker."""
    children = psutil.Process(member.pid).children(recursive=True)
    member.kill()
    member.wait(10)
    psutil.wait_procs(children, 10)


def workers(store: JobStore) -> list[WorkerFacts]:
    return [each for each in store.facts("j").workers if each.report.get("consuming")]


def at_work(store: JobStore) -> dict[str, str]:
    """Worker that is heard of -> its incarnation."""
    facts = store.facts("j")
    return {each.name: each.incarnation for each in workers(store) if is_live(facts, each)}


def are_at_work(store: JobStore, *names: str) -> dict[str, str]:
    wait_until(lambda: set(at_work(store)) == set(names), f"{', '.join(names)} are at work", 60.0)
    return at_work(store)


def owners(store: JobStore) -> set[str]:
    return {part.owner for part in store.facts("j").partitions}


@pytest.fixture
def scripts(redis_url: str) -> Iterator[Scripts]:
    with connect(redis_url) as client:
        yield Scripts(client)


@pytest.fixture
def register(site: Site, scripts: Scripts) -> Iterator[Callable[..., JobStore]]:
    """Registers the job `j`, of which a file is written; it goes with the test."""
    store = JobStore(scripts)

    def create(text: str = FLOW, partitions: int = 1) -> JobStore:
        site.write(text)
        store.create("j", compile_plan(load_graph(str(site.root / "work/flow.py")), partitions, Limits()))
        return store

    yield create
    store.erase("j")


@pytest.fixture
def store(register: Callable[..., JobStore]) -> JobStore:
    return register()


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


@pytest.mark.usefixtures("store")
def test_what_spark_leaves_that_is_killed_goes_with_its_node(site: Site, redis_url: str) -> None:
    site.write(LEAVES + FLOW)
    member = start(site, redis_url, CELERIAC_ENGINE="spark")
    wait_until(lambda: bool(list(site.temporary.rglob("left-*"))), "its worker has a file of its own", 60.0)

    member.send_signal(signal.SIGTERM)

    assert member.wait(30) == 0, (site.kept_logs / "member.log").read_text()
    site.assert_clean("flow.py")


# giving away


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_member_that_is_asked_to_end_gives_its_partitions_away_and_is_shown_as_stopped(
    site: Site, redis_url: str, scripts: Scripts, register: Callable[..., JobStore], number: signal.Signals
) -> None:
    store = register(partitions=6)
    leader = site.start_leader(redis_url, "leader")
    stays, goes = (start(site, redis_url, name, CELERIAC_WORKER=name) for name in ("stays", "goes"))
    are_at_work(store, "stays", "goes")
    wait_until(lambda: owners(store) == {"stays", "goes"}, "both have partitions", 60.0)

    goes.send_signal(number)

    assert goes.wait(30) == 0, said(site, "goes")
    facts = store.facts("j")
    assert owners(store) == {"stays"}
    moves = [moved for moved in MovingStore(scripts, "j").moves() if moved.before == "goes"]
    assert {moved.how for moved in moves} == {"collected"}
    assert "their worker is to end" in {moved.why for moved in moves}
    assert {row.name: row.state for row in node_rows(facts)} == {"stays": "working", "goes": "stopped"}
    assert "all its partitions were given away" in said(site, "goes")
    for process in (stays, leader):
        process.terminate()
        assert process.wait(30) == 0
    assert "nobody else is there to take partitions 0.0, 0.1, 0.2, 0.3, 0.4, 0.5: what is in Redis waits" in said(
        site, "stays"
    )


def test_a_second_signal_ends_a_member_at_once_that_waits_for_a_record_to_be_given_away(
    site: Site, redis_url: str, register: Callable[..., JobStore]
) -> None:
    store = register(HELD)
    leader = site.start_leader(redis_url, "leader")
    goes = start(site, redis_url, "goes", CELERIAC_WORKER="goes")
    wait_until(lambda: owners(store) == {"goes"}, "it owns the partition", 60.0)
    other = start(site, redis_url, "other", CELERIAC_WORKER="other")
    are_at_work(store, "goes", "other")
    with closing(FeedAddress(redis_url, "j", "in").open()) as feed:
        feed.lane("lane").append(1, Batch([1]))
    wait_until(lambda: "running" in json.dumps([each.report for each in workers(store)]), "it has a record in hand")

    goes.terminate()
    wait_until(lambda: "gives away partition 0.0" in said(site, "goes"), "it says what it gives away")
    goes.terminate()

    assert goes.wait(30) == 0, said(site, "goes")
    assert "asked again: it ends at once" in said(site, "goes")
    assert "has left job=j (killed)" in said(site, "goes")
    kill(other)
    leader.terminate()
    assert leader.wait(30) == 0


# names


def test_members_without_a_name_take_that_of_the_host_with_a_number_and_leave_each_other_in_peace(
    site: Site, redis_url: str, store: JobStore
) -> None:
    host = socket.gethostname()
    members = [start(site, redis_url, f"m{number}", CELERIAC_WORKER="") for number in range(3)]  # all at once

    names = are_at_work(store, host, f"{host}-2", f"{host}-3")

    last = start(site, redis_url, "last", CELERIAC_WORKER="")
    assert names.items() <= are_at_work(store, *names, f"{host}-4").items()
    assert f"another process has the name {host}: this one is called {host}-4" in said(site, "last")
    for member in (*members, last):
        member.terminate()
    assert [member.wait(30) for member in (*members, last)] == [0] * 4


def test_a_name_that_is_at_work_is_refused_to_another_process(site: Site, redis_url: str, store: JobStore) -> None:
    first = start(site, redis_url, "first")
    before = are_at_work(store, "w")

    second = start(site, redis_url, "second")

    assert second.wait(30) == 3, said(site, "second")
    assert "error: job 'j' has a worker 'w' already, which is at work" in said(site, "second")
    assert "hint: give each process a CELERIAC_WORKER, or a CELERIAC_NODE, of its own" in said(site, "second")
    assert at_work(store) == before
    first.terminate()
    assert first.wait(30) == 0


@pytest.mark.parametrize("name", ["w", ""], ids=["given", "of the host"])
def test_a_member_that_was_killed_comes_back_under_its_name(
    site: Site, redis_url: str, store: JobStore, name: str
) -> None:
    killed = start(site, redis_url, CELERIAC_WORKER=name)
    shown = name or socket.gethostname()
    before = are_at_work(store, shown)
    kill(killed)

    back = start(site, redis_url, CELERIAC_WORKER=name)

    wait_until(lambda: at_work(store).get(shown, before[shown]) != before[shown], "it is at work again", 60.0)
    assert set(at_work(store)) == {shown}
    back.terminate()
    assert back.wait(30) == 0


def test_a_member_in_whose_place_another_process_has_come_ends_and_does_not_fight_for_its_name(
    site: Site, redis_url: str, scripts: Scripts, store: JobStore
) -> None:
    member = start(site, redis_url)
    are_at_work(store, "w")

    newer = Ownership(scripts, "j", "w", "9-newer")
    assert newer.heartbeat("{}") is not None

    assert member.wait(30) == 3, said(site)
    assert "a newer incarnation of worker w runs: this one ends" in said(site)
    assert "error: job 'j' has a worker 'w' already, which is at work" in said(site)
    assert [each.incarnation for each in store.facts("j").workers] == ["9-newer"]


def test_a_member_without_a_name_takes_the_next_number_when_another_process_has_come_in_its_place(
    site: Site, redis_url: str, scripts: Scripts, store: JobStore
) -> None:
    host = socket.gethostname()
    member = start(site, redis_url, CELERIAC_WORKER="")
    are_at_work(store, host)
    newer = Ownership(scripts, "j", host, "9-newer")

    def is_beside() -> bool:
        assert newer.heartbeat(json.dumps({"consuming": True})) is not None
        return set(at_work(store)) == {host, f"{host}-2"}

    wait_until(is_beside, "it works under the next name", 60.0)
    member.terminate()
    assert member.wait(30) == 0
