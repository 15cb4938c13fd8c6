"""One step of a partition: a batch or due timers through the kernel, errors isolated by record, all of it encoded.

Sends nothing: what it returns goes into a commit.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final

from pipeline.codec import decode_value, encode_batch, encode_value
from pipeline.errors import EncodingError
from pipeline.kernel.chain import concatenate
from pipeline.kernel.contract import Step
from pipeline.kernel.faults import OperatorError
from pipeline.kernel.stage import StageKernel
from pipeline.records import Batch, Timer
from pipeline.store.commits import Counts, Output, Target, Write
from stages.apart import apart_of, picked
from stages.cache import Loader, StateCache
from stages.encoding import StepEncoder
from stages.failures import Failure, Failures
from stages.letters import Letters
from stages.staging import StagedSinks

logger = logging.getLogger(__name__)

_PIECE_GROWTH: Final = 4
_LARGEST_PIECE: Final = 512
"""Timers are fired in pieces that grow: whether user code is slow shows at the first ones."""


@dataclass(slots=True)
class Outcome:
    """What a commit must hold for one step."""

    counts: Counts = field(default_factory=Counts)
    writes: list[Write] = field(default_factory=list)
    outputs: dict[Target, list[Output]] = field(default_factory=dict)
    sunk: dict[str, int] = field(default_factory=dict)
    """Sink that is no stream -> records that it was given."""
    fired: int = 0
    """How many of the timers it was given."""
    skipped: int = 0
    """Records that failed and were dropped."""
    given_up: set[Any] = field(default_factory=set)
    """Keys that are held from now on, since a record of theirs was given up."""
    held: dict[Any, Batch] = field(default_factory=dict)
    """Records that were not run, by key: they come behind all that is held of it."""
    is_before_failure: bool = False
    """The next record has failed, and is to be a step of its own."""


@dataclass(frozen=True, slots=True)
class Bounds:
    """After each `records` a step looks whether it `is_over`, or has emitted `outputs`: it then ends where it is.

    With `is_whole` it looks only when its records are tried one by one, after a failure.
    """

    records: int
    is_over: Callable[[], bool]
    is_whole: bool = False
    outputs: int = sys.maxsize


class Stepper:
    """Runs the steps of one owned partition. Each begins when the one before it has been committed."""

    def __init__(
        self,
        kernel: StageKernel,
        encoder: StepEncoder,
        cache: StateCache,
        sinks: StagedSinks,
        load: Loader,
        letters: Letters,
        failures: Failures,
    ) -> None:
        self._kernel = kernel
        self._encoder = encoder
        self._cache = cache
        self._sinks = sinks
        self._load = load
        self._letters = letters
        self._failures = failures

    def renew(self, encoder: StepEncoder) -> None:
        """The plan has changed: outputs go elsewhere."""
        self._encoder = encoder

    def run(self, batch: Batch, bounds: Bounds, again: Callable[[], Batch], held: Collection[Any] = ()) -> Outcome:
        """The records of the batch: applied, given up, or held where their key is. `held`: the keys that are by now.

        Raises TryAgain, RecordFailed, SinkError, StoreError.
        When user code takes too long, only the first records: `counts.taken` says how many, one at least. Where sinks
        have effects, a record that is given up is a step of its own: it might not fail when it is run again after a
        crash, and the effects of the others would stand by then.
        `again` decodes the batch anew, since a function that failed may have changed its values.
        """
        if batch.faults and self._sinks.has_effects:
            batch = batch.slice(0, min(batch.faults) or 1)
        outcome, done, whole = Outcome(), 0, len(batch)
        apart = apart_of(batch, held)
        good = apart.others(batch)
        if good.values:
            try:
                self._cache.prepare(self._keys(good), self._load)
                step, done = self._process(good, bounds)
                self._encode(step, outcome)
            except (OperatorError, EncodingError) as error:
                if len(good) > 1:
                    logger.info("a batch of %d records failed, each is now tried alone: %s", len(good), error)
                    done = self._run_each(apart.others(again().slice(0, whole)), bounds, outcome)
                else:
                    self._start_again(())
                    alone = apart.others(again().slice(0, whole))
                    self._settle((error, encode_batch(alone)), outcome, alone)
                    done = 1
        taken = whole if done == len(good) else apart.places(batch)[done]
        outcome.counts.taken = taken
        outcome.held.update(apart.held(batch, taken))
        self._give_up_faults(batch, taken, outcome)
        return outcome

    def _process(self, batch: Batch, bounds: Bounds) -> tuple[Step, int]:
        """One call for it all, or several that look at the clock in between; and how many records it was."""
        if bounds.is_whole or len(batch) <= bounds.records:
            return self._kernel.process(batch, self._cache.state), len(batch)
        gathered, done = _Gathered(), 0
        while done < len(batch):
            piece = batch.slice(done, done + bounds.records)
            gathered.add(self._kernel.process(piece, self._cache.state))
            done += len(piece)
            if bounds.is_over() or gathered.emitted >= bounds.outputs:
                break
        return gathered.step(), done

    def fire(self, timers: Sequence[Timer], bounds: Bounds) -> Outcome:
        """Fires due timers, in their order; the first of them, as `run` does, when user code takes too long.

        One whose operator fails is given up. Raises as `run` does.
        """
        outcome = Outcome()
        try:
            self._cache.prepare(dict.fromkeys(timer.key for timer in timers), self._load)
            step, outcome.fired = self._fire_pieces(timers, bounds)
            self._encode(step, outcome)
        except (OperatorError, EncodingError) as error:
            logger.info("%d timers failed, each is now fired alone: %s", len(timers), error)
            self._fire_each(timers, outcome)
        return outcome

    def _fire_pieces(self, timers: Sequence[Timer], bounds: Bounds) -> tuple[Step, int]:
        """All at once, or in pieces; and how many timers it was.

        The pieces are the same whenever the same timers are fired: what has effects must fire again as it did.
        """
        if bounds.is_whole:
            return self._kernel.fire(timers, self._cache.state), len(timers)
        rank = {operator: place for place, operator in enumerate(self._kernel.keyed_operators)}
        gathered, done, size = _Gathered(), 0, 1
        while done < len(timers) and not gathered.has_set_before(timers[done], rank):
            piece = [timer for timer in timers[done : done + size] if gathered.timers.get(timer) is not False]
            if piece:
                gathered.add(self._kernel.fire(piece, self._cache.state))
            done = min(len(timers), done + size)
            size = min(_LARGEST_PIECE, _PIECE_GROWTH * size)
            if bounds.is_over() or gathered.emitted >= bounds.outputs:
                break
        return gathered.step(), done

    def give_up(self, batch: Batch, error: str, held: Collection[Any] = ()) -> Outcome:
        """The record of a batch of one, or of none, becomes a dead letter without being run, unless its key is held."""
        outcome = Outcome(Counts(taken=len(batch)))
        apart = apart_of(batch, held)
        outcome.held = apart.held(batch, len(batch))
        for index in apart.places(batch):
            one = batch.slice(index, index + 1)
            self._settled(self._letters.write("", error, "", encode_batch(one)), outcome, one)
        return outcome

    def give_up_timer(self, timer: Timer, error: str) -> Outcome:
        """The timer becomes a dead letter without being fired."""
        letter = self._letters.write(timer.operator, error, "", encode_batch(_timer_record(timer)), kind="timer")
        cleared = self._encoder.timers(Step({}, {}, [], [timer], 0))
        return Outcome(Counts(dead=1), [letter, *cleared])

    def give_up_payload(self, payload: bytes, count: int, error: str) -> Outcome:
        """An entry that cannot be read becomes one dead letter."""
        write = self._letters.write("", error, "", payload, kind="entry")
        return Outcome(Counts(taken=count, dead=count), [write])

    def _give_up_faults(self, batch: Batch, taken: int, outcome: Outcome) -> None:
        for index, why in sorted(batch.faults.items()):
            if index < taken:
                self._settled(self._failures.settle_fault(why, encode_batch(Batch([batch.values[index]]))), outcome)

    def _keys(self, batch: Batch) -> Collection[Any]:
        """The keys whose state is wanted. A source may give its records what cannot be a key."""
        return dict.fromkeys(batch.keys) if self._kernel.keyed_operators and batch.keys is not None else ()

    def _encode(self, step: Step, outcome: Outcome) -> None:
        outputs = self._encoder.outputs(step)
        writes = self._encoder.state(step, self._cache) + self._encoder.timers(step)
        writes += self._sinks.write(step)
        outcome.outputs = outputs
        outcome.writes += writes
        outcome.counts.emitted += sum(len(batch) for batch in step.outputs.values())
        outcome.sunk = {sink: len(step.outputs[sink]) for sink in self._sinks.names if sink in step.outputs}
        outcome.counts.filtered += step.filtered

    def _run_each(self, batch: Batch, bounds: Bounds, outcome: Outcome) -> int:
        """Each record by itself on the state that was stored; what fails leaves no trace but a dead letter.

        How many records it was.
        """
        self._start_again(self._keys(batch))
        gathered, done = _Gathered(), 0
        behind: dict[Any, list[int]] = {}
        for index in range(len(batch)):
            if outcome.given_up and batch.keys is not None and batch.keys[index] in outcome.given_up:
                behind.setdefault(batch.keys[index], []).append(index)
                done = index + 1
                continue
            piece = batch.slice(index, index + 1)
            failure = self._try(piece, partial(self._kernel.process, piece, self._cache.state), gathered)
            is_alone = failure is not None and self._isolates
            if is_alone and index:
                outcome.is_before_failure = True
                break
            self._settle(failure, outcome, piece)
            done = index + 1
            is_over = done >= bounds.records and bounds.is_over()
            if is_alone or is_over or gathered.emitted >= bounds.outputs:
                break
        outcome.held = {key: picked(batch, places) for key, places in behind.items()}
        self._encode(gathered.step(), outcome)
        return done

    def _fire_each(self, timers: Sequence[Timer], outcome: Outcome) -> None:
        """Each timer by itself, in their order, up to one that a timer set meanwhile must precede."""
        self._start_again(dict.fromkeys(timer.key for timer in timers))
        rank = {operator: place for place, operator in enumerate(self._kernel.keyed_operators)}
        gathered = _Gathered()
        outcome.fired = 0
        for index, timer in enumerate(timers):
            if gathered.timers.get(timer) is False:
                continue
            if gathered.has_set_before(timer, rank):
                break
            run = partial(self._kernel.fire, [timer], self._cache.state)
            failure = self._try(_timer_record(timer), run, gathered)
            is_alone = failure is not None and self._isolates
            if is_alone and outcome.fired:
                break
            self._settle(failure, outcome, kind="timer")
            # What the timer itself has set anew stays set.
            gathered.timers.setdefault(timer, False)
            outcome.fired = index + 1
            if is_alone:
                break
        self._encode(gathered.step(), outcome)

    def _start_again(self, wanted: Collection[Any]) -> None:
        self._cache.clear()
        self._sinks.take_back()
        self._cache.prepare(wanted, self._load)

    @property
    def _isolates(self) -> bool:
        """Whether a record that fails is a step of its own."""
        return self._sinks.has_effects or self._failures.isolates

    def _settle(
        self,
        failed: tuple[Failure, bytes] | None,
        outcome: Outcome,
        record: Batch | None = None,
        kind: str = "record",
    ) -> None:
        if failed is not None:
            self._settled(self._failures.settle(*failed, kind), outcome, record)

    def _settled(self, letter: Write | None, outcome: Outcome, record: Batch | None = None) -> None:
        """`letter` is that of a record that was given up, or None for one that was skipped.

        A `record` of a key is what the key is held for, where the policy says so.
        """
        if letter is not None and record is not None and record.keys is not None and self._failures.policy.holds_keys:
            outcome.given_up.update(record.keys)
        if letter is None:
            outcome.skipped += 1
        else:
            outcome.counts.dead += 1
            outcome.writes.append(letter)

    def _try(self, record: Batch, run: Callable[[], Step], gathered: _Gathered) -> tuple[Failure, bytes] | None:
        """Why the record failed, and what it was."""
        before, payload = self._snapshot(record), encode_batch(record)
        try:
            step = run()
            self._check(step)
        except (OperatorError, EncodingError) as error:
            self._restore(before)
            return error, payload
        gathered.add(step)
        return None

    def _check(self, step: Step) -> None:
        self._encoder.outputs(step)
        self._encoder.state(step, self._cache)
        self._sinks.check(step)

    def _snapshot(self, record: Batch) -> list[tuple[str, Any, bytes | None]]:
        held = self._cache.state
        return [
            (operator, key, encode_value(held[operator][key]) if key in held[operator] else None)
            for operator in self._kernel.keyed_operators
            for key in record.keys or ()
        ]

    def _restore(self, before: list[tuple[str, Any, bytes | None]]) -> None:
        for operator, key, data in before:
            if data is None:
                self._cache.state[operator].pop(key, None)
            else:
                self._cache.state[operator][key] = decode_value(data)


@dataclass(slots=True)
class _Gathered:
    """What records that are run one by one give together. `timers` says for each timer whether it is set at last."""

    outputs: dict[str, list[Batch]] = field(default_factory=dict)
    changed: dict[str, set[Any]] = field(default_factory=dict)
    timers: dict[Timer, bool] = field(default_factory=dict)
    filtered: int = 0
    emitted: int = 0

    def add(self, step: Step) -> None:
        for edge, batch in step.outputs.items():
            self.outputs.setdefault(edge, []).append(batch)
            self.emitted += len(batch)
        for operator, changed in step.changed.items():
            self.changed.setdefault(operator, set()).update(changed)
        self.timers.update(dict.fromkeys(step.timers_cleared, False))
        self.timers.update(dict.fromkeys(step.timers_set, True))
        self.filtered += step.filtered

    def has_set_before(self, timer: Timer, rank: dict[str, int]) -> bool:
        at = (timer.due, rank.get(timer.operator, 0))
        return any(is_set and (other.due, rank[other.operator]) < at for other, is_set in self.timers.items())

    def step(self) -> Step:
        return Step(
            {edge: concatenate(batches) for edge, batches in self.outputs.items()},
            self.changed,
            [timer for timer, is_set in self.timers.items() if is_set],
            [timer for timer, is_set in self.timers.items() if not is_set],
            self.filtered,
        )


def _timer_record(timer: Timer) -> Batch:
    """A timer as a record, for its dead letter: the due time, of a key; the id is the operator's name."""
    return Batch([timer.due], [timer.key], None, [timer.operator])
