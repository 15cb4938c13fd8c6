"""One step of a partition: a batch or due timers through the kernel, errors isolated by record, all of it encoded.

Sends nothing: what it returns goes into a commit.
"""

from __future__ import annotations

import logging
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from pipeline.codec import decode_value, encode_batch, encode_value
from pipeline.errors import EncodingError
from pipeline.kernel.chain import concatenate
from pipeline.kernel.contract import Step
from pipeline.kernel.faults import OperatorError
from pipeline.kernel.stage import StageKernel
from pipeline.records import Batch, Timer
from pipeline.store import keys
from pipeline.store.commits import Counts, Output, Target, Write
from stages.cache import Loader, StateCache
from stages.encoding import StepEncoder
from stages.staging import StagedSinks

logger = logging.getLogger(__name__)

_TRACEBACK_CHARACTERS: Final = 8000


@dataclass(slots=True)
class Outcome:
    """What a commit must hold for one step."""

    counts: Counts = field(default_factory=Counts)
    writes: list[Write] = field(default_factory=list)
    outputs: dict[Target, list[Output]] = field(default_factory=dict)


class Stepper:
    """Runs the steps of one owned partition."""

    def __init__(
        self,
        kernel: StageKernel,
        encoder: StepEncoder,
        cache: StateCache,
        sinks: StagedSinks,
        load: Loader,
        letters: Letters,
    ) -> None:
        self._kernel = kernel
        self._encoder = encoder
        self._cache = cache
        self._sinks = sinks
        self._load = load
        self._letters = letters

    def run(self, batch: Batch) -> Outcome:
        """All records of the batch: applied, or given up as dead letters. Raises SinkError, StoreError."""
        outcome = Outcome(Counts(taken=len(batch)))
        if batch.faults:
            batch = self._take_faults(batch, outcome)
        if not batch.values:
            return outcome
        try:
            self._cache.prepare(_keys(batch), self._load)
            step = self._kernel.process(batch, self._cache.state)
            self._encode(step, outcome)
        except (OperatorError, EncodingError) as error:
            logger.info("a batch of %d records failed, each is now tried alone: %s", len(batch), error)
            pieces = [batch.slice(i, i + 1) for i in range(len(batch))]
            self._alone(pieces, _keys(batch), self._process_one, Step({}, {}, [], [], 0), outcome)
        return outcome

    def fire(self, timers: Sequence[Timer]) -> Outcome:
        """Fires due timers. One whose operator fails is given up as a dead letter. Raises SinkError, StoreError."""
        outcome = Outcome()
        wanted = {timer.key for timer in timers}
        try:
            self._cache.prepare(wanted, self._load)
            self._encode(self._kernel.fire(timers, self._cache.state), outcome)
        except (OperatorError, EncodingError) as error:
            logger.info("%d timers failed, each is now fired alone: %s", len(timers), error)
            pieces = [Batch([timer.due], [timer.key], None, [timer.operator]) for timer in timers]
            self._alone(pieces, wanted, self._fire_one, Step({}, {}, [], list(timers), 0), outcome)
        return outcome

    def give_up(self, batch: Batch, error: str) -> Outcome:
        """The records become dead letters without being run."""
        outcome = Outcome(Counts(taken=len(batch), dead=len(batch)))
        for index in range(len(batch)):
            outcome.writes.append(self._letters.write("", error, "", encode_batch(batch.slice(index, index + 1))))
        return outcome

    def give_up_payload(self, payload: bytes, count: int, error: str) -> Outcome:
        """An entry that cannot be read becomes one dead letter."""
        write = self._letters.write("", error, "", payload)
        return Outcome(Counts(taken=count, dead=count), [write])

    def _take_faults(self, batch: Batch, outcome: Outcome) -> Batch:
        good = [i for i in range(len(batch)) if i not in batch.faults]
        for index, why in sorted(batch.faults.items()):
            payload = encode_batch(Batch([batch.values[index]]))
            outcome.writes.append(self._letters.write("", why, "", payload))
        outcome.counts.dead += len(batch.faults)
        return Batch(
            [batch.values[i] for i in good],
            None if batch.keys is None else [batch.keys[i] for i in good],
            None if batch.times is None else [batch.times[i] for i in good],
            None if batch.ids is None else [batch.ids[i] for i in good],
        )

    def _encode(self, step: Step, outcome: Outcome) -> None:
        outputs = self._encoder.outputs(step)
        writes = self._encoder.state(step, self._cache) + self._encoder.timers(step)
        writes += self._sinks.write(step)
        outcome.outputs = outputs
        outcome.writes += writes
        outcome.counts.emitted += sum(len(batch) for batch in step.outputs.values())
        outcome.counts.filtered += step.filtered

    def _alone(
        self, pieces: list[Batch], wanted: set[Any], run: Callable[[Batch], Step], whole: Step, outcome: Outcome
    ) -> None:
        """Each piece by itself on the state that was stored; what fails leaves no trace but a dead letter.

        What the others give is gathered in `whole`.
        """
        self._cache.clear()
        self._sinks.start_over()
        self._cache.prepare(wanted, self._load)
        for piece in pieces:
            before = self._snapshot(piece)
            try:
                step = run(piece)
                self._check(step)
            except (OperatorError, EncodingError) as error:
                self._restore(before)
                outcome.counts.dead += 1
                outcome.writes.append(self._letters.of(error, piece))
                continue
            _merge(whole, step)
        self._encode(whole, outcome)

    def _process_one(self, piece: Batch) -> Step:
        return self._kernel.process(piece, self._cache.state)

    def _fire_one(self, piece: Batch) -> Step:
        assert piece.keys is not None
        assert piece.ids is not None
        return self._kernel.fire([Timer(piece.ids[0], piece.keys[0], piece.values[0])], self._cache.state)

    def _check(self, step: Step) -> None:
        self._encoder.outputs(step)
        self._encoder.state(step, self._cache)
        self._sinks.check(step)

    def _snapshot(self, piece: Batch) -> list[tuple[str, Any, bytes | None]]:
        held = self._cache.state
        return [
            (operator, key, encode_value(held[operator][key]) if key in held[operator] else None)
            for operator in self._kernel.keyed_operators
            for key in piece.keys or ()
        ]

    def _restore(self, before: list[tuple[str, Any, bytes | None]]) -> None:
        for operator, key, data in before:
            if data is None:
                self._cache.state[operator].pop(key, None)
            else:
                self._cache.state[operator][key] = decode_value(data)


class Letters:
    """Writes dead letters of one partition."""

    def __init__(self, job: str, stage: int, partition: int) -> None:
        self._key = keys.dead(job)
        self._place = ["stage", stage, "partition", partition]

    def write(self, operator: str, error: str, trace: str, payload: bytes) -> Write:
        values = [*self._place, "operator", operator, "error", error, "traceback", trace, "payload", payload]
        return Write("XADD", self._key, values)

    def of(self, error: OperatorError | EncodingError, piece: Batch) -> Write:
        """The dead letter of a record that failed."""
        if isinstance(error, EncodingError):
            return self.write("", str(error), "", encode_batch(piece))
        cause = error.cause
        trace = "".join(traceback.format_exception(cause))[-_TRACEBACK_CHARACTERS:]
        shown = f"{type(cause).__name__}: {cause}"
        logger.warning("a record is a dead letter: operator=%s error=%s", error.operator, shown[:200])
        return self.write(error.operator, shown, trace, encode_batch(piece))


def _keys(batch: Batch) -> set[Any]:
    return set(batch.keys) if batch.keys is not None else set()


def _merge(whole: Step, step: Step) -> None:
    for edge, batch in step.outputs.items():
        held = whole.outputs.get(edge)
        whole.outputs[edge] = concatenate([held, batch]) if held is not None else batch
    for operator, changed in step.changed.items():
        whole.changed.setdefault(operator, set()).update(changed)
    cleared, fresh = set(step.timers_cleared), set(step.timers_set)
    whole.timers_set = [timer for timer in whole.timers_set if timer not in cleared | fresh] + step.timers_set
    again = [timer for timer in whole.timers_cleared if timer not in cleared | fresh]
    whole.timers_cleared = again + step.timers_cleared
    whole.filtered += step.filtered
