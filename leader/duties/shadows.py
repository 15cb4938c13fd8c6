"""Shadows whose command is gone: all that they have is taken away, and the job's input that they held back flows."""

from __future__ import annotations

import logging

from pipeline.facts import JobFacts
from pipeline.store.scripts import Scripts
from pipeline.store.shadows import ShadowStore

logger = logging.getLogger(__name__)


class Shadows:
    """Looks while a job has a shadow. The script judges whether its command is gone."""

    name = "shadows"

    def __init__(self, scripts: Scripts) -> None:
        self._scripts = scripts

    def run_once(self, facts: JobFacts, token: str) -> dict[str, int]:
        record, operation = facts.record, facts.operation
        if not record.shadow:
            return {}
        if operation is not None and operation.about.kind == "shadow" and not operation.is_abandoned(facts.now_ms):
            return {}
        of_shadow, _, shadow = record.shadow.partition(" ")
        store = ShadowStore(self._scripts, record.job)
        if not store.take_away(of_shadow, is_own=False, outcome="given up: its command is gone"):
            return {}
        logger.warning("a shadow was taken away, its command is gone: job=%s shadow=%s", record.job, shadow)
        return {"shadows_taken_away": 1}
