"""`python -m stages.member`: a node of one or more workers for a job, as a long-lived service that waits until the job
works, and again when it has ended; or, for `celeriac worker`, only until then.

It starts no leader and feeds no source. `celeriac run` elsewhere registers the job, reads its input and publishes its
results; or `celeriac submit` has registered it, and then the members publish. What it serves comes by the environment,
for the address may hold a password.
"""

from __future__ import annotations

import logging
import os
import re
import signal
import socket
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Final

from pipeline.bursts import is_burst_pool
from pipeline.cli.services import scratch_environment
from pipeline.embedded.folders import OwnFolder
from pipeline.embedded.process import end_this_process
from pipeline.errors import (
    CeleriacError,
    DecodingError,
    EnvironmentFault,
    ForeignData,
    StoreError,
    StoreUnavailable,
    UnknownJob,
)
from pipeline.faultlog import FaultLog
from pipeline.lifecycle import WORKING, JobState
from pipeline.nodes import NO_NAME, NODE_NAME
from pipeline.pools import POOL
from pipeline.redis_addresses import NETWORK_VARIABLE, check_one_server, in_order, parse_networks
from pipeline.store.agents import AgentLink, incarnations
from pipeline.store.connection import connect
from pipeline.store.jobs import JobStore
from pipeline.store.losses import unknown_job
from pipeline.store.scripts import Scripts
from pipeline.validation import NAME as POOL_NAME
from pipeline.versions import Wanted, wanted_for
from stages.agent import Agent
from stages.asked import Asked
from stages.bursting import Bursting
from stages.giving import GivingAway, Leaving
from stages.naming import free_number, in_use
from stages.nursery import forking
from stages.publishing import ResultPublisher
from stages.rolling import Rolling
from stages.streaming.starting import (
    BURSTS_VARIABLE,
    ENGINE_VARIABLE,
    MASTER_VARIABLE,
    STREAM_PROGRAM,
    STREAM_WORKER,
    stream_variables,
)
from stages.supervision import PYTHON, WORKER, ChildSpec, Starter

LOOK_SECONDS: Final = 0.5
STORE_SECONDS: Final = 1.0
"""As for any node agent: who waits longer for Redis looks after its child too late."""

STOP_SECONDS: Final = 5.0
"""Between SIGTERM and SIGKILL of the worker; less than the ten seconds that container engines give."""

_FOREIGN_SECONDS: Final = 10.0
"""Between two looks at a job of which Redis holds what cannot be read: only a hand can mend that."""

_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,99}\Z")
_MOST_PROCESSES: Final = 1000
_NOT_STARTED: Final = 3
_OUTPUT: Final = None  # the worker's log is the service's own output, where its engine expects it

_log = logging.getLogger("stages.member")  # its own name is __main__ when it runs


@dataclass(frozen=True, slots=True)
class MemberSettings:
    """Which job to serve under which names; `target` is the pipeline's file, as for `celeriac run`."""

    redis_url: str = field(repr=False)
    job: str
    target: str
    worker: str
    node: str = ""
    processes: int = 1
    """With more than one, workers are called after the node."""
    pool: str = POOL
    """Its workers run the stages of this pool only."""
    is_once: bool = False
    """It ends with the job, instead of waiting until that works again."""
    spark: str | None = None
    """The master of Spark where the one worker is a streaming query; empty for this host, None for Celery's workers."""
    bursts: str | None = None
    """The master of Spark for the bursts that the autoscaler decides; None to begin none."""
    temporary: str = ""
    """For the temporary files of its processes; nothing for the place that the system has for them."""
    is_fixed: bool = True
    """Its names were given; else they are those of the host, with a number where another process has them."""

    @property
    def workers(self) -> list[str]:
        if self.worker:
            return [self.worker]
        if self.spark is not None:
            return [f"{self.node}.{STREAM_WORKER}"]
        return [f"{self.node}.w{number}" for number in range(self.processes)]

    def numbered(self, number: int) -> MemberSettings:
        """The same for the process of that number, from 1, of those that would have one name."""
        if number == 1:
            return self
        node = f"{self.node}-{number}" if self.node == self.worker or not self.worker else self.node
        return replace(self, worker=self.worker and f"{self.worker}-{number}", node=node)

    @classmethod
    def from_environment(cls, environment: Mapping[str, str]) -> MemberSettings:
        """Raises EnvironmentFault that names what is missing, or a worker's name that is none; PipelineError."""
        names = ("CELERIAC_REDIS", "CELERIAC_JOB", "CELERIAC_PIPELINE")
        missing = [name for name in names if not environment.get(name)]
        if missing:
            raise EnvironmentFault(f"{', '.join(missing)} is not set", hint="docs/compose.md lists the variables")
        processes = _count(environment.get("CELERIAC_PROCESSES") or "1")
        is_once = environment.get("CELERIAC_ONCE") == "1"
        node = environment.get("CELERIAC_NODE") or environment.get("CELERIAC_WORKER") or socket.gethostname()
        is_named = "CELERIAC_PROCESSES" not in environment
        given = environment.get("CELERIAC_WORKER") or ("" if is_named else environment.get("CELERIAC_NODE"))
        worker = (environment.get("CELERIAC_WORKER") or socket.gethostname()) if is_named else ""
        if worker and not _NAME.match(worker):
            raise EnvironmentFault(
                f"CELERIAC_WORKER is no name: {worker!r}", hint="use letters, digits, '-', '_' and '.', at most 100"
            )
        if (not is_named or environment.get("CELERIAC_NODE")) and not NODE_NAME.match(node):
            raise EnvironmentFault(f"CELERIAC_NODE is no name: {node!r}", hint=NO_NAME)
        pool = environment.get("CELERIAC_POOL") or POOL
        if not POOL_NAME.fullmatch(pool) and not is_burst_pool(pool):
            raise EnvironmentFault(
                f"CELERIAC_POOL is no name: {pool!r}",
                hint="use letters, digits, '_' and '-', a letter first, at most 64",
            )
        url, job, target = (environment[name] for name in names)
        check_one_server(url, "a job is on one: give a member that of its job")
        url = in_order(url, parse_networks(environment.get(NETWORK_VARIABLE, "")))
        master = environment.get(MASTER_VARIABLE, "")
        spark = master if environment.get(ENGINE_VARIABLE) == "spark" else None
        bursts = master if environment.get(BURSTS_VARIABLE) == "1" else None
        return cls(url, job, target, worker, node, processes, pool, is_once, spark, bursts, is_fixed=bool(given))


class JobWatch:
    """Says whether the job works. While Redis is away it is taken to do what it did before."""

    def __init__(self, store: JobStore, job: str) -> None:
        self._store = store
        self._job = job
        self._works = False
        self._faults = FaultLog(_log, f"job={job} cannot be looked at")
        self.is_publishing = False
        """Whether the last look has found it so."""

    def works(self) -> bool:
        """Raises StoreError, but not when Redis is away or the job's hash holds what we have not written."""
        try:
            state = self._store.state(self._job)
            self._works, self.is_publishing = state in WORKING, state is JobState.PUBLISHING
        except UnknownJob:
            if self._works:
                gone = unknown_job(self._job)
                _log.error("%s (%s)", gone, gone.hint)
            self._works = False
        except StoreUnavailable as error:
            self._faults.met(error)
            return self._works
        except ForeignData as error:
            self._faults.met(error)
            self._works = False
            return False
        self._faults.over()
        return self._works


def run_member(settings: MemberSettings, asked: Asked, starter: Starter) -> None:
    """Serves the job whenever it works, until it is asked to stop, or until it is to leave.

    Raises JobStateError when another process has a name that was given, StoreError, EnvironmentFault.
    """
    watch = JobWatch(JobStore(_scripts(settings)), settings.job)
    link = AgentLink(_scripts(settings), settings.job)
    publisher = ResultPublisher(JobStore(_scripts(settings)), JobStore(_scripts(settings)), settings.job)
    _log.info("node=%s workers=%s waits for job=%s", settings.node, " ".join(settings.workers), settings.job)
    has_served = False
    while not asked.stop.is_set():
        if watch.works():
            has_served = True
            if _serve(settings, watch, link, asked, starter):
                return
        elif not (watch.is_publishing and _publish(publisher)) and settings.is_once and has_served:
            return
        asked.stop.wait(LOOK_SECONDS)


def _publish(publisher: ResultPublisher) -> bool:
    """True while members have something to publish; False also when that cannot be said."""
    try:
        if not publisher.is_due():
            return False
        publisher.run_once()
    except (StoreError, DecodingError) as error:
        _log.warning("job=%s is not published yet: %s", publisher.job, error)
        return False
    return True


def _serve(base: MemberSettings, watch: JobWatch, link: AgentLink, asked: Asked, starter: Starter) -> bool:
    """Keeps workers running until the job works no more, or the node is to leave: then True.

    The agent belongs to this thread, the watch to another.
    """
    try:
        settings, agent = _agent(base, link, asked, starter)
    except (StoreUnavailable, UnknownJob):
        return False  # it is tried again at the next look
    except (ForeignData, DecodingError) as error:
        _log.error("job=%s cannot be served: %s", base.job, error)
        asked.stop.wait(_FOREIGN_SECONDS)
        return False
    if asked.stop.is_set():
        return False  # a name was waited for
    over = threading.Event()
    leaving = Leaving(_scripts(settings), settings.job, settings.node)
    rolling = Rolling(
        agent,
        AgentLink(_scripts(settings), settings.job),
        lambda name, wanted: worker_spec(settings, name, 0, wanted),
    )
    scripts = _scripts(settings)
    giving = GivingAway(agent, AgentLink(scripts, settings.job), JobStore(scripts), settings.job)

    def is_over() -> bool:
        return any(child.is_replaced for child in agent.children()) or not watch.works() or leaving.look()

    threads = [
        threading.Thread(target=_until_over, args=(is_over, giving, asked, over), name="watch"),
        threading.Thread(target=rolling.run, args=(over,), name="rolling"),
    ]
    if settings.bursts is not None:
        told = {
            "CELERIAC_REDIS": settings.redis_url,
            "CELERIAC_JOB": settings.job,
            "CELERIAC_PIPELINE": settings.target,
        }
        bursting = Bursting(_scripts(settings), settings.job, told, settings.bursts, _OUTPUT)
        threads.append(threading.Thread(target=bursting.run, args=(over,), name="bursting"))
    try:
        agent.start()
        for thread in threads:
            thread.start()
        agent.run(over)
    finally:
        over.set()
        killed = agent.stop(STOP_SECONDS, asked.hurry.is_set)
        for thread in threads:
            if thread.ident is not None:
                thread.join()
    _log.info("node=%s has left job=%s%s", settings.node, settings.job, " (killed)" if killed else "")
    replaced = [child.name for child in agent.children() if child.is_replaced]
    if replaced and base.is_fixed and not asked.stop.is_set():
        raise in_use(base.job, replaced[0])
    return leaving.is_due


def _agent(base: MemberSettings, link: AgentLink, asked: Asked, starter: Starter) -> tuple[MemberSettings, Agent]:
    """The agent, with nothing started, and under which names it is. Raises JobStateError when they are taken,
    StoreError, DecodingError.
    """
    jobs = JobStore(_scripts(base))
    # One look for names and incarnations: of two that see a name free the first is heard, and the other one refused.
    number, facts = free_number(
        lambda: jobs.facts(base.job),
        lambda number: base.numbered(number).workers,
        asked.stop.wait,
        is_fixed=base.is_fixed,
    )
    settings = base.numbered(number)
    if settings is not base:
        _log.warning("another process has the name %s: this one is called %s", base.node, settings.node)
    rollout, earlier = link.rollout(), incarnations(facts)
    specs = [worker_spec(settings, name, earlier.get(name, 0), wanted_for(rollout, name)) for name in settings.workers]
    return settings, Agent(specs, link, starter=starter)


def _until_over(is_over: Callable[[], bool], giving: GivingAway, asked: Asked, over: threading.Event) -> None:
    """Who is asked to stop gives away first, with its workers at work."""
    try:
        while not over.is_set() and not asked.stop.wait(LOOK_SECONDS):
            if is_over():
                return
        if not over.is_set():
            giving.run(asked.hurry)
    finally:
        over.set()


def _count(text: str) -> int:
    if not text.isdecimal() or not 1 <= int(text) <= _MOST_PROCESSES:
        raise EnvironmentFault(f"CELERIAC_PROCESSES is no number of workers: {text!r}", hint="give 1 to 1000")
    return int(text)


def worker_spec(settings: MemberSettings, name: str, earlier: int, wanted: Wanted | None = None) -> ChildSpec:
    """A worker's process."""
    variables = {
        "CELERIAC_REDIS": settings.redis_url,
        "CELERIAC_JOB": settings.job,
        "CELERIAC_PIPELINE": (wanted.target if wanted else "") or settings.target,
        "CELERIAC_WORKER": name,
        "CELERIAC_NODE": settings.node,
        "CELERIAC_POOL": settings.pool,
        "CELERIAC_SIZED": "",
    }
    if settings.temporary:
        variables |= scratch_environment(settings.temporary)
    version = wanted.encode() if wanted else ""
    program = (*PYTHON, "stages.main")
    if settings.spark is not None:
        program = STREAM_PROGRAM
        variables |= stream_variables(settings.spark, 0.0)
    return ChildSpec(name, program, variables, WORKER, True, _OUTPUT, earlier, version, yields=True)


def _scripts(settings: MemberSettings) -> Scripts:
    return Scripts(connect(settings.redis_url, timeout_seconds=STORE_SECONDS))


@contextmanager
def _scratch(settings: MemberSettings) -> Iterator[str]:
    """A folder for what Spark leaves when it is killed; nothing for workers without it, or where none can be made."""
    if settings.spark is None:
        yield ""
        return
    try:
        folder = OwnFolder.make("celeriac-member-")
    except OSError as error:
        _log.warning("there is no place for temporary files: %s", error)
        yield ""
        return
    with folder:
        yield str(folder.path)


def main() -> int:
    """Runs until SIGTERM, SIGINT or SIGHUP, of which the last may be ignored (nohup).

    0 then; 3 when it cannot start, or another process has the name that it was given.
    """
    asked = Asked()
    # First of all: the imports of `forking` take a while. A thread must not be there before it.
    asked.listen(signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
    with forking() as starter:
        asked.start()
        return _main(asked, starter)


def _main(asked: Asked, starter: Starter) -> int:
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    try:
        settings = MemberSettings.from_environment(os.environ)
        with _scratch(settings) as temporary:
            run_member(replace(settings, temporary=temporary), asked, starter)
    except CeleriacError as error:
        print(f"error: {error}" + (f"\nhint: {error.hint}" if error.hint else ""), file=sys.stderr)
        return _NOT_STARTED
    return 0


if __name__ == "__main__":
    end_this_process(main())
