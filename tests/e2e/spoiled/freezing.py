"""Freezes a process, all of it, at the moment at which it sends a chosen script, and keeps the answer to that.

CELERIAC_TEST_FREEZE: `roles script folder`, a comma between roles. The first process of one of them that sends
the script while the folder holds a file `armed` takes that away, writes its number into `pid`, and stops; once it goes
on it sends, and writes what was answered into `answer`.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any


def install(role: str, told: str) -> None:
    wanted, _, rest = told.partition(" ")
    if not told or role not in wanted.split(","):
        return
    from pipeline.store.scripts import Scripts

    script, _, place = rest.partition(" ")
    folder, run = Path(place), Scripts.run

    def frozen(self: Scripts, name: str, keys: Sequence[str], args: Sequence[Any]) -> list[Any]:
        if name != script or not _is_mine(folder):
            return run(self, name, keys, args)
        _write(folder / "pid", str(os.getpid()))
        # Sent to this thread: one to the process may be taken by another thread, while this one goes on to write.
        signal.pthread_kill(threading.get_ident(), signal.SIGSTOP)
        try:
            answer = run(self, name, keys, args)
        except Exception as error:
            _write(folder / "answer", f"{type(error).__name__}: {error}")
            raise
        _write(folder / "answer", repr(answer))
        return answer

    Scripts.run = frozen  # type: ignore[method-assign]


def _is_mine(folder: Path) -> bool:
    try:
        (folder / "armed").rename(folder / "taken")
    except FileNotFoundError:
        return False
    return True


def _write(path: Path, text: str) -> None:
    path.with_suffix(".part").write_text(text)
    path.with_suffix(".part").rename(path)
