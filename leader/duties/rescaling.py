"""Changes the number of a stage's partitions: waits for a short backlog, switches, and ends it when all are through.

All it knows is in Redis, so the next leader goes on where this one stops.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import assert_never

from leader.duties.duty import Duty
from pipeline.errors import JobStateError
from pipeline.facts import JobFacts
from pipeline.lifecycle import JobState
from pipeline.operations import Operation, Phase
from pipeline.store.operations import OperationStore

logger = logging.getLogger(__name__)


def is_due(facts: JobFacts, operation: Operation) -> bool:
    """Whether the switch would have receivers wait for little: no inbox of the stage holds much."""
    if operation.is_urgent:
        return True
    most = facts.record.plan.limits.switch_records
    return all(part.backlog <= most for part in facts.partitions if part.stage == operation.stage)


class Rescaling:
    """Carries out the operation of one job. `placement` gives new partitions owners in the round of the switch."""

    name = "rescaling"

    def __init__(self, store: OperationStore, look: Callable[[str], JobFacts], placement: Duty) -> None:
        self._store = store
        self._look = look
        self._placement = placement

    def run_once(self, facts: JobFacts, token: str) -> dict[str, int]:
        operation = facts.operation
        if operation is None or operation.about.kind != "rescale":
            return {}
        match operation.phase:
            case Phase.WAITING:
                return self._switch(facts, token, operation)
            case Phase.SETTLING:
                return self._settle(facts, token, operation)
            case Phase.ROLLING | Phase.FINISHING | Phase.COPYING | Phase.COMPARING | Phase.PROMOTING:
                return {}  # of others, which their commands carry out
            case Phase.STARTING | Phase.BURSTING | Phase.RETURNING | Phase.RECOMPUTING | Phase.SWAPPING:
                return {}
            case _ as never:
                assert_never(never)

    def _switch(self, facts: JobFacts, token: str, operation: Operation) -> dict[str, int]:
        record = facts.record
        if record.state is not JobState.RUNNING:
            return self._give_up(facts, token, operation, f"given up: the job is {record.state.value}")
        if not is_due(facts, operation):
            return {}
        outcome, took_ms = self._store.switch(record.job, token, record.plan, record.table, operation)
        if outcome == "ending":
            return self._give_up(facts, token, operation, "given up: the input of the stage is over")
        if outcome != "switched":
            return {}
        logger.info(
            "switched: job=%s operation=%s %s waited_ms=%d script_ms=%d",
            record.job,
            operation.id,
            operation.about.change,
            facts.now_ms - operation.begun_at_ms,
            took_ms,
        )
        self._placement.run_once(self._look(record.job), token)
        return {"switched": 1}

    def _settle(self, facts: JobFacts, token: str, operation: Operation) -> dict[str, int]:
        record = facts.record
        took_ms = self._store.settle(record.job, token, record.plan, operation)
        if took_ms is None:
            return {}
        logger.info("rescaled: job=%s %s settled_ms=%d", record.job, operation.about.change, took_ms)
        return {"rescaled": 1}

    def _give_up(self, facts: JobFacts, token: str, operation: Operation, why: str) -> dict[str, int]:
        try:
            self._store.call_off(facts.record.job, outcome=why, id_=operation.id, token=token)
        except JobStateError:
            return {}  # it was called off meanwhile
        logger.warning("rescale %s: job=%s %s", why, facts.record.job, operation.about.change)
        return {"rescales_given_up": 1}
