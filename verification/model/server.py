"""A server as its clients see it: commands in, replies out, its clock and its restarts by hand."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from copy import copy
from dataclasses import dataclass, field
from typing import Any, Final, TypeAlias

from verification.model.commands import COMMANDS, OK
from verification.model.keyspace import Keyspace, NotModelled, Refusal
from verification.model.lua import Engine, engine

START: Final = 1_700_000_000_000_000
"""Microseconds at which each model begins."""

Command: TypeAlias = Sequence[Any]


def run_id(run: int) -> str:
    """As long as a real one, and like most of them no number."""
    return f"a{run:039x}"


@dataclass(slots=True, eq=False)
class Link:
    """What the server knows of one connection. run: of the server, with which it ends."""

    run: int
    queued: list[Command] | None = None
    watched: dict[bytes, Any] = field(default_factory=dict)


class Server:
    """One model. `run`: how often it was started; each run has an id of its own and forgets the scripts it has met."""

    def __init__(self, keyspace: Keyspace | None = None) -> None:
        self.keyspace = keyspace or Keyspace(START)
        self.run = 1
        self._scripts: dict[bytes, str] = {}
        self._engine: Engine = engine()

    @property
    def run_id(self) -> str:
        return run_id(self.run)

    def restart(self) -> None:
        """It ends and comes back with all that it held, as with appendfsync always."""
        self.run += 1
        self._scripts.clear()

    def open(self) -> Link:
        """A new connection."""
        return Link(self.run)

    def answer(self, link: Link, command: Command) -> Any:
        """Its reply on that connection. An error is returned as a Refusal. Raises NotModelled."""
        first, *args = [encoded(part) for part in command]
        name, *words = first.upper().split(b" ")
        if link.queued is not None and name != b"EXEC":
            link.queued.append(command)
            return b"QUEUED"
        try:
            return self._answer(link, name, words + args)
        except Refusal as refusal:
            return refusal

    def answer_all(self, link: Link, commands: Sequence[Command]) -> list[Any]:
        """The replies to what arrives at once; a transaction arrives as a whole."""
        return [self.answer(link, command) for command in commands]

    def _answer(self, link: Link, name: bytes, args: list[bytes]) -> Any:
        command = COMMANDS.get(name)
        if command is not None:
            return command(self.keyspace, args)
        match name:
            case b"EVALSHA":
                text = self._scripts.get(args[0])
                if text is None:
                    raise Refusal("NOSCRIPT No matching script. Please use EVAL.")
                return self._eval(text, args)
            case b"EVAL":
                text = args[0].decode()
                self._learn(text)
                return self._eval(text, args)
            case b"SCRIPT" if args[0].upper() == b"LOAD":
                return self._learn(args[1].decode())
            case b"MULTI":
                link.queued = []
                return OK
            case b"EXEC" if link.queued is not None:
                return self._exec(link, link.queued)
            case b"WATCH":
                # A write that leaves a key as it was is not noticed, as it is by Redis.
                link.watched |= {key: copy(self.keyspace.keys.get(key)) for key in args if key not in link.watched}
                return OK
            case b"UNWATCH":
                link.watched.clear()
                return OK
            case b"INFO":
                return self._info()
            case b"PING":
                return b"PONG"
            case b"CLIENT" | b"SELECT":
                return OK
        raise NotModelled(f"the command {name!r}")

    def _exec(self, link: Link, queued: list[Command]) -> list[Any] | None:
        watched, link.watched, link.queued = link.watched, {}, None
        self.keyspace.forget_expired()
        if any(self.keyspace.keys.get(key) != value for key, value in watched.items()):
            return None
        return self.answer_all(link, queued)

    def _learn(self, text: str) -> bytes:
        sha = hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest().encode()
        self._scripts[sha] = text
        return sha

    def _eval(self, text: str, args: list[bytes]) -> Any:
        count = int(args[1])
        return self._engine.run(self.keyspace, text, args[2 : 2 + count], args[2 + count :])

    def _info(self) -> bytes:
        lines = (
            f"run_id:{self.run_id}",
            "redis_version:7.2.0",
            "role:master",
            f"used_memory:{1_000_000}",
            "maxmemory:0",
            "maxmemory_policy:noeviction",
            "aof_enabled:1",
        )
        return "".join(f"{line}\r\n" for line in lines).encode()


def encoded(part: Any) -> bytes:
    """A part of a command as the client library writes it."""
    kind = type(part)
    if kind is bytes:
        return part  # type: ignore[no-any-return]
    if kind is str:
        return part.encode()  # type: ignore[no-any-return]
    if kind is int:
        return b"%d" % part
    if kind is float:
        return repr(part).encode()
    if isinstance(part, str):
        return str(part).encode()
    raise NotModelled(f"a command with {part!r}")
