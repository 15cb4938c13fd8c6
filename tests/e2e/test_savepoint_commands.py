"""`celeriac savepoint` as a user meets it: beside a job that works, through kills, and into a new job."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest

from pipeline import Pipeline, count, read, write
from pipeline.cli.main import run_command
from pipeline.client import Client
from pipeline.lifecycle import JobState
from pipeline.store import keys
from pipeline.store.connection import connect
from pipeline.store.jobs import JobStore
from pipeline.store.scripts import Scripts
from tests.e2e.chaos import Site, wait_until
from tests.runtime.harness import LocalJob

ROOT = Path(__file__).parents[2]

FILE = """
from pipeline import Pipeline, count, read, write

flow = Pipeline("words")
words = flow.source(read.producer(), name="in").key_by(lambda word: word, name="by_word")
words.aggregate(count(), name="counts").sink(write.stream("out"), name="out")
"""


class Done(NamedTuple):
    returncode: int
    stdout: str
    stderr: str


Celeriac = Callable[..., Done]


@pytest.fixture
def celeriac(redis_url: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Celeriac:
    """The command in this process; where signals matter it is one of its own."""
    monkeypatch.setenv("CELERIAC_REDIS", redis_url)

    def run(*arguments: str) -> Done:
        code = run_command(arguments)
        return Done(code, *capsys.readouterr())

    return run


def counting() -> Pipeline:
    flow = Pipeline("words")
    words = flow.source(read.producer(), name="in").key_by(lambda word: word, name="by_word")
    words.aggregate(count(), name="counts").sink(write.stream("out"), name="out")
    return flow


def test_create_list_show_diff_export_and_delete(redis_url: str, tmp_path: Path, celeriac: Celeriac) -> None:
    folder = str(tmp_path / "s")
    with LocalJob(redis_url, counting()) as job:
        job.assign()
        job.send("aab")
        job.run_until_idle()
        created = celeriac("savepoint", "create", "j", "--to", folder, "--json")
        one = json.loads(created.stdout)
        assert (created.returncode, one["keys"], one["outputs"]) == (0, {"counts": 2}, {"out": 4})
        job.send("b")
        job.run_until_idle()
        other = json.loads(celeriac("savepoint", "create", "j", "--to", folder, "--json").stdout)

        listed = celeriac("savepoint", "list", folder)
        assert [line.split()[0] for line in listed.stdout.splitlines()] == [one["name"], other["name"]]
        shown = celeriac("savepoint", "show", one["where"]).stdout
        assert "operator counts: 2 keys" in shown
        assert "output out: 3 results before it" in shown
        diff = celeriac("savepoint", "diff", one["where"], other["where"])
        assert (diff.returncode, diff.stdout) == (1, "differs: counts b\n")
        same = celeriac("savepoint", "diff", one["where"], one["where"])
        assert same == (0, "", "the state is the same in both\n")
        lines = celeriac("savepoint", "export", one["where"], "--operator", "counts").stdout.splitlines()
        assert sorted((row["key"], row["value"]) for row in map(json.loads, lines)) == [("a", 2), ("b", 1)]

        kept = json.loads(celeriac("savepoint", "create", "j", "--to", folder, "--keep", "2", "--json").stdout)
        names = [row["name"] for row in json.loads(celeriac("savepoint", "list", folder, "--json").stdout)]
        assert names == [other["name"], kept["name"]]
        assert celeriac("savepoint", "delete", kept["where"]).returncode == 0
        assert celeriac("savepoint", "show", kept["where"]).returncode == 2
        assert celeriac("savepoint", "list", str(tmp_path / "nowhere")).stderr == "no savepoints\n"


def test_savepoints_are_taken_again_and_again_until_the_job_ends(redis_url: str, tmp_path: Path) -> None:
    folder = tmp_path / "s"
    command = [sys.executable, "-m", "pipeline.cli.main", "savepoint", "create", "j", "--to", str(folder)]
    with LocalJob(redis_url, counting()) as job:
        job.assign()
        job.send("aab")
        job.run_until_idle()
        environment = {**os.environ, "CELERIAC_REDIS": redis_url, "PYTHONPATH": str(ROOT)}
        service = subprocess.Popen(
            [*command, "--every", "1", "--keep", "2"], env=environment, stdout=subprocess.PIPE, text=True
        )
        try:
            assert service.stdout is not None
            names = [service.stdout.readline().split()[1].rpartition("/")[2].rstrip(":") for _ in range(3)]
            job.jobs.transition("j", JobState.CANCELLED)
            said, _ = service.communicate(timeout=60)
        finally:
            service.kill()
            service.wait()

    names += [line.split()[1].rpartition("/")[2].rstrip(":") for line in said.splitlines()]
    assert service.returncode == 0
    assert sorted(path.name for path in folder.iterdir()) == sorted(names[-2:])


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (("savepoint", "create", "j", "--stop", "--every", "5"), "--stop ends it"),
        (("savepoint", "create", "nosuch", "--every", "5"), "there is no job 'nosuch'"),
        (("savepoint", "create", "nosuch"), "there is no job 'nosuch'"),
        (("savepoint", "show", "/nowhere/at-all"), "there is no /nowhere/at-all/manifest.json"),
        (("savepoint", "create", "j", "--to", "nosuch://x/y"), "nosuch"),
        (("savepoint", "create", "j", "--to", "flow.py"), "flow.py: File exists\nhint: savepoints lie in a folder"),
        (("savepoint", "create", "j", "--to", "flow.py/s"), "Not a directory\nhint: savepoints lie in a folder"),
        (("savepoint", "list", "flow.py"), "flow.py: Not a directory\nhint: savepoints lie in a folder"),
        (("savepoint", "show", "flow.py"), "Not a directory\nhint: savepoints lie in a folder"),
        (("dead-letters", "show", "j", "nope"), "hint: `celeriac dead-letters list j` shows the ids"),
        (("run", "flow.py", "--allow-edits"), "go with --from-savepoint"),
        (("run", "flow.py", "--from-savepoint", "/nowhere/at-all"), "there is no /nowhere/at-all/manifest.json"),
    ],
)
def test_what_cannot_be_done_is_one_message(
    redis_url: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    celeriac: Celeriac,
    arguments: tuple[str, ...],
    told: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "flow.py").write_text(FILE)
    with LocalJob(redis_url, counting()):
        done = celeriac(*arguments)

    assert done.returncode in (2, 3)
    assert told in done.stderr
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "nosuch:").exists()


def test_a_place_that_cannot_be_written_is_told_before_the_job_is_changed(
    redis_url: str, tmp_path: Path, celeriac: Celeriac
) -> None:
    (tmp_path / "file").touch()
    place = str(tmp_path / "file" / "s")
    with LocalJob(redis_url, counting()) as job:
        job.assign()

        stopped = celeriac("savepoint", "create", "j", "--stop", "--to", place)
        suspended = celeriac("suspend", "j", "--to", place)

        assert [(each.returncode, "Not a directory" in each.stderr) for each in (stopped, suspended)] == [(2, True)] * 2
        record = job.jobs.read("j")
        assert [change.state for change in record.history] == [JobState.RUNNING]
        assert record.paused == {}


def test_an_exporter_that_is_killed_leaves_no_savepoint_and_the_next_one_is_whole(
    redis_url: str, tmp_path: Path, celeriac: Celeriac
) -> None:
    folder = tmp_path / "s"
    program = """
import os, signal, sys
from pipeline.savepoints import export
from pipeline.cli.main import run_command
from pipeline.client import Client
tick = export._Exporter._tick
def dies(self, **options):
    tick(self, **options)
    os.kill(os.getpid(), signal.SIGKILL)
export._Exporter._tick = dies
run_command(sys.argv[1:])
"""
    with LocalJob(redis_url, counting()) as job:
        job.assign()
        job.send("aab")
        job.run_until_idle()
        command = [sys.executable, "-c", program, "savepoint", "create", "j", "--to", str(folder)]
        environment = {**os.environ, "CELERIAC_REDIS": redis_url, "PYTHONPATH": str(ROOT)}
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=False)
        assert done.returncode == -signal.SIGKILL, done.stderr
        assert "no savepoints" in celeriac("savepoint", "list", str(folder)).stderr
        busy = celeriac("savepoint", "create", "j", "--to", str(folder))
        assert (busy.returncode, "is being written" in busy.stderr) == (2, True)

        job.client.hset(keys.savepoint("j"), "until", 0)  # as if the time of its lease had passed
        assert celeriac("savepoint", "create", "j", "--to", str(folder)).returncode == 0

        assert len(list(folder.iterdir())) == 1
        assert not [key for key in job.client.scan_iter() if b":was" in key or b":savepoint" in key]


def test_a_running_job_is_stopped_with_a_savepoint_and_goes_on_as_another_one(redis_url: str, site: Site) -> None:
    """`run`, `produce`, `savepoint create --stop`, and `run --from-savepoint` with other workers and partitions."""
    site.write(FILE)
    first = site.start("flow.py", "--job-id", "one", "--redis", redis_url, "--workers", "1", "--partitions", "2")
    _produce(site, redis_url, "one", range(30_000))

    done = site.command("savepoint", "create", "one", "--redis", redis_url, "--stop", "--json")

    assert done.returncode == 0, done.stderr
    one = json.loads(done.stdout)
    first.finish(code=130)
    again = ("--from-savepoint", one["where"], "--job-id", "two", "--redis", redis_url, "--workers", "2")
    second = site.start("flow.py", *again, "--partitions", "3")
    _produce(site, redis_url, "two", range(30_000, 40_000))
    second.process.send_signal(signal.SIGINT)  # drains: all that was taken is worked off
    second.finish(code=130)

    assert f"job two begins with savepoint {one['name']} of job one" in second.said()
    with Client(redis_url) as client:
        counts = {value.key: value.result for value in client.state("two").items("by_word")}
    assert counts == {f"k{number}": 800 for number in range(50)}
    for job in ("one", "two"):
        assert site.command("remove", job, "--redis", redis_url).returncode == 0


def _produce(site: Site, redis_url: str, job: str, numbers: range) -> None:
    """Sends a word for each number to a job that is about to run."""
    store = JobStore(Scripts(connect(redis_url)))
    wait_until(lambda: job in store.list_ids() and store.state(job) is JobState.RUNNING, f"job {job} runs")
    text = "".join(json.dumps({"value": f"k{number % 50}"}) + "\n" for number in numbers)
    command = [sys.executable, "-m", "pipeline.cli.main", "produce", job, "--redis", redis_url]
    done = subprocess.run(command, env=site.environment(), input=text, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
