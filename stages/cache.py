"""The owner's cache of state: decoded, bounded in bytes, two generations. What is dropped is clean and loaded again.

Never writes: a commit does. After a refused commit the whole cache is dropped.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Any, Final

from pipeline.codec import decode_value, shown
from pipeline.errors import DecodingError, ForeignData
from pipeline.keying import group_of
from pipeline.store.foreign import HINT
from pipeline.store.ownership import LoadedState

_SMALL_BYTES: Final = 64
_ENTRY_BYTES: Final = 200 + _SMALL_BYTES
"""What a cached key costs, roughly: dict slots and objects, and a value of at most _SMALL_BYTES as it is encoded.

The sizes of small values are not looked at: to remember them for each key cost a tenth of a stage's time.
"""

Loader = Callable[[Iterable[Any]], LoadedState]
"""What is stored of these keys."""


class StateCache:
    """State of one partition: operator -> key -> value. `state` is what the kernel works on."""

    def __init__(self, operators: Sequence[str], budget_bytes: int) -> None:
        self.budget_bytes = budget_bytes
        self._operators = tuple(operators)
        self.clear()

    def clear(self) -> None:
        self.state: dict[str, dict[Any, Any]] = {operator: {} for operator in self._operators}
        self._old: dict[str, dict[Any, Any]] = {operator: {} for operator in self._operators}
        # Of the values that are not small: their bytes beyond that.
        self._excess: dict[str, dict[Any, int]] = {operator: {} for operator in self._operators}
        self._old_excess: dict[str, dict[Any, int]] = {operator: {} for operator in self._operators}
        self._excess_bytes = 0
        self._old_excess_bytes = 0
        # Key groups that were empty when they were first asked for. All that was stored in them since is here, so what
        # is not here is not there: a new key of theirs costs no round trip.
        self._whole: set[int] = set()

    @property
    def young_bytes(self) -> int:
        """Estimated size of the young generation; the old one was no larger than this may become."""
        return _ENTRY_BYTES * sum(map(len, self.state.values())) + self._excess_bytes

    @property
    def keys(self) -> int:
        """How many values it holds: one for each key and operator."""
        return sum(map(len, self.state.values())) + sum(map(len, self._old.values()))

    @property
    def size_bytes(self) -> int:
        """Estimated size of both generations."""
        return _ENTRY_BYTES * self.keys + self._excess_bytes + self._old_excess_bytes

    def prepare(self, keys: Collection[Any], load: Loader) -> None:
        """Makes `state` hold everything that is known of these keys."""
        if not self._operators:
            return
        if self.young_bytes > self.budget_bytes // 2:
            self._age()
        missing: dict[Any, None] = {}  # no set: what is loaded first must not hang on how texts are hashed
        for operator in self._operators:
            young, old = self.state[operator], self._old[operator]
            # Not `keys - young.keys()`: that walks through the whole cache.
            for key in [key for key in keys if key not in young]:
                if key in old:
                    young[key] = old.pop(key)
                    if excess := self._old_excess[operator].pop(key, 0):
                        self._old_excess_bytes -= excess
                        self._excess[operator][key] = excess
                        self._excess_bytes += excess
                else:
                    missing[key] = None
        unknown = [key for key in missing if group_of(key) not in self._whole] if self._whole else missing
        if unknown:
            loaded = load(unknown)
            self._whole |= loaded.empty
            self._take(loaded.rows)

    def note_sizes(self, operator: str, keys: Sequence[Any], sizes: Sequence[int]) -> None:
        """The encoded sizes of values that were just written."""
        known = self._excess[operator]
        if not known and max(sizes, default=0) <= _SMALL_BYTES:
            return
        for key, size in zip(keys, sizes, strict=True):
            self._excess_bytes -= known.pop(key, 0)
            if size > _SMALL_BYTES:
                known[key] = size - _SMALL_BYTES
                self._excess_bytes += size - _SMALL_BYTES

    def note_gone(self, operator: str, keys: Iterable[Any]) -> None:
        """Values that were just deleted."""
        known = self._excess[operator]
        if known:
            self._excess_bytes -= sum(known.pop(key, 0) for key in keys)

    def _take(self, loaded: dict[str, list[tuple[Any, bytes | None]]]) -> None:
        for operator, rows in loaded.items():
            young = self.state[operator]
            fresh = {key: data for key, data in rows if data is not None and key not in young}
            for key, data in fresh.items():
                try:
                    young[key] = decode_value(data)
                except DecodingError as error:
                    raise ForeignData(
                        f"the state of the key {shown(key, 100)} in {operator!r} is none of ours: {error}", HINT
                    ) from error
            self.note_sizes(operator, list(fresh), list(map(len, fresh.values())))

    def _age(self) -> None:
        if any(self._old.values()):
            self._whole.clear()
        self._old, self._old_excess, self._old_excess_bytes = self.state, self._excess, self._excess_bytes
        self.state = {operator: {} for operator in self._operators}
        self._excess = {operator: {} for operator in self._operators}
        self._excess_bytes = 0
