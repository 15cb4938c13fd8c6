"""Ends the input of sources: those that are complete, and all of them when the job drains."""

from __future__ import annotations

import logging

from pipeline.facts import JobFacts
from pipeline.lifecycle import JobState
from pipeline.store.leadership import Leadership

logger = logging.getLogger(__name__)


def sources_to_end(facts: JobFacts) -> list[str]:
    """Sources whose input is over while an inbox of theirs is still open."""
    record = facts.record
    open_stages = {part.stage for part in facts.partitions if not part.closed}
    return [
        stage.name
        for stage in record.plan.stages
        if not stage.keyed
        and stage.index in open_stages
        and (record.state is JobState.DRAINING or stage.name in record.completed_sources)
    ]


class Ending:
    """Closes entry inboxes, with EndOfInput behind all that was appended."""

    name = "ending"

    def __init__(self, leadership: Leadership) -> None:
        self._leadership = leadership

    def run_once(self, facts: JobFacts, token: str) -> dict[str, int]:
        closed = 0
        for source in sources_to_end(facts):
            closed += self._leadership.close_source(facts.record.job, token, facts.record.plan, source)
            logger.info("source ended: job=%s source=%s", facts.record.job, source)
        return {"closed": closed} if closed else {}
