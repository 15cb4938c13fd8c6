"""How a run ends whose job has worked through its input: results are published, and it is said what came of it."""

from __future__ import annotations

import time
from dataclasses import dataclass

from pipeline.books import Books
from pipeline.cli.balances import alarm_line, disagreements
from pipeline.cli.earlyends import EarlyEnd
from pipeline.cli.exits import Exit, JobFailed
from pipeline.cli.interrupts import Interrupts
from pipeline.cli.link import Link
from pipeline.cli.reports import SHOWN_LETTERS, Result, result_lines
from pipeline.cli.screen import Screen
from pipeline.errors import EnvironmentFault, JobStateError, StoreError, TailLost
from pipeline.facts import JobFacts, JobRecord
from pipeline.lifecycle import JobState
from pipeline.losses import LOST, losses_since
from pipeline.publishing import discard_job, file_sinks, publish_job, reason_to_finish
from pipeline.sinks.effects import EFFECT_FORMATS
from pipeline.sinks.publisher import Published
from pipeline.store.books import BookStore
from pipeline.store.jobs import JobStore
from pipeline.store.letters import DeadLetter
from pipeline.store.scripts import Scripts


@dataclass(frozen=True, slots=True)
class Finish:
    """`early` says how to go on where that fails. is_kept: whether Redis keeps the job.

    started_at: when the command was given, in monotonic seconds.
    """

    record: JobRecord
    scripts: Scripts
    screen: Screen
    interrupts: Interrupts
    link: Link
    early: EarlyEnd
    is_kept: bool
    started_at: float

    @property
    def _store(self) -> JobStore:
        return JobStore(self.scripts)

    def publish(self, facts: JobFacts) -> list[Published]:
        """Publishes what the sinks hold, and makes the job finished.

        From now on a Ctrl-C that was not there before cancels, and results not yet published do not appear.

        Raises KeyboardInterrupt, JobFailed, TailLost, SinkError, StoreError.
        """
        above = max(1, self.interrupts.count)
        with self.interrupts.immediate(above=above):
            published = self.link.insist(lambda: publish_job(self._store, facts.record))
        self._check_kept(facts, above)
        self.link.insist(lambda: self._finish(published), above=above)
        discard_job(facts.record)
        return published

    def _check_kept(self, before: JobFacts, above: int) -> None:
        """Raises TailLost when Redis has less than it had before its files were published: they are not whole then."""
        now = self.link.insist(lambda: self._store.facts(self.record.job), above=above)
        lines = losses_since(before, now, "the run")
        if lines:
            losses = self._store.losses(self.record.job)
            self.link.insist(lambda: losses.report(before.record.run, lines), above=above)
            raise TailLost(f"{LOST}: {'; '.join(lines)}")

    def _finish(self, published: list[Published]) -> None:
        """Raises JobFailed when somebody has ended the job while it was published."""
        try:
            self._store.transition(self.record.job, JobState.FINISHED, reason_to_finish(self.record.plan, published))
        except JobStateError as error:
            state = self._store.state(self.record.job)
            if state is not JobState.FINISHED:  # else only the answer to an earlier attempt was lost
                where = ", ".join(str(each.path) for each in published) or "no files"
                raise JobFailed(
                    f"the job {self.record.job} was made {state.value} by another command while it was published; "
                    f"what was published stands: {where}",
                    hint=self.early.how_to_go_on(),
                ) from error

    def report(self, published: list[Published], start_seconds: float, is_drained: bool) -> Exit:
        """Says what came of it. start_seconds: until the first record was in."""
        try:
            facts, letters, totals, books = self.link.insist(self._read_all, above=self.interrupts.count)
        except KeyboardInterrupt:
            return self._unreported(published, "interrupted", Exit.INTERRUPTED)
        except (StoreError, EnvironmentFault) as error:
            return self._unreported(published, str(error), Exit.ENVIRONMENT)
        total_seconds = time.monotonic() - self.started_at
        plan = self.record.plan
        sinks = list(zip(file_sinks(plan), published, strict=True)) if published else []
        given = {sink.name: totals.get(f"n:{sink.name}", 0) for sink in plan.sinks if sink.format in EFFECT_FORMATS}
        result = Result(facts, sinks, letters, total_seconds, start_seconds, is_drained, given, books)
        for line in result_lines(result):
            self.screen.note(line)
        if self.is_kept:
            self.screen.note(f"`celeriac remove {self.record.job}` deletes what Redis keeps of it")
        if disagreements(books, facts.alarms):
            return Exit.UNBALANCED
        if is_drained:
            return Exit.INTERRUPTED
        return Exit.DEAD_LETTERS if facts.dead_letters else Exit.FINISHED

    def _unreported(self, published: list[Published], why: str, code: Exit) -> Exit:
        """The end of a run that cannot read what it would say. The job is finished, and nothing changes that."""
        where = "".join(f"\n  result: {each.path}" for each in published)
        self.screen.warn(f"job {self.record.job} finished, and its results stand{where}")
        self.screen.warn(f"warning: dead letters and the balance of its books could not be read: {why}")
        return code

    def _read_all(self) -> tuple[JobFacts, list[DeadLetter], dict[str, int], Books]:
        facts = self._store.facts(self.record.job)
        letters = self._store.dead_letters(self.record.job, SHOWN_LETTERS)
        return facts, letters, self._store.log_totals(facts.record), BookStore(self.scripts).read(facts.record)

    def finished_before(self) -> Exit:
        """Says that an earlier run has finished the job. Raises StoreError."""
        discard_job(self.record)  # in case whoever published it was killed before
        self.screen.note(f"the job {self.record.job} is finished already; {self.record.reason or 'its results stand'}")
        facts = self._store.facts(self.record.job)
        for alarm in facts.alarms:
            self.screen.warn(alarm_line(alarm))
        if facts.alarms:
            return Exit.UNBALANCED
        return Exit.DEAD_LETTERS if facts.dead_letters else Exit.FINISHED
