"""Crash points: every Redis command that an actor of a scenario sends has a number, and may be broken off there."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from functools import cache
from importlib import resources
from typing import Any, Final

from pipeline.store.connection import connect
from pipeline.store.scripts import Scripts, source


class Variant(StrEnum):
    """What befalls a command. The first three end its process, with all its memory; after the others it lives on."""

    BEFORE = "dies before it is sent"
    APPLIED = "dies before the reply"
    AFTER = "dies after the reply"
    LOST_REQUEST = "request lost"
    LOST_REPLY = "reply lost"


DEADLY = (Variant.BEFORE, Variant.APPLIED, Variant.AFTER)


class Crash(BaseException):
    """The process of an actor is dead. No code of ours may catch it."""


@dataclass(slots=True)
class Points:
    """Numbers the commands of all actors from 1 on. `plan`: number -> what befalls it. `sent`: their names."""

    plan: Mapping[int, Variant] = field(default_factory=dict)
    sent: list[str] = field(default_factory=list)

    def next(self, actor: str, command: str) -> Variant | None:
        self.sent.append(f"{actor}: {command}")
        return self.plan.get(len(self.sent))


@dataclass(slots=True, eq=False)
class Life:
    """One process of an actor: its connections meet the plan until it is dead."""

    points: Points
    actor: str
    is_dead: bool = False
    is_dying: bool = False
    """It has its reply, and dies with the next thing that others could see."""

    def before_send(self, command: str) -> Variant | None:
        if self.is_dead or self.is_dying:
            self.die()
        fate = self.points.next(self.actor, command)
        if fate is Variant.BEFORE:
            self.die()
        if fate is Variant.LOST_REQUEST:
            raise ConnectionError("the request was lost (on purpose)")
        return fate

    def after_reply(self, fate: Variant | None) -> None:
        if fate is Variant.APPLIED:
            self.die()
        if fate is Variant.LOST_REPLY:
            raise ConnectionError("the reply was lost (on purpose)")
        self.is_dying = fate is Variant.AFTER

    def die(self) -> None:
        self.is_dead = True
        raise Crash(self.actor)


def scripts_of(url: str, life: Life) -> Scripts:
    """The store as the process `life` sees it."""
    client = connect(url)
    pool = client.connection_pool
    pool.connection_class = _watched(pool.connection_class, life)
    return Scripts(client)


_FOLDER: Final = resources.files("pipeline.store") / "scripts"

SCRIPTS: Final = frozenset(path.name.removesuffix(".lua") for path in _FOLDER.iterdir() if path.name.endswith(".lua"))
"""The names of all scripts."""

_NAMES: Final[dict[str, str]] = {}
"""SHA-1 of a script's text -> its name."""


def teach_all(client: Any) -> None:
    """Loads every script into the server, so that no run differs from another by who had to load one."""
    server = Scripts(client).meet()
    for name in sorted(SCRIPTS - {"prelude"}):
        _NAMES[client.script_load(source(name, server))] = name


@cache
def script_names(server: str) -> Mapping[str, str]:
    """SHA-1 of the text that a script has on this run of a server -> its name."""
    texts = {name: source(name, server) for name in SCRIPTS - {"prelude"}}
    return {hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest(): name for name, text in texts.items()}


def _watched(connection_class: Any, life: Life) -> Any:
    """A connection of the client library that meets the plan with each command, but for its own greetings."""

    class Watched(connection_class):
        _greets = False
        _command = ""
        _replies = 1
        _left = 0
        _fate: Variant | None = None

        def on_connect_check_health(self, *args: Any, **options: Any) -> None:
            self._greets = True
            try:
                super().on_connect_check_health(*args, **options)
            finally:
                self._greets = False

        def send_command(self, *args: Any, **options: Any) -> None:
            if not self._greets:
                self._command, self._replies = _name(args), 1
            super().send_command(*args, **options)

        def pack_commands(self, commands: Any) -> Any:
            commands = list(commands)
            self._command, self._replies = "+".join(str(command[0]) for command in commands), len(commands)
            return super().pack_commands(commands)

        def send_packed_command(self, command: Any, check_health: bool = True) -> None:
            if self._greets:
                super().send_packed_command(command, check_health)
                return
            try:
                self._fate, self._left = life.before_send(self._command), self._replies
            except ConnectionError:
                self.disconnect()
                raise
            super().send_packed_command(command, check_health)

        def read_response(self, *args: Any, **options: Any) -> Any:
            try:
                return super().read_response(*args, **options)
            finally:
                # An answer that is an error was answered, too.
                if not self._greets:
                    self._has_answer()

        def _has_answer(self) -> None:
            self._left -= 1
            if self._left:
                return
            try:
                life.after_reply(self._fate)
            except (ConnectionError, Crash):
                self.disconnect()
                raise

    return Watched


def _name(args: tuple[Any, ...]) -> str:
    return _NAMES.get(args[1], args[1]) if args[0] == "EVALSHA" else str(args[0])
