"""Lifecycle operations of a job in Redis: begun and called off from outside, carried out by its leader."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, Literal

import msgspec

from pipeline.errors import Busy, JobStateError, StaleTerm
from pipeline.facts import JobRecord
from pipeline.keying import GROUPS
from pipeline.layouts import Layout, layout
from pipeline.operations import CLAIM_SECONDS, About, Kind, Operation, PastOperation, Phase, busy_words
from pipeline.plan import Plan, StagePlan
from pipeline.store import keys
from pipeline.store.foreign import foreign_key, integer, text_of
from pipeline.store.losses import unknown_job
from pipeline.store.scripts import Scripts

MOST_PARTITIONS: Final = GROUPS
"""Of a stage that is rescaled: with more, some would have no key group."""

Switch = Literal["switched", "gone", "not yet", "stopped", "ending"]
"""What became of a switch. gone: of the operation there is nothing left to do, or the plan is another one by now."""

_SWITCHES: Final[dict[int, Switch]] = {
    1: "switched", 0: "gone", -2: "gone", -3: "gone", -5: "stopped", -6: "not yet", -7: "ending", -9: "not yet",
}  # fmt: skip


_BACK: Final[dict[Kind, str]] = {
    "rescale": "rescale it back when that is done",
    "upgrade": "interrupt its command, or upgrade to the old file when it is done",
    "shadow": "`celeriac shadow {job} --drop` ends it",
    "burst": "interrupt its command: what it has not done yet goes back to workers",
    "backfill": "interrupt its command: nothing is changed then",
}


class OperationStore:
    """What those who ask for operations, and the leader that carries them out, need."""

    def __init__(self, scripts: Scripts) -> None:
        self._scripts = scripts

    def begin(
        self, record: JobRecord, stage: StagePlan, to: int, by: str, *, is_urgent: bool = False, token: str = ""
    ) -> str:
        """Has the leader change the number of the stage's partitions; the operation's id. A leader gives its token.

        Raises Busy while another operation, or a savepoint, is under way; JobStateError when the job is not running,
        or the stage is ending; StaleTerm, UnknownJob, StoreError.
        """
        job = record.job
        about = About("rescale", stage.name, stage.serving, to, by)
        names = [keys.job(job), keys.operation(job), keys.leader(job), keys.savepoint(job)]
        names += [keys.meta(job, stage.index, number) for number in range(stage.serving)]
        args = [record.table, msgspec.json.encode(about), about.kind, stage.index, to, "1" if is_urgent else "", token]
        answer = self._scripts.run("begin", names, args)
        match answer[0]:
            case -1:
                raise busy(job, answer[1], answer[2], answer[3])
            case -2:
                raise StaleTerm(f"this leader no longer leads job {job!r}")
            case -3:
                raise JobStateError(
                    f"job {job!r} is {_text(answer[1])}: only a running job is rescaled",
                    hint=f"`celeriac status {job}` shows why; restoring a savepoint takes any number of partitions",
                )
            case -4:
                raise Busy(f"the partitions of job {job!r} were changed just now", hint="look, and try again")
            case -5:
                raise unknown_job(job)
            case -6:
                raise JobStateError(f"stage {stage.name} of job {job!r} is ending: its input is over")
            case -8:
                raise busy_saving(job, answer[1])
        return _text(answer[1])

    def call_off(self, job: str, *, outcome: str = "cancelled", id_: str = "", token: str = "") -> About:
        """Ends the operation that waits; by its leader with its token.

        Raises JobStateError when there is none, or it is too late, StaleTerm.
        """
        return self._steer(job, id_, "end", outcome, token)

    def hurry(self, job: str) -> About:
        """Has the operation that waits go on without waiting. Raises as `call_off`."""
        return self._steer(job, "", "now", "", "")

    def _steer(self, job: str, id_: str, verb: str, outcome: str, token: str) -> About:
        names = [keys.job(job), keys.operation(job), keys.leader(job)]
        answer = self._scripts.run("steer", names, [id_, verb, outcome, token])
        match answer[0]:
            case -1:
                raise StaleTerm(f"this leader no longer leads job {job!r}")
            case -2:
                raise JobStateError(f"no operation of job {job!r} is under way")
            case 0:
                what = _about(keys.operation(job), answer[1])
                raise JobStateError(
                    f"too late: the {what} is {_text(answer[2])}, which goes on to its end",
                    hint=_BACK[what.kind].format(job=job),
                )
        return _about(keys.operation(job), answer[1])

    def switch(self, job: str, token: str, plan: Plan, table: int, operation: Operation) -> tuple[Switch, int]:
        """The switch itself, all of it or nothing; and the milliseconds that its script took.

        Raises StaleTerm, StoreError.
        """
        stage, change = plan.stage(operation.stage), layout(plan.stage(operation.stage).serving, operation.about.to)
        names = [keys.leader(job), keys.job(job), keys.operation(job), keys.control(job)]
        for number in change.places:
            at = (job, stage.index, number)
            names += [keys.inbox(*at), keys.meta(*at), keys.log(*at), keys.waiting(*at)]
        for to in sorted(set(stage.exchanges.values())):
            names += [keys.log(job, to, number) for number in range(plan.stage(to).serving)]
        rescaled = plan.rescaled(stage.index, change.after).encode()
        args: list[Any] = [token, operation.id, table, change.before, change.after, stage.index, rescaled]
        args += [_tells(change, number) for number in change.places]
        answer = self._scripts.run("rescale", names, args)
        if answer[0] == -1:
            raise StaleTerm(f"this leader no longer leads job {job!r}")
        return _SWITCHES[answer[0]], int(answer[1]) if len(answer) > 1 else 0

    def settle(self, job: str, token: str, plan: Plan, operation: Operation) -> int | None:
        """Ends the operation if all partitions are through; the milliseconds since the switch, or None for not yet.

        Raises StaleTerm, StoreError.
        """
        stage = plan.stage(operation.stage)
        names = [keys.leader(job), keys.job(job), keys.operation(job), keys.assignment(job)]
        for number in range(stage.partitions):
            names += [keys.meta(job, stage.index, number), keys.queue(job, stage.index, number)]
        answer = self._scripts.run("settled", names, [token, operation.id, stage.index, stage.serving])
        if answer[0] == -1:
            raise StaleTerm(f"this leader no longer leads job {job!r}")
        return int(answer[1]) if answer[0] == 1 else None


def busy(job: str, about: bytes, phase: bytes, milliseconds: int) -> Busy:
    """For those who want to begin something while an operation is under way."""
    found = _about(keys.operation(job), about)
    what = busy_words(found, _text(phase), milliseconds)
    hint = f"`celeriac status {job}` shows how far it is"
    if found.kind != "rescale":
        hint += f"; if its command is gone, it holds the job for {CLAIM_SECONDS:g} s at most: try again then"
    return Busy(f"job {job!r} is busy: {what}", hint=hint)


def busy_saving(job: str, name: bytes) -> Busy:
    """For those who want to begin an operation while a savepoint is being written."""
    return Busy(
        f"job {job!r} is busy: the savepoint {_text(name)} is being written", hint="try again when that is done"
    )


def read_operation(raw: Mapping[bytes, bytes]) -> Operation | None:
    """The operation under way as its hash has it. Raises ValueError, MsgspecError."""
    if not raw:
        return None
    text = text_of(raw)
    about = msgspec.json.decode(text["about"], type=About)
    return Operation(
        id=text["id"],
        about=about,
        phase=Phase(text["phase"]),
        stage=integer(text, "stage", None if about.kind == "rescale" else -1),
        is_urgent="now" in text,
        begun_at_ms=integer(text, "begun_at"),
        since_ms=integer(text, "since"),
        switched_at_ms=integer(text, "switched_at", 0),
        done=integer(text, "done", 0),
        total=integer(text, "total", 0),
        until_ms=integer(text, "until", 0),
    )


def read_past(line: str) -> PastOperation:
    """A line that `end_operation` has written. Raises ValueError, MsgspecError."""
    at, begun, switched, outcome, about = line.split("\t")
    return PastOperation(int(at), int(begun), int(switched), outcome, msgspec.json.decode(about, type=About))


def _tells(change: Layout, number: int) -> str:
    return " ".join(map(str, change.tells.get(number, ())))


def _about(key: str, raw: bytes) -> About:
    try:
        return msgspec.json.decode(raw, type=About)
    except msgspec.MsgspecError as error:
        raise foreign_key(f"{key} about") from error


def _text(raw: bytes) -> str:
    return raw.decode("utf-8", "backslashreplace")[:100]
