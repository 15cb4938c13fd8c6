"""Connecting: which error a caller gets for what, and which server is refused."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import redis
from bench import Bench, a_batch
from redis import exceptions

from pipeline.errors import ForeignData, StoreError, StoreFull, StoreUnavailable, UnsuitableServer
from pipeline.redis_addresses import dead_connection_options
from pipeline.store.connection import check_server, connect, translated, without_password
from pipeline.store.jobs import JobStore
from pipeline.store.patience import Patience
from pipeline.store.reaching import reach_of
from pipeline.store.scripts import Scripts
from pipeline.store.senders import Feed, FeedAddress


@contextmanager
def configured(url: str, name: str, value: Any, restored: Any) -> Iterator[None]:
    """The server with another setting, through a connection that was made before it."""
    with redis.Redis.from_url(url) as admin:
        admin.config_set(name, value)
        try:
            yield
        finally:
            admin.config_set(name, restored)


def test_a_good_server_serves(redis_url: str) -> None:
    with connect(redis_url) as client:
        assert check_server(client) == []


def test_the_clients_own_retries_are_off(redis_url: str) -> None:
    """B3: a retry is ours and named."""
    with connect(redis_url) as client:
        connection = client.connection_pool.make_connection()

    assert connection.retry.get_retries() == 0
    assert connection.socket_timeout == 10.0


def test_a_client_waits_no_longer_than_it_is_told(redis_url: str) -> None:
    with connect(redis_url, timeout_seconds=0.5) as client:
        connection = client.connection_pool.make_connection()

    assert (connection.socket_timeout, connection.socket_connect_timeout) == (0.5, 0.5)


@pytest.mark.parametrize("url", ["redis://h", "rediss://h", "redis://h,unix:///s", "unix:///s,redis://h"])
def test_a_vanished_server_is_noticed_by_the_kernel_on_tcp(url: str) -> None:
    client = connect(url)
    reach = reach_of(client)
    connections = (
        [reach.connection(number)[0] for number in range(2)] if reach else [client.connection_pool.make_connection()]
    )

    found = [each.socket_keepalive_options for each in connections if hasattr(each, "socket_keepalive_options")]
    assert found == [dead_connection_options()["socket_keepalive_options"]]
    assert found[0][socket.TCP_USER_TIMEOUT] == 6_000


@pytest.mark.parametrize("url", ["nonsense", "http://h", "redis://h:port", "redis://h?db=x", "redis://h?wrong=1", ""])
def test_an_address_that_cannot_be_understood_is_named_with_a_hint(url: str) -> None:
    with pytest.raises(UnsuitableServer, match="not a Redis address") as caught:
        connect(url)

    assert "redis://" in caught.value.hint


def test_a_bad_address_does_not_show_its_password() -> None:
    with pytest.raises(UnsuitableServer) as caught:
        connect("user:secret@host:6379")

    assert "secret" not in str(caught.value)


def test_a_server_that_is_not_there_is_unavailable(tmp_path: Any) -> None:
    for url in (f"unix://{tmp_path}/none.sock", "redis://127.0.0.1:1"):
        with connect(url) as client, pytest.raises(StoreUnavailable, match="cannot be reached") as caught:
            JobStore(Scripts(client)).ping()
        assert caught.value.hint


def test_a_wrong_or_missing_password_is_not_worth_a_retry(redis_url: str) -> None:
    wrong = redis_url.replace("unix://", "unix://:wrong@")
    with configured(redis_url, "requirepass", "secret", ""):
        for url in (redis_url, wrong):
            with connect(url) as client, pytest.raises(UnsuitableServer, match="refuses us") as caught:
                JobStore(Scripts(client)).list_ids()
            assert "password" in caught.value.hint
        with connect(redis_url.replace("unix://", "unix://:secret@")) as client:
            assert JobStore(Scripts(client)).list_ids() == []


def test_a_server_that_evicts_keys_is_refused(redis_url: str) -> None:
    with (
        configured(redis_url, "maxmemory-policy", "allkeys-lru", "noeviction"),
        connect(redis_url) as client,
        pytest.raises(UnsuitableServer, match="allkeys-lru") as caught,
    ):
        check_server(client)

    assert "noeviction" in caught.value.hint


def test_a_server_that_keeps_nothing_on_disk_is_warned_about(redis_url: str) -> None:
    with configured(redis_url, "appendonly", "no", "yes"), connect(redis_url) as client:
        assert any("appendonly" in warning for warning in check_server(client))


def test_a_server_with_slow_hashes_is_warned_about(redis_url: str) -> None:
    with configured(redis_url, "hash-max-ziplist-entries", 512, 64), connect(redis_url) as client:
        assert any("512" in warning for warning in check_server(client))


@pytest.mark.parametrize(
    ("facts", "said"),
    [
        ({"redis_version": "6.0.16"}, "6.0.16 is too old"),
        ({"redis_version": "5.0"}, "too old"),
        ({"cluster_enabled": 1}, "Cluster"),
        ({"role": "slave"}, "replica"),
    ],
)
def test_an_unsuitable_server_is_refused_by_what_it_says(
    redis_url: str, monkeypatch: pytest.MonkeyPatch, facts: dict[str, Any], said: str
) -> None:
    with connect(redis_url) as client:
        info = {**client.info(), **facts}
        monkeypatch.setattr(client, "info", lambda: info)

        with pytest.raises(UnsuitableServer, match=said) as caught:
            check_server(client)

    assert caught.value.hint


def test_a_version_that_is_no_number_is_given_a_chance(redis_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with connect(redis_url) as client:
        info = {**client.info(), "redis_version": "unstable"}
        monkeypatch.setattr(client, "info", lambda: info)

        check_server(client)


def test_a_managed_server_without_config_is_not_refused(redis_url: str) -> None:
    with redis.Redis.from_url(redis_url) as admin:
        admin.execute_command("ACL", "SETUSER", "managed", "on", ">secret", "~*", "+@all", "-config")
        with connect(redis_url.replace("unix://", "unix://managed:secret@")) as client:
            assert check_server(client) == []
        admin.execute_command("ACL", "DELUSER", "managed")


def test_a_replica_is_refused_at_the_start_and_waited_for_in_the_middle_of_work(bench: Bench) -> None:
    feed = Feed(
        bench.scripts,
        FeedAddress(bench.url, "j", "lines", 0.0),
        bench.plan,
        bench.run_of_job,
        Patience(outage_seconds=0.0),
    )
    lane = feed.lane("a")
    bench.client.execute_command("REPLICAOF", "127.0.0.1", "1")
    try:
        with pytest.raises(UnsuitableServer, match="replica"):
            check_server(bench.client)
        with pytest.raises(StoreUnavailable, match="read-only") as caught:
            lane.append(1, a_batch("a"))
        assert "primary" in caught.value.hint
        with pytest.raises(StoreUnavailable, match="read-only"):
            bench.leadership.hold("j", 1)
    finally:
        bench.client.execute_command("REPLICAOF", "NO", "ONE")


def test_a_server_that_misses_its_replicas_is_away_and_not_wrong(bench: Bench) -> None:
    with configured(bench.url, "min-replicas-to-write", 1, 0), pytest.raises(StoreUnavailable):
        bench.leadership.hold("j", 1)


@pytest.mark.parametrize(
    ("error", "ours"),
    [
        (exceptions.ConnectionError("x"), StoreUnavailable),
        (exceptions.TimeoutError("x"), StoreUnavailable),
        (exceptions.BusyLoadingError("x"), StoreUnavailable),
        (exceptions.MasterDownError("x"), StoreUnavailable),
        (exceptions.TryAgainError("x"), StoreUnavailable),
        (ConnectionResetError("x"), StoreUnavailable),
        (exceptions.ResponseError("BUSY Redis is busy running a script"), StoreUnavailable),
        (exceptions.OutOfMemoryError("command not allowed"), StoreFull),
        (exceptions.ResponseError("Error running script: @user_script: 3: -OOM command not allowed"), StoreFull),
        (exceptions.ResponseError("Error running script: @user_script: 3: -MISCONF Redis is"), UnsuitableServer),
        (exceptions.ResponseError("MISCONF Redis is configured to"), UnsuitableServer),
        (exceptions.ReadOnlyError("x"), StoreUnavailable),
        (exceptions.AuthenticationError("x"), UnsuitableServer),
        (exceptions.NoPermissionError("x"), UnsuitableServer),
        (exceptions.DataError("x"), StoreError),
        (exceptions.ResponseError("WRONGTYPE Operation"), ForeignData),
    ],
)
def test_each_error_of_the_client_becomes_one_of_ours_with_its_cause(error: Exception, ours: type[StoreError]) -> None:
    with pytest.raises(StoreError) as caught, translated():
        raise error

    assert type(caught.value) is ours
    assert caught.value.__cause__ is error


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("redis://host:6379/0", "redis://host:6379/0"),
        ("redis://:p@host/0", "redis://:***@host/0"),
        ("rediss://user:p@ss:word@host/0", "rediss://user:***@host/0"),
        ("redis://host?password=p&db=1", "redis://host?password=***&db=1"),
        ("rediss://host?ssl_password=p", "rediss://host?ssl_password=***"),
        ("user:p@host", "user:***@host"),
        ("redis://secret@host", "redis://:***@host"),
        ("unix:///tmp/redis.sock?db=1", "unix:///tmp/redis.sock?db=1"),
        ("unix://user:p@/tmp/redis.sock", "unix://user:***@/tmp/redis.sock"),
        ("unix:///tmp/a@b.sock", "unix:///tmp/a@b.sock"),
    ],
)
def test_an_address_is_shown_without_its_password(url: str, shown: str) -> None:
    assert without_password(url) == shown
