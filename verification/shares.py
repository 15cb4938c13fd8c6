"""Shares work out to processes, and hears from them piece by piece."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
from collections.abc import Sequence
from queue import SimpleQueue
from typing import Generic, TypeVar

import msgspec

from pipeline.embedded.process import die_with_parent

Piece = TypeVar("Piece", bound=msgspec.Struct)


class Shares(Generic[Piece]):
    """The processes that run a share each. None of them outlives this process.

    `module` is run once for each work, which it reads as JSON; it writes pieces, a JSON line each.
    """

    def __init__(self, module: str, works: Sequence[msgspec.Struct], piece: type[Piece]) -> None:
        self._piece = piece
        self._pieces: SimpleQueue[Piece | int] = SimpleQueue()
        argv = [sys.executable, "-P", "-m", module]
        arm = die_with_parent(signal.SIGTERM)
        self._children = [
            subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, preexec_fn=arm) for _ in works
        ]
        for child, work in zip(self._children, works, strict=True):
            threading.Thread(target=self._listen, args=(child, work), daemon=True).start()

    def _listen(self, child: subprocess.Popen[bytes], work: msgspec.Struct) -> None:
        assert child.stdin is not None
        assert child.stdout is not None
        child.stdin.write(msgspec.json.encode(work))
        child.stdin.close()
        for line in child.stdout:
            self._pieces.put(msgspec.json.decode(line, type=self._piece))
        self._pieces.put(child.wait())

    def pieces(self) -> list[Piece] | None:
        """What has come since the last call, after a wait for something; None when all processes have ended.

        Raises ChildProcessError when one of them has not ended well.
        """
        found: list[Piece] = []
        while not found and self._children:
            got = self._pieces.get()
            if not isinstance(got, int):
                found.append(got)
                continue
            if got != 0:
                raise ChildProcessError(f"a process of the verification has ended with code {got}")
            self._children.pop()
        return found or None

    def stop(self) -> None:
        for child in self._children:
            if child.poll() is None:
                child.terminate()
