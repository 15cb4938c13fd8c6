"""One round of a leader: for every job hold its lease, read its facts once, run its duties. Decides nothing itself."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from leader.duties.duty import Duty
from leader.duties.retention import retire_silent_leaders
from pipeline.errors import CeleriacError, DecodingError, StaleTerm, StoreError, StoreUnavailable, UnknownJob
from pipeline.facts import JobFacts, JobRecord
from pipeline.faultlog import FaultLog
from pipeline.lifecycle import WORKING
from pipeline.store.jobs import JobStore
from pipeline.store.leadership import LeaderRegistry, Leadership

logger = logging.getLogger(__name__)

ENDED_SECONDS: Final = 10.0
"""How often a job that needs no work is looked at."""

REMOVAL_SECONDS: Final = 30.0
"""A removal takes less; one that is not through by then was interrupted."""


@dataclass(frozen=True, slots=True)
class Duties:
    """The duties of one job for one term: all of them while it works, afterwards those that tidy up.

    restarting: those of a working job whose owners belong to an earlier run of the server.
    """

    working: Sequence[Duty]
    ended: Sequence[Duty]
    restarting: Sequence[Duty] = ()


@dataclass(slots=True)
class _Term:
    """One job as long as this process leads it. `faults`: duty -> what it failed with last."""

    token: str
    duties: Duties
    faults: dict[str, str] = field(default_factory=dict)


class Round:
    """What one leader process does at each tick. Any number of leaders may run: the lease of a job lets one act.

    `make_duties` is called for each new term, so what duties remember ends with it. `clock` is monotonic seconds.
    `remembered`: what is kept of jobs through all terms, by their ids; it goes with the job.
    """

    def __init__(
        self,
        jobs: JobStore,
        leadership: Leadership,
        registry: LeaderRegistry,
        make_duties: Callable[[], Duties],
        clock: Callable[[], float],
        remembered: Sequence[dict[str, Any]] = (),
    ) -> None:
        self._jobs = jobs
        self._leadership = leadership
        self._registry = registry
        self._make_duties = make_duties
        self._clock = clock
        self._remembered = remembered
        self._terms: dict[str, _Term] = {}
        self._ended_due: dict[str, float] = {}
        self._removals: dict[str, float] = {}
        self._faults: dict[str, FaultLog] = {}

    def run_once(self) -> dict[str, int]:
        """What was done -> how often, over all jobs. An unreachable Redis is waited out: logged, then tried again.

        Raises nothing that a single job or duty may cause.
        """
        counts: Counter[str] = Counter()
        try:
            retired = retire_silent_leaders(self._registry)
            counts.update({"leaders_retired": retired} if retired else {})
            jobs = self._jobs.list_ids()
            self._drop_all_but(jobs)
            for job in jobs:
                counts.update(self._job(job))
        except StoreError as error:
            self._tell("", error)
        else:
            self._serves("")
        return dict(counts)

    @property
    def faults(self) -> list[str]:
        """What duties, of any job, have failed with when they ran last."""
        return [text for term in self._terms.values() for text in term.faults.values()]

    def resign(self) -> None:
        """Gives all leases back, so that another leader acts at once, and takes this one's queue away.

        Never raises: who cannot be told learns it when the lease ends.
        """
        try:
            for job in list(self._terms):
                self._leadership.release(job, self._terms.pop(job).token)
            self._registry.leave()
        except StoreError as error:
            logger.warning("leases could not be given back, they end by themselves: %s", error)

    def _job(self, job: str) -> dict[str, int]:
        try:
            counts = self._lead(self._jobs.read(job))
        except StaleTerm:
            self._lose(job)
        except UnknownJob:
            self._terms.pop(job, None)
            return self._finish_removal(job)
        except DecodingError as error:
            self._tell(job, error)
        except StoreUnavailable:
            raise
        except StoreError as error:
            self._tell(job, error)
        else:
            self._serves(job)
            self._removals.pop(job, None)
            return counts
        return {}

    def _lead(self, record: JobRecord) -> dict[str, int]:
        job = record.job
        if record.state not in WORKING:
            return self._tidy(record)
        self._ended_due.pop(job, None)
        term = self._hold(record)
        if term is None:
            return {}
        facts = self._jobs.facts(job)
        is_adopted = facts.record.run_id == self._leadership.server
        return self._run(facts, term, term.duties.working if is_adopted else term.duties.restarting)

    def _tidy(self, record: JobRecord) -> dict[str, int]:
        """A job that does not work is led for a moment now and then."""
        if self._clock() < self._ended_due.get(record.job, 0.0):
            return {}
        self._ended_due[record.job] = self._clock() + ENDED_SECONDS
        term = self._hold(record)
        if term is None:
            return {}
        counts = self._run(self._jobs.facts(record.job), term, term.duties.ended)
        self._terms.pop(record.job, None)
        self._leadership.release(record.job, term.token)
        return counts

    def _finish_removal(self, job: str) -> dict[str, int]:
        """Whoever removes the job is at it; one that was killed is made up for. Raises StoreError."""
        since = self._removals.setdefault(job, self._clock())
        if self._clock() - since < REMOVAL_SECONDS or not self._jobs.finish_removal(job):
            return {}
        logger.warning("an interrupted removal was finished: job=%s", job)
        return {"removals_finished": 1}

    def _hold(self, record: JobRecord) -> _Term | None:
        lease = self._leadership.hold(record.job, record.plan.limits.lease_seconds)
        term = self._terms.get(record.job)
        if term is not None and term.token != lease.token:
            self._lose(record.job)
            term = None
        if not lease.token:
            return None
        if term is None:
            term = self._terms[record.job] = _Term(lease.token, self._make_duties())
            if record.state in WORKING:
                logger.info(
                    "leading: job=%s leader=%s term=%s", record.job, lease.holder, lease.token.partition(":")[0]
                )
        return term

    def _run(self, facts: JobFacts, term: _Term, duties: Sequence[Duty]) -> dict[str, int]:
        counts: Counter[str] = Counter()
        for duty in duties:
            try:
                counts.update(duty.run_once(facts, term.token))
            except (StaleTerm, UnknownJob, StoreUnavailable):
                raise
            except Exception as error:  # one duty's fault must not keep the others from their work
                text = f"{type(error).__name__}: {error}"
                if term.faults.get(duty.name) != text:
                    term.faults[duty.name] = text
                    logger.exception("duty failed, it is tried again: job=%s duty=%s", facts.record.job, duty.name)
            else:
                term.faults.pop(duty.name, None)
        return dict(counts)

    def _lose(self, job: str) -> None:
        if self._terms.pop(job, None) is not None:
            logger.info("lease lost, another leader acts: job=%s", job)

    def _tell(self, job: str, error: CeleriacError) -> None:
        """`job` is empty for Redis as a whole."""
        what = f"left alone: job={job}" if job else "no round"
        self._faults.setdefault(job, FaultLog(logger, what)).met(error)

    def _serves(self, job: str) -> None:
        faults = self._faults.pop(job, None)
        if faults is not None:
            faults.over()

    def _drop_all_but(self, jobs: Sequence[str]) -> None:
        tables: list[dict[str, Any]] = [self._terms, self._ended_due, self._removals, self._faults]
        for known in [*tables, *self._remembered]:
            for job in [job for job in known if job and job not in jobs]:
                del known[job]
