"""The end of our processes: what is registered for it happens, though nothing that was imported is taken apart."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import IO

import pytest

PROGRAM = """
import atexit, sys, threading
from concurrent.futures import ThreadPoolExecutor
from pipeline.embedded.process import end_this_process

begins = threading.Event()
threading.Thread(target=lambda: begins.wait(20) and sys.stdout.write("thread ")).start()
pool = ThreadPoolExecutor(1)
pool.submit(lambda: begins.wait(20) and sys.stdout.write("pool "))
atexit.register(lambda: sys.stdout.write("registered"))
sys.stdout.write("main ")  # not flushed: it is a pipe
threading.Timer(0.1, begins.set).start()
end_this_process({code})
"""


def run(code: int, output: int | IO[bytes] = subprocess.PIPE) -> subprocess.CompletedProcess[str]:
    buffered = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
    command = [sys.executable, "-c", PROGRAM.format(code=code)]
    return subprocess.run(command, stdout=output, stderr=subprocess.PIPE, env=buffered, text=True, timeout=60)


@pytest.mark.parametrize("code", [0, 3])
def test_a_process_ends_behind_its_threads_and_what_is_registered_for_its_end(code: int) -> None:
    done = run(code)

    assert (done.returncode, done.stderr) == (code, "")
    first, *threads, last = done.stdout.split()
    assert (first, sorted(threads), last) == ("main", ["pool", "thread"], "registered")


def test_a_process_whose_output_is_full_ends_with_its_code() -> None:
    with open("/dev/full", "wb") as full:
        assert run(3, full).returncode == 3
