"""Jobs on two Redis servers, each with a leader of its own: one server dies, the job on the other goes on."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from pipeline.embedded.redis import EmbeddedRedis
from pipeline.lifecycle import JobState
from pipeline.store.connection import connect
from pipeline.store.jobs import JobStore
from pipeline.store.scripts import Scripts
from tests.e2e.chaos import RUN_SECONDS, Sequence, Site, wait_until

SEQUENCE = Sequence(keys=20, count=1_000)
JOBS = ("first", "second")


class Pair:
    """Two servers, each with a leader; the job of the same number has a folder and a member."""

    def __init__(self, site: Site, servers: list[EmbeddedRedis]) -> None:
        self.site, self.servers = site, servers
        self.urls = [server.url for server in servers]
        self.jobs = [JobStore(Scripts(connect(url))) for url in self.urls]
        self.started: list[subprocess.Popen[bytes]] = []
        for number, url in enumerate(self.urls):
            self.started.append(site.start_leader(url, f"leader-{number}"))

    def start(self, folder: str, log: str, *arguments: str, **variables: str) -> subprocess.Popen[bytes]:
        with open(self.site.kept_logs / f"{log}.log", "ab") as file:
            process = subprocess.Popen(
                [sys.executable, "-P", "-m", *arguments],
                cwd=self.site.root / folder,
                env={**self.site.environment(), **variables},
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=file,
                start_new_session=True,
            )
        self.started.append(process)
        return process

    def command(self, folder: str, *arguments: str) -> subprocess.CompletedProcess[str]:
        options = [part for url in self.urls for part in ("--redis", url)]
        return self.site.command(*arguments, *options, folder=folder)

    def taken(self, number: int) -> int:
        return sum(part.taken for part in self.jobs[number].facts(JOBS[number]).partitions)

    def close(self) -> None:
        for process in self.started:
            if process.poll() is None:
                process.terminate()
        for process in self.started:
            process.wait(30)


@pytest.fixture
def pair(site: Site, tmp_path: Path) -> Iterator[Pair]:
    with ExitStack() as stack:
        servers = [stack.enter_context(EmbeddedRedis.start(tmp_path / name, fsync="always")) for name in ("one", "two")]
        made = Pair(site, servers)
        yield made
        made.close()


@pytest.mark.timeout(240)
def test_a_job_goes_on_while_the_server_of_another_one_is_gone_and_that_one_goes_on_afterwards(pair: Pair) -> None:
    both = " ".join(pair.urls)
    for job in JOBS:
        pair.site.write(SEQUENCE.text, folder=job)
        done = pair.command(job, "submit", "flow.py", "--job-id", job, "--partitions", "2")
        assert (done.returncode, done.stdout) == (0, f"{job}\n"), done.stderr
    assert [store.list_ids() for store in pair.jobs] == [["first"], ["second"]]
    for job in JOBS:
        # Both are given both servers, and find the one of their job.
        variables = {"CELERIAC_REDIS": both, "CELERIAC_NODE": f"node-of-{job}"}
        pair.start(job, f"worker-{job}", "pipeline.cli.main", "worker", job, "flow.py", "--workers", "1", **variables)
        pair.start(job, f"feed-{job}", "pipeline.cli.main", "feed", job, "flow.py", CELERIAC_REDIS=both)
    for number in (0, 1):
        wait_until(lambda number=number: pair.taken(number) > 100, f"{JOBS[number]} is at work", RUN_SECONDS)

    server = pair.servers[0]
    assert server.pid
    subprocess.run(["kill", "-9", str(server.pid)], check=True)
    wait_until(lambda: not server.is_alive(), "a server is gone")
    listed = pair.command("second", "list")
    assert (listed.returncode, "second" in listed.stdout, "cannot be asked" in listed.stderr) == (3, True, True)
    wait_until(lambda: pair.jobs[1].state("second") is JobState.FINISHED, "the other job is finished", RUN_SECONDS)
    SEQUENCE.check(pair.site.root / "second" / "out")

    server.restart()
    wait_until(lambda: pair.jobs[0].state("first") is JobState.FINISHED, "the job is finished", RUN_SECONDS)
    SEQUENCE.check(pair.site.root / "first" / "out")
    assert pair.command("first", "list").returncode == 0
