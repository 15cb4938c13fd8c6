"""A TCP door to a Redis on a Unix socket, whose connections can be cut in the middle of anything."""

from __future__ import annotations

import asyncio
import contextlib
import random
import threading
from pathlib import Path
from types import TracebackType
from typing import Final, Self

_CHUNK: Final = 1 << 16


class CuttingProxy:
    """Passes bytes on between 127.0.0.1 and the socket, in a thread of its own, until the `with` ends."""

    def __init__(self, socket_path: Path) -> None:
        self._target = str(socket_path)
        self._loop = asyncio.new_event_loop()
        self._writers: set[asyncio.StreamWriter] = set()
        self._server: asyncio.Server | None = None
        self._thread = threading.Thread(target=self._loop.run_forever, name="proxy")

    def __enter__(self) -> Self:
        self._thread.start()
        asyncio.run_coroutine_threadsafe(self._listen(), self._loop).result(10)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        asyncio.run_coroutine_threadsafe(self._end(), self._loop).result(10)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)
        self._loop.close()

    @property
    def url(self) -> str:
        assert self._server is not None
        return f"redis://127.0.0.1:{self._server.sockets[0].getsockname()[1]}/0"

    @property
    def connections(self) -> int:
        """How many are open; each counts twice, once for either end."""
        return len(self._writers)

    def cut(self, chance: random.Random, share: float) -> int:
        """Cuts about this share of the connections, with whatever is on its way; how many."""

        async def abort() -> int:
            chosen = [writer for writer in self._writers if chance.random() < share]
            for writer in chosen:
                writer.transport.abort()
            return len(chosen)

        return asyncio.run_coroutine_threadsafe(abort(), self._loop).result(10)

    async def _listen(self) -> None:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)

    async def _end(self) -> None:
        assert self._server is not None
        self._server.close()
        for writer in list(self._writers):
            writer.transport.abort()
        for task in asyncio.all_tasks() - {asyncio.current_task()}:
            task.cancel()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            there, back = await asyncio.open_unix_connection(self._target)
        except OSError:
            writer.transport.abort()
            return
        self._writers |= {writer, back}
        try:
            await asyncio.gather(_pass_on(reader, back), _pass_on(there, writer))
        finally:
            self._writers -= {writer, back}
            writer.transport.abort()
            back.transport.abort()


async def _pass_on(source: asyncio.StreamReader, to: asyncio.StreamWriter) -> None:
    with contextlib.suppress(ConnectionError):
        while data := await source.read(_CHUNK):
            to.write(data)
            await to.drain()
    to.transport.abort()
