"""The changes of a job's state that follow from its facts: all is processed, or too much was given up."""

from __future__ import annotations

import logging
from dataclasses import dataclass

from pipeline.errors import JobStateError
from pipeline.facts import JobFacts
from pipeline.lifecycle import JobState
from pipeline.store.jobs import JobStore
from pipeline.wording import counted

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Change:
    to: JobState
    reason: str = ""


def next_state(facts: JobFacts) -> Change | None:
    """The state that the job's facts call for, or None. Too many dead letters outweigh a finished input."""
    limits, job = facts.record.plan.limits, facts.record.job
    letters, held = facts.dead_letters, facts.held
    behind = f" and {counted(held, 'record')} held behind them" if held else ""
    if letters + held > limits.dead_letters:
        return _too_many(
            job, f"{counted(letters, 'dead letter')}{behind}, more than the {limits.dead_letters:,} allowed"
        )
    size, most = facts.dead_letter_bytes + facts.held_bytes, limits.dead_letter_bytes
    if size > most:
        return _too_many(job, f"dead letters{behind} of {size:,} bytes, more than the {most:,} allowed")
    if facts.partitions and all(part.is_through for part in facts.partitions):
        return Change(JobState.PUBLISHING)
    return None


def _too_many(job: str, what: str) -> Change:
    return Change(
        JobState.FAILED,
        f"{what}; `celeriac dead-letters list {job}` shows them: the job can go on when some are replayed or dropped",
    )


class Lifecycle:
    """Moves the job to its next state."""

    name = "lifecycle"

    def __init__(self, jobs: JobStore) -> None:
        self._jobs = jobs

    def run_once(self, facts: JobFacts, token: str) -> dict[str, int]:
        change = next_state(facts)
        if change is None:
            return {}
        try:
            self._jobs.transition(facts.record.job, change.to, change.reason, leader_token=token)
        except JobStateError as error:
            logger.info("state left as it is: %s", error)  # somebody cancelled it meanwhile
            return {}
        level = logging.ERROR if change.to is JobState.FAILED else logging.INFO
        reason = change.reason or "all is processed"
        logger.log(level, "job is %s: job=%s reason=%s", change.to.value, facts.record.job, reason)
        return {change.to.value: 1}
