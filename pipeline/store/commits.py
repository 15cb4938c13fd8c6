"""The commit of one step: what it holds, how it becomes the call of the script, and what the answers mean."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Final, Literal, TypeAlias

import msgspec

from pipeline.books import STREAM_PREFIX
from pipeline.positions import Position
from pipeline.settings import Limits
from pipeline.store import keys
from pipeline.store.scripts import Scripts

Mode: TypeAlias = Literal["more", "keep", "yield"]

_encoder: Final = msgspec.msgpack.Encoder()


class Refusal(Enum):
    """Why a commit was not applied. After any but FULL the worker drops what it knows and reads anew."""

    FENCED = -1
    MOVED_ON = -2
    OLD_TABLE = -3
    FULL = -4
    STOPPED = -5
    NEW_SERVER = -6
    """The leader has not adopted the run of the server yet: no token from before it is worth anything."""
    FOREIGN_KEY = -7
    GATED = -8
    """Others have still to give this partition their keys: it is rung when the last one has."""


@dataclass(frozen=True, slots=True)
class Entry:
    """One inbox entry as it was read. Control entries have an empty payload."""

    id: str
    header: bytes
    payload: bytes


@dataclass(frozen=True, slots=True)
class Idle:
    """The inbox is empty and the ring flag is clear: the next append rings."""


@dataclass(frozen=True, slots=True)
class Entries:
    entries: list[Entry]


@dataclass(frozen=True, slots=True)
class Yielded:
    """The ticket is at the back of its queue."""


@dataclass(frozen=True, slots=True)
class Kept:
    """Applied; nothing was read."""


@dataclass(frozen=True, slots=True)
class Refused:
    """`detail` is the key of the full inbox for FULL, the key for FOREIGN_KEY."""

    why: Refusal
    detail: str = ""


Reply: TypeAlias = Idle | Entries | Yielded | Kept | Refused


@dataclass(slots=True)
class Write:
    """One command on one key: HSET and ZADD take pairs, HINCRBY one, HDEL and ZREM names, XADD pairs for one entry."""

    command: Literal["HSET", "HDEL", "HINCRBY", "ZADD", "ZREM", "XADD"]
    key: str
    values: list[Any]


@dataclass(frozen=True, slots=True)
class Output:
    """One entry for a target: kind D (a payload of `count` records), W (a watermark) or E (the end)."""

    kind: Literal["D", "W", "E"]
    count: int = 0
    watermark: int | None = None
    payload: bytes = b""


@dataclass(frozen=True, slots=True)
class Target:
    """Where a partition's outputs go: the inbox of a partition, or an output stream (`kind` out).

    is_counted: the books count what goes there; not so for an echo of what goes elsewhere.
    """

    kind: Literal["inbox", "out"]
    inbox: str
    meta: str
    log: str
    waiting: str
    is_counted: bool = True

    @property
    def name(self) -> str:
        """As the books call it: `stage.partition`, or `stream:name`."""
        if self.kind == "inbox":
            return self.inbox.partition(":inbox:")[2]
        return STREAM_PREFIX + self.inbox.partition(":out:")[2]

    @classmethod
    def partition(cls, job: str, stage: int, partition: int) -> Target:
        at = (job, stage, partition)
        return cls("inbox", keys.inbox(*at), keys.meta(*at), keys.log(*at), keys.waiting(*at))

    @classmethod
    def stream(cls, job: str, sink: str, *, is_counted: bool = True) -> Target:
        return cls(
            "out",
            keys.out(job, sink),
            keys.out_meta(job, sink),
            keys.out_log(job, sink),
            keys.out_waiting(job, sink),
            is_counted,
        )


@dataclass(slots=True)
class Counts:
    """Records of one step. `dead` are records given up as dead letters."""

    taken: int = 0
    emitted: int = 0
    filtered: int = 0
    late: int = 0
    dead: int = 0

    def add(self, other: Counts) -> None:
        self.taken += other.taken
        self.emitted += other.emitted
        self.filtered += other.filtered
        self.late += other.late
        self.dead += other.dead


@dataclass(slots=True)
class Commit:
    """From position to position, and all that must be written with it."""

    start: Position
    end: Position
    mode: Mode
    read_from: str
    read_records: int
    released_bytes: int = 0
    counts: Counts = field(default_factory=Counts)
    skipped: int = 0
    """Records that were dropped; `meta` holds their sum so far."""
    left_out: int = 0
    """Records passed that are in no batch, since their id was known."""
    sunk: dict[str, int] = field(default_factory=dict)
    """Sink that is no stream -> records that it was given."""
    meta: dict[str, Any] = field(default_factory=dict)
    log: dict[str, Any] = field(default_factory=dict)
    writes: list[Write] = field(default_factory=list)
    outputs: dict[Target, list[Output]] = field(default_factory=dict)


class Committer:
    """Sends the commits of one partition under one token."""

    def __init__(self, scripts: Scripts, job: str, stage: int, partition: int, token: str, limits: Limits) -> None:
        own = Target.partition(job, stage, partition)
        self._scripts = scripts
        self._fixed_keys = [own.inbox, own.meta, own.log, own.waiting, keys.job(job)]
        self._token = token
        self._sender = f"{stage}.{partition}"
        self._limits = limits
        self._met: set[str] = set()
        """Keys whose type an applied commit has checked; as many as a partition has groups and operators."""

    def send(self, commit: Commit, table: int) -> Reply:
        """Applies the commit, all of it or nothing, unless it is refused. Raises StoreError."""
        names = list(self._fixed_keys)
        limits, counts = self._limits, commit.counts
        args: list[Any] = [
            self._token,
            commit.start.entry,
            commit.start.record,
            commit.end.entry,
            commit.end.record,
            table,
            self._sender,
            commit.mode,
            commit.read_from,
            commit.read_records,
            limits.step_bytes,
            commit.released_bytes,
            limits.inbox_records,
            limits.inbox_bytes,
            limits.inbox_low,
            counts.taken,
            counts.emitted,
            counts.filtered,
            counts.late,
            counts.dead,
        ]
        for pairs in (commit.meta, commit.log):
            args.append(2 * len(pairs))
            for pair in pairs.items():
                args.extend(pair)
        args.extend(self._packed(commit.writes, len(names)))
        names.extend([write.key for write in commit.writes])
        args.append(len(commit.outputs))
        for target, entries in commit.outputs.items():
            at = len(names)
            names.extend((target.inbox, target.meta, target.log, target.waiting))
            args.extend((at + 1, at + 2, at + 3, at + 4, target.kind, len(entries)))
            for out in entries:
                args.extend((out.kind, out.count, "null" if out.watermark is None else out.watermark, out.payload))
        reply = read_reply(self._scripts.run("commit", names, args))
        if not isinstance(reply, Refused):
            self._met.update(write.key for write in commit.writes)
        return reply

    def _packed(self, writes: list[Write], before: int) -> tuple[bytes, bytes]:
        """What they are, and their values. Their keys come behind so many others."""
        if not writes:
            return b"", b""
        heads, parts = [], []
        for number, write in enumerate(writes, before + 1):
            values = _as_bytes(write.values)
            heads.append((write.command, number, write.key in self._met, list(map(len, values))))
            parts.extend(values)
        return _encoder.encode(heads), b"".join(parts)


def _as_bytes(values: list[Any]) -> list[bytes]:
    if set(map(type, values)) <= {bytes}:
        return values
    return [value if type(value) is bytes else str(value).encode() for value in values]


def read_reply(answer: list[Any]) -> Reply:
    """What the commit script's answer means."""
    match answer[0]:
        case 0:
            return Idle()
        case 1:
            return Entries(read_entries(answer[1]))
        case 2:
            return Yielded()
        case 3:
            return Kept()
        case code:
            return Refused(Refusal(code), answer[1].decode() if len(answer) > 1 else "")


def read_entries(raw: list[Any]) -> list[Entry]:
    """Entries as XRANGE gives them: id, then h, header and perhaps d, payload."""
    return [Entry(id_.decode(), fields[1], fields[3] if len(fields) > 3 else b"") for id_, fields in raw]
