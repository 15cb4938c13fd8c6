"""Follows a running job to its end: its records, its progress, its Redis, its node, and Ctrl-C. Publishes nothing."""

from __future__ import annotations

import math
import time
from collections import deque
from dataclasses import dataclass
from typing import Final

from pipeline.cli.balances import alarm_line
from pipeline.cli.console import Console
from pipeline.cli.filewatch import FileWatch
from pipeline.cli.holdups import Holdups
from pipeline.cli.interrupts import Interrupts
from pipeline.cli.link import Link
from pipeline.cli.openings import still_held
from pipeline.cli.progress import stage_rows
from pipeline.cli.screen import Screen
from pipeline.cli.services import NodeProcess
from pipeline.errors import JobStateError
from pipeline.facts import JobFacts, waiting_for
from pipeline.lifecycle import WORKING, JobState
from pipeline.losses import losses_since
from pipeline.store.jobs import JobStore
from pipeline.store.losses import unknown_job

ROUND_SECONDS: Final = 0.05
FACTS_SECONDS: Final = 0.25
RATE_SECONDS: Final = 2.0
"""Rates are averages over about this long."""

HALT_SECONDS: Final = 2.0
"""After a loss was noticed, others get this long to say what they miss."""

CLAIM_SECONDS: Final = 1.0
MEMORY_SECONDS: Final = 2.0
_FULL_SHARE: Final = 0.99


@dataclass(slots=True)
class Follower:
    """Watches one job to its end. `ready_at` is when the first record was in, in monotonic seconds."""

    job: str
    store: JobStore
    link: Link
    node: NodeProcess
    console: Console
    screen: Screen
    interrupts: Interrupts
    file: FileWatch
    holdups: Holdups
    claim: str = ""
    """By which this run holds the job; said again until its workers are heard of."""
    ready_at: float | None = None
    is_drained: bool = False
    _has_asked: bool = False
    _pressure: str = ""
    _waits: frozenset[str] = frozenset()
    _alarms: int = 0
    _claim_at: float = -math.inf
    _memory_at: float = -math.inf
    _seen: JobFacts | None = None
    _halted_at: float | None = None

    def until_ended(self) -> JobFacts:
        """The facts of the job once nothing is left to work on; the first Ctrl-C makes it drain.

        Raises KeyboardInterrupt, at any moment, for the second Ctrl-C; UnknownJob when somebody removed the job;
        JobTaken when another run has it; EnvironmentFault when the node does not live; BrokenPipeError.
        """
        history: deque[JobFacts] = deque()
        facts_at = 0.0
        with self.interrupts.immediate(above=1):
            while True:
                self.interrupts.check(above=1)
                self._heed_interrupts()
                self._look_after_node()
                # A call that asks nothing of Redis would make an outage look as if it was over.
                printed = self.link.attempt(self.console.print_new) if self.console.has_sinks else 0
                now = time.monotonic()
                if now - facts_at >= FACTS_SECONDS:
                    facts_at = now
                    facts = self.link.attempt(lambda: self.store.facts(self.job))
                    if facts is not None and not self._has_lost(facts) and self._has_heard_all(facts, now):
                        self._hold_claim(now, facts)
                        self._note(facts, history)
                        self._look_at_memory(now, facts)
                        if facts.record.state not in WORKING:
                            return facts
                if not printed:
                    time.sleep(ROUND_SECONDS)

    def _has_lost(self, facts: JobFacts) -> bool:
        """Whether this process has seen more than Redis has now; then the job halts, and the next look shows it."""
        if self._seen is not None and facts.record.made_at_ms != self._seen.record.made_at_ms:
            raise unknown_job(self.job)  # another one has its id by now
        lines = losses_since(self._seen, facts, "the run") if self._seen is not None else []
        if not lines:
            self._seen = facts
            return False
        losses = self.store.losses(self.job)
        if self.link.attempt(lambda: losses.report(facts.record.run, lines)) is not None:
            self._seen = None
        return True

    def _has_heard_all(self, facts: JobFacts, now: float) -> bool:
        if not facts.record.losses:
            return True
        self._halted_at = now if self._halted_at is None else self._halted_at
        return now - self._halted_at >= HALT_SECONDS

    def _heed_interrupts(self) -> None:
        if self.interrupts.count and not self._has_asked:
            self._has_asked = self.link.attempt(self._drain) is not None

    def _drain(self) -> bool:
        try:
            self.store.transition(self.job, JobState.DRAINING, "Ctrl-C")
        except JobStateError:
            return False  # it is past its input already
        self.screen.warn("draining: no new input… press Ctrl-C again to cancel")
        return True

    def _look_after_node(self) -> None:
        with self.interrupts.deferred():
            was_dead = self.node.revive()
        if was_dead:
            self.screen.warn("the node process died and was started again")

    def _hold_claim(self, now: float, facts: JobFacts) -> None:
        """Whoever submits the same job now must not take it for one that nobody runs. Raises JobTaken."""
        lease = facts.record.plan.limits.lease_seconds
        is_heard = any(each.age_seconds < lease for each in facts.workers)
        # A job that is published may be claimed by who does that.
        if is_heard or now - self._claim_at < CLAIM_SECONDS or facts.record.state not in WORKING:
            return
        self._claim_at = now
        held = self.link.attempt(lambda: self.store.hold_claim(self.job, self.claim))
        if held is not None:
            self.claim = still_held(self.job, held)

    def _look_at_memory(self, now: float, facts: JobFacts) -> None:
        """A Redis without room stops the job, or its input, without any error: everybody waits."""
        if now - self._memory_at < MEMORY_SECONDS:
            return
        self._memory_at = now
        memory = self.link.attempt(self.store.memory)
        if memory is None:
            return
        before, self._pressure = self._pressure, memory_pressure(*memory, facts.record.gate)
        if self._pressure and self._pressure != before:
            self.screen.warn(f"{self._pressure} ({memory[0]:,} of {memory[1]:,} bytes of maxmemory are used)")
        elif before and not self._pressure:
            self.screen.note("Redis has room again")

    def _tell_waits(self, facts: JobFacts) -> None:
        """A source or sink that is away, or a record that is to be tried again, fails nothing: it is waited for."""
        waits = waiting_for(facts)
        for reason in sorted(waits - self._waits):
            self.screen.warn(f"waiting: {reason}")
        if self._waits and not waits:
            self.screen.note("nothing is waited for any more")
        self._waits = waits

    def _tell_alarms(self, facts: JobFacts) -> None:
        """What the leader has found wrong in the books, when it is found."""
        for alarm in facts.alarms[self._alarms :]:
            self.screen.warn(alarm_line(alarm))
        self._alarms = max(self._alarms, len(facts.alarms))

    def _note(self, facts: JobFacts, history: deque[JobFacts]) -> None:
        if self.ready_at is None and any(each.taken or each.backlog for each in facts.partitions):
            self.ready_at = time.monotonic()
        self.is_drained = self.is_drained or facts.record.state is JobState.DRAINING
        history.append(facts)
        while len(history) > 2 and history[1].now_ms <= facts.now_ms - RATE_SECONDS * 1000:
            history.popleft()
        self._tell_waits(facts)
        self._tell_alarms(facts)
        if changed := self.file.changed():
            self.screen.warn(changed)
        is_last = facts.record.state not in WORKING
        for text in self.holdups.look(facts):
            self.screen.warn(text)
        rows = stage_rows(history[0] if len(history) > 1 else None, facts)
        self.screen.progress(f"{self.job}  {facts.record.state.value}", rows, is_last=is_last)


def memory_pressure(used: int, most: int, gate: str) -> str:
    """What a lack of memory in Redis holds up, as a sentence that says what to do; nothing when there is none."""
    if 0 < most * _FULL_SHARE <= used:
        return "Redis is full: the job waits until you raise maxmemory"
    if gate == "closed":
        return "Redis is nearly full: no input is taken until the job has drained some, or you raise maxmemory"
    return ""
