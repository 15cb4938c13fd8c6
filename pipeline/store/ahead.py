"""Commands whose answers are read later, on a connection of their own: Redis is at work meanwhile, and so are we."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from types import TracebackType
from typing import Any, Final, Self

from redis.exceptions import ResponseError

from pipeline.store.connection import translated


class _Lengths(dict[int, bytes]):
    """How the length of a word stands in front of it."""

    def __missing__(self, length: int) -> bytes:
        return b"\r\n$%d\r\n" % length


_LENGTHS: Final = _Lengths({length: b"\r\n$%d\r\n" % length for length in range(1024)})


def packed(words: Sequence[bytes]) -> bytes:
    """One command as Redis reads it. For thousands of words in a fraction of the client library's time."""
    return b"%b\r\n" % begun(words, 0)


def begun(words: Sequence[bytes], more: int) -> bytes:
    """The beginning of a command, in front of so many more words and the end of the line."""
    lengths = map(_LENGTHS.__getitem__, map(len, words))
    return b"*%d%b" % (len(words) + more, b"".join(chain.from_iterable(zip(lengths, words, strict=True))))


class Ahead:
    """Sends some commands, and gives their answers when asked; then the next. Never tries one again.

    What is sent at once runs without a pause for others: little, therefore. Used as a context; one that ends with
    answers unread, or by an error, closes its connection. Raises the errors of `pipeline.store.connection.translated`.
    """

    def __init__(self, client: Any) -> None:
        self._pool = client.connection_pool
        self._connection: Any = None
        self._awaited = 0

    def __enter__(self) -> Self:
        with translated():
            self._connection = self._pool.get_connection()
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: BaseException | TracebackType | None) -> None:
        if self.is_awaited or kind is not None:
            self._connection.disconnect()
        self._pool.release(self._connection)

    def send_packed(self, commands: Sequence[bytes]) -> None:
        """As `send`, of commands as `packed` makes them."""
        assert not self._awaited
        self._awaited = len(commands)
        with translated():
            self._connection.send_packed_command([b"".join(commands)])

    @property
    def is_awaited(self) -> bool:
        """Whether answers are on their way, or have not been read."""
        return self._awaited > 0

    def send(self, commands: Sequence[Sequence[Any]]) -> None:
        """At least one command. The answers to those before have been read."""
        assert not self._awaited
        self._awaited = len(commands)
        with translated():
            self._connection.send_packed_command(self._connection.pack_commands(commands))

    def answers(self) -> list[Any]:
        """One for each command that was sent. The first that Redis has refused is raised, when all were read."""
        found: list[Any] = []
        refused: ResponseError | None = None
        with translated():
            while self._awaited:
                try:
                    found.append(self._connection.read_response())
                except ResponseError as error:
                    refused = refused or error
                self._awaited -= 1
            if refused is not None:
                raise refused
        return found
