"""Connecting to Redis and judging whether the server can carry a job.

The client's own retries are off: a retry is ours.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import redis
from packaging.version import InvalidVersion, Version
from redis import exceptions
from redis.backoff import NoBackoff
from redis.retry import Retry

try:
    from redis.driver_info import DriverInfo
except ImportError:  # before redis 7.2
    DriverInfo = None

from pipeline.errors import ForeignData, StoreError, StoreFull, StoreUnavailable, UnsuitableServer
from pipeline.redis_addresses import split_addresses, split_servers
from pipeline.store.reaching import CONNECT_SECONDS, client_of, reach_of

logger = logging.getLogger(__name__)

OLDEST_SERVER = Version("6.2")
TIMEOUT_SECONDS = 10.0
LEAST_FREE_BYTES = 1 << 20
"""With less memory not even the queues of a job can be made."""

# Else each connection reads the version of the client library from its package: 3 ms.
_LIBRARY: dict[str, Any] = {"lib_version": redis.__version__} if DriverInfo is None else {"driver_info": DriverInfo()}


def connect(url: str, *, timeout_seconds: float = TIMEOUT_SECONDS) -> Any:
    """A client for `redis://`, `rediss://` or `unix://`; nothing is sent yet. No answer takes longer than the timeout.

    Of several addresses of one server, as `URL,URL`, each connection takes the first that answers.
    Raises UnsuitableServer for a URL that cannot be understood.
    """
    options = {
        "socket_timeout": timeout_seconds,
        "socket_connect_timeout": min(timeout_seconds, 5.0),
        "retry": Retry(NoBackoff(), 0),
        "protocol": 2,
        "client_name": "celeriac",
        **_LIBRARY,
    }
    if len(split_servers(url)) > 1:
        raise UnsuitableServer(
            f"these are several Redis servers: {without_password(url)}",
            hint="one is needed here; what finds a job on several is the command `celeriac`",
        )
    addresses = split_addresses(url)
    try:
        if len(addresses) > 1:
            return client_of(addresses, [without_password(each) for each in addresses], options)
        client = redis.Redis.from_url(url, **options)
        client.connection_pool.make_connection()  # not opened: it only shows an option that does not exist
        return client
    except (ValueError, TypeError) as error:
        raise UnsuitableServer(
            f"not a Redis address: {without_password(url)!r}",
            hint="use redis://host:6379/0, rediss://… for TLS, or unix:///path/redis.sock; several addresses of one"
            " server, and database, with commas between",
        ) from error


_READ_ONLY_HINT = "it is a replica: make it the primary again, or use the address of the primary"


@contextmanager
def translated() -> Iterator[None]:
    """Turns the client's errors into ours."""
    try:
        yield
    except (
        exceptions.AuthenticationError,
        exceptions.AuthorizationError,
        exceptions.NoPermissionError,
    ) as error:
        raise UnsuitableServer(
            f"Redis refuses us: {error}", hint="check user and password in the address, and the user's ACL"
        ) from error
    except (
        exceptions.ConnectionError,
        exceptions.TimeoutError,
        exceptions.ClusterDownError,
        exceptions.TryAgainError,
        OSError,
    ) as error:
        raise StoreUnavailable(f"Redis cannot be reached: {error}", hint="is the server up?") from error
    except exceptions.ReadOnlyError as error:
        raise StoreUnavailable("Redis is read-only just now", hint=_READ_ONLY_HINT) from error
    except exceptions.ResponseError as error:
        raise _response_error(error) from error
    except exceptions.RedisError as error:
        raise StoreError(f"Redis: {error}") from error


# A script hands on the error of a command within its own text: the code follows a dash or, on 6.2, the line number.
_CODE = re.compile(
    r"(?:^|\s-|@user_script:\s?\d+: |caused error: )"
    r"(READONLY|NOAUTH|WRONGPASS|NOPERM|LOADING|MASTERDOWN|BUSY|TRYAGAIN|CLUSTERDOWN|NOREPLICAS|MISCONF|WRONGTYPE)\b"
)


def _response_error(error: exceptions.ResponseError) -> StoreError:
    text = str(error)
    if isinstance(error, exceptions.OutOfMemoryError) or "-OOM " in text or text.startswith("OOM "):
        return StoreFull("Redis is full: it has reached maxmemory", hint="raise maxmemory, or let the job drain")
    found = _CODE.search(text)
    match found[1] if found else "":
        case "READONLY":
            return StoreUnavailable("Redis is read-only just now", hint=_READ_ONLY_HINT)
        case "NOAUTH" | "WRONGPASS" | "NOPERM":
            return UnsuitableServer(f"Redis refuses us: {text}", hint="check user and password in the address")
        case "WRONGTYPE":
            return ForeignData(
                f"a key of ours holds something else: {text}",
                hint="another program writes keys that begin with celeriac: on this Redis; give it another database",
            )
        case "MISCONF":
            return UnsuitableServer(
                f"Redis cannot write to its disk: {text}", hint="free disk space, then CONFIG SET or restart"
            )
        case "" if "DB index" in text:
            return UnsuitableServer(
                f"this Redis has no database of that number: {text}",
                hint="the address ends with it, as redis://host:6379/0",
            )
        case "":
            return StoreError(f"Redis refused a command: {text}")
        case _:
            return StoreUnavailable(f"Redis does not answer yet: {text}", hint="wait until it is ready")


def without_password(url: str) -> str:
    """The address as it may be shown: any password is replaced, also in an address that is no URL."""
    if len(servers := split_servers(url)) > 1:
        return " ".join(map(without_password, servers))
    if len(several := split_addresses(url)) > 1:
        return ",".join(map(without_password, several))
    url = re.sub(r"(?i)([?&](?:\w*password|username)=)[^&#]*", r"\1***", url)
    head, at, tail = url.rpartition("@")
    if not at or head.startswith("unix:///"):
        return url
    before, slashes, credentials = head.rpartition("://")
    user, colon, _ = credentials.partition(":")
    return f"{before}{slashes}{user if colon else ''}:***@{tail}"


def check_server(client: Any) -> list[str]:
    """Warnings about a server that serves, though not well.

    Raises UnsuitableServer when it is too old, would evict keys, or is a replica, or when some of its addresses are
    another's; StoreFull; StoreUnavailable.
    """
    _check_same(client)
    with translated():
        info = client.info()
    version = str(info.get("redis_version", "0"))
    try:
        old = Version(version) < OLDEST_SERVER
    except InvalidVersion:
        old = False
    if old:
        raise UnsuitableServer(f"Redis {version} is too old", hint=f"use Redis {OLDEST_SERVER} or later, or Valkey")
    policy = info.get("maxmemory_policy", "noeviction")
    if policy != "noeviction":
        raise UnsuitableServer(
            f"this Redis evicts keys (maxmemory-policy is {policy}); records would be lost silently",
            hint="CONFIG SET maxmemory-policy noeviction",
        )
    if info.get("role") != "master":
        raise UnsuitableServer("this Redis is a replica", hint="use the address of the primary")
    most, used = int(info.get("maxmemory", 0)), int(info.get("used_memory", 0))
    if 0 < most < used + LEAST_FREE_BYTES:
        raise StoreFull(
            f"this Redis is full: {used:,} bytes of {most:,} are used", hint="raise maxmemory, or free memory there"
        )
    if info.get("cluster_enabled"):
        raise UnsuitableServer("Redis Cluster is not supported", hint="use one primary per job")
    return _warnings(client, info)


def _check_same(client: Any) -> None:
    """All addresses that answer must be those of one server."""
    reach = reach_of(client)
    found: dict[str, str] = {}
    for address, shown in zip(reach.addresses, reach.shown, strict=True) if reach else ():
        try:
            with connect(address, timeout_seconds=CONNECT_SECONDS) as one, translated():
                found[shown] = one.info("server")["run_id"]
        except StoreUnavailable as error:
            logger.info("an address of Redis does not answer here: %s: %s", shown, error)
    if len(set(found.values())) > 1:
        raise UnsuitableServer(
            f"these addresses are not those of one Redis: {', '.join(found)}",
            hint="the addresses between commas are ways to one server; another server is another --redis",
        )


def _warnings(client: Any, info: dict[str, Any]) -> list[str]:
    warnings = []
    if not info.get("aof_enabled"):
        warnings.append("appendonly is off: a crash of Redis loses what was acknowledged since the last snapshot")
    with translated():
        try:
            limits = {**client.config_get("hash-max-*-entries")}
        except exceptions.ResponseError:
            return warnings  # CONFIG is often not permitted on a managed server
    for name in (
        b"hash-max-listpack-entries",
        "hash-max-listpack-entries",
        b"hash-max-ziplist-entries",
        "hash-max-ziplist-entries",
    ):
        if name in limits and int(limits[name]) > 128:
            shown = name.decode() if isinstance(name, bytes) else name
            warnings.append(f"{shown} is {int(limits[name])}: commits are up to 3 times faster with 64")
            break
    return warnings
