"""A client of the model: the production client library, its connections led to the model instead of to a socket."""

from __future__ import annotations

import copy
from collections import deque
from collections.abc import Sequence
from functools import cache
from typing import Any, Protocol

from pipeline.store.connection import connect
from verification.model.commands import Status
from verification.model.keyspace import Refusal
from verification.model.server import Command, Link, Server
from verification.packed import words_of


class Wire(Protocol):
    """How commands come to a server, and its replies back."""

    def open(self) -> Link:
        """A new connection; it ends with this run of the server."""
        ...

    def send(self, link: Link, commands: Sequence[Command]) -> list[Any]:
        """Raises what a connection raises."""
        ...


class DirectWire:
    """Whatever is sent arrives at once."""

    def __init__(self, server: Server) -> None:
        self._server = server

    def open(self) -> Link:
        return self._server.open()

    def send(self, link: Link, commands: Sequence[Command]) -> list[Any]:
        if link.run != self._server.run:
            raise ConnectionError("the server was restarted")
        return self._server.answer_all(link, commands)


def client_of(server: Server) -> Any:
    """A client whose commands arrive at once."""
    return client_over(DirectWire(server))


def client_over(wire: Wire) -> Any:
    """A client whose connections send through `wire`."""
    client = copy.copy(_template())
    pool: Any = client.connection_pool
    pool_class: Any = type(pool)
    client.connection_pool = _pool(pool_class)(pool, wire)
    client.response_callbacks = client.response_callbacks.copy()
    return client


@cache
def _template() -> Any:
    """A client that is never used. To make one anew each time costs more than a whole job's scripts."""
    return connect("redis://model:6379/0")


@cache
def _pool(pool_class: Any) -> Any:
    class FewConnections(pool_class):
        """Lends the same connection again and again, and another one while somebody has commands under way on that."""

        def __init__(self, template: Any, wire: Wire) -> None:
            self.__dict__.update(template.__dict__)
            self._wire = wire
            self._made: list[Any] = []
            self._free: list[Any] = []

        def get_connection(self, *args: Any, **options: Any) -> Any:
            if self._free:
                return self._free.pop()
            self._made.append(_modelled(self.connection_class)(_prototype(), self._wire))
            return self._made[-1]

        def release(self, connection: Any) -> None:
            self._free.append(connection)

        def disconnect(self, *args: Any, **options: Any) -> None:
            for connection in self._made:
                connection.disconnect()

        def reset(self) -> None:
            pass

    return FewConnections


@cache
def _prototype() -> Any:
    return _template().connection_pool.make_connection()


@cache
def _modelled(connection_class: Any) -> Any:
    class Modelled(connection_class):
        """Has no socket. A connection that has failed has no replies left, like one that was closed."""

        def __init__(self, prototype: Any, wire: Wire) -> None:
            self.__dict__.update(prototype.__dict__)
            self._wire = wire
            self._replies: deque[Any] = deque()
            self._link: Link | None = None

        def connect(self) -> None:
            pass

        def disconnect(self, *args: Any, **options: Any) -> None:
            self._replies.clear()
            self._link = None

        def can_read(self, *args: Any, **options: Any) -> bool:
            return bool(self._replies)

        def check_health(self) -> None:
            pass

        def pack_command(self, *args: Any) -> Any:
            return [args]

        def pack_commands(self, commands: Any) -> Any:
            return list(commands)

        def send_command(self, *args: Any, **options: Any) -> None:
            self._send([args])

        def send_packed_command(self, command: Any, check_health: bool = True) -> None:
            if command and isinstance(command[0], bytes):  # the store has packed them itself
                command = [[words[0].decode(), *words[1:]] for words in words_of(b"".join(command))]
            self._send(command)

        def _send(self, commands: Sequence[Command]) -> None:
            self._link = self._link or self._wire.open()
            try:
                self._replies.extend(self._wire.send(self._link, commands))
            except ConnectionError:
                self.disconnect()
                raise

        def read_response(self, *args: Any, **options: Any) -> Any:
            reply = self._read(self._replies.popleft())
            if isinstance(reply, Exception):
                raise reply
            return reply

        def __del__(self) -> None:
            """There is nothing to close."""

        def _read(self, reply: Any) -> Any:
            kind = type(reply)
            if kind is list:
                return [part if type(part) is bytes else self._read(part) for part in reply]
            if kind is Refusal:
                return self._parser.parse_error(str(reply))
            return bytes(reply) if kind is Status else reply

    return Modelled
