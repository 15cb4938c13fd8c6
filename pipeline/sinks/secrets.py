"""Addresses and headers that may hold passwords: how they are checked, shown without them, and found at last.

Text that begins with `env:` names a variable of the environment of the process that writes; it is not read before.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from typing import Final

from pipeline.errors import EnvironmentFault, PipelineError

_VARIABLE: Final = re.compile(r"env:([A-Za-z_][A-Za-z0-9_]*)")
_SECRET_NAMES: Final = re.compile(r"(?i)((?:^|[?&;])[^=&;]*(?:pass|secret|token|key|auth|sig)[^=&;]*=)[^&;]*")
_DATABASES: Final = {"sqlite": "sqlite", "postgresql": "postgresql+psycopg", "postgres": "postgresql+psycopg"}


def is_variable(text: str) -> bool:
    """Whether the text names a variable instead of holding the value. Raises PipelineError for a bad name."""
    if not text.startswith("env:"):
        return False
    if _VARIABLE.fullmatch(text) is None:
        raise PipelineError(f"{text!r} names no variable of the environment", hint='write it as "env:NAME"')
    return True


def value_of(text: str, what: str, environment: Mapping[str, str] = os.environ) -> str:
    """The text, or the value of the variable that it names. Raises EnvironmentFault when that is not set."""
    if not is_variable(text):
        return text
    name = text.removeprefix("env:")
    if not environment.get(name):
        raise EnvironmentFault(
            f"{what} is in the variable {name}, which is not set", f"export {name}=… for all workers"
        )
    return environment[name]


def without_secrets(url: str) -> str:
    """The address with `***` for its password and for parameters that look like one."""
    if is_variable(url):
        return url
    scheme, separator, rest = url.partition("://")
    address, question, query = rest.partition("?")
    # A password may hold an @ or a / that was not encoded: the last @ ends it.
    user, at, host = address.rpartition("@")
    name, colon, _ = user.partition(":")
    shown = f"{name}{':***' if colon else ''}{at}{host}"
    return f"{scheme}{separator}{shown}{question}{_SECRET_NAMES.sub(lambda found: found[1] + '***', query)}"


def checked_database(url: object, owner: str) -> str:
    """The address of a database, a relative SQLite path made absolute. Raises PipelineError, which never shows it."""
    if not isinstance(url, str) or not url:
        raise PipelineError(f"{owner}: the address of the database must be text", hint=_FORMS)
    return url if is_variable(url) else normal_database(url, owner)


_FORMS: Final = 'for example "sqlite:///orders.db", "postgresql://user:password@host/name" or "env:ORDERS_DB"'


def normal_database(url: str, owner: str) -> str:
    """The address as SQLAlchemy takes it, with the driver that we use. Raises PipelineError."""
    scheme, separator, rest = url.partition("://")
    database, _, driver = scheme.partition("+")
    if not separator or database not in _DATABASES or driver not in ("", "psycopg"):
        shown = scheme if separator and scheme.replace("+", "").isalnum() else "text without a scheme"
        raise PipelineError(f"{owner}: {shown} is no database that can be written: SQLite and PostgreSQL are", _FORMS)
    if database != "sqlite":
        return f"{_DATABASES[database]}://{rest}"
    path = rest.removeprefix("/").partition("?")[0]
    if not rest.startswith("/") or path in ("", ":memory:"):
        raise PipelineError(
            f"{owner}: an SQLite database in memory is lost with its worker", 'give a file: "sqlite:///x.db"'
        )
    return f"sqlite:///{os.path.realpath(path)}"
