"""The course of a shadow, from the first result that is compared to its end: promoted, dropped, or given up."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Literal

import msgspec

from pipeline.errors import DecodingError, StoreUnavailable
from pipeline.operations import Phase
from pipeline.shadowing.carrying import Report, Shadowing
from pipeline.store.claims import ClaimStore
from pipeline.store.jobs import JobStore
from pipeline.wording import counted

LOOK_SECONDS: Final = 0.05
TELL_SECONDS: Final = 0.5
LAG_RECORDS: Final = 10_000
"""The job's input is held back when the shadow is no further behind than that."""


class Wish(msgspec.Struct, frozen=True):
    """What another command wants of the shadow's. accepts: differences are meant. wait_seconds: for a promotion."""

    verb: Literal["promote", "drop"]
    accepts: bool = False
    wait_seconds: float = 60.0


class NotPromoted(Exception):
    """Raised when the shadow stays what it is, and why: for whoever wanted it promoted."""


@dataclass(slots=True)
class Course:
    """Runs in the process of the command, which may be killed at any point: the leader takes the shadow away then."""

    shadowing: Shadowing
    target: str
    """Names the version's file to all machines."""
    on_report: Callable[[Report], None] = lambda _: None
    tend: Callable[[], None] = lambda: None
    """Looks after the shadow's processes. May raise what ends the course."""
    clock: Callable[[], float] = time.monotonic
    sleep: Callable[[float], None] = time.sleep
    _told_at: float = float("-inf")
    _phase: Phase = Phase.COMPARING
    _is_sent: bool = False
    """The script that promotes; its answer may have been lost."""
    held_seconds: float = 0.0
    """For how long the input was held back when it was promoted."""

    def run(self) -> Literal["promoted", "dropped"]:
        """Raises ShadowLost when it was given up, OperationLost, UnknownJob, StoreError. Waits while Redis is away."""
        while True:
            try:
                done = self.shadowing.step()
                wish = self._tell()
            except StoreUnavailable:
                done, wish = 0, None
            if wish is not None:
                if wish.verb == "drop":
                    return "dropped"
                try:
                    self._promote(wish)
                    return "promoted"
                except NotPromoted as error:
                    self._phase = Phase.COMPARING
                    self._tell(str(error))
            if not done:
                self.sleep(LOOK_SECONDS)

    def _tell(self, answer: str = "") -> Wish | None:
        """Says how far it is, now and then; what others want. Raises as `run`."""
        now = self.clock()
        self.tend()
        if not answer and now - self._told_at < TELL_SECONDS:
            return None
        self._told_at = now
        one = self.shadowing
        one.check()
        report = one.report()
        self.on_report(report)
        ClaimStore(one.scripts).renew(one.claim, self._phase, report.compared, report.different)
        return _wish(one.store.report(one.claim.token, msgspec.json.encode(report), answer))

    def _promote(self, wish: Wish) -> None:
        """Raises NotPromoted, and as `run`."""
        one, until = self.shadowing, self.clock() + wish.wait_seconds
        self._phase = Phase.PROMOTING
        self._refuse_differences(wish)
        while one.report().lag > LAG_RECORDS:
            if self.clock() >= until:
                raise NotPromoted(
                    f"the shadow is {counted(one.report().lag, 'record')} behind after {wish.wait_seconds:g} s"
                )
            one.step()
            self._tell()
        record, since = JobStore(one.scripts).read(one.job), self.clock()
        is_promoted = False
        try:
            one.hold(record)
            while not is_promoted:
                is_promoted = self._try(wish)
                if not is_promoted and self.clock() >= until:
                    raise NotPromoted(f"not all was processed after {wish.wait_seconds:g} s: the job goes on as before")
                if not is_promoted:
                    self.sleep(LOOK_SECONDS)
        finally:
            if not is_promoted:
                one.let_go(record)
        self.held_seconds = self.clock() - since

    def _try(self, wish: Wish) -> bool:
        one = self.shadowing
        try:
            if self._is_sent and one.is_promoted():
                return True
            self._tell()
            if not one.is_quiet():
                return False
            one.comparison.settle()
            self._refuse_differences(wish)
            self._is_sent = True
            return one.try_to_promote(self.target)
        except StoreUnavailable:
            return False

    def _refuse_differences(self, wish: Wish) -> None:
        different = self.shadowing.comparison.different
        if different and not wish.accepts:
            raise NotPromoted(
                f"otherwise than the job's: {counted(different, 'result')};"
                " --accept-differences says that they are meant to be"
            )


def _wish(text: str) -> Wish | None:
    if not text:
        return None
    try:
        return msgspec.json.decode(text, type=Wish)
    except msgspec.MsgspecError as error:
        raise DecodingError(f"what is wanted of the shadow cannot be read: {error}") from error
