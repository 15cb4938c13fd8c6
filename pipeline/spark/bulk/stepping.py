"""Batches and timers through the kernel of one task, errors isolated by record. Pure but for the pauses of a retry.

The state is a dict that lives as long as the task. What a step may change is noted before it, so that a step which
failed leaves no trace, and its records are then tried one by one: as in the live engine, where Redis has the state.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import repeat, zip_longest
from typing import Any, Final, TypeAlias

from pipeline.codec import decode_batch, decode_value, encode_batch, encode_value, shown
from pipeline.errors import EncodingError, RecordFailed
from pipeline.kernel.contract import Step
from pipeline.kernel.faults import OperatorError
from pipeline.kernel.stage import StageKernel, State
from pipeline.policies import ErrorPolicy
from pipeline.records import MAX_TIME, Batch, Timer
from pipeline.spark.bulk.letters import Failure, Letter, described, letter_of
from pipeline.spark.bulk.output import BulkEncoder, Encoded
from pipeline.spark.bulk.timers import OpenTimers

_Before: TypeAlias = list[tuple[str, list[Any], list[Any] | bytes]]
"""For each operator keys, and their states, encoded or not. Those that have none are `_ABSENT`, or last."""

_ABSENT: Final = object()
_UNCHANGING: Final = frozenset({int, float, str, bytes, bool, type(None), type(_ABSENT)})
"""Types of states that nobody can change in place, so that none of them must be copied."""

_KEY_CHARACTERS = 200


@dataclass(slots=True)
class Outcome:
    """What one call gives: `parts` in order; the records that were given up, dropped, or held behind their key."""

    parts: list[Encoded] = field(default_factory=list)
    letters: list[Letter] = field(default_factory=list)
    held: list[bytes] = field(default_factory=list)
    skipped: int = 0


class BulkStepper:
    """Runs one task's share of a stage. `place`: (stage, partition), for dead letters."""

    def __init__(
        self,
        kernel: StageKernel,
        encoder: BulkEncoder,
        policy: ErrorPolicy,
        place: tuple[int, int],
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self.state: State = {operator: {} for operator in kernel.keyed_operators}
        self.timers = OpenTimers(kernel.keyed_operators)
        self.held_keys: set[Any] = set()
        self._kernel = kernel
        self._encoder = encoder
        self._policy = policy
        self._place = place
        self._sleep = sleep
        self._rng = random.Random(f"{place}")

    def run(self, batch: Batch, again: Callable[[], Batch]) -> Outcome:
        """All records of the batch: applied, given up, dropped, or held. `again` makes the batch anew.

        Raises RecordFailed where a record that fails is to fail the run.
        """
        outcome = Outcome()
        places = self._runnable(batch, outcome)
        good = batch if places is None else batch.at(places)
        if not good.values:
            return outcome
        before = self._note(good.keys)
        try:
            outcome.parts.append(self._apply(self._kernel.process(good, self.state)))
            return outcome
        except (OperatorError, EncodingError):
            self._restore(before)
        fresh = again()
        self._run_each(fresh if places is None else fresh.at(places), outcome)
        return outcome

    def fire(self, most: int) -> Outcome:
        """Fires some of the open timers, the first ones in due order; nothing when none is open."""
        outcome = Outcome()
        timers = self.timers.take(most)
        before = self._note([timer.key for timer in timers])
        try:
            outcome.parts.append(self._apply(self._kernel.fire(timers, self.state), timers))
            return outcome
        except (OperatorError, EncodingError):
            self._restore(before)
        self._fire_first(timers, outcome)
        return outcome

    def end(self, operator: str, keys: list[Any], values: Callable[[], list[Any]]) -> Outcome:
        """What follows when the operator emits these at the end of input. `values` makes them, and makes them anew.

        Where that fails they are its state, and their timers are set, so that each fails by itself when it fires.
        """
        outcome = Outcome()
        before = self._note(keys)
        try:
            outcome.parts.append(self._apply(self._kernel.emit(operator, Batch(values(), keys), self.state)))
            return outcome
        except (OperatorError, EncodingError):
            self._restore(before)
        self.state[operator].update(zip(keys, values(), strict=True))
        self.timers.add(Timer(operator, key, MAX_TIME) for key in keys)
        return outcome

    def _runnable(self, batch: Batch, outcome: Outcome) -> list[int] | None:
        """The places of the records that are run, or None for all; the others are settled."""
        has_held = bool(self.held_keys) and batch.keys is not None and not self.held_keys.isdisjoint(batch.keys)
        if not batch.faults and not has_held:
            return None
        places = []
        for index in range(len(batch)):
            if index in batch.faults:
                self._settle_fault(batch.faults[index], batch.values[index], outcome)
            elif has_held and batch.keys is not None and batch.keys[index] in self.held_keys:
                outcome.held.append(encode_batch(batch.slice(index, index + 1)))
            else:
                places.append(index)
        return places

    def _apply(self, step: Step, given: Sequence[Timer] = ()) -> Encoded:
        """The step as rows, once all of it can be stored; its timers count from then on."""
        encoded = self._encoder.encode(step, self.state)
        self.timers.change(step, given)
        return encoded

    def _run_each(self, batch: Batch, outcome: Outcome) -> None:
        for index in range(len(batch)):
            one = batch.slice(index, index + 1)
            payload = encode_batch(one)
            if one.keys is not None and one.keys[0] in self.held_keys:
                outcome.held.append(payload)
                continue
            failure, tried = self._try(one.keys, lambda data=payload: self._process(data), outcome)  # type: ignore[misc]
            if failure is not None:
                self._settle(failure, payload, tried, outcome)

    def _process(self, payload: bytes) -> Encoded:
        return self._apply(self._kernel.process(decode_batch(payload), self.state))

    def _fire_first(self, timers: Sequence[Timer], outcome: Outcome) -> None:
        """The first by itself. The others come next: it may have set one that precedes them."""
        first, rest = timers[0], timers[1:]
        self.timers.add(rest)
        run = lambda: self._apply(self._kernel.fire([first], self.state), [first])  # noqa: E731
        failure, tried = self._try([first.key], run, outcome)
        if failure is not None:
            record = encode_batch(Batch([first.due], [first.key], None, [first.operator]))
            self._settle(failure, record, tried, outcome, kind="timer")

    def _try(
        self, keys: Collection[Any] | None, run: Callable[[], Encoded], outcome: Outcome
    ) -> tuple[Failure | None, list[str]]:
        """Runs it as often as the policy says. Why it failed at last, or None; and how the attempts before failed."""
        before, tried = self._note(keys), list[str]()
        while True:
            try:
                outcome.parts.append(run())
                return None, tried
            except (OperatorError, EncodingError) as error:
                self._restore(before)
                attempt = len(tried) + 1
                if attempt >= self._policy.attempts:
                    return error, tried
                tried.append(f"{int(time.time() * 1000)} {attempt} {described(error)}")
                self._sleep(self._policy.pause_seconds(attempt, self._rng))

    def _settle(
        self, failure: Failure, payload: bytes, tried: list[str], outcome: Outcome, kind: str = "record"
    ) -> None:
        match self._policy.then:
            case "skip":
                outcome.skipped += 1
            case "fail":
                how_often = f", tried {len(tried) + 1} times" if tried else ""
                keys = decode_batch(payload).keys
                key = f" (key {shown(keys[0], _KEY_CHARACTERS)})" if keys else ""
                raise RecordFailed(
                    f"{failure}{key}{how_often}",
                    hint="on_error says that this fails the job: correct the function, then run the job again",
                ) from failure
            case _:
                holds = self._policy.holds_keys and kind == "record"
                letter = letter_of(failure, self._place, payload, kind, tried, holds=holds)
                outcome.letters.append(letter)
                if holds:
                    self.held_keys.update(letter.record().keys or ())

    def _settle_fault(self, why: str, value: Any, outcome: Outcome) -> None:
        """A record that its source could not read: trying again is of no use."""
        match self._policy.then:
            case "skip":
                outcome.skipped += 1
            case "fail":
                raise RecordFailed(
                    f"a record cannot be read: {why}", hint="on_error says that this fails the job: correct the input"
                )
            case _:
                outcome.letters.append(letter_of(why, self._place, encode_batch(Batch([value]))))

    def _note(self, keys: Collection[Any] | None) -> _Before:
        """Each operator's state of the keys; as bytes where it could be changed in place."""
        if not self.state or keys is None:
            return []
        wanted = list(dict.fromkeys(keys))
        before: _Before = []
        for operator, held in self.state.items():
            values = list(map(held.get, wanted, repeat(_ABSENT)))
            if set(map(type, values)) <= _UNCHANGING:
                before.append((operator, wanted, values))
            else:
                present = [key for key in wanted if key in held]
                absent = [key for key in wanted if key not in held] if len(present) < len(wanted) else []
                before.append((operator, present + absent, encode_value([held[key] for key in present])))
        return before

    def _restore(self, before: _Before) -> None:
        for operator, keys, noted in before:
            values = decode_value(noted) if isinstance(noted, bytes) else noted
            held = self.state[operator]
            for key, value in zip_longest(keys, values, fillvalue=_ABSENT):
                if value is _ABSENT:
                    held.pop(key, None)
                else:
                    held[key] = value


def state_rows(state: dict[Any, Any], most: int = 2000) -> Iterator[Batch]:
    """Keys and their state, as batches."""
    keys = list(state)
    for at in range(0, len(keys), most):
        part = keys[at : at + most]
        yield Batch([state[key] for key in part], part)
