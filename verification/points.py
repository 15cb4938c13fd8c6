"""Crash points: every Redis command that an actor of a scenario sends has a number, and may be broken off there."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from functools import cache
from importlib import resources
from typing import Any, Final

from pipeline.store.connection import connect
from pipeline.store.scripts import Scripts, source
from verification.clock import COMMAND_MS, START_MS, TimedScripts, answer_of_time, timed
from verification.packed import words_of


class Variant(StrEnum):
    """What befalls a command. The first three end its process, with all its memory; after the others it lives on."""

    BEFORE = "dies before it is sent"
    APPLIED = "dies before the reply"
    AFTER = "dies after the reply"
    LOST_REQUEST = "request lost"
    LOST_REPLY = "reply lost"


@dataclass(frozen=True, slots=True)
class Course:
    """How a run went: the names of its commands, and of these by number

    changing: has changed something that the server holds.
    last: its actor did nothing more in that step.
    """

    sent: tuple[str, ...]
    changing: frozenset[int]
    last: frozenset[int]

    def variants(self, number: int, *, is_inside: bool = False) -> tuple[Variant, ...]:
        """What can befall that command, but for what would be the same run as another.

        It does not matter whether a command that changes nothing was applied. Who dies after a reply, with more to do
        in that step, dies before his next command: between them nobody else does anything. is_inside: nobody does
        anything outside of Redis; then who has only read since another point dies there.
        """
        different = {Variant.APPLIED: self.changing, Variant.AFTER: self.last, Variant.LOST_REPLY: self.changing}
        found = tuple(variant for variant in Variant if number in different.get(variant, (number,)))
        return found[1:] if is_inside and self._has_only_read(number) else found

    def _has_only_read(self, number: int) -> bool:
        """Its actor, in the same step, just before."""
        before = number - 1
        is_same_step = before > 0 and before not in self.last and self._actor(before) == self._actor(number)
        return is_same_step and before not in self.changing

    def crashes(self, since: int = 1) -> list[dict[int, Variant]]:
        """One crash around a script of ours, from that point on, as far as they differ in what Redis holds.

        Who dies when a script was applied, and has only read before his next one, dies in front of that one. A ticket
        that he has taken meanwhile may be lost anyway, but counts as a difference here.
        """
        found: list[dict[int, Variant]] = []
        for number in filter(self._is_script, range(since, len(self.sent) + 1)):
            found.append({number: Variant.BEFORE})
            if number in self.changing and not self._reaches_script(number):
                found.append({number: Variant.APPLIED})
        return found

    def _reaches_script(self, number: int) -> bool:
        """In the same step, and with nothing but reading before it."""
        while number not in self.last:
            number = next(n for n in range(number + 1, len(self.sent) + 1) if self._actor(n) == self._actor(number))
            if self._is_script(number):
                return True
            if number in self.changing:
                return False
        return False

    def ends(self) -> list[int]:
        """Each command of each actor where it comes first, and where it changes something for the last time."""
        first: dict[str, int] = {}
        last: dict[str, int] = {}
        for number, name in enumerate(self.sent, 1):
            first.setdefault(name, number)
            if number in self.changing:
                last[name] = number
        return sorted({*first.values(), *last.values()})

    def script_ends(self) -> list[int]:
        """Each script where it changes something for the last time, whoever runs it; else where it comes first."""
        found: dict[str, int] = {}
        for number in filter(self._is_script, range(1, len(self.sent) + 1)):
            script = self.sent[number - 1].rpartition(": ")[2]
            found[script] = number if number in self.changing else found.get(script, number)
        return sorted(found.values())

    def _is_script(self, number: int) -> bool:
        return self.sent[number - 1].rpartition(": ")[2] in SCRIPTS

    def _actor(self, number: int) -> str:
        return self.sent[number - 1].partition(": ")[0]


class Crash(BaseException):
    """The process of an actor is dead. No code of ours may catch it."""


@dataclass(slots=True)
class Points:
    """Numbers the commands of all actors from 1 on. `plan`: number -> what befalls it. `sent`: their names.

    Time is what has been sent, so it passes alike in runs that are quick and slow. `gauge`: how much was ever changed
    on the server; only with it the course of a run is known.
    """

    plan: Mapping[int, Variant] = field(default_factory=dict)
    sent: list[str] = field(default_factory=list)
    gauge: Callable[[], int] | None = None
    changing: set[int] = field(default_factory=set)
    last: set[int] = field(default_factory=set)
    _before: int = 0

    @property
    def course(self) -> Course:
        return Course(tuple(self.sent), frozenset(self.changing), frozenset(self.last))

    @property
    def now_ms(self) -> int:
        return START_MS + COMMAND_MS * len(self.sent)

    def next(self, actor: str, command: str) -> Variant | None:
        self.sent.append(f"{actor}: {command}")
        if self.gauge is not None:
            self._before = self.gauge()
        return self.plan.get(len(self.sent))

    def has_answer(self) -> None:
        """The command that was sent last has its reply."""
        if self.gauge is not None and self.gauge() != self._before:
            self.changing.add(len(self.sent))


@dataclass(slots=True, eq=False)
class Life:
    """One process of an actor: its connections meet the plan until it is dead."""

    points: Points
    actor: str
    number: int = 0
    """Of the command that it has sent last."""
    is_dead: bool = False
    is_dying: bool = False
    """It has its reply, and dies with the next thing that others could see."""

    def before_send(self, command: str) -> Variant | None:
        if self.is_dead or self.is_dying:
            self.die()
        fate = self.points.next(self.actor, command)
        self.number = len(self.points.sent)
        if fate is Variant.BEFORE:
            self.die()
        if fate is Variant.LOST_REQUEST:
            raise ConnectionError("the request was lost (on purpose)")
        return fate

    def after_reply(self, fate: Variant | None) -> None:
        self.points.has_answer()
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
    return TimedScripts(watched_client(url, life), life.points)


def watched_client(url: str, life: Life) -> Any:
    """A client whose connections meet the plan."""
    client = connect(url)
    pool = client.connection_pool
    pool.connection_class = _watched(pool.connection_class, life)
    return client


_FOLDER: Final = resources.files("pipeline.store") / "scripts"

SCRIPTS: Final = frozenset(path.name.removesuffix(".lua") for path in _FOLDER.iterdir() if path.name.endswith(".lua"))
"""The names of all scripts."""

_NAMES: Final[dict[str, str]] = {}
"""SHA-1 of a script's text -> its name."""


def teach_all(client: Any) -> None:
    """Loads every script into the server, so that no run differs from another by who had to load one."""
    server = Scripts(client).meet()
    for name in sorted(SCRIPTS - {"prelude"}):
        _NAMES[client.script_load(timed(source(name, server)))] = name


@cache
def script_names(server: str) -> Mapping[str, str]:
    """SHA-1 of the text that a script has on this run of a server -> its name."""
    texts = {name: source(name, server) for name in SCRIPTS - {"prelude"}}
    return {hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest(): name for name, text in texts.items()}


def _watched(connection_class: Any, life: Life) -> Any:
    """A connection of the client library that meets the plan with each command, but for its own greetings."""

    class Watched(connection_class):
        _greets = False
        _commands: Sequence[str] = ()
        _is_named = False
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
                self._commands, self._is_named = (_name(args),), True
            super().send_command(*args, **options)

        def pack_commands(self, commands: Any) -> Any:
            commands = list(commands)
            self._commands, self._is_named = [str(command[0]) for command in commands], True
            return super().pack_commands(commands)

        def send_packed_command(self, command: Any, check_health: bool = True) -> None:
            if self._greets:
                super().send_packed_command(command, check_health)
                return
            if not self._is_named:  # the store has packed them itself
                self._commands = [words[0].decode() for words in words_of(b"".join(command))]
            self._is_named = False
            try:
                self._fate = life.before_send("+".join(self._commands))
            except ConnectionError:
                self.disconnect()
                raise
            self._left = len(self._commands)
            super().send_packed_command(command, check_health)

        def read_response(self, *args: Any, **options: Any) -> Any:
            command = "" if self._greets else self._commands[-self._left]
            try:
                answer = super().read_response(*args, **options)
                return answer_of_time(life.points.now_ms) if command == "TIME" else answer
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
