"""`celeriac shadow` and `promote` as a user meets them: beside a run with its own workers, files and producers."""

from __future__ import annotations

import io
import json
import signal
import subprocess
import sys
import threading
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from typing import Any, NamedTuple

import pytest

from pipeline.cli.main import run_command
from pipeline.lifecycle import JobState
from pipeline.operations import CLAIM_SECONDS
from pipeline.producer import Producer
from pipeline.store import keys
from pipeline.store.connection import connect
from pipeline.store.jobs import JobStore
from pipeline.store.scripts import Scripts
from pipeline.store.shadows import ShadowStore
from tests.e2e.chaos import Site, wait_until

pytestmark = pytest.mark.timeout(300)

FILE = """
from pipeline import Pipeline, read, write

def add(key, value, state):
    total = (state or 0) + 1
    return [key, total], total

flow = Pipeline("sums")
words = flow.source(read.producer(), name="in").key_by(lambda word: word, name="by_word")
words.stateful_map(add, name="total").sink(write.jsonl("out"), name="out")
"""

STEP = 1_000_000
SECOND = FILE.replace("(state or 0) + 1", f"(state or 0) + {STEP}")
EACH = 40
WORDS = [f"k{number}" for number in range(25)]


class Done(NamedTuple):
    returncode: int
    stdout: str
    stderr: str


def _said(process: subprocess.Popen[str]) -> str:
    """All that it wrote, when it has ended."""
    assert process.stdout is not None
    process.wait(60)
    return process.stdout.read()


class Story:
    """A run of FILE, and what is done beside it."""

    def __init__(self, site: Site, redis_url: str) -> None:
        self.site, self.url = site, redis_url
        self.client = connect(redis_url)
        scripts = Scripts(self.client)
        self.jobs, self.store = JobStore(scripts), ShadowStore(scripts, "j")
        site.write(FILE)
        (site.root / "work" / "second.py").write_text(SECOND)
        self.run = site.start("flow.py", "--job-id", "j", "--redis", redis_url, "--workers", "2", "--partitions", "2")
        wait_until(lambda: "j" in self.jobs.list_ids() and self.jobs.state("j") is JobState.RUNNING, "the job runs")

    def command(self, *arguments: str) -> Done:
        """A command that starts nothing, in this process."""
        out, errors = io.StringIO(), io.StringIO()
        with redirect_stdout(out), redirect_stderr(errors):
            code = run_command([*arguments, "--redis", self.url])
        return Done(code, out.getvalue(), errors.getvalue())

    def produce(self) -> None:
        """EACH records of each word; all are processed when this returns."""
        before = self.processed()
        with Producer("j", self.url) as producer:
            for word in WORDS * EACH:
                producer.send(word, word)
        wait_until(lambda: self.processed() == before + EACH * len(WORDS), "all is processed", 60.0)

    def processed(self) -> int:
        return sum(part.taken for part in self.jobs.facts("j").partitions if part.stage == 1)

    @contextmanager
    def shadow(self) -> Iterator[subprocess.Popen[str]]:
        command = [sys.executable, "-m", "pipeline.cli.main", "shadow", "j", "second.py", "--redis", self.url]
        process = subprocess.Popen(
            command,
            cwd=self.site.root / "work",
            env=self.site.environment(),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        try:
            wait_until(lambda: self.report() != {} or process.poll() is not None, "the shadow tells of itself", 60.0)
            assert process.poll() is None, process.communicate()[0]
            yield process
        finally:
            process.kill()
            process.wait()
            assert process.stdout is not None
            process.stdout.close()

    def report(self) -> dict[str, Any]:
        found = self.store.read()
        report: dict[str, Any] = json.loads(found.report) if found is not None and found.report else {}
        return report

    def results(self) -> dict[str, list[int]]:
        self.run.process.send_signal(signal.SIGINT)  # drains
        self.run.finish(code=130)
        found: dict[str, list[int]] = defaultdict(list)
        for path in sorted((self.run.folder / "out").rglob("*.jsonl")):
            for line in path.read_text().splitlines():
                row = json.loads(line)
                word, total = row["value"] if isinstance(row, dict) else row
                found[word].append(total)
        return {word: sorted(totals) for word, totals in found.items()}


def test_a_new_version_is_compared_refused_and_promoted_when_it_is_meant(site: Site, redis_url: str) -> None:
    story = Story(site, redis_url)
    story.produce()
    with story.shadow() as process:
        status = story.command("status", "j").stdout
        assert "shadow of version" in status
        story.produce()
        wait_until(lambda: story.report()["lag"] == 0, "the shadow has it all", 60.0)
        refused = story.command("promote", "j")
        assert (refused.returncode, "--accept-differences" in refused.stderr) == (1, True), refused.stderr
        shown = story.command("shadow", "j").stdout
        assert json.loads(story.command("shadow", "j", "--json").stdout)["code"] in shown
        assert f"sink out: {EACH * len(WORDS):,} results compared, 0 equal" in shown
        assert f"results of {len(WORDS)} keys are otherwise" in shown

        done = story.command("promote", "j", "--accept-differences")
        assert done.returncode == 0, done.stderr
        said = _said(process)
    assert (process.returncode, "is promoted to version" in said) == (0, True), said
    story.produce()

    assert story.jobs.list_ids() == ["j"]
    both = 2 * EACH
    expected = [*range(1, both + 1), *(EACH + STEP * (EACH + number) for number in range(1, EACH + 1))]
    assert story.results() == dict.fromkeys(WORDS, expected)
    history = story.command("history", "j").stdout
    assert "promoted" in history


def test_a_promotion_under_load_neither_loses_nor_doubles_a_record(site: Site, redis_url: str) -> None:
    story = Story(site, redis_url)
    stop, sent = threading.Event(), []

    def send() -> None:
        with Producer("j", redis_url, full_timeout_seconds=60) as producer:
            while not stop.wait(0.01):
                for word in WORDS:
                    producer.send(word, word)
                sent.append(1)
            producer.flush(60)

    thread = threading.Thread(target=send)
    thread.start()
    try:
        with story.shadow() as process:
            done = story.command("promote", "j", "--accept-differences")
            assert done.returncode == 0, done.stderr
            assert "is promoted to version" in _said(process)
        promoted_at = len(sent)
        wait_until(lambda: len(sent) > promoted_at + 50, "the input flows", 60.0)
    finally:
        stop.set()
        thread.join()
    wait_until(lambda: story.processed() == len(sent) * len(WORDS), "all is processed", 60.0)

    for totals in story.results().values():
        # The old version until the promotion: 1, 2, ..., m. The new one has added STEP for each record since the cut.
        old = [total for total in totals if total < STEP]
        new = [total for total in totals if total >= STEP]
        assert old == list(range(1, len(old) + 1))
        at_cut = new[0] % STEP
        assert new == [at_cut + STEP * (len(old) - at_cut + number) for number in range(1, len(new) + 1)]
        assert (len(totals), at_cut <= len(old)) == (len(sent), True)


def test_a_shadow_whose_command_is_killed_is_taken_away_and_one_that_is_interrupted_leaves_nothing(
    site: Site, redis_url: str
) -> None:
    story = Story(site, redis_url)
    with story.shadow() as process:
        story.produce()
        process.kill()
        process.wait()
        story.client.hincrby(keys.operation("j"), "until", -int(CLAIM_SECONDS * 1000))  # as if that time had passed
        wait_until(lambda: not story.jobs.read("j").shadow, "the leader has taken it away", 30.0)
    assert story.jobs.list_ids() == ["j"]
    with story.shadow() as process:
        story.produce()
        process.send_signal(signal.SIGINT)
        said = _said(process)
    assert process.returncode == 130, said
    with story.shadow() as process:
        dropped = story.command("shadow", "j", "--drop")
        assert dropped.returncode == 0, dropped.stderr
        assert process.wait(60) == 0
    story.produce()

    assert not [name for name in story.client.scan_iter() if b"shadow" in name or b":tee:" in name]
    outcomes = [past.outcome for past in story.jobs.read("j").operations]
    assert outcomes == ["given up: its command is gone", "interrupted", "dropped"]
    assert story.results() == {word: list(range(1, 3 * EACH + 1)) for word in WORDS}


def test_what_cannot_be_a_shadow_is_one_message(site: Site, redis_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    story = Story(site, redis_url)
    monkeypatch.chdir(site.root / "work")  # the sink's path is relative
    (site.root / "work" / "third.py").write_text(FILE.replace('name="by_word"', 'name="by"'))

    refused = story.command("shadow", "j", "third.py")
    (site.root / "work" / "fourth.py").write_text(FILE.replace('name="total"', 'name="sum"'))
    unnamed = story.command("shadow", "j", "fourth.py")
    none = story.command("shadow", "j")
    promoted = story.command("promote", "j")

    assert (refused.returncode, "stage 'by_word' is gone" in refused.stderr) == (2, True), refused.stderr
    assert unnamed.returncode == 2
    assert "fourth.py has no place for what job 'j' holds:\n  - operator 'total' and its state" in unnamed.stderr
    assert "savepoint" not in unnamed.stderr
    assert [(each.returncode, "has no shadow" in each.stderr) for each in (none, promoted)] == [(2, True)] * 2
    assert story.jobs.read("j").operations == ()
    assert story.results() == {}
