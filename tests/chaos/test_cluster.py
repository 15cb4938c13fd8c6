"""Jobs on leaders and workers that are there already: submitted, fed, suspended, upgraded; with kills."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import psutil
import pytest

from pipeline.cli.health import heard_leaders
from pipeline.cli.reports import running_versions
from pipeline.errors import UnknownJob
from pipeline.facts import JobFacts
from pipeline.lifecycle import JobState
from pipeline.store.connection import connect
from pipeline.store.jobs import JobStore
from pipeline.store.scripts import Scripts
from pipeline.store.versions import VersionStore
from pipeline.versions import Wanted, code_of
from tests.e2e.chaos import Sequence, Site, title_of, wait_until

SECONDS = 90.0


class Slow(Sequence):
    """Comes at some thousand records a second, until there is a file `go`."""

    @property
    def text(self) -> str:
        loop = "    for number in range(1, COUNT + 1):\n"
        return super().text.replace(loop, f"{loop}        time.sleep(0 if Path('go').exists() else 0.02)\n")


class Cluster:
    """A leader and members for the job `j`, in the folder `work` of a site."""

    def __init__(self, site: Site, redis_url: str) -> None:
        self.site, self.url, self.folder = site, redis_url, site.root / "work"
        self.folder.mkdir(exist_ok=True)
        self.scripts = Scripts(connect(redis_url))
        self.jobs, self.versions = JobStore(self.scripts), VersionStore(self.scripts)
        self.started: list[subprocess.Popen[bytes]] = [site.start_leader(redis_url, "leader-1")]

    def start(self, log: str, *arguments: str, **variables: str) -> subprocess.Popen[bytes]:
        environment = {**self.site.environment(), "CELERIAC_REDIS": self.url, **variables}
        with open(self.site.kept_logs / f"{log}.log", "ab") as file:
            process = subprocess.Popen(
                [sys.executable, "-P", "-m", *arguments],
                cwd=self.folder,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=file,
                start_new_session=True,
            )
        self.started.append(process)
        return process

    def member(self, name: str) -> subprocess.Popen[bytes]:
        told = {"CELERIAC_JOB": "j", "CELERIAC_PIPELINE": "flow.py", "CELERIAC_WORKER": name}
        return self.start(name, "stages.member", **told)

    def feeder(self) -> subprocess.Popen[bytes]:
        return self.start("feed", "pipeline.cli.main", "feed", "j", "flow.py")

    def command(self, *arguments: str, code: int = 0) -> subprocess.CompletedProcess[str]:
        done = self.site.command(*arguments, "--redis", self.url)
        assert done.returncode == code, (arguments, done.stdout, done.stderr)
        return done

    def submit(self, sequence: Sequence) -> None:
        self.site.write(sequence.text)
        done = self.command("submit", "flow.py", "--job-id", "j", "--partitions", "4")
        assert done.stdout == "j\n"

    def facts(self) -> JobFacts:
        return self.jobs.facts("j")

    def taken(self) -> int:
        return sum(part.taken for part in self.facts().partitions)

    def wait_for_taken(self, count: float) -> None:
        wait_until(lambda: self.taken() >= count, f"{count:.0f} records are taken", SECONDS)

    def wait_for_state(self, state: JobState) -> None:
        wait_until(lambda: self.jobs.state("j") is state, f"the job is {state.value}", SECONDS)

    def worker(self, name: str) -> psutil.Process:
        """The process that works under that name, not its agent."""
        found: list[psutil.Process] = []

        def is_there() -> bool:
            found[:] = [each for each in self.site.processes() if title_of(each) == f"celeriac: worker {name} of j"]
            return bool(found)

        wait_until(is_there, f"there is a worker {name}")
        return found[0]

    def log(self, name: str) -> str:
        return (self.site.kept_logs / f"{name}.log").read_text()

    def close(self) -> None:
        for process in self.started:
            if process.poll() is None:
                process.terminate()
        for process in self.started:
            process.wait(30)
        with suppress(UnknownJob):
            self.jobs.erase("j")
        self.scripts.client.close()


@pytest.fixture
def cluster(site: Site, redis_url: str) -> Iterator[Cluster]:
    made = Cluster(site, redis_url)
    yield made
    made.close()


def test_a_submitted_job_is_fed_worked_at_and_published_by_services_through_kills(cluster: Cluster) -> None:
    sequence = Sequence(count=1_500)
    for name in ("m0", "m1"):
        cluster.member(name)
    cluster.site.write(sequence.text)
    wait_until(lambda: heard_leaders(cluster.scripts) == ["leader-1"], "the leader is there")
    done = cluster.command("submit", "flow.py", "--job-id", "j", "--partitions", "4")
    assert done.stdout == "j\n"
    assert "leaders: leader-1" in done.stderr
    assert "nobody reads numbers until a feeder runs: celeriac feed j flow.py" in done.stderr
    assert "exists already" in cluster.command("submit", "flow.py", "--job-id", "j", code=2).stderr

    feeder = cluster.feeder()
    cluster.wait_for_taken(sequence.taken // 20)
    feeder.kill()
    cluster.worker("m0").kill()
    assert "celeriac cancel j first" in cluster.command("remove", "j", code=2).stderr
    again = cluster.feeder()
    cluster.wait_for_state(JobState.FINISHED)

    assert again.wait(30) == 0, cluster.log("feed")
    sequence.check(cluster.folder / "out")
    code = code_of(str(cluster.folder / "flow.py"))
    (listed,) = json.loads(cluster.command("list", "--json").stdout)
    assert (listed["job"], listed["version"], listed["state"]) == ("j", code, "finished")
    assert f"version {code} of flow.py submitted by" in cluster.command("history", "j").stdout
    assert {path.name for path in cluster.folder.iterdir()} == {"flow.py", "out"}


def test_a_submitted_job_is_suspended_goes_on_and_ends_exactly_once(cluster: Cluster) -> None:
    sequence = Slow(count=3_000)
    cluster.submit(sequence)
    cluster.member("m0")
    cluster.feeder()
    cluster.wait_for_taken(sequence.taken // 10)

    said = cluster.command("suspend", "j", "--savepoint", "s").stdout
    assert said.startswith("job j is suspended; savepoint ")
    manifest = json.loads(cluster.site.command("savepoint", "show", "savepoints/s", "--json").stdout)
    assert (manifest["in_flight"], manifest["state"]) == (0, "running")
    assert all(part.at_end for part in cluster.facts().partitions)
    wait_until(lambda: "has left job=j" in cluster.log("m0"), "the worker has left")
    taken = cluster.taken()
    assert taken < sequence.taken

    (cluster.folder / "go").touch()
    cluster.command("resume", "j")
    cluster.wait_for_state(JobState.FINISHED)

    sequence.check(cluster.folder / "out")


def test_a_run_is_suspended_and_goes_on_with_another_run(site: Site, redis_url: str) -> None:
    sequence = Sequence(count=8_000, work=1_000)
    site.write(sequence.text)
    arguments = ("--redis", redis_url, "--job-id", "j", "--workers", "1")
    run = site.start("flow.py", *arguments)
    run.wait_for_taken(sequence.taken // 10)

    done = site.command("suspend", "j", "--redis", redis_url, "--to", "kept")
    assert done.returncode == 0, done.stderr
    run.finish(code=130)
    assert "the job j is suspended with the savepoint j-" in run.said()
    again = site.start("flow.py", *arguments)
    again.finish()

    sequence.check(run.folder / "out")


# upgrade


def changed(sequence: Sequence, more: str) -> str:
    return sequence.text.replace("def worked(pair):\n", f"def worked(pair):\n{more}")


SECOND = '    Path(f"second-{os.getpid()}").touch()\n'


def upgrading(cluster: Cluster, sequence: Sequence) -> None:
    cluster.submit(sequence)
    for name in ("m0", "m1"):
        cluster.member(name)
    cluster.feeder()
    cluster.wait_for_taken(sequence.taken // 50)
    wait_until(lambda: len(running_versions_of(cluster)) == 2, "both workers work")


def running_versions_of(cluster: Cluster) -> dict[str, str]:
    facts = cluster.facts()
    return {each.name: str(each.report.get("code")) for each in facts.workers if each.age_seconds < 2}


def test_new_functions_come_under_a_running_job_through_kills(cluster: Cluster) -> None:
    sequence = Slow(count=3_000)
    upgrading(cluster, sequence)
    (cluster.folder / "second.py").write_text(changed(sequence, SECOND))
    first, second = (code_of(str(cluster.folder / name)) for name in ("flow.py", "second.py"))

    command = cluster.start("upgrade", "pipeline.cli.main", "upgrade", "j", "second.py")
    wait_until(lambda: second in running_versions_of(cluster).values(), "one worker runs the new version", 60.0)
    old = [name for name, code in running_versions_of(cluster).items() if code == first]
    for name in old:
        cluster.worker(name).kill()
    assert command.wait(90) == 0, cluster.log("upgrade")

    wait_until(lambda: running_versions(cluster.facts()) == {second: 2}, "both run the new version")
    assert f"versions  {second} (2 workers)" in cluster.command("status", "j").stdout
    assert cluster.versions.rollout("j") == {"*": Wanted(second, str(cluster.folder / "second.py"))}
    assert cluster.jobs.state("j") is JobState.RUNNING
    (cluster.folder / "go").touch()
    history = cluster.command("history", "j").stdout
    assert f"version {first} of flow.py submitted by" in history
    assert f"version {second} of second.py upgraded by" in history
    cluster.wait_for_state(JobState.FINISHED)
    assert list(cluster.folder.glob("second-*"))
    sequence.check(cluster.folder / "out")


def test_the_workers_of_a_run_are_upgraded_one_after_the_other_and_back(site: Site, redis_url: str) -> None:
    sequence = Slow(count=3_000)
    site.write(sequence.text)
    run = site.start("flow.py", "--redis", redis_url, "--job-id", "j", "--workers", "2")
    run.wait_for_taken(sequence.taken // 50)
    (run.folder / "second.py").write_text(changed(sequence, SECOND))
    first, second = (code_of(str(run.folder / name)) for name in ("flow.py", "second.py"))

    done = site.command("upgrade", "j", "second.py", "--redis", redis_url)
    assert (done.returncode, done.stdout.splitlines()) == (
        0,
        [
            f"worker w0: {first} -> {second}",
            f"worker w1: {first} -> {second}",
            f"job j runs version {second}: 2 workers changed",
        ],
    ), done.stderr
    assert running_versions(run.facts()) == {second: 2}
    back = site.command("upgrade", "j", "flow.py", "--redis", redis_url)
    assert back.returncode == 0, back.stderr
    assert running_versions(run.facts()) == {first: 2}
    (run.folder / "go").touch()
    run.finish()

    assert list(run.folder.glob("second-*"))
    sequence.check(run.folder / "out")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (lambda text: text + "\nthis is no Python\n", "second.py:"),
        (lambda text: text + "\nraise RuntimeError('no such table')\n", "RuntimeError: no such table"),
        (lambda text: text.replace('name="oracle"', 'name="other"'), "operator 'other' is new"),
    ],
)
def test_a_file_that_cannot_be_the_next_version_is_refused_before_anything_is_changed(
    cluster: Cluster, text: Callable[[str], str], words: str
) -> None:
    sequence = Sequence(count=10)
    cluster.submit(sequence)
    before: list[Any] = [cluster.versions.versions("j"), cluster.versions.rollout("j")]
    (cluster.folder / "second.py").write_text(text(sequence.text))

    refused = cluster.command("upgrade", "j", "second.py", code=2)

    assert words in refused.stderr
    assert [cluster.versions.versions("j"), cluster.versions.rollout("j")] == before


def test_an_upgrade_halts_when_the_first_worker_dies_of_it_and_the_old_version_goes_on(cluster: Cluster) -> None:
    sequence = Slow(count=3_000)
    upgrading(cluster, sequence)
    first = code_of(str(cluster.folder / "flow.py"))
    broken = "\nif 'CELERIAC_WORKER' in os.environ:\n    raise RuntimeError('not on this machine')\n"
    (cluster.folder / "second.py").write_text(sequence.text + broken)

    halted = cluster.command("upgrade", "j", "second.py", "--wait", "12", code=1)

    assert "the upgrade of job j has halted: worker m0 has not come back with version" in halted.stderr
    assert "not on this machine" in cluster.log("m0")
    wait_until(lambda: running_versions(cluster.facts()) == {first: 2}, "both run the old version again")
    (cluster.folder / "go").touch()
    assert [each.how for each in cluster.versions.versions("j")] == ["submitted", "upgraded", "upgrade halted"]
    (past,) = cluster.facts().record.operations
    assert past.outcome.startswith("halted: the upgrade of job j has halted: worker m0")
    cluster.wait_for_state(JobState.FINISHED)
    sequence.check(cluster.folder / "out")


def test_a_worker_with_an_unknown_version_is_refused_until_it_is_made_known(cluster: Cluster) -> None:
    sequence = Sequence(count=1_000)
    cluster.submit(sequence)
    cluster.site.write(sequence.text + "\n# another line\n")
    other = code_of(str(cluster.folder / "flow.py"))
    cluster.member("m0")
    cluster.feeder()
    wait_until(lambda: f"flow.py is version {other}, and the job wants version" in cluster.log("m0"), "it is refused")
    assert running_versions_of(cluster) == {}

    cluster.command("upgrade", "j", "flow.py")
    cluster.wait_for_state(JobState.FINISHED)

    sequence.check(cluster.folder / "out")
