"""The model of Redis answers as the real server does, and holds the same afterwards."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pipeline.embedded.redis import EmbeddedRedis
from pipeline.errors import ForeignData
from pipeline.store.connection import connect
from pipeline.store.scripts import Scripts
from tests.simulation.twin import Recorder, answer, answer_on, comparable, read_keyspace, replay, timed
from verification.exhaustive.search import plan, start
from verification.exhaustive.steps import Steps
from verification.model.connection import client_of, client_over
from verification.model.keyspace import NotModelled
from verification.model.server import Server, run_id
from verification.scenarios import SCENARIOS
from verification.world import Scenario, World

PLAN = plan()
KEYS = ("a", "b", "c")
FIELDS = ("f", "g", "7", "")
NUMBERS = ("0", "1", "-2", "17", "x")
IDS = ("1-0", "1-1", "2-0", "7", "0-0", "(1-0", "-", "+", "9-9")
SCORES = ("0", "1", "-1.5", "(1", "2", "-inf", "+inf")


@pytest.fixture(scope="module")
def real(redis_server: EmbeddedRedis) -> Iterator[Any]:
    with connect(redis_server.url) as client:
        client.flushall()
        yield client
        client.flushall()


class _UntimedWorld(World):
    """The scripts as they are, as the model has a clock of its own."""

    def own_scripts(self) -> Scripts:
        return Scripts(self.client)


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.name)
def test_what_a_scenario_sends_is_answered_alike(real: Any, scenario: Scenario, tmp_path: Path) -> None:
    recorder = Recorder()
    world = _UntimedWorld(
        "redis://model", client_over(recorder), tmp_path, scenario, {}, lambda _, __: Scripts(client_over(recorder))
    )

    world.run()
    replay(real, recorder)

    assert len(recorder.rows) > 100
    assert read_keyspace(real).frozen() == recorder.server.keyspace.frozen()


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_any_walk_through_the_small_model_is_answered_alike(real: Any, data: st.DataObject) -> None:
    real.flushall()
    keyspace, memory = start()
    for command in _as_commands(keyspace):
        answer(real, command)
    assert read_keyspace(real).frozen() == keyspace.frozen()

    for _ in range(data.draw(st.integers(1, 25))):
        calls: list[tuple[str, list[Any], Any]] = []
        steps = Steps(PLAN, memory, lambda *call, calls=calls: calls.append(call))
        choices = list(steps.all())
        memory = steps.do(choices[data.draw(st.integers(0, len(choices) - 1))], keyspace)
        for name, parts, reply in calls:
            found = answer(real, ["EVAL", timed(name, run_id(memory.run), keyspace.now), *parts])
            assert comparable(name, found) == comparable(name, reply)

        assert read_keyspace(real).frozen() == keyspace.frozen()


def _commands() -> st.SearchStrategy[list[str]]:
    key, field, number = st.sampled_from(KEYS), st.sampled_from(FIELDS), st.sampled_from(NUMBERS)
    id_, score, count = st.sampled_from(IDS), st.sampled_from(SCORES), st.sampled_from(("0", "1", "2", "5"))
    rank = st.sampled_from(("0", "1", "-1", "-3", "5"))

    def command(name: str, *parts: st.SearchStrategy[str]) -> st.SearchStrategy[list[str]]:
        return st.tuples(st.just(name), *parts).map(list)

    def with_count(strategy: st.SearchStrategy[list[str]]) -> st.SearchStrategy[list[str]]:
        return st.one_of(strategy, st.tuples(strategy, count).map(lambda pair: [*pair[0], "COUNT", pair[1]]))

    return st.one_of(
        command("HSET", key, field, number), command("HSET", key, field, number, field, number),
        command("HGET", key, field), command("HMGET", key, field, field), command("HGETALL", key),
        command("HKEYS", key),
        command("HLEN", key), command("HEXISTS", key, field), command("HDEL", key, field, field),
        command("HINCRBY", key, field, number),
        command("LPUSH", key, number, field), command("RPOP", key), command("LLEN", key),
        command("LRANGE", key, rank, rank), command("LTRIM", key, rank, rank),
        command("SADD", key, field, number), command("SREM", key, field, number), command("SMEMBERS", key),
        command("SET", key, number), command("GET", key), command("INCR", key),
        command("ZADD", key, score, field), command("ZADD", key, score, field, score, number),
        command("ZREM", key, field),
        command("ZSCORE", key, field), command("ZCARD", key), command("ZRANGE", key, rank, rank),
        command("ZMSCORE", key, field, number), command("ZSCAN", key, st.just("0")),
        command("COPY", key, key), command("COPY", key, key, st.just("REPLACE")), command("RENAME", key, key),
        command("ZRANGE", key, rank, rank, st.just("WITHSCORES")),
        command("ZRANGEBYSCORE", key, score, score), command("ZRANGEBYSCORE", key, score, score, st.just("WITHSCORES")),
        command("ZRANGEBYSCORE", key, score, score, st.just("LIMIT"), count, count),
        command("ZREMRANGEBYRANK", key, rank, rank), command("ZREMRANGEBYSCORE", key, score, score),
        command("XADD", key, id_, field, number), command("XADD", key, st.just("MAXLEN"), count, id_, field, number),
        command("XDEL", key, id_, id_), command("XLEN", key), with_count(command("XRANGE", key, id_, id_)),
        with_count(command("XREVRANGE", key, id_, id_)), command("XTRIM", key, st.just("MINID"), id_),
        command("XTRIM", key, st.just("MAXLEN"), count),
        command("DEL", key, key), command("UNLINK", key), command("EXISTS", key, key), command("TYPE", key),
        command("PEXPIRE", key, st.just("100000")),
    )  # fmt: skip


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=60)
@given(commands=st.lists(_commands(), min_size=1, max_size=40))
def test_any_commands_are_answered_alike(real: Any, commands: list[list[str]]) -> None:
    real.flushall()
    server = Server()
    link = server.open()

    for command in commands:
        found = server.answer(link, command)
        assert comparable(command[0], found) == comparable(command[0], answer(real, command)), command

    assert read_keyspace(real).frozen() == server.keyspace.frozen()


@pytest.mark.parametrize(
    "text",
    [
        "return {1, 'two', 3.7, -3.7, false, 'never seen'}",
        "return {true, {ok = 'FINE'}, {1, {2}}, nil, 5}",
        "return redis.call('HGET', KEYS[1], 'nothing')",
        "return {redis.call('SET', KEYS[1], 'v'), redis.call('TYPE', KEYS[1])}",
        "return redis.pcall('LLEN', KEYS[1]).err ~= nil and 1 or 0",
        "return redis.call('LLEN', KEYS[1])",
        "return redis.error_reply('WRONGTYPE mine')",
        "return {err = 'OTHER words'}",
        "error('text')",
        "x = 1",
        "return nothing_of_that_name",
        "return 'not closed",
        "redis.call('HSET', KEYS[1] .. 'h', 'n', 12345678901234, 'f', 0.5) return redis.call('HLEN', KEYS[1] .. 'h')",
        "return {#ARGV, ARGV[1], tostring(1e15), string.format('%.0f', 2^53), redis.sha1hex('a')}",
    ],
)
def test_any_lua_is_answered_alike(real: Any, text: str) -> None:
    real.flushall()
    server = Server()
    link = server.open()
    for command in (["SET", "k", "v"], ["EVAL", text, "1", "k", "argument"]):
        found, expected = server.answer(link, command), answer(real, command)

        assert comparable("EVAL", found) == comparable("EVAL", expected)

    assert read_keyspace(real).frozen() == server.keyspace.frozen()


def test_a_transaction_does_nothing_when_a_key_that_it_watches_was_changed(real: Any) -> None:
    real.flushall()
    server = Server()
    link = server.open()
    transaction = [["MULTI"], ["HSET", "h", "f", "2"], ["HLEN", "h"], ["EXEC"]]

    for changes in ([], [["HSET", "watched", "f", "1"]], [["HSET", "other", "f", "1"]], [["DEL", "watched"]]):
        for command in [["HSET", "watched", "f", "0"], ["WATCH", "watched"], *changes, *transaction]:
            assert comparable(command[0], server.answer(link, command)) == comparable(command[0], answer(real, command))
    for command in [["WATCH", "watched"], ["UNWATCH"], ["DEL", "watched"], *transaction]:
        assert comparable(command[0], server.answer(link, command)) == comparable(command[0], answer(real, command))

    assert read_keyspace(real).frozen() == server.keyspace.frozen()


def test_two_connections_that_watch_do_not_hear_of_each_other(real: Any) -> None:
    real.flushall()
    server = Server()
    links = [server.open(), server.open()]
    connections = [real.connection_pool.get_connection() for _ in links]
    change = [["MULTI"], ["HINCRBY", "watched", "f", "1"], ["EXEC"]]
    other = [["MULTI"], ["HSET", "h", "f", "2"], ["EXEC"]]
    told = []

    for number, commands in (
        (0, [["WATCH", "watched"]]),
        (1, [["WATCH", "watched"], ["MULTI"]]),
        (0, change),  # what one has queued, and is told of its own key, is its own affair
        (1, [["HSET", "h", "f", "1"], ["EXEC"]]),
        (1, [["WATCH", "watched"]]),
        (0, other),
        (1, other),
        (0, [["WATCH", "h"]]),
        (1, [["WATCH", "watched"], ["UNWATCH"]]),
        (1, change),
        (0, other),
    ):
        for command in commands:
            found = server.answer(links[number], command)
            assert comparable(command[0], found) == comparable(command[0], answer_on(connections[number], command))
            told += [found] if command == ["EXEC"] else []
    for connection in connections:
        real.connection_pool.release(connection)

    assert [reply is not None for reply in told] == [True, False, True, True, True, True]
    assert read_keyspace(real).frozen() == server.keyspace.frozen()


def test_a_stream_is_trimmed_about_by_whole_nodes_as_it_is(real: Any) -> None:
    real.flushall()
    server = Server()
    link = server.open()

    for number in range(1, 1300):
        command = ["XADD", "s", "MAXLEN", "~", "1000", f"{number}-0", "f", "v"]
        assert server.answer(link, command) == answer(real, command)

    assert read_keyspace(real).frozen() == server.keyspace.frozen()


def test_a_key_goes_when_its_time_has_come() -> None:
    server = Server()
    link = server.open()
    for command in (["SET", "k", "v"], ["PEXPIRE", "k", "5"]):
        server.answer(link, command)
    server.keyspace.now += 4_999
    assert server.answer(link, ["EXISTS", "k"]) == 1

    server.keyspace.now += 1

    assert [server.answer(link, [name, "k"]) for name in ("EXISTS", "GET", "TYPE")] == [0, None, b"none"]


def test_a_command_that_it_does_not_know_is_never_answered() -> None:
    client = client_of(Server())

    with pytest.raises(NotModelled, match="GEOADD"):
        client.geoadd("k", (1.0, 2.0, "place"))


def test_errors_come_to_the_store_as_from_the_server() -> None:
    client = client_of(Server())
    client.set("celeriac:leader", "foreign")

    with pytest.raises(ForeignData):
        Scripts(client).run("tick", ["celeriac:leader"], ["m"]) and Scripts(client).run(
            "retire", ["celeriac:leader", "q"], ["name", 0]
        )


def _as_commands(keyspace: Any) -> list[list[Any]]:
    """What makes this keyspace, which has no plain text."""
    made: list[list[Any]] = []
    for key, value in keyspace.keys.items():
        if hasattr(value, "ids"):
            made += [
                ["XADD", key, f"{at[0]}-{at[1]}", *fields] for at, fields in zip(value.ids, value.fields, strict=True)
            ]
        elif isinstance(value, list):
            made.append(["RPUSH", key, *value])
        elif type(value) is dict:
            made.append(["HSET", key, *(part for pair in value.items() for part in pair)])
        else:
            made += [["ZADD", key, repr(score), member] for member, score in value.items()]
    return made
