"""Forgets readers of output streams that were silent for longer than they said: what waits for them goes on."""

from __future__ import annotations

import logging
from typing import Final

from pipeline.facts import JobFacts, OutputFacts
from pipeline.store.leadership import Leadership

logger = logging.getLogger(__name__)

LOOK_MS: Final = 1_000


def outputs_with_silent(facts: JobFacts) -> list[OutputFacts]:
    """The output streams that have a reader which has expired."""
    return [
        output
        for output in facts.outputs
        if any(
            reader.expire_seconds is not None and reader.silent_seconds > reader.expire_seconds
            for reader in output.readers
        )
    ]


class Readers:
    """Looks once a second. The script judges the silence again, at the moment it acts."""

    name = "readers"

    def __init__(self, leadership: Leadership) -> None:
        self._leadership = leadership
        self._look_at_ms = 0

    def run_once(self, facts: JobFacts, token: str) -> dict[str, int]:
        if facts.now_ms < self._look_at_ms:
            return {}
        self._look_at_ms = facts.now_ms + LOOK_MS
        job, limits = facts.record.job, facts.record.plan.limits
        expired = 0
        for output in outputs_with_silent(facts):
            for reader in self._leadership.remove_silent_readers(job, token, output.name, limits):
                expired += 1
                logger.info("reader expired: job=%s output=%s reader=%s", job, output.name, reader)
        return {"readers_expired": expired} if expired else {}
