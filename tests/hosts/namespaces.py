"""Simulated hosts: network namespaces, each with a cable of its own to a Redis here. Linux, iproute2 and root."""

from __future__ import annotations

import os
import socket
import subprocess
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from pipeline.embedded.process import die_with_parent
from pipeline.embedded.redis import find_redis_server
from pipeline.errors import StoreError
from pipeline.store.connection import connect, translated
from tests.e2e.chaos import wait_until

NETWORK: Final = "198.18"
"""For measurements between networks, RFC 2544: nobody has an address there."""


def ip(*arguments: str) -> None:
    """Raises AssertionError with what `ip` said."""
    done = subprocess.run(["ip", *arguments], capture_output=True, text=True, timeout=20)
    assert done.returncode == 0, f"ip {' '.join(arguments)}: {done.stderr}"


class Host:
    """One namespace with its end of a cable; the other end is here, under the address `gateway`."""

    def __init__(self, name: str, number: int) -> None:
        self.name = name
        self._namespace = f"celeriac-{os.getpid()}-{number}"
        self._plug = f"c{os.getpid()}h{number}"
        block = os.getpid() % 250 + 1
        self.gateway = f"{NETWORK}.{block}.{4 * number + 1}"
        self._address = f"{NETWORK}.{block}.{4 * number + 2}"

    def __enter__(self) -> Self:
        ip("netns", "add", self._namespace)
        try:
            far = f"{self._plug}x"
            ip("link", "add", self._plug, "type", "veth", "peer", "name", far, "netns", self._namespace)
            ip("address", "add", f"{self.gateway}/30", "dev", self._plug)
            ip("link", "set", self._plug, "up")
            ip("-n", self._namespace, "address", "add", f"{self._address}/30", "dev", far)
            ip("-n", self._namespace, "link", "set", "lo", "up")
            ip("-n", self._namespace, "link", "set", far, "up")
        except AssertionError:
            ip("netns", "delete", self._namespace)
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        ip("netns", "delete", self._namespace)  # its end of the cable goes with it, and so the other one

    def command(self, *arguments: str) -> list[str]:
        """What runs a command on this host."""
        return ["ip", "netns", "exec", self._namespace, *arguments]

    def cut_off(self) -> None:
        """The cable is pulled: what is on its way is lost, and no connection hears of it."""
        ip("link", "set", self._plug, "down")

    def plug_in(self) -> None:
        ip("link", "set", self._plug, "up")


class WideRedis:
    """A Redis that listens on all addresses of this machine, so on those of the cables. Without a password: the
    network is ours alone.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._stack = ExitStack()
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = probe.getsockname()[1]

    def url(self, host: str = "127.0.0.1") -> str:
        return f"redis://{host}:{self.port}/0"

    def __enter__(self) -> Self:
        self._folder.mkdir()
        options = ["--port", str(self.port), "--bind", "0.0.0.0", "--protected-mode", "no", "--save", ""]
        process = subprocess.Popen(
            [str(find_redis_server()), *options, "--dir", str(self._folder)],
            stdout=subprocess.DEVNULL,
            preexec_fn=die_with_parent(15),
        )
        self._stack.callback(process.wait, 20)
        self._stack.callback(process.terminate)
        wait_until(self._answers, "Redis answers")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.close()

    def _answers(self) -> bool:
        try:
            with connect(self.url()) as client, translated():
                return bool(client.ping())
        except StoreError:
            return False
