"""One burst from the moment that it is undertaken: watched, kept by its claim, and given back at its end."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Final

from pipeline.bursts import Share, shares
from pipeline.cli.exits import JobFailed
from pipeline.cli.interrupts import Interrupts
from pipeline.cli.moving import table
from pipeline.cli.progress import duration
from pipeline.cli.services import MemberProcess
from pipeline.errors import StoreUnavailable
from pipeline.facts import JobFacts
from pipeline.lifecycle import WORKING, JobState
from pipeline.nodes import is_live, owned_by
from pipeline.operations import Claim, Phase
from pipeline.positions import Position
from pipeline.store.claims import ClaimStore
from pipeline.store.jobs import JobStore
from pipeline.wording import counted

LOOK_SECONDS: Final = 0.2
RENEW_SECONDS: Final = 1.0
TELL_SECONDS: Final = 3.0
START_SECONDS: Final = 180.0
"""A Spark that was not heard of for so long does not come."""

MOST_DEATHS: Final = 3

RETURN_SECONDS: Final = 30.0
"""What nobody has taken back by then, the leader gives away when somebody comes."""


@dataclass(slots=True)
class _Turn:
    """A partition with Spark: from where, how far, and when, by our clock. What others do in between does not count."""

    start: Position
    end: Position
    began_at: float
    ended_at: float
    records: int = 0
    is_on: bool = True

    @property
    def seconds(self) -> float:
        return self.ended_at - self.began_at

    def note(self, share: Share, is_on: bool, now: float) -> None:
        """How it stands at a look. is_on: Spark has it; also what it gave back at its cut since the look before."""
        position = share.cut if share.is_reached else share.position
        if self.is_on and is_on and position != self.end:
            self.records += max(0, self.end.records_to(position))
            self.ended_at = now
        if is_on:
            self.end = position
        self.is_on = is_on


@dataclass(slots=True)
class Course:
    """Follows a burst to its end. starts, cuts: partition -> where it stood, and where it is to be handed back."""

    jobs: JobStore
    claims: ClaimStore
    claim: Claim
    node: str
    starts: Mapping[str, Position]
    cuts: Mapping[str, Position]
    member: MemberProcess
    interrupts: Interrupts
    say: Callable[[str], None]
    clock: Callable[[], float] = time.monotonic
    sleep: Callable[[float], None] = time.sleep
    phase: Phase = Phase.STARTING
    outcome: str = "done"
    shares: Sequence[Share] = ()
    _began_at: float = 0.0
    _said_at: float = 0.0
    _told_at: float = 0.0
    _returning_at: float = 0.0
    _turns: dict[str, _Turn] = field(default_factory=dict)
    """Of each partition that Spark has had."""
    _lives: set[str] = field(default_factory=set)
    """Incarnations of the worker that were heard of."""

    def run(self) -> list[str]:
        """Returns when all is given back, or nobody takes it; with the lines that say what was done.

        Raises JobFailed when Spark does not come, or dies again and again, or the job does not work any more;
        OperationLost.
        """
        self._began_at = self._told_at = self.clock()
        while True:
            facts = self._facts()
            now = self.clock()
            self._note(facts, now)
            if facts.record.state not in WORKING:
                self._check_end(facts)
                return self._lines(now)
            if self.phase is Phase.RETURNING:
                is_over = not owned_by(facts, self.node) or self.interrupts.count > 1
                if is_over or now - self._returning_at >= RETURN_SECONDS:
                    self._tell_kept(facts)
                    return self._lines(now)
            else:
                self._go_on(facts, now)
            self._tell(now)
            self.sleep(LOOK_SECONDS)

    @property
    def is_interrupted(self) -> bool:
        return self.outcome == "interrupted"

    def _facts(self) -> JobFacts:
        """While Redis is away it is waited for. Raises OperationLost, UnknownJob, StoreError."""
        while True:
            with suppress(StoreUnavailable):
                if self.clock() - self._said_at >= RENEW_SECONDS:
                    self._renew()
                return self.jobs.facts(self.claim.job)
            self.sleep(LOOK_SECONDS)

    def _renew(self) -> None:
        done, total = sum(each.done for each in self.shares), sum(each.total for each in self.shares)
        self.claims.renew(self.claim, self.phase, done, total)
        self._said_at = self.clock()

    def _enter(self, phase: Phase) -> None:
        """With a word to the leader: it decides by the phase."""
        self.phase, self._said_at = phase, 0.0

    def _note(self, facts: JobFacts, now: float) -> None:
        self.shares = shares(facts, self.starts, self.cuts)
        mine = {one.name for one in facts.workers if one.node == self.node}
        for each in self.shares:
            turn = self._turns.get(each.name)
            is_on = each.owner in mine and not each.is_through
            if turn is not None:
                has_just_ended = turn.is_on and each.is_reached and turn.end != each.cut and not self.is_interrupted
                turn.note(each, is_on or has_just_ended, now)
            elif is_on:
                self._turns[each.name] = _Turn(each.position, each.position, now, now)

    def _go_on(self, facts: JobFacts, now: float) -> None:
        self._watch(facts, now)
        if self.interrupts.count:
            self.outcome = "interrupted"
            self.say("interrupted: partitions go back to workers where they are; once more does not wait for that")
        if self.interrupts.count or all(each.is_reached for each in self.shares):
            self._returning_at = now
            self._enter(Phase.RETURNING)

    def _watch(self, facts: JobFacts, now: float) -> None:
        mine = [one for one in facts.workers if one.node == self.node]
        self._lives |= {one.incarnation for one in mine}
        if self.phase is Phase.STARTING and any(is_live(facts, one) for one in mine):
            self.say(f"Spark is there after {duration(now - self._began_at)}; partitions go to it")
            self._enter(Phase.BURSTING)
        code = self.member.exit_code()
        if code is not None and self.jobs.facts(self.claim.job).record.state in WORKING:
            raise self._failed(f"its node has ended with code {code}")
        if len(self._lives) > MOST_DEATHS:
            raise self._failed(f"Spark has died {len(self._lives) - 1} times")
        if not self._lives and (self._has_refused() or now - self._began_at > START_SECONDS):
            raise self._failed("Spark does not start")

    def _has_refused(self) -> bool:
        return any(line.startswith("error: ") for line in self._log_lines())

    def _failed(self, why: str) -> JobFailed:
        said = [line for line in self._log_lines() if line.strip()]
        words = next((line for line in said if line.startswith("error: ")), said[-1] if said else "nothing")
        return JobFailed(
            f"the burst of job {self.claim.job} is given up: {why}; it said: {words.removeprefix('error: ')[:500]}",
            hint="what it has not done goes on with workers; nothing is lost or done twice",
        )

    def _log_lines(self) -> list[str]:
        path = self.member.log
        return path.read_text(encoding="utf-8", errors="replace").splitlines()[-200:] if path.is_file() else []

    def _check_end(self, facts: JobFacts) -> None:
        """Raises JobFailed unless the job has come to its end meanwhile."""
        state = facts.record.state
        if state not in (JobState.PUBLISHING, JobState.FINISHED):
            self.outcome = f"given up: the job is {state.value}"
            raise JobFailed(
                f"the burst of job {self.claim.job} is given up: the job is {state.value}",
                hint="it goes on from where it stands when it works again",
            )

    def _tell_kept(self, facts: JobFacts) -> None:
        kept = len(owned_by(facts, self.node))
        if kept:
            self.say(f"{counted(kept, 'partition')} not taken back yet: they go to the next worker")

    def _tell(self, now: float) -> None:
        if now - self._told_at < TELL_SECONDS:
            return
        self._told_at = now
        done, total = sum(each.done for each in self.shares), sum(each.total for each in self.shares)
        reached = sum(each.is_reached for each in self.shares)
        self.say(
            f"{self.phase.value}: {done:,} of {counted(total, 'record')},"
            f" {reached} of {counted(len(self.shares), 'partition')} at the cut"
        )

    def _lines(self, now: float) -> list[str]:
        """What was done: in all, and a row for each partition. What workers did before Spark came is in the first."""
        turns = self._turns.values()
        records, took = sum(turn.records for turn in turns), now - self._began_at
        began, ended = (
            min((turn.began_at for turn in turns), default=now),
            max((turn.ended_at for turn in turns), default=now),
        )
        line = f"{counted(sum(each.done for each in self.shares), 'record')} in {duration(took)}"
        if turns:
            line += f"; {records:,} of them on Spark, in {duration(ended - began)}, {_rate(records, ended - began)}/s"
        rows: list[tuple[str, ...]] = [("partition", "on Spark", "from", "to", "cut", "seconds", "per s", "came since")]
        for each in self.shares:
            turn = self._turns.get(each.name) or _Turn(each.position, each.position, now, now)
            done = (str(turn.start), str(turn.end), str(each.cut), f"{turn.seconds:.1f}")
            rows.append((each.name, f"{turn.records:,}", *done, _rate(turn.records, turn.seconds), f"{each.left:,}"))
        return [line, *table(rows)]


def _rate(records: int, seconds: float) -> str:
    return f"{records / seconds:,.0f}" if seconds > 0 else "0"
