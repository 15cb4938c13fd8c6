"""The dead letters of one job in Redis: reading, editing, replaying and dropping them."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final

from pipeline.codec import decode_batch, encode_batch, key_field
from pipeline.errors import (
    Busy,
    DecodingError,
    EncodingError,
    InboxFull,
    JobStateError,
    LetterError,
    StoreUnavailable,
    UnknownJob,
)
from pipeline.facts import JobRecord
from pipeline.keying import first_table, group_of
from pipeline.plan import Plan
from pipeline.records import Batch
from pipeline.store import keys
from pipeline.store.connection import translated
from pipeline.store.foreign import integer, text_of
from pipeline.store.holds import read_hold
from pipeline.store.scripts import Scripts
from pipeline.wording import counted

_PAGE: Final = 200
_ATTEMPT: Final = re.compile(r"\d{1,16} \d{1,9} ")
_MOST_DROPPED: Final = 4_000
_TABLES: Final = 5
"""How often a letter is put back anew since the table has changed."""


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """A record given up. `payload` is the record as a batch of one, unless `kind` is entry; the id begins with
    milliseconds by the clock of Redis.

    kind: record; timer, whose value is its due time; entry, whose bytes cannot be read; or foreign, for what another
        program has put among the letters: stage and partition are -1.
    tried: a line for each attempt before the last one: milliseconds, number, error.
    replay_of: the letter that was replayed, or dropped, when this record failed, or nothing: its own record, or that
        of one which held this record back.
    edited: the payload that a replay takes instead, or nothing.
    holds: its key is held: later records of it wait behind this letter. behind: how many there are.
    """

    id: str
    stage: int
    partition: int
    operator: str
    error: str
    traceback: str
    payload: bytes
    kind: str = "record"
    tried: tuple[str, ...] = ()
    replay_of: str = ""
    edited: bytes = b""
    holds: bool = False
    behind: int = 0

    def record(self) -> Batch:
        """The record as a batch of one, as it was edited last. Raises DecodingError where it cannot be read."""
        return decode_batch(self.edited or self.payload)

    def with_value(self, value: Any) -> bytes:
        """The payload with another value; key and event time stay. Raises EncodingError, DecodingError."""
        batch = decode_batch(self.payload)
        return encode_batch(Batch([value], batch.keys, batch.times))


class LetterStore:
    """What is done to the dead letters of one job."""

    def __init__(self, scripts: Scripts, record: JobRecord) -> None:
        self._scripts = scripts
        self._job = record.job
        self._plan = record.plan
        self._table = record.table
        self._keys = [keys.dead(record.job), keys.dead_edits(record.job)]

    def read(self, after: str = "-") -> Iterator[DeadLetter]:
        """All letters, oldest first, from behind the id `after`; read page by page."""
        start = after if after == "-" else f"({after}"
        while True:
            with translated():
                page = self._scripts.client.xrange(self._keys[0], start, count=_PAGE)
                ids = [id_ for id_, _ in page]
                edits = self._scripts.client.hmget(self._keys[1], ids) if ids else []
            yield from self._with_counts(
                [
                    read_letter(id_.decode(), fields, edited or b"")
                    for (id_, fields), edited in zip(page, edits, strict=True)
                ]
            )
            if len(page) < _PAGE:
                return
            start = f"({page[-1][0].decode()}"

    def get(self, id_: str) -> DeadLetter:
        """Raises LetterError when there is none of that id."""
        with translated():
            found = self._scripts.client.xrange(self._keys[0], id_, id_) if _is_id(id_) else []
            edited = self._scripts.client.hget(self._keys[1], id_) if found else None
        if not found:
            raise _unknown(self._job, id_)
        return self._with_counts([read_letter(found[0][0].decode(), found[0][1], edited or b"")])[0]

    def edit(self, letter: DeadLetter, value: Any) -> None:
        """A replay takes this value from now on; the letter shows both.

        Raises LetterError for a letter that holds no record or a record that is too large, EncodingError.
        """
        _check_replayable(letter)
        payload = letter.with_value(value)
        if len(payload) > self._plan.limits.record_bytes:
            raise LetterError(
                f"the record would have {len(payload):,} bytes, more than the {self._plan.limits.record_bytes:,} "
                "that the job takes"
            )
        if self._scripts.run("edit", self._keys, [letter.id, payload])[0] == -1:
            raise _unknown(self._job, letter.id)

    def replay(self, letter: DeadLetter) -> None:
        """Puts the record back at the end of the inbox in which it failed; the letter is gone. All of it or nothing.

        Where it holds its key, all that is held behind it follows the record at that place.
        Raises LetterError (unknown, or no record), JobStateError when the input of its stage has ended, InboxFull,
        UnknownJob.
        """
        _check_replayable(letter)
        if letter.holds:
            self._let_go(letter, has_record=True)
            return
        match self._run(self._put_back, letter)[0]:
            case -1:
                raise _unknown(self._job, letter.id)
            case -3:
                raise JobStateError(
                    f"the dead letter {letter.id} cannot be replayed: the input of its stage has ended",
                    hint="a replay needs a job that still takes input; drop the letter, or run the record in a new job",
                )
            case -4:
                raise InboxFull(
                    f"the dead letter {letter.id} was not replayed: the inbox of stage {letter.stage} is full",
                    hint="try again when the job has worked some off",
                )
            case -5:
                raise self._no_job()
            case -9:
                raise shadowed(self._job)

    def drop(self, ids: Sequence[str]) -> int:
        """Deletes the letters of these ids; how many there were. What is held behind them goes on.

        Raises JobStateError when that cannot go on, as the input of its stage has ended; those in front are gone then.
        """
        known = [id_ for id_ in ids if _is_id(id_)]
        if any(stage.on_error.holds_keys for stage in self._plan.stages):
            return sum(self._drop_one(id_) for id_ in known)
        return self._delete(known)

    def _drop_one(self, id_: str) -> int:
        try:
            letter = self.get(id_)
            if letter.holds:
                self._let_go(letter, has_record=False)
                return 1
        except LetterError:
            return 0
        return self._delete([id_])

    def _delete(self, known: Sequence[str]) -> int:
        count = 0
        for start in range(0, len(known), _MOST_DROPPED):
            names = [*self._keys, keys.job(self._job)]
            dropped = int(self._scripts.run("drop", names, known[start : start + _MOST_DROPPED])[0])
            if dropped < 0:
                raise shadowed(self._job)
            count += dropped
        return count

    def _let_go(self, letter: DeadLetter, *, has_record: bool) -> None:
        answer = self._run(partial(self._release, has_record=has_record), letter)
        match answer[0]:
            case -1:
                raise _unknown(self._job, letter.id)
            case -3:
                verb = "replayed" if has_record else "dropped"
                records = int(answer[1])
                raise JobStateError(
                    f"the dead letter {letter.id} cannot be {verb}: the input of its stage has ended"
                    + (f", and {counted(records, 'record')} held behind it could not go on" * (records > 0)),
                    hint="run these records in a new job; `celeriac remove` deletes them with this one",
                )
            case -4:
                raise StoreUnavailable("Redis was restarted just now", hint="try again in a moment")
            case -5:
                raise self._no_job()
            case -9:
                raise shadowed(self._job)

    def _run(self, run: Callable[[DeadLetter], list[Any]], letter: DeadLetter) -> list[Any]:
        """The answer under the table as it is: where keys go may have been changed since it was read."""
        for _ in range(_TABLES):
            answer = run(letter)
            if answer[0] != -2:
                return answer
            with translated():
                plan, table = self._scripts.client.hmget(keys.job(self._job), "plan", "table")
            self._plan, self._table = Plan.decode(plan or b""), int(table)
        raise StoreUnavailable("the partitions of the job are being changed", hint="try again in a moment")

    def _put_back(self, letter: DeadLetter) -> list[Any]:
        at = (self._job, letter.stage, self._partition(letter))
        names = [keys.job(self._job), *self._keys, keys.inbox(*at), keys.meta(*at), keys.log(*at)]
        limits = self._plan.limits
        args = [letter.id, letter.edited or letter.payload, limits.inbox_records, limits.inbox_bytes, self._table]
        return self._scripts.run("replay", [*names, *self._entries(letter)], args)

    def _release(self, letter: DeadLetter, *, has_record: bool) -> list[Any]:
        key = _key(letter)
        at = (self._job, letter.stage, self._partition(letter))
        names = [keys.job(self._job), *self._keys, keys.inbox(*at), keys.meta(*at)]
        names += [keys.held(self._job, letter.stage, group_of(key)), *self._entries(letter)]
        args = [letter.id, letter.payload, key_field(key), json.dumps(has_record), self._table]
        return self._scripts.run("letgo", names, args)

    def _partition(self, letter: DeadLetter) -> int:
        """Where the record goes: to the partition that serves its key now. Raises DecodingError, EncodingError."""
        stage = self._plan.stage(letter.stage)
        if not stage.keyed or stage.serving == stage.partitions == 1:
            return letter.partition
        keys_ = decode_batch(letter.payload).keys
        return first_table(stage.serving)[group_of(keys_[0])] if keys_ else letter.partition

    def _with_counts(self, letters: list[DeadLetter]) -> list[DeadLetter]:
        """The letters, with how many records are held behind each."""
        if not any(letter.holds for letter in letters):
            return letters
        with translated():
            pipe = self._scripts.client.pipeline(transaction=False)
            for letter in letters:
                if letter.holds:
                    key = _key(letter)
                    pipe.hget(keys.held(self._job, letter.stage, group_of(key)), key_field(key))
            found = iter(pipe.execute())
        holds = [next(found) if letter.holds else None for letter in letters]
        return [
            replace(one, behind=read_hold(hold).records) if hold else one
            for one, hold in zip(letters, holds, strict=True)
        ]

    def _entries(self, letter: DeadLetter) -> list[str]:
        """The meta of each entry partition whose records reach the letter's stage."""
        return [
            keys.meta(self._job, entry, number)
            for entry in self._entry_stages(letter.stage)
            for number in range(self._plan.stage(entry).partitions)
        ]

    def _no_job(self) -> UnknownJob:
        return UnknownJob(f"there is no job {self._job!r}", hint="celeriac list shows the jobs")

    def _entry_stages(self, stage: int) -> set[int]:
        """The entry stages whose records reach the stage."""
        upstream = self._plan.stage(stage).upstream
        return set().union(*(self._entry_stages(each) for each in upstream)) if upstream else {stage}


def read_letter(id_: str, fields: dict[bytes, bytes], edited: bytes = b"") -> DeadLetter:
    """Whatever the entry holds: one that is none of ours is a letter of the kind foreign, so that it can be dropped."""
    try:
        text = text_of({name: value for name, value in fields.items() if name != b"payload"})
        letter = DeadLetter(
            id=id_,
            stage=integer(text, "stage"),
            partition=integer(text, "partition"),
            operator=text["operator"],
            error=text["error"],
            traceback=text["traceback"],
            payload=fields[b"payload"],
            kind=text.get("kind", "record"),
            tried=tuple(text["tried"].split("\n")) if "tried" in text else (),
            replay_of=text.get("replay_of", ""),
            edited=edited,
            holds="holds" in text,
        )
        if letter.holds:
            group_of(_key(letter))
        if letter.stage < 0 or letter.partition < 0 or any(not _ATTEMPT.match(line) for line in letter.tried):
            raise ValueError("its numbers are none of ours")
    except (KeyError, ValueError, DecodingError, EncodingError) as error:
        why = f"there is no field {error}" if isinstance(error, KeyError) else str(error)
        payload = fields.get(b"payload", b"")
        return DeadLetter(id_, -1, -1, "", f"another program has written this: {why}", "", payload, "foreign")
    return letter


def _key(letter: DeadLetter) -> Any:
    """Raises DecodingError."""
    return (decode_batch(letter.payload).keys or [None])[0]


def _is_id(text: str) -> bool:
    first, _, second = text.partition("-")
    return first.isascii() and second.isascii() and first.isdecimal() and second.isdecimal() and len(text) < 42


def _check_replayable(letter: DeadLetter) -> None:
    if letter.kind == "timer":
        raise LetterError(
            f"the dead letter {letter.id} is a timer, which cannot be set again",
            hint="correct the operator, then drop the letter",
        )
    if letter.kind == "foreign":
        raise LetterError(f"{letter.id} is no dead letter of ours: {letter.error}", hint="drop it")
    if letter.kind != "record":
        raise LetterError(
            f"the dead letter {letter.id} is an entry whose bytes cannot be read", hint="send its records anew, drop it"
        )


def shadowed(job: str) -> Busy:
    """Its shadow has the same letters, and would not hear of it."""
    return Busy(
        f"job {job!r} is busy: a shadow runs beside it, which has the same dead letters",
        hint=f"`celeriac promote {job}`, or `celeriac shadow {job} --drop`, and try again",
    )


def _unknown(job: str, id_: str) -> LetterError:
    return LetterError(
        f"the job {job!r} has no dead letter {id_}",
        hint=f"`celeriac dead-letters list {job}` shows the ids of those that there are;"
        " one that was replayed or dropped is gone",
    )
