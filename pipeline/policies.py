"""What is done about a record that fails: it is tried again, then given up or dropped, or the job fails. Plain data."""

from __future__ import annotations

import math
import random
from typing import Final, Literal

import msgspec

from pipeline.errors import PipelineError

MOST_ATTEMPTS: Final = 1_000
MOST_PAUSE_SECONDS: Final = 3_600.0


class ErrorPolicy(msgspec.Struct, frozen=True):
    """Made by `dead_letter`, `fail`, `hold_key`, `skip` and `retry`.

    attempts: how often a record is tried in all. first_seconds, most_seconds: bounds of the pauses between attempts.
    then: what is done with a record that failed at each of them.
    """

    attempts: int = 1
    first_seconds: float = 0.0
    most_seconds: float = 0.0
    then: Literal["dead_letter", "fail", "hold_key", "skip"] = "dead_letter"

    @property
    def holds_keys(self) -> bool:
        """Whether later records of a key wait behind its dead letter."""
        return self.then == "hold_key"

    def pause_seconds(self, attempt: int, rng: random.Random) -> float:
        """How long to wait behind the failed attempt of this number, from 1 on: doubling, bounded, with jitter."""
        longest = min(self.most_seconds, self.first_seconds * 2.0 ** min(attempt - 1, MOST_ATTEMPTS))
        return longest * rng.uniform(0.5, 1.0)


GIVE_UP: Final = ErrorPolicy()
"""The default."""


def dead_letter() -> ErrorPolicy:
    """Gives a record that fails up: it is kept, with its error, as a dead letter. This is the default."""
    return GIVE_UP


def fail() -> ErrorPolicy:
    """Fails the job with the error. What was committed before stays, and the job goes on there when it is run again."""
    return ErrorPolicy(then="fail")


def hold_key() -> ErrorPolicy:
    """Gives a record that fails up, and holds its key: later records of the key wait, in order, behind the dead letter.

    Replaying the letter, or dropping it, lets them go on. Other keys are not held up. For the stages of keyed streams.
    """
    return ErrorPolicy(then="hold_key")


def skip() -> ErrorPolicy:
    """Drops a record that fails, and counts it."""
    return ErrorPolicy(then="skip")


def retry(
    attempts: int = 5, first_seconds: float = 0.1, most_seconds: float = 30.0, then: ErrorPolicy | None = None
) -> ErrorPolicy:
    """Tries a record that fails again, up to `attempts` times in all, and does what `then` says with it at last.

    The pauses double from about `first_seconds` up to `most_seconds`, with jitter. Meanwhile the records behind it in
    its partition wait, so that order holds; other partitions go on, those of the same worker too.
    Raises PipelineError for a number out of range.
    """
    last = dead_letter() if then is None else then
    if not isinstance(last, ErrorPolicy) or last.attempts != 1:
        raise PipelineError(
            "retry: then must be dead_letter(), hold_key(), fail() or skip()", hint="retry(5, then=fail())"
        )
    if not isinstance(attempts, int) or isinstance(attempts, bool) or not 2 <= attempts <= MOST_ATTEMPTS:
        raise PipelineError(f"retry: attempts must be a whole number from 2 to {MOST_ATTEMPTS:,}, not {attempts!r}")
    for name, seconds in (("first_seconds", first_seconds), ("most_seconds", most_seconds)):
        is_number = isinstance(seconds, int | float) and not isinstance(seconds, bool) and math.isfinite(seconds)
        if not is_number or not 0 <= seconds <= MOST_PAUSE_SECONDS:
            raise PipelineError(
                f"retry: {name} must be a number of seconds up to {MOST_PAUSE_SECONDS:,.0f}, not {seconds!r}"
            )
    if most_seconds < first_seconds:
        raise PipelineError(f"retry: most_seconds ({most_seconds}) is less than first_seconds ({first_seconds})")
    return ErrorPolicy(attempts, float(first_seconds), float(most_seconds), last.then)


def check_policy(policy: object, owner: str) -> ErrorPolicy:
    """The policy itself. Raises PipelineError, naming the operator, when it is none."""
    if isinstance(policy, ErrorPolicy):
        return policy
    raise PipelineError(
        f"{owner}: on_error must be dead_letter(), hold_key(), fail(), skip() or retry(...), not {policy!r}",
        hint="from pipeline import retry, then on_error=retry(5)",
    )


def check_unkeyed_policy(policy: object, source: str) -> ErrorPolicy:
    """As `check_policy`, for the stage of a source, whose records have no keys that could be held."""
    checked = check_policy(policy, f"the source {source!r}")
    if checked.holds_keys:
        raise PipelineError(
            f"the source {source!r} cannot have hold_key(): its records have no keys before a key_by",
            hint="give the source a policy of its own, on_error=dead_letter(), and on_error=hold_key() to a key_by",
        )
    return checked
