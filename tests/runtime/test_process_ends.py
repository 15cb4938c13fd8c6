"""The end of our processes: what is registered for it happens, though nothing that was imported is taken apart."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
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


FILES = """
from pipeline.embedded.process import end_this_process, settle

class Audit:
    def __init__(self, path):
        self.file = open(path, "w")

audits = [Audit("before"), Audit("again")]
settle()
audits += [Audit("behind"), Audit("closed")]
binary = open("bytes", "wb")
for each in audits:
    each.file.write("kept")
binary.write(b"kept")
audits[-1].file.close()
end_this_process(0)
"""


def test_what_was_written_into_open_files_is_in_them_whenever_they_were_opened(tmp_path: Path) -> None:
    done = subprocess.run([sys.executable, "-c", FILES], cwd=tmp_path, capture_output=True, text=True, timeout=60)

    assert (done.returncode, done.stderr) == (0, "")
    assert {path.name: path.read_text() for path in tmp_path.iterdir()} == dict.fromkeys(
        ("before", "again", "behind", "closed", "bytes"), "kept"
    )


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


LEAVES_IN_A_FINALIZER = """
import os, signal, threading
from pipeline.sources import main as feeder

class Told:
    def __del__(self):
        os.kill(os.getpid(), signal.SIGTERM)
        while signal.getsignal(signal.SIGTERM) != signal.SIG_IGN:  # until the handler has run
            pass

def feed(settings):
    told = Told()
    del told
    print("goes on", flush=True)
    threading.Event().wait(30)

feeder.run_feeder = feed
feeder.main()
print("has returned")
"""


def test_a_feeder_that_is_told_to_leave_while_a_finalizer_runs_leaves_behind_that_and_says_nothing() -> None:
    needed = dict.fromkeys(("CELERIAC_REDIS", "CELERIAC_JOB", "CELERIAC_SOURCE", "CELERIAC_PIPELINE"), "x")

    done = subprocess.run(
        [sys.executable, "-c", LEAVES_IN_A_FINALIZER],
        env={**os.environ, **needed},
        capture_output=True,
        text=True,
        timeout=60,
    )

    assert (done.returncode, done.stdout, done.stderr) == (0, "goes on\n", "")
