"""How a run ends whose job has no results: it was cancelled, it failed, it has halted, somebody removed it."""

from __future__ import annotations

from dataclasses import dataclass

from pipeline.cli.exits import Exit, JobFailed
from pipeline.cli.screen import Screen
from pipeline.cli.services import Server, Workspace, troubled_logs
from pipeline.errors import CeleriacError, SinkAhead, StoreError, TailLost, UnknownJob
from pipeline.facts import JobFacts, JobRecord
from pipeline.lifecycle import ENDED, JobState
from pipeline.losses import LOST
from pipeline.publishing import discard_job
from pipeline.store.connection import connect
from pipeline.store.jobs import JobStore
from pipeline.store.losses import LossStore
from pipeline.store.scripts import Scripts


@dataclass(frozen=True, slots=True)
class EarlyEnd:
    """Tells Redis and the user. Every call to Redis is on a connection of its own: an interrupt may have left the run's
    in the middle of an answer.
    """

    record: JobRecord
    server: Server
    workspace: Workspace
    screen: Screen

    @property
    def can_go_on(self) -> bool:
        """Whether what Redis holds outlives this process."""
        return self.server.embedded is None or self.workspace.is_kept

    def cancel(self, reason: str) -> None:
        """The job is cancelled, as far as Redis can be told, and what to do next is said."""
        self.screen.end_progress()
        self._end_as(JobState.CANCELLED, reason)
        hint = self.how_to_go_on()
        self.screen.warn(f"cancelled job {self.record.job}" + (f"; {hint}" if hint else ""))

    def failed_by(self, error: CeleriacError) -> JobFailed:
        """The job has failed, or has halted, as far as Redis can be told; what to raise."""
        self.screen.end_progress()
        if isinstance(error, SinkAhead | TailLost):
            return self._halted_by(error)
        self._end_as(JobState.FAILED, str(error))
        return JobFailed(f"the job {self.record.job} failed: {error}", hint=error.hint or self.how_to_go_on())

    def _halted_by(self, error: CeleriacError) -> JobFailed:
        if isinstance(error, SinkAhead):
            try:
                LossStore(Scripts(connect(self.server.url)), self.record.job).report(self.record.run, [str(error)])
            except StoreError as other:
                self.screen.warn(f"the job could not be told that it has halted: {other}")
        said = str(error).removeprefix(f"{LOST}: ")
        return JobFailed(f"the job {self.record.job} has halted: {LOST}\n  - {said}", hint=self._how_to_accept())

    def of_others(self, facts: JobFacts) -> Exit:
        """Somebody else ended the job: the leader, a feeder, the node, or another command. Raises JobFailed."""
        reason = facts.record.reason or "no reason was given"
        if facts.record.losses:
            lines = "".join(f"\n  - {line}" for line in facts.record.losses)
            raise JobFailed(f"the job {self.record.job} has halted: {LOST}{lines}", hint=self._how_to_accept())
        if facts.record.state is JobState.FAILED:
            raise JobFailed(f"the job {self.record.job} failed: {reason}", hint=self.how_to_go_on())
        if facts.record.state is JobState.CANCELLED:
            hint = self.how_to_go_on()
            self.screen.warn(f"the job {self.record.job} was cancelled: {reason}" + (f"; {hint}" if hint else ""))
            return Exit.INTERRUPTED
        if facts.record.state is JobState.SUSPENDED:
            hint = self.how_to_go_on()
            self.screen.warn(f"the job {self.record.job} is {reason}" + (f"; {hint}" if hint else ""))
            return Exit.INTERRUPTED
        return Exit.FINISHED  # another process has published it

    def was_removed(self, error: CeleriacError) -> bool:
        """Whoever removes a job also takes its files away, which may be noticed first."""
        if isinstance(error, UnknownJob):
            return True
        try:
            JobStore(Scripts(connect(self.server.url))).state(self.record.job)
        except UnknownJob:
            return True
        except StoreError:
            return False
        return False

    def _end_as(self, state: JobState, reason: str) -> None:
        try:
            store = JobStore(Scripts(connect(self.server.url)))
            if store.state(self.record.job) not in ENDED:
                store.transition(self.record.job, state, reason)
        except StoreError as error:
            if self.can_go_on:
                self.screen.warn(f"the job could not be told that it is {state.value}: {error}")

    def how_to_go_on(self) -> str:
        """What to do for that; nothing where it cannot be done."""
        return f"run it again with --job-id {self.record.job} to go on" if self.can_go_on else ""

    def _how_to_accept(self) -> str:
        if not self.can_go_on:
            return "run it again: this Redis was a temporary one"
        return (
            f"bring Redis back with these writes, or run it again with --job-id {self.record.job} --accept-loss"
            " to go on without them; docs/operations.md says what that means"
        )

    def show_logs(self) -> None:
        """The ends of those that tell of a crash."""
        self.screen.end_progress()
        for name, tail in troubled_logs(self.workspace.logs):
            self.screen.warn(f"the end of {name}:\n{tail}")

    def discard_unless_kept(self) -> None:
        """Staging files of a job that nobody can continue are of no use."""
        if not self.can_go_on:
            discard_job(self.record)
