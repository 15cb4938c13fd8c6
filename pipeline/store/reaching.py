"""A client for one Redis that has several addresses: each connection takes the first that answers, in their order.

All of them must lead to the same server: a connection that finds another one is refused, so that no process ever goes
on elsewhere. Passwords are in no message.
"""

from __future__ import annotations

import socket
from collections.abc import Sequence
from typing import Any, Final

import redis
from redis import exceptions
from redis.connection import ConnectionPool, parse_url

from pipeline.redis_addresses import database

CONNECT_SECONDS: Final = 1.0
"""For one address: the next one is tried after that."""


class Reach:
    """The addresses, and which server answered under which of them last. For the connections of one pool."""

    def __init__(self, addresses: Sequence[str], shown: Sequence[str], timeouts: dict[str, float]) -> None:
        self.addresses, self.shown = list(addresses), list(shown)
        self._timeouts = timeouts
        self._last: tuple[int, str] | None = None

    def __repr__(self) -> str:
        return f"Reach({', '.join(self.shown)})"

    @property
    def last(self) -> str:
        """The address that was taken last; the first one before any was."""
        return self.addresses[self._last[0] if self._last else 0]

    def connection(self, number: int) -> tuple[Any, dict[str, Any]]:
        """A connection of that address, not opened, and what to log in with. Raises ValueError, TypeError."""
        told = parse_url(self.addresses[number])
        kind = told.pop("connection_class", redis.Connection)
        login = {name: told.get(name) for name in ("username", "password")}
        return kind(**{**self._timeouts, **told}), login

    def judge(self, number: int, run_id: str) -> str:
        """Why the server that answers there must not be used, or nothing; then it is remembered.

        Another run under the same address is a restart, which is for others to judge.
        """
        if self._last is not None and self._last[0] != number and self._last[1] != run_id:
            return f"{self.shown[number]} is another server than {self.shown[self._last[0]]} was"
        self._last = (number, run_id)
        return ""


class FirstOf(redis.Connection):
    """A connection that takes the first address that answers, each time that it is opened."""

    def __init__(self, *, reach: Reach, **options: Any) -> None:
        self._reach = reach
        self._number = 0
        super().__init__(host="", redis_connect_func=_begin, **options)

    def _connect(self) -> socket.socket:
        failures = []
        for number in range(len(self._reach.addresses)):
            connection, login = self._reach.connection(number)
            try:
                opened: socket.socket = connection._connect()
            except OSError as error:
                failures.append(f"{self._reach.shown[number]}: {error}")
                continue
            opened.settimeout(self.socket_timeout)
            self._number, self.username, self.password = number, login["username"], login["password"]
            return opened
        raise OSError("no address answers: " + "; ".join(failures))

    def _host_error(self) -> str:
        return ", ".join(self._reach.shown)

    def check(self) -> None:
        """Raises ConnectionError when it leads to another server than the one before."""
        self.send_command("INFO", "server")
        text = self.read_response()
        found = text if isinstance(text, str) else text.decode("utf-8", "replace")
        run_id = next((line.partition(":")[2] for line in found.splitlines() if line.startswith("run_id:")), "")
        if fault := self._reach.judge(self._number, run_id):
            raise exceptions.ConnectionError(fault)


def _begin(connection: FirstOf) -> None:
    connection.on_connect()
    connection.check()


def client_of(addresses: Sequence[str], shown: Sequence[str], options: dict[str, Any]) -> Any:
    """A client with connections of that kind; nothing is sent yet. Raises ValueError, TypeError for a wrong address.

    shown: the addresses without passwords. options: of `redis.Redis.from_url`.
    """
    if len({database(address) for address in addresses}) > 1:
        raise ValueError("the addresses name different databases")
    timeouts = {
        "socket_timeout": options["socket_timeout"],
        "socket_connect_timeout": min(options["socket_connect_timeout"], CONNECT_SECONDS),
    }
    reach = Reach(addresses, shown, timeouts)
    for number in range(len(addresses)):
        reach.connection(number)
    pool = ConnectionPool(connection_class=FirstOf, reach=reach, db=database(addresses[0]), **options)
    client = redis.Redis(connection_pool=pool)
    client.auto_close_connection_pool = True
    return client


def reach_of(client: Any) -> Reach | None:
    """The addresses of a client that has several."""
    reach = client.connection_pool.connection_kwargs.get("reach")
    return reach if isinstance(reach, Reach) else None
