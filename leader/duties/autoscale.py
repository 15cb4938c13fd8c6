"""Measures a job that is scaled, decides how many workers it needs, and writes that down; agents do the rest."""

from __future__ import annotations

import logging
from typing import Final

from pipeline.facts import JobFacts
from pipeline.scaling.decision import decide
from pipeline.scaling.history import History
from pipeline.scaling.policies import Kind
from pipeline.store.scaling import ScalingStore

logger = logging.getLogger(__name__)

LOOK_MS: Final = 1_000


class Autoscale:
    """Looks once a second. A new leader knows no history: it begins with the warm-up, and keeps to the cooldown."""

    name = "autoscale"

    def __init__(self, store: ScalingStore) -> None:
        self._store = store
        self._history = History()
        self._look_at_ms = 0
        self._last: Kind | None = None

    def run_once(self, facts: JobFacts, token: str) -> dict[str, int]:
        record = facts.record
        if record.scaling is None or facts.now_ms < self._look_at_ms:
            return {}
        self._look_at_ms = facts.now_ms + LOOK_MS
        self._history.add(facts)
        decision = decide(facts, record.scaling, self._history.load(facts, record.scaling))
        is_news = decision.is_news(self._last)
        if decision.kind is not Kind.WAITING:
            self._last = decision.kind
        if not is_news or not self._store.decide(record.job, token, decision) or not decision.is_change:
            return {}
        logger.info(
            "the number of workers changes: job=%s pool=%s from=%d to=%d why=%s",
            record.job,
            decision.pool,
            decision.before,
            decision.wanted,
            decision.why,
        )
        return {"scaled": 1}
