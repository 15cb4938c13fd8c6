"""What one external sender had acknowledged, against what the job has: after a restart of Redis, and a refusal."""

from __future__ import annotations

import logging
from dataclasses import dataclass

from pipeline.errors import JobRestored, StaleSender, StoreError, TailLost
from pipeline.losses import HINT, LOST
from pipeline.store.losses import Known, LossStore, unknown_job
from pipeline.store.patience import Patience
from pipeline.store.scripts import Scripts
from pipeline.wording import counted

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Sender:
    """A sender as it has registered. `run` is the job's made_at.generation, `log` the key that its numbers are in."""

    job: str
    run: str
    source: str
    name: str
    id: int
    epoch: int
    log: str


class Standing:
    """Asks, and halts the job when it has less than was acknowledged. `taken` is always the sender's own number."""

    def __init__(self, scripts: Scripts, sender: Sender, patience: Patience) -> None:
        self._sender = sender
        self._losses = LossStore(scripts, sender.job)
        self._patience = patience

    def compare(self, taken: int) -> bool:
        """Returns when the job has all that was acknowledged; False if it knows no such sender, and nothing was.

        Raises TailLost when it has less, JobRestored, UnknownJob, StoreError.
        """
        known = self._known()
        self._check_generation(known, taken)
        if known.last < 0 and taken == 0:
            return False
        if known.last < taken or known.epoch < self._sender.epoch:
            raise self._tail_lost(known, taken)
        return True

    def survived(self, taken: int) -> int:
        """How many of the acknowledged records the job has, whatever its generation. Raises UnknownJob, StoreError."""
        return min(taken, max(0, self._known().last))

    def refusal(self, taken: int, last: int | None) -> StoreError:
        """Why a number does not follow `last`, or, for None, the epoch of the sender is over."""
        try:
            known = self._known()
            self._check_generation(known, taken)
        except StoreError as error:
            return error
        if last is None:
            return StaleSender(f"a newer instance of sender {self._sender.name!r} has registered; this one must stop")
        if last >= taken:
            return StoreError(
                f"sender {self._sender.name!r}: the job has its numbers up to {last}, and others do not follow"
            )
        return self._tail_lost(Known(known.made_at, known.generation, last, known.epoch), taken)

    def _known(self) -> Known:
        sender = self._sender
        return self._losses.known(sender.name.partition("/")[2], sender.id, sender.log)

    def _check_generation(self, known: Known, taken: int) -> None:
        sender = self._sender
        made_at, _, generation = sender.run.partition(".")
        if known.made_at != made_at:
            raise unknown_job(sender.job)
        if known.generation != int(generation):
            survived = min(taken, max(0, known.last))
            raise JobRestored(
                f"{restored(sender.job, known.generation)}: sender {sender.name!r} had {counted(taken, 'record')}"
                f" acknowledged, and the job has {survived:,} of them",
                "send again what did not survive, with a new producer",
                taken,
                survived,
            )

    def _tail_lost(self, known: Known, taken: int) -> TailLost:
        sender, found = self._sender, max(0, known.last)
        line = (
            f"source {sender.source!r}: sender {sender.name} had acknowledged up to {taken:,}, Redis has {found:,}"
            f" ({counted(max(0, taken - found), 'record')})"
        )
        if known.last < 0 or known.epoch < sender.epoch:
            line += ", and it has forgotten that this sender registered"
        return tail_lost(self._losses, sender.run, line, self._patience)


def tail_lost(losses: LossStore, run: str, line: str, patience: Patience) -> TailLost:
    """Halts the job, if it is still the same and can be told; the error for whoever has noticed the loss."""
    try:
        patience.through_outages(lambda: [losses.report(run, [line])])
    except StoreError as error:
        logger.warning("the job could not be told of its loss: %s: %s", line, error)
    return TailLost(f"{LOST}: {line}", hint=HINT)


def restored(job: str, generation: int | str) -> str:
    """The beginning of a message for those of an earlier generation."""
    return f"the job {job!r} goes on under generation {generation} since writes were lost and that was accepted"
