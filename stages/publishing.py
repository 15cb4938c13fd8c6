"""Publishes the results of a submitted job, by whichever of its members is first; another one goes on if that dies."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final

from pipeline.errors import EnvironmentFault, JobStateError, SinkError, StoreError
from pipeline.facts import JobRecord
from pipeline.lifecycle import JobState
from pipeline.publishing import discard_job, publish_job, reason_to_finish
from pipeline.store.jobs import JobStore

CLAIM_SECONDS: Final = 5.0
"""Who says nothing for this long does not publish any more."""
RENEW_SECONDS: Final = 1.0

_log = logging.getLogger(__name__)


@dataclass(slots=True)
class ResultPublisher:
    """One member's part in it. `beside` is a store of its own, for the thread that says that this one is at it."""

    store: JobStore
    beside: JobStore
    job: str

    def is_due(self) -> bool:
        """Whether a member is to publish. Raises StoreError."""
        return self._is_for_members(self.store.read(self.job))

    def run_once(self) -> bool:
        """True when this one has ended the job. Raises StoreError; what a sink refuses fails the job."""
        record = self.store.read(self.job)
        if not self._is_for_members(record):
            return False
        claimed_ms = int(record.claim.partition(" ")[0] or 0)
        if self.store.facts(self.job).now_ms - claimed_ms < 1000 * CLAIM_SECONDS:
            return False
        claim = self.store.claim(self.job, record.claim)
        if not claim:
            return False
        try:
            try:
                with self._held(claim):
                    published = publish_job(self.store, record)
            except (SinkError, EnvironmentFault) as error:
                if self._is_left_to_another(claim):
                    return False
                hint = f" ({error.hint})" if error.hint else ""
                self.store.transition(self.job, JobState.FAILED, f"its results cannot be published: {error}{hint}")
                _log.error("job=%s failed: %s", self.job, error)
                return True
            if self._is_left_to_another(claim):
                return False
            reason = reason_to_finish(record.plan, published)
            self.store.transition(self.job, JobState.FINISHED, reason)
        except JobStateError as error:
            _log.warning("job=%s was ended by somebody else while it was published: %s", self.job, error)
            return False
        discard_job(record)
        what = reason or ", ".join(str(each.path) for each in published)
        _log.info("job=%s is published and finished: %s", self.job, what)
        return True

    def _is_left_to_another(self, claim: str) -> bool:
        """Whether this one was taken for gone, as one that stood still, or had no Redis, for too long. What the other
        one clears away of it is no fault of a sink, and that one ends the job. Raises StoreError.
        """
        if self.store.hold_claim(self.job, claim):
            return False
        _log.warning("job=%s is published by another member: this one was not heard of for too long", self.job)
        return True

    @staticmethod
    def _is_for_members(record: JobRecord) -> bool:
        return record.state is JobState.PUBLISHING and record.is_submitted

    @contextmanager
    def _held(self, claim: str) -> Iterator[None]:
        over = threading.Event()
        thread = threading.Thread(target=self._renew, args=(claim, over), name="claim")
        thread.start()
        try:
            yield
        finally:
            over.set()
            thread.join()

    def _renew(self, claim: str, over: threading.Event) -> None:
        while claim and not over.wait(RENEW_SECONDS):
            try:
                claim = self.beside.hold_claim(self.job, claim)
            except StoreError as error:
                _log.warning("job=%s: who publishes cannot be said: %s", self.job, error)
