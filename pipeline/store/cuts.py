"""The cut of a savepoint, and reading a job as it was at that instant while it goes on.

Writes nothing but the cut itself, and that its exporter is at work. Commits keep what they change (`commit.lua`).
"""

from __future__ import annotations

import secrets
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal

from pipeline.errors import Busy, JobStateError, NotQuiet, SavepointError, SavepointLost
from pipeline.lifecycle import JobState
from pipeline.plan import Plan, stream_names
from pipeline.store import keys
from pipeline.store.ahead import Ahead
from pipeline.store.connection import translated
from pipeline.store.losses import unknown_job
from pipeline.store.operations import busy
from pipeline.store.scripts import Scripts

LEASE_SECONDS: Final = 15.0
"""An exporter that says nothing for this long is gone: its savepoint is let go."""

PAGE_FIELDS: Final = 1_000
"""About so many fields are read by one call."""
_PAGE_ENTRIES: Final = 20
_BEGINNING: Final = b"0"
"""The cursor of a scan at its beginning, and at its end."""

_ENDED: Final = {JobState.CANCELLED: "stopped", JobState.SUSPENDED: "suspended"}


Kind = Literal["h", "z"]
"""A hash, or a sorted set."""


@dataclass(frozen=True, slots=True)
class Page:
    """Some fields and their values, or members and scores, of a key as they were at the cut.

    `is_last`: there are no more.
    """

    key: str
    names: list[bytes]
    values: list[bytes]
    is_last: bool

    @property
    def found(self) -> Iterator[tuple[bytes, bytes]]:
        return zip(self.names, self.values, strict=True)


@dataclass(frozen=True, slots=True)
class Cut:
    """One savepoint that is being written. `at_ms`: when the cut was, by the clock of Redis."""

    job: str
    epoch: int
    at_ms: int
    token: str


class CutStore:
    """What an exporter, and whoever tidies up behind one, does to one job. `plan` is that of the job under `table`."""

    def __init__(self, scripts: Scripts, job: str, plan: Plan, table: int | None = None) -> None:
        self._scripts = scripts
        self._client = scripts.client
        self._job = job
        self._plan = plan
        self._table = table

    def cut(self, name: str, ends: JobState | None = None, shadow: str = "") -> Cut:
        """Opens an epoch at this instant; with `ends` the job is cancelled, or suspended, at the same one.

        With `shadow`, the token of one that was announced, all that senders append from there on is kept for that.

        Raises SavepointError when another savepoint is being written, Busy while an operation is under way, NotQuiet
        when the job is to be suspended and something is in flight, JobStateError, UnknownJob, StoreFull.
        """
        job, token = self._job, secrets.token_hex(8)
        places = self._plan.partitions()
        names = [*self._names(), keys.control(job), *(keys.meta(job, *place) for place in places)]
        for key in self._copied():
            names += [key, keys.was(job, key)]
        reason = f"{_ENDED[ends]} with the savepoint {name}" if ends is not None else ""
        limit = self._plan.limits.savepoint_bytes
        kinds = {keys.dead(job): "stream", keys.visitors(job): "zset"}
        args = [token, name, int(LEASE_SECONDS * 1000), limit, len(places), reason]
        args.append((ends or JobState.CANCELLED).value)
        args += [self._table or "", shadow]
        args += [kinds.get(key, "hash") for key in self._copied()]
        answer = self._scripts.run("cut", names, args)
        if answer[0] == -1 and answer[2] == 0 and self.tidy():
            answer = self._scripts.run("cut", names, args)
        match answer[0]:
            case 1:
                return Cut(job, answer[1], answer[2], token)
            case -1:
                raise SavepointError(
                    f"job {job!r} is busy: its savepoint {answer[1].decode()} is being written",
                    hint=f"one at a time; one whose process is gone is let go after {LEASE_SECONDS:g} s",
                )
            case -3:
                raise JobStateError(f"job {job!r} is {answer[1].decode()}: it cannot be stopped with a savepoint")
            case -4:
                raise Busy(f"the partitions of job {job!r} were changed just now", hint="try again")
            case -10:
                raise busy(job, answer[1], answer[2], answer[3])
            case -9:
                raise NotQuiet(f"job {job!r} has records in flight", hint="pause its sources, and wait")
            case -8:
                raise JobStateError(f"job {job!r} is being restored", hint="try again when that is done")
        raise unknown_job(job)

    def let_go(self, cut: Cut) -> None:
        """Nothing is kept for the savepoint any more, whether it is written or given up. Idempotent."""
        self._uncut(cut.token)

    def tidy(self) -> bool:
        """Lets go what an exporter has left that is gone; False when there is none, or it is at work."""
        return self._uncut("") == 1

    def _uncut(self, token: str) -> int:
        names = [*self._names(), *(keys.meta(self._job, *place) for place in self._plan.partitions())]
        return int(self._scripts.run("uncut", names, [token])[0])

    def hold(self, cut: Cut, groups: Sequence[str] = (), inboxes: Sequence[tuple[int, int]] = ()) -> None:
        """The exporter is at work, and is through with these keys and inboxes.

        Raises SavepointLost when it must not go on: the savepoint was given up, or taken for dead.
        """
        job = self._job
        names = [keys.savepoint(job), keys.was_names(job), keys.job(job), *(keys.was(job, key) for key in groups)]
        for place in inboxes:
            names += [keys.was(job, keys.inbox(job, *place)), keys.meta(job, *place)]
        answer = self._scripts.run("exporting", names, [cut.token, int(LEASE_SECONDS * 1000), len(groups)])
        if answer[0] == -2:
            megabytes = self._plan.limits.savepoint_bytes >> 20
            raise SavepointLost(
                f"the savepoint was given up: more than {megabytes:,} MiB of state were changed while it was written."
                " The job goes on",
                hint="take it at a calmer hour, or to a place that is written faster",
            )
        if answer[0] != 1:
            raise SavepointLost(
                f"the savepoint was given up: its exporter said nothing for {LEASE_SECONDS:g} s. The job goes on",
                hint="take it anew",
            )

    def facts(self) -> Iterator[tuple[str, bytes, bytes]]:
        """(key without the job, field, value) of all small keys, as they were at the cut; members have no value."""
        prefix = len(keys.of_job(self._job)) + 1
        for key in self._copied():
            if key in (keys.dead(self._job), keys.job(self._job)):
                continue
            was = keys.was(self._job, key)
            with translated():
                if key == keys.visitors(self._job):
                    yield from ((key[prefix:], member, b"") for member, _ in self._client.zscan_iter(was, count=1000))
                else:
                    yield from ((key[prefix:], *pair) for pair in self._client.hscan_iter(was, count=1000))

    def record(self) -> dict[str, bytes]:
        """The job's own hash, as it was at the cut."""
        with translated():
            raw = self._client.hgetall(keys.was(self._job, keys.job(self._job)))
        return {field.decode(): value for field, value in raw.items()}

    def letters(self) -> Iterator[tuple[str, dict[bytes, bytes]]]:
        """Dead letters, oldest first."""
        start = "-"
        while True:
            with translated():
                page = self._client.xrange(keys.was(self._job, keys.dead(self._job)), start, count=_PAGE_ENTRIES)
            for id_, fields in page:
                yield id_.decode(), fields
                start = f"({id_.decode()}"
            if not page:
                return

    def in_flight(self, stage: int, partition: int) -> Iterator[tuple[str, bytes, bytes]]:
        """(id, header, payload) of the entries that were in an inbox and not passed. Until `hold` is told of it."""
        at = (self._job, stage, partition)
        inbox = keys.inbox(*at)
        mark = f"{1 + int(self._was(keys.meta(*at), 'head'))}-{self._was(keys.meta(*at), 'sub')}"
        start = "-"
        while True:
            args = [start, mark, _PAGE_ENTRIES]
            page = self._scripts.run("inflight", [inbox, keys.was(self._job, inbox)], args)
            for id_, fields in page:
                yield id_.decode(), fields[1], fields[3] if len(fields) > 3 else b""
                start = f"({id_.decode()}"
            if len(page) < _PAGE_ENTRIES:
                return

    def _was(self, key: str, field: str) -> str:
        with translated():
            return str((self._client.hget(keys.was(self._job, key), field) or b"0").decode())

    def filled(self, names: Sequence[str], kind: Kind) -> dict[str, int]:
        """Those of these keys that may have held something at the cut -> about how many fields.

        A key that is empty now, with nothing kept of it afterwards, was empty then.
        """
        pairs = [key for name in names for key in (name, keys.was(self._job, name))]
        flat = self._scripts.run("filled", pairs, [kind])
        return {names[place - 1]: fields for place, fields in zip(flat[::2], flat[1::2], strict=True)}

    def at_cut(self, names: Sequence[str], kind: Kind) -> Iterator[Page]:
        """Pages of keys that commits change, each field once; several small keys come with one call.

        Each key until `hold` is told of it. Commits keep a value before they change it, so what is kept is read behind
        it. A field that the scan misses was deleted since the cut, so it was kept: the kept ones come last.
        """
        batches = self._batches(names, kind)
        with Ahead(self._client) as ahead:
            scans = next(batches, [])
            if scans:
                ahead.send(_scan_commands(scans, kind))
            while scans:
                read, answers = scans, ahead.answers()
                found, sizes = answers[::2], answers[1::2]
                for scan, (cursor, _) in zip(read, found, strict=True):
                    scan.cursor = cursor
                kept = self._kept(ahead, read, [flat[::2] for _, flat in found], sizes)
                scans = [scan for scan in read if not scan.is_through] or next(batches, [])
                if scans:
                    ahead.send(_scan_commands(scans, kind))
                for scan, (_, flat), (olds, rest) in zip(read, found, kept, strict=True):
                    yield scan.page(flat, olds, rest)

    def _batches(self, names: Sequence[str], kind: Kind) -> Iterator[list[_Scan]]:
        """Several small keys, or a large one."""
        batch: list[_Scan] = []
        room = PAGE_FIELDS
        for name, fields in self.filled(names, kind).items():
            if batch and fields > room:
                yield batch
                batch, room = [], PAGE_FIELDS
            batch.append(_Scan(name, keys.was(self._job, name)))
            room -= fields
        if batch:
            yield batch

    def _kept(
        self, ahead: Ahead, scans: Sequence[_Scan], names: Sequence[list[bytes]], sizes: Sequence[int]
    ) -> list[tuple[list[bytes | None] | None, list[bytes]]]:
        """For each scan what was kept of these names, and all that was kept if it is through."""
        commands: list[tuple[Any, ...]] = []
        for scan, wanted, size in zip(scans, names, sizes, strict=True):
            if size and wanted:
                commands.append(("HMGET", scan.was, *wanted))
            if size and scan.is_through and size <= 2 * PAGE_FIELDS:
                commands.append(("HGETALL", scan.was))
        if commands:
            ahead.send(commands)
        answers = iter(ahead.answers() if commands else ())
        found: list[tuple[list[bytes | None] | None, list[bytes]]] = []
        for scan, wanted, size in zip(scans, names, sizes, strict=True):
            olds: list[bytes | None] | None = next(answers) if size and wanted else None
            rest: list[bytes] = []
            if size and scan.is_through:
                rest = next(answers) if size <= 2 * PAGE_FIELDS else self._all_of(scan.was)
            found.append((olds, rest))
        return found

    def _all_of(self, was: str) -> list[bytes]:
        with translated():
            return [part for pair in self._client.hscan_iter(was, count=PAGE_FIELDS) for part in pair]

    def ids_at_cut(self, source: str, group: int, cut: Cut) -> list[tuple[bytes, int]]:
        """(digest, milliseconds) of the ids that a source remembered; later ones are told by their time."""
        with translated():
            found = self._client.zrangebyscore(keys.ids(self._job, source, group), "-inf", cut.at_ms, withscores=True)
        return [(digest, int(score)) for digest, score in found]

    def _names(self) -> list[str]:
        return [keys.job(self._job), keys.savepoint(self._job), keys.was_names(self._job)]

    def _copied(self) -> list[str]:
        """Small keys, which are copied at the cut; none of them grows with the state."""
        job = self._job
        found = [keys.job(job), keys.senders(job), keys.dead(job), keys.dead_edits(job), keys.files(job)]
        found.append(keys.visitors(job))
        for place in self._plan.partitions():
            found += [keys.meta(job, *place), keys.log(job, *place)]
        for stream in stream_names(self._plan):
            found += [keys.out_meta(job, stream), keys.out_log(job, stream)]
        return found


class _Scan:
    """The reading of one key: how far it is, and what was met."""

    __slots__ = ("_met", "cursor", "key", "was")

    def __init__(self, key: str, was: str) -> None:
        self.key = key
        self.was = was
        self.cursor = _BEGINNING
        self._met: set[bytes] = set()

    @property
    def is_through(self) -> bool:
        """Asked when the first page was read."""
        return self.cursor == _BEGINNING

    def page(self, flat: Sequence[bytes], olds: Sequence[bytes | None] | None, rest: Sequence[bytes]) -> Page:
        """`olds`: what was kept of each name in `flat`, if anything. `rest`: all that was kept, with the last page."""
        values: Sequence[bytes] = flat[1::2]
        if olds is not None:
            values = [value if old is None else old for value, old in zip(values, olds, strict=True)]
        found = self._fresh(flat[::2], values)
        if rest:
            found.update(self._fresh(rest[::2], rest[1::2]))
        return Page(self.key, list(found), list(found.values()), self.is_through)

    def _fresh(self, names: Sequence[bytes], values: Sequence[bytes]) -> dict[bytes, bytes]:
        """What was not met before; '' is what commits count by, no value: it was not there."""
        found = dict(zip(names, values, strict=True))
        if not self._met.isdisjoint(found):
            found = {name: value for name, value in found.items() if name not in self._met}
        self._met.update(found)
        if b"" in found or not all(found.values()):
            found = {name: value for name, value in found.items() if name and value}
        return found


def _scan_commands(scans: Sequence[_Scan], kind: Kind) -> list[tuple[Any, ...]]:
    """A page of each, and how much was kept of each afterwards."""
    scan_command = "ZSCAN" if kind == "z" else "HSCAN"
    return [
        command
        for scan in scans
        for command in ((scan_command, scan.key, scan.cursor, "COUNT", PAGE_FIELDS), ("HLEN", scan.was))
    ]
