"""`celeriac run` as a user meets it: a real process over a real folder, and nothing left behind."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from uuid import uuid4

import psutil
import pytest
import redis

from pipeline.embedded.redis import EmbeddedRedis
from pipeline.lifecycle import JobState
from pipeline.loader import load_graph
from pipeline.plan import compile_plan
from pipeline.records import Batch
from pipeline.settings import Limits
from pipeline.store.connection import connect
from pipeline.store.jobs import JobStore
from pipeline.store.leadership import Leadership
from pipeline.store.scripts import Scripts
from pipeline.store.senders import FeedAddress

ROOT = Path(__file__).parents[2]
MARK = "CELERIAC_TEST_MARK"

WORDCOUNT = """
from pipeline import Pipeline, count, read, write

flow = Pipeline("wordcount")
words = flow.source(read.text("in"), name="lines").flat_map(str.split, name="words")
counts = words.key_by(lambda word: word, name="by_word").aggregate(count(), name="count").last(name="last")
counts.sink(write.{sink}, name="result")
"""

ENDLESS = """
from itertools import count as numbers
from pipeline import Pipeline, count, read, write

flow = Pipeline("endless")
values = flow.source(read.iterable(lambda: numbers()), name="numbers")
groups = values.key_by(lambda value: value % 10, name="by_digit")
groups.aggregate(count(), name="count").last(name="last").sink(write.jsonl("out"), name="result")
"""

FAULTY = """
from pipeline import Pipeline, read, write

flow = Pipeline("faulty")
flow.source(read.iterable([1, 2, 0, 4]), name="numbers").map(lambda n: 8 // n, name="divide").sink(
    write.jsonl("out"), name="result"
)
"""

UNREADABLE = """
from pipeline import Pipeline, read, write

def items():
    yield 1
    raise RuntimeError("the well is dry")

flow = Pipeline("unreadable")
flow.source(read.iterable(items), name="well").sink(write.jsonl("out"), name="result")
"""

HELD = """
import signal
from pathlib import Path
from pipeline import Pipeline, read, write

def items():
    if Path("hold").exists():
        signal.pause()
    yield from (1, 2, 3)

flow = Pipeline("held")
flow.source(read.iterable(items), name="numbers").sink(write.jsonl("out"), name="result")
"""


def wait_until(predicate: Callable[[], bool], seconds: float = 30.0) -> None:
    deadline = time.monotonic() + seconds
    while not predicate():
        assert time.monotonic() < deadline, "the condition did not come true in time"
        threading.Event().wait(0.005)


@dataclass
class Site:
    """A folder to run in, a folder for temporary files, and the processes that were started from it."""

    folder: Path
    temporary: Path
    mark: str = field(default_factory=lambda: uuid4().hex)
    started: list[subprocess.Popen[str]] = field(default_factory=list)

    def write(self, text: str) -> None:
        (self.folder / "flow.py").write_text(text)

    def start(self, *arguments: str) -> subprocess.Popen[str]:
        environment = {**os.environ, MARK: self.mark, "TMPDIR": str(self.temporary), "PYTHONPATH": str(ROOT)}
        environment.pop("CELERIAC_REDIS", None)
        process = subprocess.Popen(
            [sys.executable, "-m", "pipeline.cli.main", *arguments],
            cwd=self.folder,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        self.started.append(process)
        return process

    def run(self, *arguments: str, seconds: float = 60.0) -> subprocess.CompletedProcess[str]:
        process = self.start(*arguments)
        output, errors = process.communicate(timeout=seconds)
        return subprocess.CompletedProcess(arguments, process.returncode, output, errors)

    def close(self) -> None:
        for process in self.processes():
            process.kill()
        for started in self.started:
            started.wait()
            for pipe in (started.stdout, started.stderr):
                if pipe is not None:
                    pipe.close()

    def processes(self) -> list[psutil.Process]:
        """Those with our mark, and those that work in our folders: a Redis server overwrites its environment."""
        found = []
        for process in psutil.process_iter():
            try:
                is_ours = process.environ().get(MARK) == self.mark
                if is_ours or Path(process.cwd()).is_relative_to(self.folder.parent):
                    found.append(process)
            except psutil.Error:  # it has gone, is a zombie, or belongs to somebody else
                continue
        return found

    def assert_clean(self, *expected: str, was_killed: bool = False) -> None:
        """No process and no temporary file is left, and in the folder only what is expected."""
        wait_until(lambda: not self.processes(), 5.0)
        assert was_killed or list(self.temporary.iterdir()) == []
        assert {path.name for path in self.folder.iterdir()} == {"flow.py", *expected}


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    for name in ("work", "tmp"):
        (tmp_path / name).mkdir()
    site = Site(tmp_path / "work", tmp_path / "tmp")
    yield site
    site.close()


def write_words(site: Site) -> Counter[str]:
    folder = site.folder / "in"
    folder.mkdir()
    words: Counter[str] = Counter()
    for number in range(3):
        lines = [f"word{index % 97} and word{index * number % 31}" for index in range(2_000)]
        (folder / f"{number}.txt").write_text("\n".join(lines) + "\n")
        words.update(word for line in lines for word in line.split())
    return words


def read_counts(folder: Path) -> dict[str, int]:
    pairs = [line.rpartition(": ") for path in folder.glob("part-*") for line in path.read_text().splitlines()]
    assert len(pairs) == len({key for key, _, _ in pairs}), "a key came twice"
    return {key: int(value) for key, _, value in pairs}


def read_rows(folder: Path) -> list[Any]:
    return [json.loads(line) for path in sorted(folder.glob("part-*")) for line in path.read_text().splitlines()]


def test_a_word_count_equals_that_of_the_standard_library(site: Site) -> None:
    words = write_words(site)
    site.write(WORDCOUNT.format(sink='text("out")'))

    done = site.run("run", "flow.py", "--workers", "2")

    assert done.returncode == 0, done.stderr
    assert read_counts(site.folder / "out") == words
    assert done.stdout == ""
    assert "read: 6,000 records" in done.stderr
    assert f"result: {site.folder}/out" in done.stderr
    site.assert_clean("in", "out")


def test_records_of_a_console_sink_are_all_that_goes_to_standard_output(site: Site) -> None:
    words = write_words(site)
    site.write(WORDCOUNT.format(sink="console()"))

    done = site.run("run", "flow.py", "--workers", "1", "--quiet")

    assert done.returncode == 0, done.stderr
    assert sorted(done.stdout.splitlines()) == sorted(f"{word}: {number}" for word, number in words.items())
    assert done.stderr == ""
    site.assert_clean("in")


def test_a_reader_that_goes_away_ends_the_run_in_silence(site: Site) -> None:
    write_words(site)
    site.write(WORDCOUNT.format(sink="console()"))

    process = site.start("run", "flow.py", "--workers", "1", "--quiet")
    assert process.stdout is not None
    process.stdout.close()
    assert process.stderr is not None
    errors = process.stderr.read()

    assert process.wait(30) == 141
    assert "Traceback" not in errors
    assert "BrokenPipe" not in errors
    site.assert_clean("in")


def test_dead_letters_are_shown_and_have_an_exit_code_of_their_own(site: Site) -> None:
    site.write(FAULTY)

    done = site.run("run", "flow.py", "--workers", "1")

    assert done.returncode == 4, done.stderr
    assert read_rows(site.folder / "out") == [8, 4, 2]
    assert "1 record given up" in done.stderr
    assert "divide: " in done.stderr
    site.assert_clean("out")


def test_a_source_that_always_fails_ends_the_job_with_its_last_words(site: Site) -> None:
    site.write(UNREADABLE)

    done = site.run("run", "flow.py", "--workers", "1")

    assert done.returncode == 1
    assert "error: the job unreadable-" in done.stderr
    assert "the well is dry" in done.stderr
    site.assert_clean()


def test_the_first_ctrl_c_drains_and_publishes_what_was_read(site: Site) -> None:
    site.write(ENDLESS)
    process = site.start("run", "flow.py", "--workers", "1")
    assert process.stderr is not None
    wait_for_line(process, RECORDS_READ)

    process.send_signal(signal.SIGINT)
    errors = process.stderr.read()

    assert process.wait(60) == 130, errors
    assert "draining: no new input" in errors
    counts = [row["value"] for row in read_rows(site.folder / "out")]
    assert len(counts) == 10
    # Numbers are read in order, so the groups of the last digit differ by one at most.
    assert max(counts) - min(counts) <= 1
    site.assert_clean("out")


def test_a_ctrl_c_before_anything_was_read_leaves_an_earlier_result_and_says_so(site: Site) -> None:
    site.write(HELD)
    assert site.run("run", "flow.py", "--workers", "1").returncode == 0
    (site.folder / "hold").touch()
    process = site.start("run", "flow.py", "--workers", "1")
    wait_for_line(process, r"numbers: in 0")

    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=60)

    assert process.returncode == 130, errors
    assert "drained before anything came to its files: what is there stays" in errors
    assert f"result: nothing published, {site.folder / 'out'} is left as it was" in errors
    assert sorted(read_rows(site.folder / "out")) == [1, 2, 3]
    site.assert_clean("out", "hold")


@pytest.mark.parametrize("end", [JobState.CANCELLED, JobState.FAILED])
def test_a_job_that_was_stopped_while_it_was_draining_goes_on_draining(
    site: Site, redis_url: str, end: JobState
) -> None:
    site.write(ENDLESS)
    with contextlib.chdir(site.folder):
        plan = compile_plan(load_graph("flow.py"), 2, Limits())
    with connect(redis_url) as client:
        jobs, leader = JobStore(Scripts(client)), Leadership(Scripts(client), "other", "n")
        jobs.create("d", plan)
        FeedAddress(redis_url, "d", "numbers").open().lane("iterable").append(1, Batch(list(range(20))))
        jobs.transition("d", JobState.DRAINING)
        token = leader.hold("d", 60).token
        leader.close_source("d", token, plan, "numbers")
        leader.release("d", token)
        jobs.transition("d", end)

    done = site.run("run", "flow.py", "--workers", "1", "--job-id", "d", "--redis", redis_url)

    assert done.returncode == 130, done.stderr
    assert "drained: the results hold what was read until then" in done.stderr
    assert [row["value"] for row in read_rows(site.folder / "out")] == [2] * 10
    site.assert_clean("out")


def test_the_second_ctrl_c_cancels_and_publishes_nothing(site: Site) -> None:
    site.write(ENDLESS)
    process = site.start("run", "flow.py", "--workers", "1")
    assert process.stderr is not None
    wait_for_line(process, RECORDS_READ)

    process.send_signal(signal.SIGINT)
    wait_for_line(process, "draining")
    process.send_signal(signal.SIGINT)
    errors = process.stderr.read()

    assert process.wait(20) == 130, errors
    assert "cancelled job endless-" in errors
    assert "Traceback" not in errors
    site.assert_clean()


RECORDS_READ = r"numbers: in [1-9]"


def wait_for_line(process: subprocess.Popen[str], pattern: str) -> None:
    assert process.stderr is not None
    for line in process.stderr:
        if re.search(pattern, line):
            return
    raise AssertionError(f"the run ended before it said {pattern!r}")


MOMENTS = ["", "celeriac-*", "celeriac-*/redis", "celeriac-*/logs/node.log", "celeriac-*/logs/w0.log"]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=["ctrl-c", "sigterm"])
@pytest.mark.parametrize("moment", MOMENTS, ids=["at once", "folder", "redis", "node", "worker"])
def test_an_interrupt_while_it_starts_leaves_nothing(site: Site, moment: str, number: signal.Signals) -> None:
    site.write(ENDLESS)
    process = site.start("run", "flow.py", "--workers", "1")
    wait_until(lambda: any(site.temporary.glob(moment)) if moment else bool(site.processes()))

    process.send_signal(number)
    if moment.endswith(".log") and number == signal.SIGINT:  # here the first one may drain
        process.send_signal(number)
    _, errors = process.communicate(timeout=30)

    # Before Python has reached our first line, the signal itself ends the process, or Python gives up its own start.
    assert process.returncode in (130, -number) or "Fatal Python error: init_" in errors, errors
    assert not list(site.folder.glob(".out*"))
    site.assert_clean(*(["out"] if (site.folder / "out").exists() else []))


def test_a_job_that_was_killed_goes_on_under_its_name(site: Site) -> None:
    words = write_words(site)
    site.write(WORDCOUNT.format(sink='text("out")'))
    process = site.start("run", "flow.py", "--workers", "1", "--job-id", "named")
    wait_until(lambda: (site.folder / ".celeriac/named/logs/w0.log").exists())
    process.kill()
    process.communicate()
    wait_until(lambda: not site.processes(), 10.0)

    done = site.run("run", "flow.py", "--workers", "1", "--job-id", "named")

    assert done.returncode == 0, done.stderr
    assert read_counts(site.folder / "out") == words
    site.assert_clean("in", "out", was_killed=True)


def test_a_second_run_of_a_kept_job_is_refused_and_the_first_one_keeps_its_temporary_files(site: Site) -> None:
    site.write(ENDLESS)
    first = site.start("run", "flow.py", "--workers", "1", "--job-id", "named")
    wait_for_line(first, RECORDS_READ)
    scratch = list((site.folder / ".celeriac/named").glob("tmp-*"))

    second = site.run("run", "flow.py", "--job-id", "named")

    assert (second.returncode, second.stdout) == (2, "")
    assert "error: the job named is being run in this folder by another process\nhint: " in second.stderr
    assert len(scratch) == 1
    assert list((site.folder / ".celeriac/named").glob("tmp-*")) == scratch
    first.send_signal(signal.SIGTERM)
    assert first.wait(20) == 130
    assert not list((site.folder / ".celeriac/named").glob("tmp-*"))


def test_another_pipeline_under_the_name_of_a_kept_job_is_refused(site: Site) -> None:
    site.write(ENDLESS)
    process = site.start("run", "flow.py", "--workers", "1", "--job-id", "named")
    assert process.stderr is not None
    wait_for_line(process, RECORDS_READ)
    process.send_signal(signal.SIGTERM)
    assert process.wait(20) == 130
    site.write(ENDLESS.replace("by_digit", "by_other"))

    done = site.run("run", "flow.py", "--job-id", "named")

    assert done.returncode == 2
    assert "was made from another pipeline" in done.stderr
    site.assert_clean(".celeriac", *(path.name for path in site.folder.glob(".out*")))


def test_a_job_on_a_foreign_redis_stays_to_be_looked_at_until_it_is_removed(site: Site, redis_url: str) -> None:
    write_words(site)
    site.write(WORDCOUNT.format(sink='text("out")'))
    at = ("--redis", redis_url)
    assert site.run("run", "flow.py", "--workers", "1", "--job-id", "kept", *at).returncode == 0

    status = site.run("status", "kept", "--json", *at)
    listed = site.run("list", *at)
    again = site.run("run", "flow.py", "--job-id", "kept", *at)
    removed = site.run("remove", "kept", *at)

    assert json.loads(status.stdout)["state"] == "finished"
    assert listed.stdout.startswith("kept  finished  wordcount")
    assert again.returncode == 0
    assert "finished already" in again.stderr
    assert removed.returncode == 0
    with redis.Redis.from_url(redis_url) as client:
        assert [key for key in client.keys("*") if b"{kept}" in key] == []
    site.assert_clean("in", "out")


def test_an_embedded_redis_that_is_killed_is_started_again(site: Site) -> None:
    site.write(ENDLESS)
    process = site.start("run", "flow.py", "--workers", "1")
    assert process.stderr is not None
    wait_for_line(process, RECORDS_READ)

    server = next(each for each in site.processes() if "redis-server" in each.name())
    server.kill()
    wait_for_line(process, "Redis died and was started again")
    process.send_signal(signal.SIGINT)
    wait_for_line(process, "draining")
    process.send_signal(signal.SIGINT)
    process.stderr.read()

    assert process.wait(20) == 130
    site.assert_clean()


def test_a_result_that_cannot_be_published_fails_the_job_and_is_told(site: Site) -> None:
    site.write(ENDLESS)
    process = site.start("run", "flow.py", "--workers", "1")
    wait_for_line(process, RECORDS_READ)
    (site.folder / "out").mkdir()
    (site.folder / "out/precious").touch()

    process.send_signal(signal.SIGINT)
    assert process.stderr is not None
    errors = process.stderr.read()

    assert process.wait(30) == 1, errors
    assert "error: the job endless-" in errors
    assert "is not replaced" in errors
    assert [path.name for path in (site.folder / "out").iterdir()] == ["precious"]
    site.assert_clean("out")


def test_a_run_ends_when_another_command_cancels_or_removes_its_job(site: Site, redis_url: str) -> None:
    site.write(ENDLESS)
    at = ("--redis", redis_url)
    process = site.start("run", "flow.py", "--workers", "1", "--job-id", "shared", *at)
    wait_for_line(process, RECORDS_READ)

    second = site.run("run", "flow.py", "--job-id", "shared", *at)
    refused = site.run("remove", "shared", *at)
    cancelled = site.run("cancel", "shared", *at)
    assert process.stderr is not None
    errors = process.stderr.read()
    removed = site.run("remove", "shared", "--force", *at)

    assert second.returncode == 2
    assert "is being run by another process" in second.stderr
    assert refused.returncode == 2
    assert cancelled.returncode == 0
    assert process.wait(30) == 130
    assert "was cancelled: celeriac cancel" in errors
    assert removed.returncode == 0
    site.assert_clean()


def test_a_foreign_redis_that_restarts_is_waited_for(site: Site) -> None:
    site.write(ENDLESS)
    with EmbeddedRedis.start() as server:
        process = site.start("run", "flow.py", "--workers", "1", "--redis", server.url)
        wait_for_line(process, RECORDS_READ)

        server.restart()
        wait_for_line(process, RECORDS_READ)
        process.send_signal(signal.SIGINT)
        assert process.stderr is not None
        errors = process.stderr.read()

        assert process.wait(60) == 130, errors
        assert len(read_rows(site.folder / "out")) == 10
    site.assert_clean("out")
