"""Keys and scripts as texts: every key carries its job's tag, every script its header, and none is left unused."""

from __future__ import annotations

import inspect
import os
import re
from importlib import resources
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
from bench import Bench
from redis.connection import Connection, UnixDomainSocketConnection

import pipeline.store
from pipeline.errors import ForeignData, StoreUnavailable
from pipeline.store import keys
from pipeline.store.connection import connect
from pipeline.store.scripts import Scripts, source

FOLDER = Path(str(resources.files("pipeline.store"))) / "scripts"
NAMES = sorted(path.stem for path in FOLDER.glob("*.lua") if path.stem != "prelude")
ARGUMENTS: dict[str, Any] = {
    "stage": 1, "partition": 2, "group": 3, "operator": "op", "sink": "out", "worker": "w",
    "source": "in", "key": "celeriac:{my-job}:state:1.3",
}  # fmt: skip

OF_JOBS = [
    make
    for _, make in inspect.getmembers(keys, inspect.isfunction)
    if "job" in inspect.signature(make).parameters and make is not keys.own_leader_name
]


@pytest.mark.parametrize("make", OF_JOBS, ids=lambda make: make.__name__)
def test_every_key_of_a_job_begins_with_the_jobs_tag(make: Any) -> None:
    names = [name for name in inspect.signature(make).parameters if name != "job"]

    key = make("my-job", **{name: ARGUMENTS[name] for name in names})

    prefix = "" if make.__name__.endswith("queue_name") else keys.PREFIX
    assert key.startswith(f"{prefix}{{my-job}}")
    assert make.__doc__


def test_different_things_have_different_keys() -> None:
    made = set()
    for make in OF_JOBS:
        names = [name for name in inspect.signature(make).parameters if name != "job"]
        made.add(make("j", **{name: ARGUMENTS[name] for name in names}))

    assert len(made) == len(OF_JOBS)


@pytest.mark.parametrize("name", NAMES)
def test_every_script_says_its_keys_arguments_and_answers(name: str) -> None:
    head = re.match(r"(?:--.*\n)+", (FOLDER / f"{name}.lua").read_text(encoding="utf-8"))

    assert head is not None
    for word in ("KEYS", "ARGV", "Returns"):
        assert word in head[0], f"{name}.lua does not say its {word}"


def test_every_script_is_used_and_every_script_that_is_run_exists() -> None:
    text = "".join(path.read_text(encoding="utf-8") for path in Path(pipeline.store.__path__[0]).glob("*.py"))

    calls = re.findall(r"""[._]run\(\s*"(\w+)",""", text)

    assert sorted(set(calls)) == NAMES


@pytest.mark.parametrize("name", NAMES)
def test_no_script_but_the_commit_reads_msgpack_and_none_declares_flags(name: str) -> None:
    """A7: Lua cannot read msgpack bytes; Redis 6.2 does not know script flags."""
    text = source(name)

    assert "cmsgpack" not in text or name == "commit"
    assert not text.startswith("#!")


@pytest.mark.parametrize("name", NAMES)
def test_every_script_compiles(bench: Bench, name: str) -> None:
    assert bench.client.script_load(source(name))


def test_a_server_that_has_forgotten_the_scripts_is_taught_again(bench: Bench) -> None:
    assert bench.owner().heartbeat("{}") is not None

    bench.client.script_flush()

    assert bench.owner().heartbeat("{}") is not None


def test_an_error_inside_a_script_is_one_of_ours(bench: Bench) -> None:
    with pytest.raises(ForeignData, match="holds something else"):
        Scripts(bench.client).run("due", [keys.job("j")], [5, 5])


def test_an_answer_that_was_not_waited_for_is_not_taken_for_the_next_one(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    scripts = Scripts(bench.client)
    assert scripts.run("due", [keys.timers("j", 1, "op", 0)], [5, 5]) == [[]]

    def interrupted(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    with connect(bench.url) as other:
        other.client_pause(300)  # so that the first answer comes only behind the second request
    with monkeypatch.context() as patch:
        patch.setattr(Connection, "read_response", interrupted)
        patch.setattr(UnixDomainSocketConnection, "read_response", interrupted)
        with pytest.raises(KeyboardInterrupt):
            scripts.run("due", [keys.timers("j", 1, "op", 0)], [5, 5])

    assert scripts.run("due", [keys.timers("j", 1, "op", group) for group in range(2)], [5, 5]) == [[], []]


def test_a_connection_that_the_server_closed_in_a_pause_is_replaced(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    scripts = Scripts(bench.client)
    assert scripts.run("due", [keys.timers("j", 1, "op", 0)], [5, 5]) == [[]]
    with connect(bench.url) as other:
        other.client_kill_filter(_type="normal", skipme=True)
    with pytest.raises(StoreUnavailable):
        scripts.run("due", [keys.timers("j", 1, "op", 0)], [5, 5])
    assert scripts.run("due", [keys.timers("j", 1, "op", 0)], [5, 5]) == [[]]

    with connect(bench.url) as other:
        other.client_kill_filter(_type="normal", skipme=True)
    monkeypatch.setattr("pipeline.store.scripts._FRESH_SECONDS", 0.0)

    assert scripts.run("due", [keys.timers("j", 1, "op", 0)], [5, 5]) == [[]]


def test_all_that_run_scripts_on_one_client_keep_one_connection(bench: Bench) -> None:
    with connect(bench.url) as client:
        client.connection_pool.max_connections = 5

        for _ in range(20):
            assert Scripts(client).run("due", [keys.timers("j", 1, "op", 0)], [5, 5]) == [[]]


def test_two_threads_at_once_get_their_own_answers(bench: Bench) -> None:
    scripts, wrong = Scripts(bench.client), []

    def ask(groups: int) -> None:
        of = [keys.timers("j", 1, "op", group) for group in range(groups)]
        wrong.extend(answer for _ in range(300) if (answer := scripts.run("due", of, [5, 5])) != [[]] * groups)

    threads = [Thread(target=ask, args=(groups,)) for groups in (1, 2, 3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)

    assert not wrong
    assert not any(thread.is_alive() for thread in threads)


def test_a_forked_child_asks_on_a_connection_of_its_own(bench: Bench) -> None:
    scripts = Scripts(bench.client)
    assert scripts.run("due", [keys.timers("j", 1, "op", 0)], [5, 5]) == [[]]
    before = bench.client.client_list()
    child = os.fork()
    if child == 0:
        try:
            answer = scripts.run("due", [keys.timers("j", 1, "op", group) for group in range(2)], [5, 5])
            mine = bench.client.client_id() in {int(each["id"]) for each in before}
            os._exit(0 if answer == [[], []] and not mine else 1)
        finally:
            os._exit(2)

    _, status = os.waitpid(child, 0)

    assert os.waitstatus_to_exitcode(status) == 0
    assert scripts.run("due", [keys.timers("j", 1, "op", 0)], [5, 5]) == [[]]
