"""Lets sources go on that a backfill has held back whose command is gone."""

from __future__ import annotations

import logging

from pipeline.facts import JobFacts
from pipeline.store.scripts import Scripts
from pipeline.store.swaps import let_go

logger = logging.getLogger(__name__)


class HeldBack:
    """Looks while a backfill holds sources back. The script judges whether its command is gone."""

    name = "held_back"

    def __init__(self, scripts: Scripts) -> None:
        self._scripts = scripts

    def run_once(self, facts: JobFacts, token: str) -> dict[str, int]:
        record = facts.record
        if not record.held_back or not let_go(self._scripts, record, record.held_back, is_own=False):
            return {}
        sources = ", ".join(record.held_back.splitlines()[1:])
        logger.warning("sources go on, the command of a backfill is gone: job=%s sources=%s", record.job, sources)
        return {"sources_let_go": 1}
