"""Measures a job that is scaled, decides how many workers it needs, and writes that down; agents do the rest.

Where more workers could not share a stage, it also begins to give that more partitions.
"""

from __future__ import annotations

import logging
from collections import Counter
from typing import Final

from pipeline.bursts import WISH_SECONDS
from pipeline.errors import Busy, JobStateError
from pipeline.facts import JobFacts
from pipeline.scaling.decision import Decision, decide
from pipeline.scaling.history import History
from pipeline.scaling.policies import Kind, Repartition
from pipeline.store.operations import OperationStore
from pipeline.store.scaling import ScalingStore

logger = logging.getLogger(__name__)

LOOK_MS: Final = 1_000

BY: Final = "the autoscaler"
"""Who has begun its operations."""


class Autoscale:
    """Looks once a second. A new leader knows no history: it begins with the warm-up, and keeps to the cooldown."""

    name = "autoscale"

    def __init__(self, store: ScalingStore, operations: OperationStore) -> None:
        self._store = store
        self._operations = operations
        self._history = History()
        self._look_at_ms = 0
        self._last: dict[str, Kind] = {}
        self._wished_at_ms: dict[str, int] = {}

    def run_once(self, facts: JobFacts, token: str) -> dict[str, int]:
        if not facts.record.scaled or facts.now_ms < self._look_at_ms:
            return {}
        self._look_at_ms = facts.now_ms + LOOK_MS
        self._history.add(facts)
        counts: Counter[str] = Counter()
        for pool in facts.record.scaled:
            counts.update(self._size(facts, token, pool))
        return dict(counts)

    def _size(self, facts: JobFacts, token: str, pool: str) -> dict[str, int]:
        """One pool. What all pools must do follows from the same look, so that they change together."""
        record = facts.record
        scaling = record.scaled[pool].scaling
        decision = decide(facts, scaling, self._history.load(facts, scaling, pool), pool)
        counts = self._repartition(facts, token, decision.repartition) if decision.repartition else {}
        is_news = decision.is_news(self._last.get(pool)) and not self._is_open_wish(decision)
        if decision.kind is not Kind.WAITING:
            self._last[pool] = decision.kind
        if not is_news or not self._store.decide(record.job, token, decision):
            return counts
        if decision.burst is not None:
            logger.info("a burst is wanted: job=%s stage=%s why=%s", record.job, decision.burst.stage, decision.why)
            return {"bursts_wanted": 1, **counts}
        if not decision.is_change:
            return counts
        logger.info(
            "the number of workers changes: job=%s pool=%s from=%d to=%d why=%s",
            record.job,
            decision.pool,
            decision.before,
            decision.wanted,
            decision.why,
        )
        return {"scaled": 1, **counts}

    def _is_open_wish(self, decision: Decision) -> bool:
        """Whether it wishes for the burst that was wished for just now. Nodes that offer bursts begin it, or none."""
        if decision.kind is not Kind.BURST:
            return False
        wished_at_ms = self._wished_at_ms.get(decision.pool)
        if wished_at_ms is not None and decision.at_ms - wished_at_ms < WISH_SECONDS * 1000:
            return True
        self._wished_at_ms[decision.pool] = decision.at_ms
        return False

    def _repartition(self, facts: JobFacts, token: str, wanted: Repartition) -> dict[str, int]:
        """At once: where more comes than goes, the backlog would not become short by waiting."""
        record = facts.record
        stage = next(each for each in record.plan.stages if each.name == wanted.stage)
        is_busy = facts.operation is not None and not facts.operation.is_abandoned(facts.now_ms)
        if is_busy or stage.serving != wanted.before:
            return {}
        try:
            self._operations.begin(record, stage, wanted.wanted, BY, is_urgent=True, token=token)
        except (Busy, JobStateError) as error:
            logger.info("no partitions are added now: job=%s stage=%s: %s", record.job, stage.name, error)
            return {}
        logger.info(
            "a stage gets more partitions: job=%s stage=%s from=%d to=%d",
            record.job,
            stage.name,
            wanted.before,
            wanted.wanted,
        )
        return {"repartitions": 1}
