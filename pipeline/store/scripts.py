"""Loads the Lua scripts and runs them. Each script's KEYS, ARGV and answers stand in the head of its file."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from importlib import resources
from os import getpid
from time import monotonic
from typing import Any, Final
from weakref import WeakKeyDictionary

from redis.exceptions import NoScriptError, ResponseError

from pipeline.store.connection import translated

_FOLDER = resources.files("pipeline.store") / "scripts"
_FRESH_SECONDS: Final = 0.25
_KEPT: WeakKeyDictionary[Any, list[tuple[Any, int, float]]] = WeakKeyDictionary()
"""Client -> the connection that was used last, by which process, and when: at most one for all `Scripts` of it."""

_PRELUDE = (_FOLDER / "prelude.lua").read_text(encoding="utf-8")


def source(name: str) -> str:
    """The text that Redis runs for a script."""
    return _PRELUDE + (_FOLDER / f"{name}.lua").read_text(encoding="utf-8")


class Scripts:
    """Runs scripts on one client. Not safe for use by several threads at once, as its client's callers are one."""

    def __init__(self, client: Any) -> None:
        self.client = client
        self._known: dict[str, tuple[str, str]] = {}
        self._kept = _KEPT.setdefault(client, [])

    def run(self, name: str, keys: Sequence[str], args: Sequence[Any]) -> list[Any]:
        """The script's answer. Raises the errors of `pipeline.store.connection.translated`."""
        known = self._known.get(name)
        if known is None:
            text = source(name)
            known = self._known[name] = (hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest(), text)
        with translated():
            try:
                return self._send("EVALSHA", known[0], len(keys), *keys, *args)
            except NoScriptError:
                return self._send("EVAL", known[1], len(keys), *keys, *args)

    def _send(self, *command: Any) -> list[Any]:
        """As `client.execute_command`, without its hooks, which look at each argument: half of the cost of a call."""
        connection = self._connection()
        try:
            connection.send_command(*command)
            return connection.read_response()  # type: ignore[no-any-return]
        except ResponseError:
            raise  # the answer was read
        except BaseException:
            # An interrupt may have come before the answer was read: the next call would take it for its own.
            connection.disconnect()
            raise
        finally:
            self._keep(connection)

    def _connection(self) -> Any:
        """The one that the last call has used; the pool's way to one costs as much as a small script.

        The pool's way again after a pause, as it notices a connection that was closed meanwhile, and in a forked child.
        """
        pool = self.client.connection_pool
        try:
            connection, process, used = self._kept.pop()
        except IndexError:
            return pool.get_connection()
        if process == getpid() and monotonic() - used < _FRESH_SECONDS:
            return connection
        pool.release(connection)
        return pool.get_connection()

    def _keep(self, connection: Any) -> None:
        if self._kept:
            self.client.connection_pool.release(connection)  # another thread has kept its own
        else:
            self._kept.append((connection, getpid(), monotonic()))
