"""Simulated hosts: network namespaces, each with a cable of its own to a Redis here. Linux, iproute2 and root."""

from __future__ import annotations

import os
import socket
import subprocess
from contextlib import ExitStack
from dataclasses import dataclass
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


@dataclass(frozen=True)
class Cable:
    """From a host to here. Its end here has the address `gateway`, in a network of the two."""

    number: int

    @property
    def plug(self) -> str:
        return f"c{os.getpid()}h{self.number}"

    @property
    def gateway(self) -> str:
        return f"{self._block}.{4 * self.number + 1}"

    @property
    def address(self) -> str:
        """Of the host."""
        return f"{self._block}.{4 * self.number + 2}"

    @property
    def network(self) -> str:
        return f"{self._block}.{4 * self.number}/30"

    @property
    def _block(self) -> str:
        return f"{NETWORK}.{os.getpid() % 250 + 1}"

    def lay(self, namespace: str) -> None:
        far = f"{self.plug}x"
        ip("link", "add", self.plug, "type", "veth", "peer", "name", far, "netns", namespace)
        ip("address", "add", f"{self.gateway}/30", "dev", self.plug)
        ip("link", "set", self.plug, "up")
        ip("-n", namespace, "address", "add", f"{self.address}/30", "dev", far)
        ip("-n", namespace, "link", "set", far, "up")


class Host:
    """One namespace with cables to here, each with a number of its own in the whole test."""

    def __init__(self, *numbers: int) -> None:
        self.cables = [Cable(number) for number in numbers]
        self._namespace = f"celeriac-{os.getpid()}-{numbers[0]}"

    def __enter__(self) -> Self:
        ip("netns", "add", self._namespace)
        try:
            ip("-n", self._namespace, "link", "set", "lo", "up")
            for cable in self.cables:
                cable.lay(self._namespace)
        except AssertionError:
            ip("netns", "delete", self._namespace)
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for cable in self.cables:
            ip("link", "delete", cable.plug)  # else it goes some time after the namespace
        ip("netns", "delete", self._namespace)

    @property
    def gateways(self) -> list[str]:
        """The addresses of this machine, by each cable."""
        return [cable.gateway for cable in self.cables]

    def command(self, *arguments: str) -> list[str]:
        """What runs a command on this host."""
        return ["ip", "netns", "exec", self._namespace, *arguments]

    def cut_off(self, cable: int = 0) -> None:
        """The cable is pulled: what is on its way is lost, and no connection hears of it."""
        ip("link", "set", self.cables[cable].plug, "down")

    def plug_in(self, cable: int = 0) -> None:
        ip("link", "set", self.cables[cable].plug, "up")


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
