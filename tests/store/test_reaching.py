"""A client with several addresses of one Redis: which one it takes, where it goes on, and what it refuses."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import redis

from pipeline.embedded.redis import EmbeddedRedis
from pipeline.errors import StoreUnavailable, UnsuitableServer
from pipeline.store.connection import check_server, connect, translated
from pipeline.store.reaching import Reach, reach_of
from pipeline.store.returning import await_server, first_address

CLOSED = "redis://user:secret@127.0.0.1:1/0"


@pytest.fixture
def link(tmp_path: Path, redis_server: EmbeddedRedis) -> Path:
    """Another way to the session's server, which a test may take away and bring back."""
    path = tmp_path / "link.sock"
    path.symlink_to(socket_of(redis_server.url))
    return path


@pytest.fixture
def other() -> Iterator[str]:
    with EmbeddedRedis.start() as server:
        yield server.url


def socket_of(url: str) -> str:
    return url.removeprefix("unix://").partition("?")[0]


def reach(client: object) -> Reach:
    found = reach_of(client)
    assert found is not None
    return found


def ping(client: redis.Redis) -> None:
    with translated():
        client.ping()


def lose(client: redis.Redis) -> None:
    """All connections of the client end, as with the network that they came by."""
    client.connection_pool.disconnect()


def test_the_first_address_that_answers_is_taken(redis_url: str, link: Path) -> None:
    with connect(f"{CLOSED},unix://{link},{redis_url}") as client:
        ping(client)

        assert reach(client).last == f"unix://{link}"


def test_when_one_address_fails_the_next_one_is_taken_and_a_preferred_one_again_when_it_is_back(
    redis_url: str, link: Path
) -> None:
    with connect(f"unix://{link},{redis_url}") as client:
        ping(client)
        target = link.readlink()
        link.unlink()
        lose(client)
        ping(client)
        assert reach(client).last == redis_url

        link.symlink_to(target)
        lose(client)
        ping(client)
        assert reach(client).last == f"unix://{link}"


def test_another_server_under_the_next_address_is_refused_until_the_first_is_back(link: Path, other: str) -> None:
    with connect(f"unix://{link},{other}") as client:
        ping(client)
        target = link.readlink()
        link.unlink()
        lose(client)
        for _ in range(2):
            with pytest.raises(StoreUnavailable, match="is another server than unix://"):
                ping(client)

        link.symlink_to(target)
        ping(client)


def test_another_run_of_the_server_under_the_same_address_is_no_other_server(tmp_path: Path) -> None:
    with EmbeddedRedis.start(tmp_path) as server, connect(f"{server.url},{CLOSED}") as client:
        ping(client)
        server.restart()
        lose(client)

        ping(client)


def test_addresses_of_two_servers_are_refused_at_the_start_with_both_names(redis_url: str, other: str) -> None:
    with connect(f"{redis_url},{CLOSED},{other}") as client, pytest.raises(UnsuitableServer) as caught:
        check_server(client)

    assert str(caught.value) == f"these addresses are not those of one Redis: {redis_url}, {other}"
    assert "--redis" in caught.value.hint


def test_two_ways_to_one_server_serve(redis_url: str, link: Path) -> None:
    with connect(f"unix://{link},{redis_url},{CLOSED}") as client:
        assert check_server(client) == []


def test_where_none_answers_all_are_named_without_their_passwords(tmp_path: Path) -> None:
    with connect(f"{CLOSED},unix://{tmp_path}/gone") as client, pytest.raises(StoreUnavailable) as caught:
        ping(client)

    assert "redis://user:***@127.0.0.1:1/0: " in str(caught.value)
    assert f"unix://{tmp_path}/gone: " in str(caught.value)
    assert "secret" not in f"{caught.value!r} {client!r} {reach(client)!r}"


@pytest.mark.parametrize("url", ["redis://h/0,redis://h/1", "redis://h:port,redis://h", "redis://h,redis://h?wrong=1"])
def test_addresses_that_cannot_be_understood_or_name_several_databases_are_refused(url: str) -> None:
    with pytest.raises(UnsuitableServer, match="not a Redis address"):
        connect(url)


def test_each_address_logs_in_with_what_it_says_and_all_use_the_database(redis_url: str, link: Path) -> None:
    with redis.Redis.from_url(redis_url) as admin:
        admin.acl_setuser("ann", enabled=True, passwords=["+pw"], keys=["*"], commands=["+@all"])
        try:
            with connect(f"{CLOSED.replace('/0', '/3')},unix://ann:pw@{link}?db=3") as client:
                assert client.acl_whoami() == "ann"
                client.set("celeriac:here", 1)
            with redis.Redis.from_url(f"unix://{link}?db=3") as third:
                assert third.delete("celeriac:here") == 1
        finally:
            admin.acl_deluser("ann")


def test_who_waits_for_a_server_is_told_the_address_that_answers(redis_url: str, link: Path) -> None:
    addresses = f"{CLOSED},unix://{link},{redis_url}"

    assert await_server(addresses, lambda: False) == f"unix://{link}"
    assert first_address(addresses) == f"unix://{link}"
    assert first_address(f"{CLOSED},redis://127.0.0.1:2/0") == CLOSED
    assert first_address("redis://nobody.is.asked") == "redis://nobody.is.asked"
