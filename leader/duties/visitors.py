"""Forgets producers without a name that ended without a word, so that their numbers do not pile up."""

from __future__ import annotations

import logging
from typing import Final

from pipeline.facts import JobFacts
from pipeline.store.leadership import Leadership

logger = logging.getLogger(__name__)

SILENT_SECONDS: Final = 3600.0
"""A producer says every few minutes that it is there. One that was stopped for longer must not go on."""

LOOK_MS: Final = 60_000
MOST: Final = 100
"""Forgotten in one round; the rest has time."""

WATCHED_MS: Final = 900_000
"""Redis may have been away for longer than an hour: whoever lives comes back within this time, and says so."""


class Visitors:
    """Looks once a minute, after it has seen Redis at work for WATCHED_MS without a gap."""

    name = "visitors"

    def __init__(self, leadership: Leadership) -> None:
        self._leadership = leadership
        self._seen_at_ms = 0
        self._look_at_ms = 0

    def run_once(self, facts: JobFacts, token: str) -> dict[str, int]:
        if not self._seen_at_ms or facts.now_ms - self._seen_at_ms > LOOK_MS:
            self._look_at_ms = facts.now_ms + WATCHED_MS
        self._seen_at_ms = facts.now_ms
        if facts.now_ms < self._look_at_ms:
            return {}
        forgotten = self._leadership.forget_visitors(facts.record.job, token, SILENT_SECONDS, MOST)
        # With a full page there are probably more: they are not made to wait.
        self._look_at_ms = facts.now_ms + (0 if forgotten == MOST else LOOK_MS)
        if forgotten:
            logger.info("silent producers forgotten: job=%s senders=%d", facts.record.job, forgotten)
        return {"visitors_forgotten": forgotten} if forgotten else {}
