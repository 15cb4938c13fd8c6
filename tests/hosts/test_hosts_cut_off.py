"""Nodes on simulated hosts: one is cut off from the network beyond its lease, another takes over, and it comes back."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from pipeline.facts import JobFacts
from pipeline.lifecycle import JobState
from pipeline.store.connection import connect
from pipeline.store.jobs import JobStore
from pipeline.store.moving import MovingStore
from pipeline.store.scripts import Scripts
from tests.chaos.test_cluster import Slow
from tests.e2e.chaos import Site, wait_until
from tests.hosts.namespaces import Host, WideRedis

SEQUENCE = Slow(keys=20, count=10_000)
SECONDS = 90.0


class Hosts:
    """Redis here, and the hosts east and west, each with a leader and a node of two workers for the job `j`."""

    def __init__(self, site: Site, redis: WideRedis, hosts: dict[str, Host]) -> None:
        self.site, self.redis, self.hosts = site, redis, hosts
        self.folder = site.root / "work"
        scripts = Scripts(connect(redis.url()))
        self.jobs, self.moving = JobStore(scripts), MovingStore(scripts, "j")
        self.started: list[subprocess.Popen[bytes]] = []

    def start(self, host: str, log: str, *arguments: str, **variables: str) -> subprocess.Popen[bytes]:
        """A process of ours on that host, or here."""
        there = self.hosts.get(host)
        url = self.redis.url(there.gateway) if there else self.redis.url()
        command = [sys.executable, "-P", "-m", *arguments]
        with open(self.site.kept_logs / f"{log}.log", "ab") as file:
            process = subprocess.Popen(
                there.command(*command) if there else command,
                cwd=self.folder,
                env={**self.site.environment(), "CELERIAC_REDIS": url, **variables},
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=file,
                start_new_session=True,
            )
        self.started.append(process)
        return process

    def leader(self, host: str) -> None:
        self.start(host, f"leader-{host}", "leader.main", CELERIAC_LEADER=f"leader-{host}")

    def node(self, host: str) -> None:
        told = {"CELERIAC_JOB": "j", "CELERIAC_PIPELINE": "flow.py", "CELERIAC_NODE": host, "CELERIAC_PROCESSES": "2"}
        self.start(host, f"node-{host}", "stages.member", **told)

    def facts(self) -> JobFacts:
        return self.jobs.facts("j")

    def taken(self) -> int:
        return sum(part.taken for part in self.facts().partitions)

    def owners_are(self, *nodes: str) -> None:
        """Nobody else owns anything, and each worker of these nodes does."""
        wanted = {f"{node}.w{number}" for node in nodes for number in (0, 1)}
        found: set[str] = set()

        def is_so() -> bool:
            found.clear()
            found.update(part.owner for part in self.facts().partitions if not part.is_through)
            return found == wanted

        wait_until(is_so, f"the owners are {sorted(wanted)}", SECONDS)

    def goes_on(self) -> None:
        """Some records more are taken."""
        before = self.taken()
        wait_until(lambda: self.taken() > before + SEQUENCE.keys, "the job goes on", SECONDS)

    def close(self) -> None:
        for process in self.started:
            if process.poll() is None:
                process.terminate()
        for process in self.started:
            process.wait(30)


@pytest.fixture
def hosts(site: Site, tmp_path: Path) -> Iterator[Hosts]:
    with WideRedis(tmp_path / "redis") as redis, Host("east", 0) as east, Host("west", 1) as west:
        made = Hosts(site, redis, {"east": east, "west": west})
        yield made
        made.close()


@pytest.mark.timeout(300)
def test_a_host_that_is_cut_off_beyond_its_lease_is_replaced_and_comes_back_as_a_member(hosts: Hosts) -> None:
    hosts.site.write(SEQUENCE.text)
    hosts.leader("east")
    done = hosts.site.command("submit", "flow.py", "--job-id", "j", "--partitions", "4", "--redis", hosts.redis.url())
    assert done.returncode == 0, done.stderr
    wait_until(lambda: hosts.facts().leader == "leader-east", "the leader of east leads")
    hosts.leader("west")
    for host in ("east", "west"):
        hosts.node(host)
    feeder = hosts.start("here", "feed", "pipeline.cli.main", "feed", "j", "flow.py")
    hosts.owners_are("east", "west")
    hosts.goes_on()

    hosts.hosts["east"].cut_off()
    wait_until(lambda: hosts.facts().leader == "leader-west", "the other leader leads", SECONDS)
    hosts.owners_are("west")
    hosts.goes_on()

    # Its processes know nothing of all that: they have gone on with what they had, and write it when they can.
    hosts.hosts["east"].plug_in()
    hosts.owners_are("east", "west")
    hosts.goes_on()
    why = {(moved.why, moved.how) for moved in hosts.moving.moves()}
    assert ("their worker is gone", "forced") in why
    assert ("levelling", "collected") in why

    # The other way round, with the leader that came back.
    hosts.hosts["west"].cut_off()
    wait_until(lambda: hosts.facts().leader == "leader-east", "the first leader leads again", SECONDS)
    hosts.owners_are("east")
    hosts.hosts["west"].plug_in()
    hosts.owners_are("east", "west")

    (hosts.folder / "go").touch()
    wait_until(lambda: hosts.jobs.state("j") is JobState.FINISHED, "the job is finished", SECONDS)
    SEQUENCE.check(hosts.folder / "out")
    assert hosts.facts().dead_letters == 0
    assert feeder.wait(30) == 0


def test_a_cable_that_is_pulled_is_silent_and_carries_again_when_it_is_back(hosts: Hosts) -> None:
    east = hosts.hosts["east"]
    probe = east.command(
        sys.executable,
        "-c",
        "import sys, redis; redis.Redis.from_url(sys.argv[1], socket_timeout=0.5, socket_connect_timeout=0.5).ping()",
        hosts.redis.url(east.gateway),
    )

    def answers() -> bool:
        return subprocess.run(probe, env=hosts.site.environment(), stderr=subprocess.DEVNULL).returncode == 0

    assert answers()
    east.cut_off()
    assert not answers()
    east.plug_in()
    wait_until(answers, "Redis is reached again")
