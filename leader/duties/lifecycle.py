"""The changes of a job's state that follow from its facts: all is processed, or too much was given up."""

from __future__ import annotations

import logging
from dataclasses import dataclass

from pipeline.errors import JobStateError
from pipeline.facts import JobFacts
from pipeline.lifecycle import JobState
from pipeline.store.jobs import JobStore

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Change:
    to: JobState
    reason: str = ""


def next_state(facts: JobFacts) -> Change | None:
    """The state that the job's facts call for, or None. Too many dead letters outweigh a finished input."""
    bound = facts.record.plan.limits.dead_letters
    if facts.dead_letters > bound:
        return Change(
            JobState.FAILED,
            f"{facts.dead_letters} dead letters, more than the {bound} allowed; "
            f"`celeriac status {facts.record.job}` shows them",
        )
    if facts.partitions and all(part.done for part in facts.partitions):
        return Change(JobState.PUBLISHING)
    return None


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
