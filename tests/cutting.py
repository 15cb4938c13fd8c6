"""Takes the last writes from a Redis: kills it, cuts its append-only file, and starts it again."""

from __future__ import annotations

import os
import signal
from pathlib import Path

from pipeline.embedded.redis import EmbeddedRedis


def aof(server: EmbeddedRedis) -> Path:
    """The file that grows; Redis 7 keeps it in a folder, beside what it has rewritten."""
    folder = server.directory / "appendonlydir"
    if not folder.is_dir():
        return server.directory / "appendonly.aof"
    return max(folder.glob("*.incr.aof"), key=lambda path: int(path.name.split(".")[-3]))


def size(server: EmbeddedRedis) -> int:
    """Bytes that hold all that was acknowledged so far, unless an fsync holds some back."""
    return aof(server).stat().st_size


def kill(server: EmbeddedRedis) -> None:
    """kill -9; what it has written stays."""
    process = server._process
    assert process is not None
    os.kill(process.pid, signal.SIGKILL)
    process.wait(10)


def cut(server: EmbeddedRedis, length: int) -> int:
    """Cuts the file of a dead server to so many bytes, wherever that is; how many were lost."""
    path = aof(server)
    before = path.stat().st_size
    os.truncate(path, min(length, before))
    return max(0, before - length)


def come_back_as_of(server: EmbeddedRedis, length: int) -> None:
    """The server is killed, and comes back without what it has written behind so many bytes."""
    kill(server)
    cut(server, length)
    server.restart()
