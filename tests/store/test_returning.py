"""Who waits for a Redis that is away goes on as soon as it serves, or when it is told to end."""

from __future__ import annotations

import threading
from pathlib import Path

from pipeline.embedded.redis import EmbeddedRedis
from pipeline.store.connection import connect
from pipeline.store.returning import await_server


def test_the_wait_is_over_when_the_server_is_back(tmp_path: Path) -> None:
    with EmbeddedRedis.start(tmp_path, fsync="no") as server:
        with connect(server.url) as client:
            client.shutdown(nosave=True)
        looked = threading.Event()

        def is_ending() -> bool:
            looked.set()
            return False

        waiting = threading.Thread(target=await_server, args=(server.url, is_ending))
        waiting.start()
        assert looked.wait(10)
        assert waiting.is_alive()

        server.restart()
        waiting.join(10)

        assert not waiting.is_alive()


def test_the_wait_is_over_when_the_process_is_to_end(tmp_path: Path) -> None:
    looks = iter([False, False, True])

    await_server(f"unix://{tmp_path}/nowhere.sock?db=0", lambda: next(looks))

    assert list(looks) == []
