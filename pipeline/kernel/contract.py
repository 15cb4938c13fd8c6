"""What a stateful operator is, and what one step of a stage takes and gives."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from pipeline.records import Batch, Timer

Runner: TypeAlias = Callable[[Batch], Batch]
"""Runs a carried operator over a batch: its outputs, in order. The carriers have them, since the kernel is pure.
Raises ProgramError, EncodingError or OperatorError for what a record may be the reason of; anything else ends the step.
"""


@dataclass(slots=True)
class Emitted:
    """Outputs of one call of a keyed operator, in order.

    values: the output values.
    origins: for each output the index of the input record it comes from (its key and event time are taken
        over), or None when output i comes from input i and there are as many.
    """

    values: list[Any]
    origins: list[int] | None = None


@dataclass(slots=True)
class TimerChanges:
    """Collects the timers that an operator sets and clears in one step. The last word on a timer holds."""

    operator: str
    changes: dict[tuple[Any, int], bool] = field(default_factory=dict)

    def set(self, key: Any, due: int) -> None:
        self.changes[(key, due)] = True

    def clear(self, key: Any, due: int) -> None:
        self.changes[(key, due)] = False


class KeyedOperator(ABC):
    """One stateful transformation. An instance holds settings only: all state is in `state`.

    `state` maps key -> the operator's value for it; a key without state is absent. The operator may change it in
    place, replace or delete entries, for keys of the batch only. Values must be encodable (see `pipeline.codec`).
    """

    def aggregates(self) -> str | dict[str, str] | None:
        """How whoever reads the state shows it: see `pipeline.plan.StatePlan`. None: as it is."""
        return None

    @abstractmethod
    def process(self, keys: list[Any], values: list[Any], state: dict[Any, Any], timers: TimerChanges) -> Emitted:
        """Handles the records in order. May raise anything that the user's function raises."""

    def on_timer(
        self, keys: Sequence[Any], dues: Sequence[int], state: dict[Any, Any], timers: TimerChanges
    ) -> Emitted:
        """Handles timers that are due, in due order; `origins` index into `keys`. Each has been cleared already."""
        raise TypeError(f"{type(self).__name__} sets no timers, yet one fired")


@dataclass(slots=True)
class Step:
    """What one step of a stage gives: everything that must be committed together.

    outputs: edge name -> batch. An edge is the name of a KeyBy node (an exchange) or of a Sink node.
    changed: operator name -> the keys whose state must be written (absent from the state: deleted).
    timers_set, timers_cleared: timers to add to and take from the index.
    filtered: records that a filter dropped.
    """

    outputs: dict[str, Batch]
    changed: dict[str, set[Any]]
    timers_set: list[Timer]
    timers_cleared: list[Timer]
    filtered: int
