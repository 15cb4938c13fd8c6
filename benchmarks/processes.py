"""Child processes of a benchmark: they end with the block that started them, and with the benchmark itself."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from pipeline.embedded.process import die_with_parent


@contextmanager
def python_process(arguments: list[str], environment: Mapping[str, str]) -> Iterator[int]:
    """`python -m arguments…`, in a session of its own, its output thrown away; its pid."""
    child = subprocess.Popen(
        [sys.executable, "-m", *arguments],
        env=environment,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
        preexec_fn=die_with_parent(signal.SIGKILL),
    )
    try:
        yield child.pid
    finally:
        child.terminate()
        child.wait(timeout=20)
