"""What a node agent asks of a Redis in which another program has been: it must not end by that."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from pipeline.errors import ForeignData
from pipeline.store import keys
from pipeline.store.agents import AgentLink
from pipeline.store.connection import connect
from pipeline.store.scripts import Scripts


@pytest.fixture
def scripts(redis_url: str) -> Iterator[Scripts]:
    with connect(redis_url) as client:
        yield Scripts(client)
        client.flushall()


def test_a_server_that_keeps_something_else_in_the_place_of_the_job_is_up(scripts: Scripts) -> None:
    scripts.client.set(keys.job("j"), "of another program")

    assert AgentLink(scripts, "j").is_up() is True


def test_a_server_that_serves_this_user_no_more_is_up_and_one_that_takes_no_writes_is_not(
    scripts: Scripts, redis_url: str
) -> None:
    link = AgentLink(scripts, "j")
    scripts.client.execute_command("REPLICAOF", "127.0.0.1", "1")
    try:
        assert link.is_up() is False
    finally:
        scripts.client.execute_command("REPLICAOF", "NO", "ONE")
    assert link.is_up() is True
    with connect(redis_url) as admin:
        admin.acl_setuser("nobody", enabled=True, nopass=True, commands=["+auth"])
        scripts.client.execute_command("AUTH", "nobody", "")
        try:
            assert link.is_up() is True
        finally:
            admin.acl_deluser("nobody")


def test_a_death_that_cannot_be_told_says_why(scripts: Scripts) -> None:
    scripts.client.hset(keys.job("j"), "state", "running")
    scripts.client.set(keys.workers("j"), "of another program")

    with pytest.raises(ForeignData, match="holds something else"):
        AgentLink(scripts, "j").report_death("w0", "1-x")
