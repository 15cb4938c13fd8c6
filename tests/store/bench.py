"""One job of two stages and the hands that move it: leader, workers and senders, stepped one call at a time."""

from __future__ import annotations

import itertools
from typing import Any

from pipeline import tickets
from pipeline.codec import decode_batch
from pipeline.messages import Data, decode_header
from pipeline.plan import PROTOCOL, Plan, StagePlan
from pipeline.positions import START, Position, entry_after
from pipeline.records import Batch
from pipeline.settings import Limits
from pipeline.store import keys
from pipeline.store.commits import Commit, Committer, Counts, Entries, Entry, Mode, Reply
from pipeline.store.connection import connect
from pipeline.store.jobs import JobStore
from pipeline.store.leadership import Leadership
from pipeline.store.outputs import OutputReader
from pipeline.store.ownership import Acquired, Assigned, Ownership
from pipeline.store.scripts import Scripts
from pipeline.store.senders import Feed, FeedAddress, Lane

Place = tuple[int, int]

ENTRY: Place = (0, 0)
KEYED: Place = (1, 0)


def a_plan(partitions: int = 1, limits: Limits | None = None) -> Plan:
    """Source `lines` (stage 0) -> keyed stage `words` (stage 1) with the output stream `out`."""
    entry = StagePlan(0, "lines", False, partitions, ("lines",), {"words": 1}, (), ())
    keyed = StagePlan(1, "words", True, partitions, ("words", "out"), {}, ("out",), (0,))
    return Plan(PROTOCOL, "test", "f" * 16, (entry, keyed), (), limits or Limits())


def a_batch(*values: Any) -> Batch:
    return Batch(list(values))


class Bench:
    """A job on a real Redis. Everything that is public in the store, with short names."""

    def __init__(self, url: str, job: str = "j", partitions: int = 1, limits: Limits | None = None) -> None:
        self.url, self.job = url, job
        self.limits = limits or Limits()
        self.plan = a_plan(partitions, self.limits)
        self.client = connect(url)
        self.scripts = Scripts(self.client)
        self.jobs = JobStore(self.scripts)
        self.jobs.create(job, self.plan)
        self.run_of_job = self.jobs.read(job).run
        self.leadership = Leadership(self.scripts, "leader-1", "n1")
        self.token = self.leadership.hold(job, 60).token

    def close(self) -> None:
        self.client.close()

    # senders

    def feed(self, full_timeout_seconds: float | None = 0.0, scripts: Scripts | None = None) -> Feed:
        address = FeedAddress(self.url, self.job, "lines", full_timeout_seconds)
        return Feed(scripts or self.scripts, address, self.plan, self.run_of_job)

    def lane(self, split: str = "a", *, exclusive: bool = False, full_timeout_seconds: float | None = 0.0) -> Lane:
        return self.feed(full_timeout_seconds).lane(split, exclusive=exclusive)

    # leader

    def assign(
        self,
        place: Place = ENTRY,
        worker: str = "w",
        incarnation: str = "1-a",
        nonce: str = "x",
        *,
        is_unclean: bool = False,
    ) -> Assigned:
        term = int(self.client.hget(keys.meta(self.job, *place), "term")) + 1
        ticket = tickets.ticket(self.job, *place, term)
        done = self.leadership.assign(
            self.job, self.token, place, (worker, incarnation), term, nonce, ticket, is_unclean
        )
        assert done
        return Assigned(*place, worker, incarnation, f"{term}:{nonce}")

    # workers

    def owner(self, worker: str = "w", incarnation: str = "1-a") -> Ownership:
        return Ownership(self.scripts, self.job, worker, incarnation)

    def acquire(self, row: Assigned) -> Acquired | None:
        return self.owner(row.worker, row.incarnation).acquire(row)

    def worker(self, place: Place = ENTRY, **assign: Any) -> Hand:
        return Hand(self, self.assign(place, **assign))

    # looking into Redis

    def meta(self, place: Place = ENTRY) -> dict[str, str]:
        return {k.decode(): v.decode() for k, v in self.client.hgetall(keys.meta(self.job, *place)).items()}

    def log(self, place: Place = ENTRY) -> dict[str, str]:
        return {k.decode(): v.decode() for k, v in self.client.hgetall(keys.log(self.job, *place)).items()}

    def tickets(self, place: Place = ENTRY) -> int:
        return int(self.client.llen(keys.queue(self.job, *place)))

    def ring(self, place: Place = ENTRY) -> str:
        return self.meta(place).get("ring", "")

    def pop_ticket(self, place: Place = ENTRY) -> bool:
        """What a worker's consumer does."""
        return self.client.rpop(keys.queue(self.job, *place)) is not None

    def entries(self, place: Place = ENTRY) -> list[Entry]:
        raw = self.client.xrange(keys.inbox(self.job, *place))
        return [Entry(id_.decode(), fields[b"h"], fields.get(b"d", b"")) for id_, fields in raw]

    def headers(self, place: Place = ENTRY) -> list[Any]:
        return [decode_header(entry.header) for entry in self.entries(place)]

    def values(self, place: Place = ENTRY) -> list[Any]:
        return values_of(self.entries(place))

    def facts(self, place: Place = ENTRY) -> Any:
        for partition in self.jobs.facts(self.job).partitions:
            if (partition.stage, partition.partition) == place:
                return partition
        raise KeyError(place)

    def snapshot(self) -> dict[bytes, Any]:
        """Every key of the server with its content."""
        return {key: self._content(key) for key in self.client.scan_iter(count=1000)}

    def _content(self, key: bytes) -> Any:
        match self.client.type(key):
            case b"hash":
                return self.client.hgetall(key)
            case b"stream":
                return self.client.xrange(key)
            case b"list":
                return self.client.lrange(key, 0, -1)
            case b"zset":
                return self.client.zrange(key, 0, -1, withscores=True)
            case _:
                return self.client.dump(key)

    def reader(self, name: str = "r") -> OutputReader:
        return OutputReader(self.scripts, self.job, "out", name, self.limits)


class Hand:
    """One owner of one partition, moved step by step."""

    def __init__(self, bench: Bench, row: Assigned) -> None:
        self.bench, self.row = bench, row
        self.place = (row.stage, row.partition)
        acquired = bench.acquire(row)
        self.position = acquired.position if acquired else START
        self.committer = Committer(bench.scripts, bench.job, *self.place, row.token, bench.limits)

    def commit(
        self,
        end: Position | None = None,
        mode: Mode = "keep",
        *,
        start: Position | None = None,
        read_from: str | None = None,
        read_records: int = 10_000,
        table: int = 1,
        taken: int = 0,
        **fields: Any,
    ) -> Reply:
        start = start or self.position
        end = end or start
        fields.setdefault("counts", Counts(taken=taken))
        commit = Commit(start, end, mode, read_from or end.entry, read_records, **fields)
        reply = self.committer.send(commit, table)
        if type(reply).__name__ != "Refused":
            self.position = end
        return reply

    def fetch(self, read_records: int = 10_000) -> list[Entry]:
        """The entries from the position on: a commit of nothing."""
        reply = self.commit(mode="more", read_records=read_records)
        return reply.entries if isinstance(reply, Entries) else []

    def work(self, mode: Mode = "keep", **fields: Any) -> Reply:
        """Takes everything in the inbox in one commit."""
        taken = self.fetch()
        end = Position(after(taken[-1])) if taken else self.position
        count = sum(records_in(entry) for entry in taken)
        size = sum(len(entry.payload) for entry in taken)
        return self.commit(end, mode, taken=count, released_bytes=size, **fields)


def records_in(entry: Entry) -> int:
    header = decode_header(entry.header)
    return header.count if isinstance(header, Data) else 0


def after(entry: Entry) -> str:
    return entry_after(entry.id, records_in(entry))


def values_of(entries: list[Entry]) -> list[Any]:
    return [value for entry in entries if entry.payload for value in decode_batch(entry.payload).values]


_numbers = itertools.count(1)


def a_job_id() -> str:
    """Unique in this run, for tests that make many jobs on one server."""
    return f"job-{next(_numbers)}"
