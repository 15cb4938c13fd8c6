"""Operations that their command carries out: begun, kept by renewing the claim, and ended."""

from __future__ import annotations

import secrets
from typing import Final

import msgspec

from pipeline.errors import JobStateError, OperationLost
from pipeline.operations import CLAIM_SECONDS, About, Claim, Phase
from pipeline.store import keys
from pipeline.store.losses import unknown_job
from pipeline.store.operations import busy, busy_saving
from pipeline.store.scripts import Scripts

_CLAIM_MS: Final = int(CLAIM_SECONDS * 1000)


class ClaimStore:
    """What the command of an operation needs. Whoever lets its claim run out may lose it to the next."""

    def __init__(self, scripts: Scripts) -> None:
        self._scripts = scripts

    def undertake(self, job: str, about: About, phase: Phase) -> Claim:
        """Begins the operation, if need be in place of one whose command is gone.

        Raises Busy while another operation, or a savepoint, is under way; JobStateError when the job is finished or is
        being restored; UnknownJob, StoreError.
        """
        claim = Claim(job, secrets.token_hex(8))
        names = [keys.job(job), keys.operation(job), keys.savepoint(job)]
        args = [msgspec.json.encode(about), about.kind, phase.value, claim.token, _CLAIM_MS]
        answer = self._scripts.run("undertake", names, args)
        match answer[0]:
            case -1:
                raise busy(job, answer[1], answer[2], answer[3])
            case -3:
                raise JobStateError(f"job {job!r} is finished")
            case -5:
                raise unknown_job(job)
            case -8:
                raise busy_saving(job, answer[1])
            case -11:
                raise JobStateError(f"job {job!r} is being restored", hint="try again when that is done")
        return claim

    def renew(self, claim: Claim, phase: Phase, done: int, total: int) -> None:
        """The command is at work, and so far. Raises OperationLost, StoreError."""
        self._carry(claim, phase.value, done, total, "")

    def end(self, claim: Claim, outcome: str) -> None:
        """The operation has ended, with a line in the job's history. Raises OperationLost, StoreError."""
        self._carry(claim, "", 0, 0, outcome)

    def _carry(self, claim: Claim, phase: str, done: int, total: int, outcome: str) -> None:
        names = [keys.job(claim.job), keys.operation(claim.job)]
        args = [claim.token, _CLAIM_MS, phase, done, total, outcome]
        if self._scripts.run("carry", names, args)[0] != 1:
            raise claim_lost(claim.job)


def claim_lost(job: str) -> OperationLost:
    """For a command that must not go on with its operation."""
    return OperationLost(
        f"this operation of job {job!r} was given up: its command was not heard for {CLAIM_SECONDS:g} s, and another"
        " one was begun",
        hint=f"`celeriac status {job}` and `history` show which. What was changed so far stays",
    )
