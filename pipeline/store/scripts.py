"""Loads the Lua scripts and runs them. Each script's KEYS, ARGV and answers stand in the head of its file.

The text of a script names the run of the server that it is for. A server forgets scripts when it ends, so none that was
meant for another run, whose last writes may be gone, ever runs on this one.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from functools import cache
from importlib import resources
from os import getpid
from time import monotonic
from typing import Any, Final, Self
from weakref import WeakKeyDictionary

from redis.exceptions import NoScriptError, ResponseError

from pipeline.errors import ForeignData, StoreRestarted
from pipeline.store.connection import translated
from pipeline.store.foreign import HINT, suspects

_FOLDER = resources.files("pipeline.store") / "scripts"
_FRESH_SECONDS: Final = 0.25
_KEPT: WeakKeyDictionary[Any, list[tuple[Any, int, float]]] = WeakKeyDictionary()
"""Client -> the connection that was used last, by which process, and when: at most one for all `Scripts` of it."""

_PRELUDE = (_FOLDER / "prelude.lua").read_text(encoding="utf-8")


_CANNOT_COUNT: Final = re.compile(
    r"^FOREIGN |attempt to (?:perform|compare|concatenate|index|get length)|bad argument #|not an integer"
    r"|not a valid float|equal or smaller than|must be strings or integers|Invalid stream ID"
)
"""What Lua and Redis say of a value that our scripts have not written."""

_RUN_ID: Final = re.compile(rb"^run_id:([0-9A-Za-z]+)\r?$", re.MULTILINE)


def source(name: str, server: str = "") -> str:
    """The text that Redis runs for a script, on the run of the server with that id."""
    return f"local server = '{server}'\n" + _PRELUDE + _body(name)


@cache
def _body(name: str) -> str:
    return (_FOLDER / f"{name}.lua").read_text(encoding="utf-8")


class Scripts:
    """Runs scripts on one client. Not safe for use by several threads at once, as its client's callers are one."""

    def __init__(self, client: Any) -> None:
        self.client = client
        self.server = ""
        """The run id of the server that the last call has reached; empty before the first one."""
        self._known: dict[str, tuple[str, str]] = {}
        self._kept = _KEPT.setdefault(client, [])

    def anew(self) -> Self:
        """For the same client, as one that has met no server yet."""
        return type(self)(self.client)

    def run(self, name: str, keys: Sequence[str], args: Sequence[Any]) -> list[Any]:
        """The script's answer. Raises the errors of `pipeline.store.connection.translated`; ForeignData, with the key
        and the field as far as that can be told, when a script cannot count with what it finds.

        Raises StoreRestarted, once, when another run of the server answers than before; the script was not run then.
        """
        known = self._known.get(name) or self._learn(name)
        with translated():
            try:
                try:
                    return self._send("EVALSHA", known[0], len(keys), *keys, *args)
                except NoScriptError:
                    return self._teach("EVAL", known[1], len(keys), *keys, *args)
            except ResponseError as error:
                if _CANNOT_COUNT.search(str(error)):
                    raise self._foreign(name, keys, error) from error
                raise

    def _foreign(self, name: str, keys: Sequence[str], error: ResponseError) -> ForeignData:
        """The script found what no script of ours has written."""
        found = suspects(self.client, keys) or f"{name}.lua cannot work with it: {error}"
        return ForeignData(f"a key of ours holds something else: {found}", hint=HINT)

    def meet(self) -> str:
        """The run id of the server that answers. Raises StoreRestarted when it is another one than before."""
        with translated():
            self._note(self._send("INFO", "server"))
        return self.server

    def _learn(self, name: str) -> tuple[str, str]:
        text = self._text(name, self.server or self.meet())
        known = self._known[name] = (hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest(), text)
        return known

    def _teach(self, *command: Any) -> list[Any]:
        """Sends a script's text on the very connection whose server has just said that the text is meant for it."""
        connection = self._connection()
        try:
            connection.send_command("INFO", "server")
            self._note(connection.read_response())
            connection.send_command(*command)
            return connection.read_response()  # type: ignore[no-any-return]
        except (ResponseError, StoreRestarted):
            raise  # the answer was read
        except BaseException:
            connection.disconnect()
            raise
        finally:
            self._keep(connection)

    def _text(self, name: str, server: str) -> str:
        return source(name, server)

    def _note(self, info: Any) -> None:
        found = _RUN_ID.search(info)
        server = found[1].decode() if found else "unknown"
        before, self.server = self.server, server
        if before and before != server:
            self._known.clear()
            raise StoreRestarted(
                "Redis was restarted", hint="what works for a job goes on by itself; a command is given again"
            )

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
