"""The states of a job and which may follow which."""

from __future__ import annotations

from enum import StrEnum


class JobState(StrEnum):
    RUNNING = "running"
    DRAINING = "draining"
    """No new input; what was taken is processed to the end, and timers fire."""
    PUBLISHING = "publishing"
    """Every partition is done; sinks are being published."""
    FINISHED = "finished"
    FAILED = "failed"
    CANCELLED = "cancelled"
    SUSPENDED = "suspended"
    """Nothing is in flight, its input is held back, and a savepoint of that instant is there."""


BEFORE: dict[JobState, tuple[JobState, ...]] = {
    JobState.RUNNING: (JobState.CANCELLED, JobState.FAILED, JobState.SUSPENDED),
    JobState.DRAINING: (JobState.RUNNING,),
    JobState.PUBLISHING: (JobState.RUNNING, JobState.DRAINING),
    JobState.FINISHED: (JobState.PUBLISHING,),
    JobState.FAILED: (JobState.RUNNING, JobState.DRAINING, JobState.PUBLISHING),
    JobState.CANCELLED: (JobState.RUNNING, JobState.DRAINING, JobState.PUBLISHING),
    JobState.SUSPENDED: (JobState.RUNNING,),
}
"""For each state, those it may follow. A job that was cancelled, suspended or failed keeps its state and may run on."""

ENDED = frozenset({JobState.FINISHED, JobState.FAILED, JobState.CANCELLED, JobState.SUSPENDED})
WORKING = frozenset({JobState.RUNNING, JobState.DRAINING})
"""States in which workers commit."""
