"""The process of one node: keeps leader, workers and feeders of one job running, and ends with its parent.

Run as `python -m stages.node`, with `pipeline.cli.nodes.NodeSettings` as JSON on standard input. It never handles
records. A child that can never work makes the job fail, so that nobody waits for it.
"""

from __future__ import annotations

import logging
import signal
import sys
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Final

from pipeline.cli.nodes import NodeSettings
from pipeline.embedded.forks import name_process
from pipeline.embedded.process import end_this_process, exit_words
from pipeline.errors import CeleriacError, DecodingError, JobStateError, StoreError, StoreUnavailable, UnknownJob
from pipeline.faultlog import FaultLog
from pipeline.lifecycle import JobState
from pipeline.pools import POOL
from pipeline.store import keys
from pipeline.store.agents import AgentLink
from pipeline.store.connection import connect
from pipeline.store.jobs import JobStore
from pipeline.store.leadership import LeaderRegistry
from pipeline.store.scripts import Scripts
from pipeline.versions import Wanted, wanted_for
from stages.agent import Agent
from stages.asked import Asked
from stages.bursting import Bursting
from stages.nursery import forking
from stages.rolling import Rolling
from stages.sizing import Sizing
from stages.streaming.starting import STREAM_PROGRAM, STREAM_WORKER, stream_variables
from stages.supervision import PYTHON, WORKER, ChildSpec, ChildState, ChildStatus, Starter

LEADER: Final = "leader"
SOURCE: Final = "source"

SOURCE_RESTARTS: Final = 5
LEADER_DEATHS: Final = 8
"""So many deaths in a row, each soon after the start, are no bad luck for a leader that has not led meanwhile."""

LED_DEATHS: Final = 50
"""Nor are so many, which take four minutes, for one that has."""

_OF_POOL: Final = "-w"
"""Between a pool and a number. Nodes that join call their workers `node.w0`, and a pool's name has no dot."""

WATCH_SECONDS: Final = 0.25

STORE_SECONDS: Final = 1.0
"""An agent that waits longer for Redis would look after its children too late."""

_FAULTY_SETTINGS: Final = 2
_NOT_STARTED: Final = 3

_log = logging.getLogger(__name__)


def main() -> int:
    """Runs until SIGTERM, or until the parent is gone, and returns the exit code."""
    with forking() as starter:
        return _main(starter)


def _main(starter: Starter) -> int:
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    asked = Asked()
    asked.listen(signal.SIGTERM, signal.SIGINT)
    asked.start()
    try:
        try:
            settings = NodeSettings.decode(sys.stdin.buffer.read())
        except DecodingError as error:
            _log.error("%s", error)
            return _FAULTY_SETTINGS
        name_process(f"celeriac: node of {settings.job}")
        return run_node(settings, asked.stop, starter)
    except CeleriacError as error:
        _log.error("%s (%s)", error, error.hint)
        return _NOT_STARTED


def run_node(settings: NodeSettings, stop: threading.Event, starter: Starter) -> int:
    """Starts the children and looks after them until `stop`. Raises EnvironmentFault when one cannot be started."""
    link = AgentLink(_scripts(settings), settings.job)
    wanted = wanted_versions(link, stop)
    agent = Agent(child_specs(settings, earlier_incarnations(link, stop), wanted), link, starter=starter)
    scripts = _scripts(settings)
    leader = LeaderRegistry(scripts, keys.own_leader_name(settings.job))
    watch = ChildWatch(agent.children, settings, JobStore(scripts), leader, time.monotonic())
    threads = [threading.Thread(target=watch.run, args=(stop,), name="watch")]
    rolling = Rolling(agent, AgentLink(_scripts(settings), settings.job), partial(named_spec, settings), wanted)
    threads.append(threading.Thread(target=rolling.run, args=(stop,), name="rolling"))
    for pool in [*([POOL] if settings.is_scaled else []), *settings.scaled_pools]:
        own_link = AgentLink(_scripts(settings), settings.job)
        sizing = Sizing(agent, own_link, partial(_next_spec, settings, rolling, pool), pool=pool)
        threads.append(threading.Thread(target=sizing.run, args=(stop,), name=f"sizing {pool}"))
    if settings.bursts is not None:
        log = Path(settings.logs) / "burst.log"
        bursting = Bursting(_scripts(settings), settings.job, _common(settings), settings.bursts, log)
        threads.append(threading.Thread(target=bursting.run, args=(stop,), name="bursting"))
    try:
        agent.start()
        for thread in threads:
            thread.start()
        agent.run(stop)
    finally:
        stop.set()
        killed = agent.stop(settings.stop_seconds)
        if killed:
            _log.warning("did not end in %.1f s and were killed: %s", settings.stop_seconds, ", ".join(killed))
        for thread in threads:
            if thread.ident is not None:
                thread.join()
    return 0


def earlier_incarnations(link: AgentLink, stop: threading.Event) -> dict[str, int]:
    """Worker -> its last number under an agent before this one. Waits for a store that is away, until `stop`."""
    faults = FaultLog(_log, "not started yet")
    while not stop.is_set():
        try:
            return link.incarnations()
        except StoreUnavailable as error:
            faults.met(error)
            stop.wait(WATCH_SECONDS)
        except UnknownJob:
            break
    return {}


def wanted_versions(link: AgentLink, stop: threading.Event) -> dict[str, Wanted]:
    """As `earlier_incarnations`, what each worker is to run."""
    while not stop.is_set():
        try:
            return link.rollout()
        except StoreUnavailable:
            stop.wait(WATCH_SECONDS)
    return {}


def child_specs(
    settings: NodeSettings,
    earlier: Mapping[str, int] = MappingProxyType({}),
    rollout: Mapping[str, Wanted] = MappingProxyType({}),
) -> list[ChildSpec]:
    """Leader first, so that assignments are there when workers come; then workers, then feeders."""
    common, logs = _common(settings), Path(settings.logs)
    # One name for all incarnations, so that each finds the queue of the one before.
    leader_env = {**common, "CELERIAC_LEADER": keys.own_leader_name(settings.job)}
    leader = ChildSpec("leader", (*PYTHON, "leader.main"), leader_env, LEADER, True, logs / "leader.log")
    specs = [leader] if settings.has_leader else []
    workers = [
        worker_spec(settings, number, earlier, pool)
        for pool, count in {POOL: settings.workers, **settings.pools}.items()
        for number in range(count)
    ]
    if settings.spark is not None:
        workers = [stream_spec(settings, earlier)]
    for spec in workers:
        specs.append(_as_wanted(spec, wanted_for(dict(rollout), spec.name)))
    for number, source in enumerate(settings.sources):
        name = f"source {source}"
        env = {**common, "CELERIAC_SOURCE": source, "CELERIAC_READER": settings.reader}
        argv = (*PYTHON, "pipeline.sources.main")
        specs.append(ChildSpec(name, argv, env, SOURCE, False, logs / f"source{number}.log"))
    return specs


def worker_spec(
    settings: NodeSettings, number: int, earlier: Mapping[str, int] = MappingProxyType({}), pool: str = POOL
) -> ChildSpec:
    """The worker of that number in its pool. `earlier`: as from `earlier_incarnations`."""
    name = f"w{number}" if pool == POOL else f"{pool}{_OF_POOL}{number}"
    is_sized = settings.is_scaled if pool == POOL else pool in settings.scaled_pools
    env = {
        **_common(settings),
        "CELERIAC_WORKER": name,
        "CELERIAC_NODE": settings.node,
        "CELERIAC_POOL": pool,
        "CELERIAC_SIZED": "1" if is_sized else "",
    }
    log = Path(settings.logs) / f"{name}.log"
    return ChildSpec(name, (*PYTHON, "stages.main"), env, WORKER, True, log, earlier.get(name, 0))


def stream_spec(settings: NodeSettings, earlier: Mapping[str, int] = MappingProxyType({})) -> ChildSpec:
    """The one worker that is a streaming query of Spark."""
    assert settings.spark is not None
    env = {
        **_common(settings),
        "CELERIAC_WORKER": STREAM_WORKER,
        "CELERIAC_NODE": settings.node,
        "CELERIAC_POOL": POOL,
        "CELERIAC_SIZED": "",
        **stream_variables(settings.spark, settings.spark_interval_seconds),
    }
    log = Path(settings.logs) / f"{STREAM_WORKER}.log"
    return ChildSpec(STREAM_WORKER, STREAM_PROGRAM, env, WORKER, True, log, earlier.get(STREAM_WORKER, 0))


def named_spec(settings: NodeSettings, name: str, wanted: Wanted | None) -> ChildSpec:
    """The worker of that name, with the version that is wanted of it."""
    if settings.spark is not None:
        return _as_wanted(stream_spec(settings), wanted)
    pool, _, number = name.rpartition(_OF_POOL)
    spec = worker_spec(settings, int(number), pool=pool) if pool else worker_spec(settings, int(name[1:]))
    return _as_wanted(spec, wanted)


def _next_spec(
    settings: NodeSettings, rolling: Rolling, pool: str, number: int, earlier: Mapping[str, int]
) -> ChildSpec:
    spec = worker_spec(settings, number, earlier, pool)
    return _as_wanted(spec, wanted_for(rolling.known, spec.name))


def _as_wanted(spec: ChildSpec, wanted: Wanted | None) -> ChildSpec:
    if wanted is None:
        return spec
    target = wanted.target or spec.env["CELERIAC_PIPELINE"]
    return replace(spec, env={**spec.env, "CELERIAC_PIPELINE": target}, version=wanted.encode())


def _common(settings: NodeSettings) -> dict[str, str]:
    return {
        "CELERIAC_REDIS": settings.redis,
        "CELERIAC_JOB": settings.job,
        "CELERIAC_PIPELINE": settings.target,
        "TMPDIR": settings.temporary,
    }


def hopeless(child: ChildStatus, is_heard: bool, is_endless: bool = False) -> str:
    """Why this child will never do its work, or nothing.

    is_heard: of a worker, whether one of its name has sent a heartbeat; of a leader, whether it has led since its
    deaths come soon after its starts: somebody may kill it again and again.
    A feeder that is endless may die now and then for as long as its job runs, but not again and again at its start.
    """
    if child.state is ChildState.DONE:
        return ""
    if child.role == SOURCE and child.deaths > SOURCE_RESTARTS and (child.is_crash_looping or not is_endless):
        return f"the feeder of {child.name} died {child.deaths} times"
    if child.role == LEADER and child.quick_deaths >= (LED_DEATHS if is_heard else LEADER_DEATHS):
        return f"the leader died {child.quick_deaths} times, each soon after its start"
    if child.role == WORKER and child.is_crash_looping and not is_heard:
        return f"worker {child.name} died {child.deaths} times at its start"
    return ""


@dataclass(slots=True)
class ChildWatch:
    """Fails the job when a child is hopeless. Runs in a thread of its own, with a store of its own."""

    children: Callable[[], tuple[ChildStatus, ...]]
    settings: NodeSettings
    store: JobStore
    leader: LeaderRegistry
    started_at: float

    def run(self, stop: threading.Event) -> None:
        """Looks again and again until `stop`, or until the job has failed."""
        faults = FaultLog(_log, f"job={self.settings.job} cannot be looked at")
        while not stop.wait(WATCH_SECONDS):
            try:
                if self.run_once(time.monotonic()):
                    return
                faults.over()
            except (JobStateError, UnknownJob) as error:
                _log.info("job=%s has ended already: %s", self.settings.job, error)
                return
            except (StoreError, DecodingError) as error:
                faults.met(error)

    def run_once(self, now: float) -> bool:
        """True when the job was made to fail. Raises StoreError."""
        for child in self.children():
            is_endless = child.name.removeprefix("source ") in self.settings.endless
            reason = hopeless(child, child.is_crash_looping and self._is_heard(child, now), is_endless)
            if reason:
                how = "could not be started" if child.exit_code is None else exit_words(child.exit_code)
                words = f"at last it {how}, and said: {last_words(self._log(child))}"
                self.store.transition(self.settings.job, JobState.FAILED, f"{reason}; {words}")
                _log.error("job=%s failed: %s", self.settings.job, reason)
                return True
        return False

    def _is_heard(self, child: ChildStatus, now: float) -> bool:
        if child.role == LEADER:
            heard_seconds = self.leader.heard_seconds()
            return heard_seconds is not None and heard_seconds < now - child.quick_since
        # One that cannot run another version is for the upgrade to bring back.
        return child.role == WORKER and (bool(child.version) or self._is_worker_heard(child.name, now))

    def _is_worker_heard(self, worker: str, now: float) -> bool:
        workers = self.store.facts(self.settings.job).workers
        return any(each.name == worker and each.age_seconds < now - self.started_at for each in workers)

    def _log(self, child: ChildStatus) -> Path | None:
        if child.role == WORKER:  # there may be more of them than at first
            return Path(self.settings.logs) / f"{child.name}.log"
        return next(spec.log for spec in child_specs(self.settings) if spec.name == child.name)


def last_words(log: Path | None) -> str:
    """The last line of a log that says something."""
    if log is None or not log.is_file():
        return "nothing"
    with open(log, "rb") as file:
        file.seek(max(0, file.seek(0, 2) - 8192))
        lines = file.read().decode(errors="replace").split("\n")
    return next((line.strip()[:500] for line in reversed(lines) if line.strip()), "nothing")


def _scripts(settings: NodeSettings) -> Scripts:
    return Scripts(connect(settings.redis, timeout_seconds=STORE_SECONDS))


if __name__ == "__main__":
    end_this_process(main())
