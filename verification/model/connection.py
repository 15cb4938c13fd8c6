"""A client of the model: the production client library, its connections led to the model instead of to a socket."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Any, Protocol

from pipeline.store.connection import connect
from verification.model.keyspace import Refusal
from verification.model.server import Command, Server


class Wire(Protocol):
    """How commands come to a server, and its replies back."""

    def open(self) -> int:
        """The run of the server that a new connection reaches; it ends with that run."""
        ...

    def send(self, run: int, commands: Sequence[Command]) -> list[Any]:
        """Raises what a connection raises."""
        ...


class DirectWire:
    """Whatever is sent arrives at once."""

    def __init__(self, server: Server) -> None:
        self._server = server

    def open(self) -> int:
        return self._server.run

    def send(self, run: int, commands: Sequence[Command]) -> list[Any]:
        if run != self._server.run:
            raise ConnectionError("the server was restarted")
        return self._server.answer_all(commands)


_URL = "redis://model:6379/0"


def client_of(server: Server) -> Any:
    """A client whose commands arrive at once."""
    return client_over(DirectWire(server))


def client_over(wire: Wire) -> Any:
    """A client whose connections send through `wire`."""
    client = connect(_URL)
    pool = client.connection_pool
    pool.connection_class = _modelled(pool.connection_class, wire)
    return client


def _modelled(connection_class: Any, wire: Wire) -> Any:
    class Modelled(connection_class):
        """Has no socket. A connection that has failed has no replies left, like one that was closed."""

        def __init__(self, **options: Any) -> None:
            super().__init__(**options)
            self._replies: deque[Any] = deque()
            self._run = 0

        def connect(self) -> None:
            pass

        def disconnect(self, *args: Any, **options: Any) -> None:
            self._replies.clear()
            self._run = 0

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
            self._send(command)

        def _send(self, commands: Sequence[Command]) -> None:
            self._run = self._run or wire.open()
            try:
                self._replies.extend(wire.send(self._run, commands))
            except ConnectionError:
                self.disconnect()
                raise

        def read_response(self, *args: Any, **options: Any) -> Any:
            reply = self._read(self._replies.popleft())
            if isinstance(reply, Exception):
                raise reply
            return reply

        def _read(self, reply: Any) -> Any:
            if isinstance(reply, Refusal):
                return self._parser.parse_error(str(reply))
            if isinstance(reply, list):
                return [self._read(part) for part in reply]
            return bytes(reply) if isinstance(reply, bytes) else reply

    return Modelled
