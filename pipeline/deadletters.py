"""Dead letters for programs: what was given up, and putting it right.

letters = Client("redis://localhost:6379/0").dead_letters("orders")
for letter in letters.list(operator="parse"):
    letters.edit(letter.id, {"amount": 3})
    letters.replay(letter.id)
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Self

from pipeline.store.connection import connect
from pipeline.store.jobs import JobStore
from pipeline.store.letters import DeadLetter, LetterStore
from pipeline.store.scripts import Scripts


class DeadLetters:
    """The dead letters of one job, as `Client.dead_letters` gives them. Not for several threads at once."""

    def __init__(self, job: str, redis_url: str) -> None:
        """Raises UnknownJob, StoreUnavailable, UnsuitableServer."""
        self._store = _store(job, Scripts(connect(redis_url)))

    @classmethod
    def over(cls, scripts: Scripts, job: str) -> Self:
        """On a connection that is there. Raises UnknownJob, StoreError."""
        letters = cls.__new__(cls)
        letters._store = _store(job, scripts)
        return letters

    def list(self, operator: str | None = None) -> Iterator[DeadLetter]:
        """All of them, oldest first, read page by page; with `operator` those of that operator's name."""
        return (letter for letter in self._store.read() if operator is None or letter.operator == operator)

    def show(self, id_: str) -> DeadLetter:
        """One of them. Raises LetterError when there is none of that id."""
        return self._store.get(id_)

    def edit(self, id_: str, value: Any) -> None:
        """A replay takes this value instead; key and event time stay. The letter stays until then.

        Raises LetterError, also for a value that is too large; EncodingError for one that cannot be stored.
        """
        self._store.edit(self._store.get(id_), value)

    def replay(self, id_: str) -> None:
        """Puts the record back at the end of the inbox in which it failed, once, and takes the letter away.

        Where the letter holds its key, all that is held behind it follows, in order, and then the key is free.
        Should it fail again, a new letter names this one as `replay_of`. Raises LetterError; JobStateError when the
        input of its stage has ended; InboxFull.
        """
        self._store.replay(self._store.get(id_))

    def drop(self, ids: Sequence[str]) -> int:
        """Deletes these letters; returns how many there were. What is held behind them goes on, in order.

        Raises JobStateError where that could not go on, as the input of its stage has ended.
        """
        return self._store.drop(ids)


def _store(job: str, scripts: Scripts) -> LetterStore:
    return LetterStore(scripts, JobStore(scripts).read(job))
