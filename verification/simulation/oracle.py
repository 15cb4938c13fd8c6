"""Watches every command that the model applies: what may never happen, however a run goes on after it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

_COMMIT_META: Final = 1


class Broken(Exception):
    """A promise was broken; the text says which."""


class Oracle:
    """Remembers, apart from what is stored, who owns what and how far each partition and sender is.

    A commit is accepted only from who was given the partition last, and only from where the commit before it has ended;
    numbers of senders grow without a gap; only the holder of the lease assigns and asks, only the owner gives away.
    """

    def __init__(self) -> None:
        self._tokens: dict[bytes, bytes] = {}
        self._ends: dict[bytes, tuple[Any, ...]] = {}
        self._senders: dict[tuple[bytes, bytes], int] = {}
        self._leader = b""

    def saw(self, name: str, keys: Sequence[bytes], args: Sequence[bytes], reply: Any) -> None:
        """Raises Broken."""
        code = reply[0] if isinstance(reply, list) and reply else None
        if not isinstance(code, int):
            return
        match name:
            case "commit" if code >= 0:
                self._commit(keys[_COMMIT_META], args)
            case "append" if code == 1:
                self._append(keys[2], args, reply[1])
            case "assign" if code == 1:
                self._assign(keys[3], args)
            case "collect" if code == 1:
                self._lead(keys[3], args)
            case "collected" if code == 1:
                self._give(keys[0], args, reply[1])
            case "lease" if code == 1:
                self._leader = reply[1]
            case "adopt" if code == 1:
                self._tokens.clear()

    def _commit(self, meta: bytes, args: Sequence[bytes]) -> None:
        if args[0] != self._tokens.get(meta):
            raise Broken(f"{meta.decode()}: a commit of {args[0].decode()} was taken, which does not own it")
        start, end = _position(args[1], args[2]), _position(args[3], args[4])
        before = self._ends.get(meta, _position(b"1-0", b"0"))
        if start != before:
            raise Broken(f"{meta.decode()}: a commit from {start} was taken, where {before} was committed")
        if end < start:
            raise Broken(f"{meta.decode()}: a commit went back from {start} to {end}")
        self._ends[meta] = end

    def _append(self, log: bytes, args: Sequence[bytes], last: int) -> None:
        sender, first, count = (log, args[0]), int(args[2]), int(args[3])
        before = self._senders.get(sender, 0)
        if first != before + 1 or last != first + count - 1:
            raise Broken(f"sender {args[0].decode()}: {first}..{last} was taken behind {before}")
        self._senders[sender] = last

    def _lead(self, meta: bytes, args: Sequence[bytes]) -> None:
        if args[0] != self._leader:
            raise Broken(f"{meta.decode()}: {args[0].decode()} decides, and {self._leader.decode()} leads")

    def _give(self, meta: bytes, args: Sequence[bytes], token: bytes) -> None:
        if args[0] != self._tokens.get(meta):
            raise Broken(f"{meta.decode()}: {args[0].decode()} gave it away, which does not own it")
        self._tokens[meta] = token

    def _assign(self, meta: bytes, args: Sequence[bytes]) -> None:
        self._lead(meta, args)
        before = int(self._tokens.get(meta, b"0").split(b":")[0])
        if int(args[4]) <= before:
            raise Broken(f"{meta.decode()}: term {int(args[4])} was given behind {before}")
        self._tokens[meta] = args[4] + b":" + args[5]


def _position(entry: bytes, record: bytes) -> tuple[int, int, int]:
    number, _, sub = entry.partition(b"-")
    return int(number), int(sub), int(record)
