"""One job of processes whose leader is killed in the middle of each of its operations.

Which moment that is, is read in Redis. `test_every_phase.py` has all the moments that processes cannot be caught at.
"""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Iterator

import pytest

from pipeline.facts import JobFacts
from pipeline.lifecycle import JobState
from pipeline.operations import Phase
from pipeline.versions import code_of
from tests.chaos.test_cluster import Cluster, running_versions_of
from tests.e2e.chaos import Site, wait_until
from tests.e2e.flows import PACED, check_paced

KEYS = 50


class Killing(Cluster):
    """A cluster whose leader dies now and then, and has a successor at once."""

    def member_on(self, name: str) -> None:
        told = {"CELERIAC_JOB": "j", "CELERIAC_PIPELINE": "flow.py", "CELERIAC_WORKER": name, "CELERIAC_NODE": name}
        self.start(name, "stages.member", **told)

    def is_led(self) -> bool:
        return self.facts().leader == f"leader-{self.leaders}"

    leaders = 1

    def kill_leader_when(self, is_so: Callable[[JobFacts], bool], what: str) -> None:
        wait_until(lambda: is_so(self.facts()), what)
        leader = next(each for each in reversed(self.started) if "leader.main" in str(each.args))
        leader.kill()
        leader.wait(10)
        self.leaders += 1
        self.started.append(self.site.start_leader(self.url, f"leader-{self.leaders}"))

    def begin(self, *arguments: str) -> subprocess.Popen[bytes]:
        return self.start("commands", "pipeline.cli.main", *arguments, "--redis", self.url)

    def end(self, command: subprocess.Popen[bytes]) -> None:
        assert command.wait(90) == 0, self.log("commands")
        wait_until(self.is_led, "the next leader leads")


@pytest.fixture
def cluster(site: Site, redis_url: str) -> Iterator[Killing]:
    made = Killing(site, redis_url)
    yield made
    made.close()


def is_in(phase: Phase, done: int = 0) -> Callable[[JobFacts], bool]:
    def look(facts: JobFacts) -> bool:
        operation = facts.operation
        return operation is not None and operation.phase is phase and operation.done >= done

    return look


@pytest.mark.timeout(300)  # half a minute on an idle machine
def test_a_job_whose_leader_dies_in_every_operation_ends_exactly_once(cluster: Killing) -> None:
    cluster.site.write(PACED.format(keys=KEYS))
    cluster.command("submit", "flow.py", "--job-id", "j", "--partitions", "4")
    for name in ("m0", "m1"):
        cluster.member_on(name)
    cluster.start("feed", "pipeline.cli.main", "feed", "j", "flow.py")
    cluster.wait_for_taken(3_000)
    wait_until(lambda: len(running_versions_of(cluster)) == 2, "both workers work")
    (cluster.folder / "second.py").write_text(PACED.format(keys=KEYS) + "\n# the second version\n")
    second = code_of(str(cluster.folder / "second.py"))

    rescale = cluster.begin("rescale", "j", "by_key", "--partitions", "7", "--now")
    cluster.kill_leader_when(is_in(Phase.SETTLING), "the rescale settles")
    cluster.end(rescale)
    upgrade = cluster.begin("upgrade", "j", "second.py")
    cluster.kill_leader_when(is_in(Phase.ROLLING, done=1), "one worker is upgraded")
    cluster.end(upgrade)
    suspend = cluster.begin("suspend", "j", "--to", "kept", "--savepoint", "j-2")
    cluster.kill_leader_when(lambda facts: bool(facts.record.paused), "the input is held back")
    assert suspend.wait(90) == 0, cluster.log("commands")
    cluster.command("resume", "j")
    taken = cluster.taken()
    cluster.wait_for_taken(taken + 500)
    (cluster.folder / "enough").touch()
    cluster.wait_for_state(JobState.FINISHED)

    record = cluster.facts().record
    assert [f"{past.about}: {past.outcome}" for past in record.operations] == [
        "rescale of by_key: done",
        f"upgrade to version {second}: done",
    ]
    check_paced(cluster.folder / "out", KEYS)
