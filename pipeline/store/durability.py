"""What the server does for records that it has taken, should it crash."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Any

from redis.exceptions import NoPermissionError, ResponseError

from pipeline.store.connection import translated


class Durability(StrEnum):
    """How safe a record is that Redis has taken. Replicas are not part of it."""

    ALWAYS = "always"
    """On the server's disk before it was acknowledged."""
    EVERYSEC = "everysec"
    """On disk within about a second: a power cut or a killed server may lose that second."""
    OFF = "off"
    """In the server's memory; on disk with the next snapshot, or when its operating system likes."""
    UNKNOWN = "unknown"
    """There is an append-only file, but this user may not ask how it is written."""


def read_durability(client: Any) -> Durability:
    """What the server is set to now. Raises StoreUnavailable, StoreError."""
    with translated():
        try:
            found = {_text(name): _text(value) for name, value in client.config_get("append*").items()}
        except (NoPermissionError, ResponseError):  # not permitted, or renamed, as on many managed servers
            return Durability.UNKNOWN if client.info("persistence").get("aof_enabled") else Durability.OFF
    return durability_of(found)


def durability_of(found: Mapping[str, str]) -> Durability:
    """What these settings of a server mean."""
    if found.get("appendonly") != "yes":
        return Durability.OFF
    match found.get("appendfsync"):
        case "always":
            return Durability.ALWAYS
        case "everysec":
            return Durability.EVERYSEC
        case "no":
            return Durability.OFF
        case _:
            return Durability.UNKNOWN


def _text(value: Any) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)
