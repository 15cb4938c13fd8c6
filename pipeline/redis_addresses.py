"""The addresses of one Redis, as `URL,URL…`, and the order in which a process tries them. Opens no connection."""

from __future__ import annotations

import ipaddress
import re
import socket
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final, TypeAlias
from urllib.parse import parse_qs, unquote, urlsplit

from pipeline.errors import EnvironmentFault, PipelineError

NETWORK_VARIABLE: Final = "CELERIAC_PREFER_NETWORK"

Network: TypeAlias = "ipaddress.IPv4Network | ipaddress.IPv6Network"

_BETWEEN: Final = re.compile(r",(?=(?:rediss?|unix)://)")
"""A comma within an address, as in a password, stays."""


_BETWEEN_SERVERS: Final = re.compile(r"\s+(?=(?:rediss?|unix)://)")


def split_servers(text: str) -> list[str]:
    """`URL URL…`, each of which may be `URL,URL…` -> what is said of each server."""
    return _BETWEEN_SERVERS.split(text.strip())


def check_one_server(text: str, why: str) -> None:
    """Raises EnvironmentFault when the variable CELERIAC_REDIS names several servers; `why` is its hint."""
    if len(split_servers(text)) > 1:
        raise EnvironmentFault("CELERIAC_REDIS names several Redis servers", hint=why)


def split_addresses(text: str) -> list[str]:
    """`URL,URL…` -> the addresses."""
    return _BETWEEN.split(text)


def parse_networks(text: str) -> list[Network]:
    """`10.0.0.0/8,fd00::/8` -> the networks. Raises PipelineError."""
    try:
        return [ipaddress.ip_network(part.strip()) for part in text.split(",") if part.strip()]
    except ValueError as error:
        raise PipelineError(f"{text!r} is no network: {error}", hint="write it as 10.0.0.0/8") from error


def _resolved(host: str) -> list[str]:
    """The IP addresses of a host; none for one that is not known here."""
    try:
        return [str(found[4][0]) for found in socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)]
    except OSError:
        return []


def in_order(
    text: str,
    networks: Sequence[Network] = (),
    resolve: Callable[[str], list[str]] = _resolved,
    is_here: Callable[[Path], bool] = Path.exists,
) -> str:
    """The addresses in the order in which this process is to try them.

    First Unix sockets that this host has, then those within a preferred network, then the others, and at last sockets
    that are not here; otherwise as they were given. A single address is left as it is.
    """
    addresses = split_addresses(text)
    if len(addresses) < 2:
        return text

    def rank(address: str) -> int:
        parts = urlsplit(address)
        if parts.scheme == "unix":
            return 0 if is_here(Path(unquote(parts.path))) else 3
        found = [ipaddress.ip_address(each.partition("%")[0]) for each in resolve(parts.hostname or "")]
        return 1 if any(each in network for each in found for network in networks) else 2

    return ",".join(sorted(addresses, key=rank))


def database(address: str) -> int:
    """The number of the database that the address names."""
    parts = urlsplit(address)
    text = parse_qs(parts.query).get("db", [""])[0] or ("" if parts.scheme == "unix" else parts.path.strip("/"))
    return int(text) if text.isdecimal() else 0
