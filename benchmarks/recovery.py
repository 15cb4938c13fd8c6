"""How long a job stands still when one of its processes, or its Redis, is killed.

    python benchmarks/recovery.py                     # 30 kills of each kind, about 15 minutes
    python benchmarks/recovery.py --only redis --kills 10

`celeriac run` runs this file as a pipeline with two workers, a leader and their agent, on a Redis of its own with
`appendfsync always`; a producer in this process sends 500 records a second, so every partition has work all the time.
Before each kill the job is calm: both workers own partitions, results come, and all processes have lived for more than
ten seconds, as what dies sooner is started again with a growing pause. All kills are SIGKILL. Times are those of this
process, which looks at the job every 20 ms. At the end every record that was sent must have come out once.

worker  from the kill of a worker until every partition that it owned has committed again
leader  from the kill of the leader until another one leads, which it says in the round in which it does all that is due
redis   from the moment at which the server answers again, after it was killed and away for 0, 2 or 5 s in turn, until
        every partition has committed again
"""

from __future__ import annotations

import argparse
import os
import platform
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import psutil

sys.path.insert(0, str(Path(__file__).parent.parent))

from pipeline import Pipeline, count, read, write
from pipeline.embedded.redis import EmbeddedRedis
from pipeline.errors import StoreError, UnknownJob
from pipeline.facts import JobFacts
from pipeline.lifecycle import JobState
from pipeline.producer import Producer
from pipeline.store.connection import connect
from pipeline.store.jobs import JobStore
from pipeline.store.scripts import Scripts

JOB: Final = "recovery"
WORKERS: Final = ("w0", "w1")
RATE: Final = 500
KEYS: Final = 1_000
HEALTHY_SECONDS: Final = 10.5
AWAY_SECONDS: Final = (0.0, 2.0, 5.0)
POLL_SECONDS: Final = 0.02
PATIENCE_SECONDS: Final = 120.0
"""Whatever takes longer has not recovered."""

GOALS: Final = {"worker": 2.0, "leader": 3.0, "redis": 5.0}
"""Seconds that the slowest of all kills may take."""

Place = tuple[int, int]

flow = Pipeline(JOB)
(
    flow.source(read.producer(), name="numbers")
    .key_by(lambda number: number % KEYS, name="by_rest")
    .aggregate(count(), name="counted")
    .sink(write.stream("counts"), name="counts")
)


class NotRecovered(Exception):
    """Something did not come true within PATIENCE_SECONDS, or the run has ended."""


class Load(threading.Thread):
    """Sends records until it is stopped, also over outages of Redis."""

    def __init__(self, url: str) -> None:
        super().__init__(name="load", daemon=True)
        self._producer = Producer(JOB, url, lanes=4)
        self._ends = threading.Event()
        self.sent = 0

    def run(self) -> None:
        while not self._ends.wait(POLL_SECONDS):
            for _ in range(int(RATE * POLL_SECONDS)):
                self._producer.send(self.sent, self.sent)
                self.sent += 1

    def stop(self) -> None:
        self._ends.set()
        self.join()
        self._producer.close()


@dataclass
class Victims:
    """One run of the job, whose processes can be found, killed and waited for."""

    run: subprocess.Popen[bytes]
    server: EmbeddedRedis
    store: JobStore
    said: Path

    def facts(self) -> JobFacts | None:
        """None while Redis does not answer."""
        if self.run.poll() is not None:
            raise NotRecovered(f"the run has ended with code {self.run.returncode}:\n{self.said.read_text()}")
        with suppress(StoreError):
            return self.store.facts(JOB)
        return None

    def find(self, name: str) -> psutil.Process | None:
        """A worker by its name, or "leader"."""
        titles = (f"celeriac: {name} of {JOB}", f"celeriac: worker {name} of {JOB}")
        for process in psutil.Process(self.run.pid).children(recursive=True):
            with suppress(psutil.Error):
                # Both have children of their own, with the same title: the first in the tree is the process itself.
                if " ".join(process.cmdline()).rstrip() in titles:
                    return process
        return None

    def kill(self, name: str) -> float:
        """The moment of its death."""
        process = self.find(name)
        if process is None:
            raise NotRecovered(f"there is no process {name}")
        process.kill()
        return time.monotonic()

    def wait(self, is_true: Callable[[JobFacts], bool], what: str) -> float:
        """The moment at which the facts were so."""
        deadline = time.monotonic() + PATIENCE_SECONDS
        while True:
            facts = self.facts()
            if facts is not None and is_true(facts):
                return time.monotonic()
            if time.monotonic() > deadline:
                raise NotRecovered(f"after {PATIENCE_SECONDS:.0f} s still not true: {what}\n{self.said.read_text()}")
            time.sleep(POLL_SECONDS)

    def calm(self, healthy_seconds: float) -> JobFacts:
        """Waits until all is well, and all processes have lived for so long; the facts then."""
        for name in (*WORKERS, "leader"):
            self.wait(lambda _, name=name: self._has_lived(name, healthy_seconds), f"{name} lives")  # type: ignore[misc]
        self.wait(lambda facts: owners(facts) == set(WORKERS), "both workers own partitions")
        before = self.now()
        self.wait(lambda facts: has_grown(facts, places(before), before), "results come")
        return self.now()

    def now(self) -> JobFacts:
        """The facts, as soon as Redis answers."""
        found: list[JobFacts] = []
        self.wait(lambda facts: not found.append(facts), "Redis answers")  # type: ignore[func-returns-value]
        return found[-1]

    def _has_lived(self, name: str, seconds: float) -> bool:
        process = self.find(name)
        with suppress(psutil.Error):
            return process is not None and time.time() - process.create_time() >= seconds
        return False


def owners(facts: JobFacts) -> set[str]:
    return {part.owner for part in facts.partitions}


def places(facts: JobFacts, owner: str = "") -> set[Place]:
    """All partitions, or those of one worker."""
    return {(part.stage, part.partition) for part in facts.partitions if owner in ("", part.owner)}


def has_grown(facts: JobFacts, among: set[Place], before: JobFacts) -> bool:
    """Whether each of these partitions has committed since."""
    taken = {(part.stage, part.partition): part.taken for part in before.partitions}
    return all(
        part.taken > taken[part.stage, part.partition]
        for part in facts.partitions
        if (part.stage, part.partition) in among
    )


def kill_worker(victims: Victims, turn: int, healthy_seconds: float) -> float:
    name = WORKERS[turn % len(WORKERS)]
    owned = places(victims.calm(healthy_seconds), name)
    killed_at = victims.kill(name)
    before = victims.now()
    return victims.wait(lambda facts: has_grown(facts, owned, before), f"what {name} owned goes on") - killed_at


def kill_leader(victims: Victims, _: int, healthy_seconds: float) -> float:
    before = victims.calm(healthy_seconds).leader_term
    killed_at = victims.kill("leader")
    return victims.wait(lambda facts: facts.leader_term > before, "another leader leads") - killed_at


def kill_redis(victims: Victims, turn: int, healthy_seconds: float) -> float:
    before = victims.calm(0.0)
    os.kill(victims.server.pid, signal.SIGKILL)
    if healthy_seconds:
        time.sleep(AWAY_SECONDS[turn % len(AWAY_SECONDS)])
    victims.server.restart()
    back_at = time.monotonic()
    before = victims.now()
    return victims.wait(lambda facts: has_grown(facts, places(before), before), "all partitions go on") - back_at


KINDS: Final = {"worker": kill_worker, "leader": kill_leader, "redis": kill_redis}


@contextmanager
def running(folder: Path, server: EmbeddedRedis) -> Iterator[Victims]:
    """The job with all its processes, under load; ends it, and sees that nothing was lost or doubled."""
    said = folder / "said"
    command = [sys.executable, "-m", "pipeline.cli.main", "run", __file__, "--job-id", JOB, "--redis", server.url]
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parent.parent)}
    with open(said, "wb") as out, connect(server.url) as client:
        run = subprocess.Popen(
            [*command, "--workers", str(len(WORKERS))], cwd=folder, env=environment, stdout=out, stderr=out
        )
        victims = Victims(run, server, JobStore(Scripts(client)), said)
        try:
            _await_job(victims)
            load = Load(server.url)
            load.start()
            yield victims
            load.stop()
            victims.store.transition(JOB, JobState.DRAINING)
            code = run.wait(PATIENCE_SECONDS)
            if f"the books balance: {load.sent:,} in" not in said.read_text():
                raise NotRecovered(f"WRONG at the end, code {code}, {load.sent:,} records sent:\n{said.read_text()}")
        finally:
            run.terminate()
            run.wait(20)


def _await_job(victims: Victims) -> None:
    deadline = time.monotonic() + PATIENCE_SECONDS
    while time.monotonic() < deadline:
        with suppress(UnknownJob):
            victims.store.read(JOB)
            return
        time.sleep(POLL_SECONDS)
    raise NotRecovered(f"the job never came:\n{victims.said.read_text()}")


def measure(
    kinds: Sequence[str], kills: int, healthy_seconds: float = HEALTHY_SECONDS, say: Callable[[str], None] = print
) -> dict[str, list[float]]:
    """Seconds of each kill of each kind. Raises NotRecovered."""
    found: dict[str, list[float]] = {kind: [] for kind in kinds}
    with tempfile.TemporaryDirectory(prefix="celeriac-recovery-") as name:
        folder = Path(name)
        with EmbeddedRedis.start(folder / "redis", fsync="always") as server, running(folder, server) as victims:
            for kind in kinds:
                for turn in range(kills):
                    found[kind].append(KINDS[kind](victims, turn, healthy_seconds))
                    say(f"{kind:<8}{turn + 1:>4}{found[kind][-1]:8.2f} s   load {os.getloadavg()[0]:.1f}")
    return found


def report(found: dict[str, list[float]]) -> Iterator[str]:
    """The machine, and a line for each kind."""
    yield f"{platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}, {platform.platform()}"
    yield f"{'kill of':<10}{'kills':>6}{'median':>10}{'maximum':>10}{'goal':>8}"
    for kind, seconds in found.items():
        median, most, goal = statistics.median(seconds), max(seconds), GOALS[kind]
        verdict = "" if most <= goal else "   MISSED"
        yield f"{kind:<10}{len(seconds):>6}{median:>8.2f} s{most:>8.2f} s{goal:>6.0f} s{verdict}"


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--kills", type=int, default=30, help="of each kind")
    options.add_argument("--only", choices=sorted(KINDS), action="append", help="may be given more than once")
    asked = options.parse_args()
    for line in report(measure(asked.only or list(KINDS), asked.kills)):
        print(line)


if __name__ == "__main__":
    main()
