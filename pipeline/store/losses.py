"""A lost tail in Redis: saying what is missing, asking where things stood, and going on without it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from pipeline.errors import JobStateError, UnknownJob
from pipeline.facts import JobRecord
from pipeline.lifecycle import JobState
from pipeline.plan import Plan, stream_names
from pipeline.positions import Position
from pipeline.store import keys
from pipeline.store.foreign import entry_id, ours
from pipeline.store.scripts import Scripts

LINE_CHARACTERS: Final = 500


@dataclass(frozen=True, slots=True)
class Known:
    """What the job has of a sender: the number of its last record and its epoch. `last` -1: it knows no such sender."""

    made_at: str
    generation: int
    last: int
    epoch: int


class LossStore:
    """What is said and asked of one job by those who remember more than Redis."""

    def __init__(self, scripts: Scripts, job: str) -> None:
        self._scripts = scripts
        self._job = job

    def report(self, run: str, lines: Sequence[str]) -> bool:
        """Halts the job: its state is failed from now on, and says why. Idempotent.

        False when the job, or the generation, is another one by now: then nothing is lost of it. Raises UnknownJob,
        StoreError.
        """
        is_noted = True
        for line in lines:
            one_line = " ".join(line.split())[:LINE_CHARACTERS]
            names = [keys.job(self._job), keys.control(self._job)]
            answer = self._scripts.run("lost", names, [run, one_line])
            if answer[0] == -5:
                raise unknown_job(self._job)
            is_noted = is_noted and answer[0] != -2
        return is_noted

    def stood(self, run: str, places: Sequence[tuple[int, int]]) -> Mapping[tuple[int, int], Position]:
        """Where the partitions stood when this run of the server began. Empty for another job or generation.

        Raises UnknownJob, StoreError.
        """
        names = [keys.job(self._job), *(keys.meta(self._job, *place) for place in places)]
        answer = self._scripts.run("recall", names, [run])
        if answer[0] == -5:
            raise unknown_job(self._job)
        if answer[0] != 1:
            return {}
        found = {}
        for place, name, text in zip(places, names[1:], answer[1], strict=True):
            with ours(name):
                found[place] = read_position(text.decode())
        return found

    def known(self, name: str, sender: int, log: str) -> Known:
        """What the job has of a sender by its name without the generation. Raises UnknownJob, StoreError."""
        answer = self._scripts.run("known", [keys.senders(self._job), keys.job(self._job), log], [name, sender])
        if answer[0] == -5:
            raise unknown_job(self._job)
        with ours(keys.job(self._job)):
            return Known(answer[1].decode(), int(answer[2]), answer[3], answer[4])

    def accept(self, record: JobRecord) -> JobState:
        """The job goes on without what it has lost, under the next generation; its state.

        Raises JobStateError when nothing was lost, or the job works; UnknownJob, StoreError.
        """
        job, plan = self._job, record.plan
        names = [keys.job(job), keys.control(job), keys.leader(job), keys.assignment(job)]
        names += [keys.senders(job), keys.visitors(job)]
        places = plan.partitions()
        names += [keys.meta(job, *place) for place in places]
        streams = stream_names(plan)
        names += [keys.out_meta(job, stream) for stream in streams]
        names += [keys.log(job, *place) for place in _entries(plan)]
        answer = self._scripts.run("accept", names, [record.generation, len(places), len(streams)])
        match answer[0]:
            case 1:
                return JobState(answer[2].decode())
            case -5:
                raise unknown_job(job)
            case -2:
                raise JobStateError(f"the loss of job {job!r} was accepted by another command just now")
            case -3:
                state = answer[1].decode("utf-8", "backslashreplace")
                raise JobStateError(f"job {job!r} is {state}: it goes on only when it has halted")
        raise JobStateError(
            f"nothing is known to be lost of job {job!r}", hint="leave --accept-loss out: it only goes on after a loss"
        )


def read_position(text: str) -> Position:
    """A position as scripts store it: `entry/record`. Raises ValueError."""
    entry, _, record = text.partition("/")
    return Position(entry_id(entry), int(record or 0))


def unknown_job(job: str) -> UnknownJob:
    """For somebody who has worked at the job: it is not there any more."""
    return UnknownJob(
        f"this Redis no longer knows job {job!r}: it was removed, or the server was emptied or came back without its"
        " data",
        hint="nobody makes it again by itself: bring the data of Redis back, or run it as a new job",
    )


def _entries(plan: Plan) -> list[tuple[int, int]]:
    return [(stage.index, number) for stage in plan.stages if not stage.upstream for number in range(stage.partitions)]
