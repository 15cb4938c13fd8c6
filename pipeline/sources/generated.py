"""A source whose records a user's function makes, each with the position from which to go on behind it."""

from __future__ import annotations

import queue
import threading
import traceback
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

from pipeline.errors import CeleriacError, PipelineError, SourceAway
from pipeline.records import Batch
from pipeline.sources.endless import After, Portion, nothing
from pipeline.sources.feed import BATCH_RECORDS

GENERATOR_SPLIT: Final = "generator"
"""The one split of such a source."""

_AHEAD: Final = 1_000
"""Values that are made before those in front of them are taken."""

_FIRST_SECONDS: Final = 0.02
"""What the first value is waited for: polling would make it later."""

Made: TypeAlias = Callable[[Any], Iterable[tuple[Any, Any]]]


@dataclass(frozen=True, slots=True)
class _End:
    """Nothing more comes: `error` is why, or None where the function has ended."""

    error: CeleriacError | None


class Generated:
    """A `pipeline.sources.endless.Source` and its one split. Without `poll_seconds` it ends when the function does."""

    name = GENERATOR_SPLIT

    def __init__(self, fn: Made, poll_seconds: float | None) -> None:
        self.poll_seconds = poll_seconds or 0.05
        self._fn = fn
        self._is_endless = poll_seconds is not None
        self._is_given = False

    def look(self, room: int) -> Sequence[Generated]:
        if self._is_given:
            return ()
        self._is_given = True
        return (self,)

    def forgettable(self) -> Sequence[str]:
        return ()

    def open(self, position: Any) -> GeneratedReader:
        return GeneratedReader(self._fn, position, self._is_endless)

    def close(self) -> None:
        pass


class GeneratedReader:
    """Calls the function in a thread of its own, so that a value is not kept back while the next one is waited for.

    The function is called anew, with the newest position, when it has ended and the source has not.
    """

    def __init__(self, fn: Made, position: Any, is_endless: bool) -> None:
        self._fn = fn
        self._position = position
        self._is_endless = is_endless
        self._stop = threading.Event()
        self._pump: threading.Thread | None = None
        self._fault: CeleriacError | None = None
        self._made: queue.Queue[tuple[Any, Any] | _End] = queue.Queue(_AHEAD)

    def read(self) -> Portion:
        if self._fault is not None:
            raise self._fault
        if self._pump is None:
            self._pump = threading.Thread(target=self._run, args=(self._position,), name="generator", daemon=True)
            self._pump.start()
        pairs, end = self._take()
        if end is not None:
            self._pump, self._fault = None, end.error
        if not pairs:
            if self._fault is not None:
                raise self._fault
            return nothing(After.WAITING if end is None else self._after_end())
        self._position = pairs[-1][0]
        after = After.MORE if end is None or end.error is not None else self._after_end()
        return Portion(Batch([value for _, value in pairs]), after, lambda index: pairs[index][0])

    def _take(self) -> tuple[list[tuple[Any, Any]], _End | None]:
        """What has been made so far. What was made before an error counts."""
        pairs: list[tuple[Any, Any]] = []
        while len(pairs) < BATCH_RECORDS:
            try:
                made = self._made.get(timeout=_FIRST_SECONDS) if not pairs else self._made.get_nowait()
            except queue.Empty:
                break
            if isinstance(made, _End):
                return pairs, made
            pairs.append(made)
        return pairs, None

    def close(self) -> None:
        self._stop.set()

    def _after_end(self) -> After:
        return After.WAITING if self._is_endless else After.ENDED

    def _run(self, position: Any) -> None:
        end = _End(None)
        try:
            for made in self._fn(position):
                if self._stop.is_set():
                    return
                self._hand_over(_checked(made))
        except CeleriacError as error:
            end = _End(error)
        except Exception as error:  # user code: whatever it raises is told with its place
            end = _End(_fault(error))
        self._hand_over(end)

    def _hand_over(self, made: tuple[Any, Any] | _End) -> None:
        while not self._stop.is_set():
            try:
                self._made.put(made, timeout=0.1)
                return
            except queue.Full:
                continue


def _checked(made: Any) -> tuple[Any, Any]:
    if not isinstance(made, tuple | list) or len(made) != 2:
        raise PipelineError(
            f"the function of read.generator gave a {type(made).__name__}, not a pair (position, value)",
            hint="yield position, value: the position is given to the function when it is called to go on",
        )
    if made[0] is None:
        raise PipelineError(
            "the function of read.generator gave the position None, which means the beginning",
            hint="yield a number or text from which it can go on",
        )
    return made[0], made[1]


def _fault(error: Exception) -> CeleriacError:
    """What is outside may come back and is waited for; a fault of the function is not."""
    frames = traceback.extract_tb(error.__traceback__)
    place = f" ({frames[-1].filename}:{frames[-1].lineno})" if frames else ""
    text = f"the function of read.generator raised {type(error).__name__}: {error}{place}"
    if isinstance(error, OSError):
        return SourceAway(text)
    return PipelineError(
        text,
        hint="raise OSError, ConnectionError or TimeoutError for what is worth another try; it is called again then",
    )
