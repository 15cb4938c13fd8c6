"""Commands that carry out an operation of a job, and are begun anew until it is done; and what is sent meanwhile."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, Final

from pipeline.errors import InboxFull
from pipeline.store import keys
from pipeline.store.scripts import Scripts
from verification.actors import Producer
from verification.world import JOB, Actor, Stalled, World

_LOOK_SECONDS: Final = 0.1
_MOST_LOOKS: Final = 100


class Command(Actor):
    """One command in each of its attempts. What happens beside it comes when it looks again."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.attempts = 0
        self.is_at_work = False
        self.seconds = 1_000.0
        self._looks = 0

    def start(self, world: World, scripts: Scripts) -> None:
        self.scripts = scripts

    @abstractmethod
    def has_begun(self, world: World) -> bool:
        """Whether what is sent from now on comes behind the place that its attempt has begun from."""

    def begin(self) -> None:
        """It has the operation."""
        self.attempts += 1
        self.is_at_work = True

    def end(self, world: World) -> None:
        """What it holds is let go when its time has passed, as if that were now."""
        self.is_at_work = False
        if world.client.exists(keys.operation(JOB)):
            world.client.hset(keys.operation(JOB), "until", 1)

    def after_death(self, world: World) -> None:
        self.end(world)

    def look(self, world: World, _: float = 0.0) -> None:
        """Its pause between two looks."""
        self.seconds += _LOOK_SECONDS
        self._looks += 1
        if self._looks > _MOST_LOOKS:
            raise Stalled(f"the {self.name} goes on after {_MOST_LOOKS} looks")
        world.step_others(self)


def spread(letters: str, times: int) -> list[list[Any]]:
    """[key, number] in batches for `Stepped`: for a command that is done `times` times, and one attempt more."""
    return [[[key, number] for key in letters] for number in range(1, 2 * (times + 1) + 3)]


class Stepped(Producer):
    """Sends first some records, then others in each attempt of a command: one batch when that has begun, and another
    when it holds the job's input back; the last ones, and the end, when it is done.
    """

    def __init__(self, batches: Sequence[Sequence[Any]], command: Command) -> None:
        super().__init__([value for batch in batches for value in batch])
        self._ends = [sum(map(len, batches[: number + 1])) for number in range(len(batches))]
        self._command = command

    def due(self, world: World) -> int:
        """How many records it has to send by now."""
        command = self._command
        if command.is_done:
            return self._ends[-1]
        at = 2 * command.attempts
        if command.is_at_work and not command.has_begun(world):
            at -= 2
        elif command.is_at_work and not world.jobs.read(JOB).paused:
            at -= 1
        return self._ends[min(at, len(self._ends) - 2)]

    def step(self, world: World) -> None:
        if world.state() is not None and self._sent >= self.due(world) < self._ends[-1]:
            return
        with suppress(InboxFull):  # or it is held back
            super().step(world)

    def piece(self, world: World) -> list[Any]:
        return list(self.values[self._sent : self.due(world)])
