"""The course of a backfill of some keys: compute while the job runs, hold its input back, compute the rest, swap.

Nothing is changed before the swap, which is one script: whoever dies anywhere leaves the old state, or the new.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import dataclass, field
from typing import Any, Final

from pipeline.codec import encode_value
from pipeline.errors import JobStateError, LetterError, NotQuiet, StoreError
from pipeline.facts import JobRecord
from pipeline.lifecycle import JobState
from pipeline.operations import Claim, Phase
from pipeline.plan import StagePlan
from pipeline.reading.keytext import key_text
from pipeline.recomputing.computed import Computed, Given, Recompute, count_between, lost_between
from pipeline.recomputing.letters import not_given_up, only_computed
from pipeline.spark.bulk.letters import Letter
from pipeline.store.jobs import JobStore
from pipeline.store.letters import LetterStore
from pipeline.store.scripts import Scripts
from pipeline.store.states import load_keys
from pipeline.store.swaps import NewState, Stand, SwapStore, over
from pipeline.wording import counted

SHORT_RECORDS: Final = 10_000
SHORT_SECONDS: Final = 2.0
"""So much may be left to compute while the input is held back: records, or what takes so long."""

MOST_ROUNDS: Final = 5
"""A job whose input comes faster than Spark reads its history is not waited for longer."""

MOST_SWAPS: Final = 5
LOOK_SECONDS: Final = 0.02
_SHOWN: Final = 3


@dataclass(frozen=True, slots=True)
class Wanted:
    """Which keys of which stage. operators: all of the stage that have state."""

    stage: StagePlan
    operators: tuple[str, ...]
    keys: frozenset[Any]


@dataclass(frozen=True, slots=True)
class Swapped:
    """What was done. changed, same, added, removed: keys by what became of their state; unknown: those that had none,
    and have none. records: of the history. failed: records of it that were given up, and that the job has no letter of.
    """

    changed: int
    same: int
    added: int
    removed: int
    unknown: int
    records: int
    held_seconds: float
    failed: tuple[Letter, ...] = ()


@dataclass
class Course:
    """One backfill of one job, under a claim that others keep.

    say: told the phase, and how many records of the history are computed, of how many. shield: entered for what must
    not be broken off.
    """

    scripts: Scripts
    record: JobRecord
    claim: Claim
    wanted: Wanted
    recompute: Recompute
    wait_seconds: float
    say: Callable[[Phase, int, int], None]
    shield: Callable[[], AbstractContextManager[Any]] = nullcontext
    clock: Callable[[], float] = time.monotonic
    sleep: Callable[[float], None] = time.sleep
    is_swapped: bool = field(default=False, init=False)
    _records: int = field(default=0, init=False)
    _phase: Phase = field(default=Phase.RECOMPUTING, init=False)

    def __post_init__(self) -> None:
        self._stages = self.record.plan.up_to(self.wanted.stage.index)
        self._store = SwapStore(self.scripts, self.record, self._stages)

    def run(self) -> Swapped:
        """The state of the keys is what their history gives when this returns; else nothing is changed. Input flows.

        Raises NotQuiet when what the job has is not processed in time, LetterError, JobStateError, OperationLost,
        StoreError, and what `recompute` raises.
        """
        stand = self._store.stand()
        self._check(stand)
        given: Given = stand.senders
        computed = self._compute({}, given)
        for _ in range(MOST_ROUNDS):
            now = self._store.stand().senders
            if self._is_short(count_between(given, now), computed):
                break
            computed, given = self._compute(given, now), now
        self._phase = Phase.SWAPPING
        self.say(self._phase, self._records, self._records)
        started = self.clock()
        with self._held_back():
            for _ in range(MOST_SWAPS):
                stand = self._quiet()
                self._check_no_loss(given, stand.senders)
                if count_between(given, stand.senders):
                    computed, given = self._compute(given, stand.senders), stand.senders
                found = self._try_to_swap(stand, computed)
                if found is not None:
                    break
            else:
                raise NotQuiet(
                    f"the sources of job {self.record.job!r} were held back, and records came all the same",
                    hint="nothing is changed; who else pauses and unpauses them, or replays dead letters?",
                )
        return Swapped(*found[0], self._records, self.clock() - started, found[1])

    def _compute(self, before: Given, given: Given) -> Computed:
        records = count_between(before, given)
        self.say(self._phase, self._records, self._records + records)
        computed = self.recompute(given)
        self._records += records
        if computed.held or any(letter.holds for letter in computed.letters):
            raise LetterError(
                "records of the history fail and hold their keys, and what is behind them is not in their state",
                hint="nothing is changed; mend what fails, upgrade the job, and run it again",
            )
        return computed

    def _check_no_loss(self, computed: Given, now: Given) -> None:
        """Redis may have come back without its last writes: sources send those again, so they would count twice."""
        for source, records in lost_between(computed, now).items():
            raise JobStateError(
                f"job {self.record.job!r} counts {counted(records, 'record')} less of the source {source} than when"
                " their history was read: Redis came back without its last writes",
                hint="nothing is changed; give the command again",
            )

    def _is_short(self, records: int, computed: Computed) -> bool:
        pace = computed.records / computed.seconds if computed.seconds > 0 else 0.0
        return records <= max(SHORT_RECORDS, pace * SHORT_SECONDS)

    def _check(self, stand: Stand) -> None:
        if stand.is_over:
            raise over(self.record.job, self.wanted.stage)
        if stand.forgotten:
            source, records = next(iter(stand.forgotten.items()))
            raise JobStateError(
                f"job {self.record.job!r} has forgotten where {counted(records, 'record')} of the source {source} came"
                " from: their files went long ago",
                hint="their history cannot be read again, so the state of keys cannot be computed from it",
            )
        held = self._store.held_keys(self.wanted.stage, sorted(self.wanted.keys, key=repr))
        if held:
            raise LetterError(
                f"dead letters hold {len(held):,} of the keys: {', '.join(map(key_text, held[:_SHOWN]))}",
                hint=f"replay or drop them first: celeriac dead-letters list {self.record.job}",
            )

    def _quiet(self) -> Stand:
        """Where all of it stands with nothing in flight. Raises NotQuiet, JobStateError, StoreError."""
        jobs, until = JobStore(self.scripts), self.clock() + self.wait_seconds
        while True:
            if not self._store.is_in_flight():
                stand = self._store.stand()
                if stand.is_over:
                    raise over(self.record.job, self.wanted.stage)
                if stand.is_quiet:
                    return stand
            if self.clock() >= until:
                raise NotQuiet(f"not drained after {self.wait_seconds:g} s")
            state = jobs.state(self.record.job)
            if state is not JobState.RUNNING:
                raise JobStateError(f"job {self.record.job!r} is {state.value}", hint="nothing is changed")
            self.sleep(LOOK_SECONDS)

    @contextmanager
    def _held_back(self) -> Iterator[None]:
        """In the body no source of the stage gives anything new."""
        self._store.hold_back(self.claim)
        try:
            yield
        finally:
            # Else the leader lets them go when the claim has run out.
            with self.shield(), suppress(StoreError):
                self._store.let_go(self.claim)

    def _try_to_swap(
        self, stand: Stand, computed: Computed
    ) -> tuple[tuple[int, int, int, int, int], tuple[Letter, ...]] | None:
        """What it has changed, and what has failed; None when something has come meanwhile."""
        letters = list(LetterStore(self.scripts, self.record).read())
        indices = {stage.index for stage in self._stages}
        wrong = not_given_up(letters, computed.letters, indices, self.wanted.stage.index, self.wanted.keys)
        if wrong:
            ids = ", ".join(letter.id for letter in wrong[:_SHOWN]) + (", …" if len(wrong) > _SHOWN else "")
            raise LetterError(
                f"of the records that the recomputed state counts, {counted(len(wrong), 'dead letter')} would be"
                f" counted twice by a replay: {ids}",
                hint=f"nothing is changed; replay or drop them first: celeriac dead-letters list {self.record.job}",
            )
        self._check(stand)
        what, before = self.wanted, self._before()
        new = NewState(what.stage, what.operators, what.keys, computed.values, computed.timers)
        with self.shield():
            self.is_swapped = self._store.swap(self.claim, stand, new) == "swapped"
        if not self.is_swapped:
            return None
        own = [letter for letter in letters if letter.stage in indices]
        return _counts(what, before, computed.values), tuple(only_computed(own, computed.letters))

    def _before(self) -> dict[tuple[str, Any], bytes]:
        what = self.wanted
        rows = load_keys(
            self.scripts.client, self.record.job, what.stage.index, what.operators, sorted(what.keys, key=repr)
        )
        return {(operator, key): data for _, operator, key, data in rows}


def _counts(
    what: Wanted, before: Mapping[tuple[str, Any], bytes], values: Mapping[tuple[str, Any], Any]
) -> tuple[int, int, int, int, int]:
    """Keys whose state was changed, was so before, was added, was removed; and those without any."""
    changed = same = added = removed = unknown = 0
    for key in what.keys:
        old = {operator: before[operator, key] for operator in what.operators if (operator, key) in before}
        new = {
            operator: encode_value(values[operator, key]) for operator in what.operators if (operator, key) in values
        }
        if not old and not new:
            unknown += 1
        elif not old:
            added += 1
        elif not new:
            removed += 1
        elif old == new:
            same += 1
        else:
            changed += 1
    return changed, same, added, removed, unknown
