"""What is done about the records and timers of one partition that fail, as the policy of their stage says."""

from __future__ import annotations

import logging

from pipeline.codec import decode_batch, shown
from pipeline.errors import EncodingError, RecordFailed
from pipeline.kernel.faults import OperatorError, describe
from pipeline.policies import ErrorPolicy
from pipeline.store.commits import Write
from stages.letters import Letters

logger = logging.getLogger(__name__)

Failure = OperatorError | EncodingError

_KEY_CHARACTERS = 200


class TryAgain(Exception):
    """Raised when the first record of a step failed and has attempts left. Nothing of the step may be committed."""

    def __init__(self, failure: Failure) -> None:
        super().__init__(described(failure))


class Failures:
    """`attempts`: how often the record at the position has failed before; `tried`: when and how, the last times."""

    def __init__(self, policy: ErrorPolicy, letters: Letters) -> None:
        self.policy = policy
        self.attempts = 0
        self.tried: tuple[str, ...] = ()
        self._letters = letters

    @property
    def isolates(self) -> bool:
        """Then a record that fails begins a step of its own: those in front of it are committed first."""
        return self.policy.attempts > 1 or self.policy.then == "fail"

    def remember(self, attempts: int, tried: tuple[str, ...]) -> None:
        self.attempts, self.tried = attempts, tried

    def settle(self, failure: Failure, payload: bytes, kind: str = "record") -> Write | None:
        """The dead letter, or None for one that is skipped. `payload` is the record, or timer, as a batch of one.

        Raises TryAgain while it has attempts left, RecordFailed where the job is to fail.
        """
        if self.attempts + 1 < self.policy.attempts:
            raise TryAgain(failure)
        match self.policy.then:
            case "dead_letter" | "hold_key":
                return self._letters.of(failure, payload, self.tried, kind)
            case "skip":
                logger.warning("a record is skipped: %s", described(failure)[:200])
                return None
            case "fail":
                how_often = f", tried {self.attempts + 1} times" if self.attempts else ""
                raise RecordFailed(
                    f"{failure}{_of_key(payload)}{how_often}",
                    hint="on_error says that this fails the job: correct the function, then run the job again",
                ) from failure

    def settle_fault(self, why: str, payload: bytes) -> Write | None:
        """As `settle`, for a record that its source could not read: trying again is of no use."""
        if self.policy.then in ("dead_letter", "hold_key"):
            return self._letters.write("", why, "", payload)
        if self.policy.then == "skip":
            logger.warning("a record is skipped: %s", why[:200])
            return None
        raise RecordFailed(
            f"a record cannot be read: {why}", hint="on_error says that this fails the job: correct the input"
        )


def described(failure: Failure) -> str:
    """What went wrong, with the operator where it is known."""
    if isinstance(failure, OperatorError):
        return f"{failure.operator}: {describe(failure.cause)}"
    return str(failure)


def _of_key(payload: bytes) -> str:
    keys = decode_batch(payload).keys
    return f" (key {shown(keys[0], _KEY_CHARACTERS)})" if keys else ""
