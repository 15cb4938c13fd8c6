"""The worker's side of the store: heartbeats, acquiring a partition, loading state and timers, declaring a trial."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import msgspec

from pipeline.codec import key_field, read_key_field, read_timer_member, state_field
from pipeline.control import read_control
from pipeline.errors import DecodingError, ForeignData
from pipeline.keying import group_of
from pipeline.lifecycle import JobState
from pipeline.positions import Position
from pipeline.records import MAX_TIME, MIN_TIME, Timer
from pipeline.store import keys
from pipeline.store.commits import Entry, read_entries
from pipeline.store.connection import translated
from pipeline.store.foreign import entry_id, integer, ours, text_of
from pipeline.store.holds import Hold, piece_field, read_hold
from pipeline.store.losses import unknown_job
from pipeline.store.moving import MOST_MOVES, read_aims
from pipeline.store.scripts import Scripts

logger = logging.getLogger(__name__)

MOST_TRIED: Final = 10
"""Attempts at a record that are remembered with their errors."""

_ATTEMPT_CHARACTERS: Final = 300


@dataclass(frozen=True, slots=True)
class Assigned:
    """One row of the assignment table."""

    stage: int
    partition: int
    worker: str
    incarnation: str
    token: str

    @property
    def term(self) -> int:
        return int(self.token.partition(":")[0])


@dataclass(frozen=True, slots=True)
class LoadedState:
    """rows: operator -> (key, encoded state or None) for every key that was asked for.

    empty: of their key groups those that have no state at all.
    """

    rows: dict[str, list[tuple[Any, bytes | None]]]
    empty: frozenset[int] = frozenset()


@dataclass(frozen=True, slots=True)
class Acquired:
    """What a new owner starts from. `watermarks`: sender -> what it has promised, in milliseconds.

    run: tells jobs of the same id, and generations of one job, apart. given: sink -> records that it was given.
    published: sink -> records in parts of a rotating sink that are in its folder.
    attempts: how often the record at the position has failed. tried: when and how, the last times.
    skipped: records that failed and were dropped so far. held: keys that are held, with what is behind their letters.
    restored_end: the place behind the last entry that was there when the server began; None if the job was made on it.
    left_out: records passed so far whose id was known. letters: dead letters written so far.
    sent: target -> records sent there so far, as `pipeline.books` names targets.
    switch: the entry at which the number of its stage's partitions changes, or nothing; it had `before` of them until
        then. gate: how many partitions have still to give this one their keys.
    """

    position: Position
    deaths: int
    watermark: int
    done: bool
    table: int
    watermarks: dict[str, int]
    run: str = ""
    given: dict[str, int] = field(default_factory=dict)
    published: dict[str, int] = field(default_factory=dict)
    attempts: int = 0
    tried: tuple[str, ...] = ()
    skipped: int = 0
    held: dict[Any, Hold] = field(default_factory=dict)
    restored_end: Position | None = None
    left_out: int = 0
    letters: int = 0
    sent: dict[str, int] = field(default_factory=dict)
    switch: str = ""
    before: int = 0
    gate: int = 0


@dataclass(frozen=True, slots=True)
class Pulse:
    """The answer to a heartbeat; `control` is the id of the last control message."""

    state: JobState
    control: str


@dataclass(frozen=True, slots=True)
class Calm:
    """An owned partition that waits for a ticket: it has committed all that it had read."""

    stage: int
    partition: int
    token: str
    position: Position


class Ownership:
    """What one worker of a job reads and says."""

    def __init__(self, scripts: Scripts, job: str, worker: str, incarnation: str) -> None:
        self.scripts = scripts
        self.job = job
        self.worker = worker
        self.incarnation = incarnation

    def heartbeat(self, report: str) -> Pulse | None:
        """None when a newer incarnation has this worker's name: this process must end.

        Raises UnknownJob, StoreError.
        """
        names = [keys.workers(self.job), keys.job(self.job), keys.control(self.job)]
        answer = self.scripts.run("heartbeat", names, [self.worker, self.incarnation, report])
        if answer[0] == -5:
            raise unknown_job(self.job)
        if answer[0] == -1:
            return None
        with ours(names[1]):
            return Pulse(JobState(answer[1].decode()), answer[2].decode())

    def take_tickets(
        self, table: int, calm: Sequence[Calm], records: int, bytes_: int
    ) -> list[tuple[Calm, list[Entry]]]:
        """Takes the tickets that wait for these partitions, with the entries that they are for. Raises StoreError.

        Whoever takes one must serve it. `records` and `bytes_` bound what is read for each.
        """
        names = [keys.job(self.job)]
        args: list[Any] = [table, records, bytes_]
        for each in calm:
            at = (self.job, each.stage, each.partition)
            names += [keys.inbox(*at), keys.meta(*at), keys.queue(*at)]
            args += [each.token, each.position.entry, each.position.record]
        answer = self.scripts.run("take", names, args)
        return [(calm[number - 1], read_entries(raw)) for number, raw in answer]

    def wait_for_control(self, last: str, wait_ms: int) -> str:
        """The id of the last control message behind `last`, or `last` when none came within `wait_ms`.

        A message of an unknown kind is told as an error; it says "look" like all others.
        """
        with translated():
            found = self.scripts.client.xread({keys.control(self.job): last}, block=wait_ms)
        for id_, fields in found[0][1] if found else ():
            try:
                read_control(fields)
            except DecodingError as error:
                logger.error("%s: job=%s id=%s", error, self.job, id_.decode())
        return found[0][1][-1][0].decode() if found else last

    def assigned(self) -> list[Assigned]:
        """The rows of the table that name this incarnation of this worker."""
        return self.table()[0]

    def table(self) -> tuple[list[Assigned], dict[str, str]]:
        """The rows that name this incarnation of this worker; and what owners are asked to give away: token by name."""
        with translated():
            pipe = self.scripts.client.pipeline(transaction=False)
            pipe.hgetall(keys.assignment(self.job))
            pipe.hgetall(keys.moving(self.job))
            raw, moving = pipe.execute()
        asked = {name: aim.token for name, aim in read_aims(self.job, moving).items() if aim.asked_ms}
        return self._rows(raw), asked

    def _rows(self, raw: dict[bytes, bytes]) -> list[Assigned]:
        rows = []
        with ours(keys.assignment(self.job)):
            for place, value in raw.items():
                stage, partition = place.decode().split(".")
                worker, incarnation, token = value.decode().split("|")
                if worker == self.worker and incarnation == self.incarnation:
                    rows.append(Assigned(int(stage), int(partition), worker, incarnation, token))
        return rows

    def give_away(self, row: Assigned, ticket: bytes, rested_ms: int) -> bool:
        """Gives the partition to the worker that the leader means; True when it is ours no more.

        False when nobody asks for it, or that worker is gone: then it stays. `ticket`: of the next term. rested_ms:
        time since the last slice there. Raises StoreError: it is not known then.
        """
        at = (self.job, row.stage, row.partition)
        names = [keys.meta(*at), keys.assignment(self.job), keys.control(self.job), keys.queue(*at), keys.job(self.job)]
        names += [keys.moving(self.job), keys.workers(self.job)]
        args = [row.token, f"{row.stage}.{row.partition}", ticket, rested_ms]
        return bool(self.scripts.run("collected", names, args)[0] in (1, -1))

    def _note_move(self, row: Assigned) -> None:
        names = [keys.meta(self.job, row.stage, row.partition), keys.moves(self.job), keys.job(self.job)]
        self.scripts.run("moved", names, [row.token, f"{row.stage}.{row.partition}", MOST_MOVES])

    def still_stages(self) -> tuple[frozenset[str], int]:
        """The stages that are paused, and the version of the table. Raises StoreError."""
        with translated():
            pipe = self.scripts.client.pipeline(transaction=False)
            pipe.hkeys(keys.job(self.job))
            pipe.hget(keys.job(self.job), "table")
            names, table = pipe.execute()
        still = frozenset(name[6:].decode("utf-8", "replace") for name in names if name.startswith(b"still:"))
        with ours(keys.job(self.job)):
            return still, int(table or 0)

    def acquire(self, row: Assigned, held_groups: Sequence[int] = ()) -> Acquired | None:
        """Where the partition stands; its owner works once without a ticket. None when the row is out of date.

        held_groups: key groups of which keys may be held. Raises ForeignData, StoreError.
        """
        at = (self.job, row.stage, row.partition)
        names = [keys.meta(*at), keys.log(*at), keys.job(self.job), keys.queue(*at)]
        names += [keys.held(self.job, row.stage, group) for group in held_groups]
        answer = self.scripts.run("acquire", names, [row.token])
        if answer[0] != 1:
            return None
        with ours(names[2]):
            table, run = int(answer[3]), answer[4].decode()
        with ours(names[1]):
            log = _pairs(answer[2])
            watermarks, given, published = (_numbers(log, prefix) for prefix in ("w:", "n:", "r:"))
        with ours(" or ".join(names[4:])):
            held = {read_key_field(name): read_hold(data) for name, data in zip(*[iter(answer[5])] * 2, strict=True)}
        with ours(names[0]):
            meta = _pairs(answer[1])
        if "moved" in meta:
            self._note_move(row)
        with ours(names[0]):
            position = Position(entry_id(meta["pos"]), integer(meta, "rec"))
            attempts, tried = _attempts(meta) if meta.get("tried_at") == str(position) else (0, ())
            return Acquired(
                position=position,
                deaths=integer(meta, "deaths", 0) if meta.get("deaths_at") == str(position) else 0,
                watermark=integer(meta, "watermark", MIN_TIME),
                done=meta.get("done") == "1",
                table=table,
                watermarks=watermarks,
                run=run,
                given=given,
                published=published,
                attempts=attempts,
                tried=tried,
                skipped=integer(meta, "skipped", 0),
                held=held,
                restored_end=Position(entry_id(meta["restored_end"])) if "restored_end" in meta else None,
                left_out=integer(meta, "left_out", 0),
                letters=integer(meta, "letters", 0),
                sent=msgspec.json.decode(meta.get("sent", "{}"), type=dict[str, int]),
                switch=entry_id(meta["switch"]) if "switch" in meta else "",
                before=integer(meta, "before", 0),
                gate=integer(meta, "gate", 0),
            )

    def next_file(self, row: Assigned) -> int:
        """A number for a staging file, greater than all that were given there. Raises UnknownJob, StoreError."""
        answer = self.scripts.run("number", [keys.meta(self.job, row.stage, row.partition)], [])
        if answer[0] == -5:
            raise unknown_job(self.job)
        return int(answer[0])

    def declare_trial(self, row: Assigned, position: Position) -> bool:
        """Says that the record at `position` is about to be run alone. False when fenced."""
        answer = self.scripts.run("trying", [keys.meta(self.job, row.stage, row.partition)], [row.token, str(position)])
        return bool(answer[0] == 1)

    def note_attempt(self, row: Assigned, position: Position, tried: Sequence[str], attempt: int, error: str) -> bool:
        """Says that the record at `position` failed at this attempt, behind those of `tried`. False when fenced."""
        lines = "\n".join(tried[-(MOST_TRIED - 1) :])
        text = f"{attempt} {' '.join(error.split())[:_ATTEMPT_CHARACTERS]}"
        names = [keys.meta(self.job, row.stage, row.partition)]
        answer = self.scripts.run("attempt", names, [row.token, str(position), lines, text])
        return bool(answer[0] == 1)

    def load_state(self, stage: int, operators: Sequence[str], wanted: Iterable[Any]) -> LoadedState:
        """The state of every wanted key, in one round trip."""
        by_group: dict[int, list[Any]] = {}
        for key in wanted:
            by_group.setdefault(group_of(key), []).append(key)
        found: dict[str, list[tuple[Any, bytes | None]]] = {operator: [] for operator in operators}
        if not operators:
            return LoadedState(found)
        args: list[Any] = []
        for group_keys in by_group.values():
            args.append(len(operators) * len(group_keys))
            args += [state_field(operator, key) for operator in operators for key in group_keys]
        answers = self.scripts.run("load", [keys.state(self.job, stage, group) for group in by_group], args)
        empty = set()
        for (group, group_keys), (fields, *values) in zip(by_group.items(), answers, strict=True):
            if not fields:
                empty.add(group)
            for number, operator in enumerate(operators):
                part = values[number * len(group_keys) : (number + 1) * len(group_keys)]
                found[operator].extend(zip(group_keys, part, strict=True))
        return LoadedState(found, frozenset(empty))

    def load_held(self, stage: int, key: Any, first: int, count: int) -> list[bytes]:
        """So many pieces of the records held of a key, from number `first` on. Raises ForeignData when one is gone."""
        fields = [piece_field(number, key_field(key)) for number in range(first, first + count)]
        names = [keys.held_records(self.job, stage, group_of(key))]
        _, *found = self.scripts.run("load", names, [len(fields), *fields])[0]
        if None in found:
            raise ForeignData(
                f"records held of the key {key!r} are missing",
                hint="another program has deleted keys that begin with celeriac: on this Redis",
            )
        return found  # type: ignore[no-any-return]

    def due_timers(
        self, stage: int, operators: Sequence[str], groups: Sequence[int], watermark: int, limit: int
    ) -> list[Timer]:
        """Some of the timers with due <= watermark, about `limit` at most; none only if none is due.

        They come in order of (due, place of the operator), and none that is left out would come before the last.
        """
        places = [(rank, group) for rank in range(len(operators)) for group in groups]
        if not places:
            return []
        names = [keys.timers(self.job, stage, operators[rank], group) for rank, group in places]
        share = limit // len(places) + 1
        found: list[tuple[int, int, Timer]] = []
        horizon = (MAX_TIME, len(operators))
        answers = self.scripts.run("due", names, [watermark, share])
        for (rank, _), name, raw in zip(places, names, answers, strict=True):
            with ours(name):
                timers = [read_timer_member(member) for member in raw[::2]]
            found.extend((timer.due, rank, timer) for timer in timers)
            if len(timers) == share:
                horizon = min(horizon, (timers[-1].due, rank))
        found.sort(key=lambda row: row[:2])
        return [timer for due, rank, timer in found if (due, rank) <= horizon]


def _attempts(meta: dict[str, str]) -> tuple[int, tuple[str, ...]]:
    """Lines of `milliseconds number error`, oldest first; the number of the last one counts all."""
    lines = tuple(meta.get("tried", "").split("\n"))
    return int(lines[-1].split(" ", 2)[1]), lines


def _pairs(flat: list[bytes]) -> dict[str, str]:
    return text_of(dict(zip(flat[::2], flat[1::2], strict=True)))


def _numbers(fields: dict[str, str], prefix: str) -> dict[str, int]:
    """The numbers in the fields of a prefix, by what is behind it. Raises ValueError."""
    return {name[len(prefix) :]: integer(fields, name) for name in fields if name.startswith(prefix)}
