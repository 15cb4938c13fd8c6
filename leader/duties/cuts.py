"""Lets go what a savepoint has left whose exporter is gone: commits keep nothing for it any more."""

from __future__ import annotations

import logging

from pipeline.facts import JobFacts
from pipeline.store.cuts import CutStore
from pipeline.store.scripts import Scripts

logger = logging.getLogger(__name__)


class Cuts:
    """Looks while a savepoint is being written. The script judges whether its exporter is gone."""

    name = "cuts"

    def __init__(self, scripts: Scripts) -> None:
        self._scripts = scripts

    def run_once(self, facts: JobFacts, token: str) -> dict[str, int]:
        record = facts.record
        if not record.saving:
            return {}
        if not CutStore(self._scripts, record.job, record.plan).tidy():
            return {}
        logger.warning("a savepoint was given up, its exporter is gone: job=%s epoch=%d", record.job, record.saving)
        return {"savepoints_let_go": 1}
