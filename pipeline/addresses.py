"""Addresses that may hold passwords: shown without them in the plan, and found by the process that reads.

Text that begins with `env:` names a variable of the environment of that process; it is not read before.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from typing import Final

from pipeline.errors import EnvironmentFault, PipelineError
from pipeline.validation import is_unicode

_VARIABLE: Final = re.compile(r"env:[A-Za-z_][A-Za-z0-9_]*")
_SECRET_NAMES: Final = re.compile(r"(?i)((?:^|[?&;])[^=&;]*(?:pass|secret|token|key|auth|sig|user)[^=&;]*=)[^&;]*")


def checked_address(address: object, owner: str, example: str) -> str:
    """The address as it was given. Raises PipelineError, which never shows it."""
    hint = f'for example {example}, or "env:NAME" for what that variable holds'
    if not isinstance(address, str) or not address or not is_unicode(address):
        raise PipelineError(f"{owner}: the address must be text", hint=hint)
    if address.startswith("env:"):
        if not _VARIABLE.fullmatch(address):
            raise PipelineError(f"{owner}: {address!r} names no variable of the environment", hint=hint)
    elif "://" not in address:
        raise PipelineError(f"{owner}: the address has no scheme", hint=hint)
    return address


def find_address(address: str, what: str, environment: Mapping[str, str] = os.environ) -> str:
    """The address, or what the variable holds that it names. Raises EnvironmentFault when that is not set."""
    if not address.startswith("env:"):
        return address
    name = address.removeprefix("env:")
    if not environment.get(name):
        raise EnvironmentFault(
            f"{what}: its address is in the variable {name}, which is not set", hint=f"export {name}=…"
        )
    return environment[name]


def without_secrets(address: str) -> str:
    """The address with `***` for user, password and for parameters that look like a secret."""
    if address.startswith("env:"):
        return address
    scheme, separator, rest = address.partition("://")
    place, question, query = rest.partition("?")
    _, at, host = place.rpartition("@")  # a password may hold an @ that was not encoded
    hidden = "***@" if at else ""
    return f"{scheme}{separator}{hidden}{host}{question}{_SECRET_NAMES.sub(lambda found: found[1] + '***', query)}"
