"""`celeriac tail`, `state` and `readers` as a user meets them: lines, exit codes, and a job that a reader holds up."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from pipeline import Pipeline, count, mean, read, write
from pipeline.cli.main import run_command
from pipeline.client import Client
from pipeline.errors import StoreError
from pipeline.lifecycle import JobState
from pipeline.store.jobs import NO_JOB
from pipeline.store.outputs import remove_reader
from pipeline.store.scripts import Scripts
from tests.e2e.chaos import wait_until
from tests.runtime.harness import LocalJob

ROOT = Path(__file__).parents[2]


class Done(NamedTuple):
    returncode: int
    stdout: str
    stderr: str


Celeriac = Callable[..., Done]


@pytest.fixture
def celeriac(redis_url: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Celeriac:
    """The command in this process; where signals and pipes matter it is one of its own."""
    monkeypatch.setenv("CELERIAC_REDIS", redis_url)

    def run(*arguments: str) -> Done:
        code = run_command(arguments)
        return Done(code, *capsys.readouterr())

    return run


def command(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "pipeline.cli.main", *arguments]


def environment(redis_url: str) -> dict[str, str]:
    return {**os.environ, "CELERIAC_REDIS": redis_url, "PYTHONPATH": str(ROOT), "COLUMNS": "80"}


def a_job(redis_url: str, folder: Path) -> LocalJob:
    flow = Pipeline("shop")
    orders = flow.source(read.iterable([0]), name="orders")
    orders.sink(write.stream("raw"), name="raw")
    by_user = orders.key_by(lambda order: order[0], name="by_user").map(lambda order: order[1], name="paid")
    by_user.aggregate(mean(), name="average").sink(write.stream("averages"), name="answers")
    by_user.aggregate(n=count(), average=mean(), name="both").sink(write.text(folder / "texts"), name="texts")
    job = LocalJob(redis_url, flow, partitions=1)
    for stream in list(job._readers):
        remove_reader(Scripts(job.client), "j", stream, "test", job.limits)
    job._readers.clear()
    job.assign()
    return job


@pytest.fixture
def job(redis_url: str, tmp_path: Path) -> Iterator[LocalJob]:
    with a_job(redis_url, tmp_path) as made:
        yield made


def send(job: LocalJob, *orders: Any) -> None:
    job.send([list(order) for order in orders])
    job.run_until_idle()


def end(job: LocalJob, state: JobState = JobState.CANCELLED) -> None:
    job.jobs.transition("j", state, "the test")


# tail


def test_results_are_lines_and_a_second_look_shows_the_same(job: LocalJob, celeriac: Celeriac) -> None:
    send(job, ("ann", 1), ("ann", 2), (7, 3))
    send(job, ("two\nlines", 4))
    end(job)

    for _ in range(2):
        done = celeriac("tail", "j", "answers")
        assert (done.returncode, done.stdout) == (0, "ann: 1.0\nann: 1.5\n7: 3.0\ntwo\\nlines: 4.0\n")
        assert done.stderr == "the job j is cancelled\n"
    assert celeriac("tail", "j", "raw", "--count", "1").stdout == '["ann",1]\n'


def test_json_lines_have_position_key_and_value(job: LocalJob, celeriac: Celeriac) -> None:
    send(job, ("ann", 1), (7, 2))

    done = celeriac("tail", "j", "averages", "--json", "--no-follow", "--from", "2")

    assert [json.loads(line) for line in done.stdout.splitlines()] == [{"position": 2, "key": 7, "value": 2.0}]
    assert (done.returncode, done.stderr) == (0, "")


def test_a_count_with_a_reader_goes_on_exactly_there(job: LocalJob, celeriac: Celeriac) -> None:
    send(job, *(("ann", number) for number in range(1, 8)))

    parts = [celeriac("tail", "j", "raw", "--reader", "r", "--count", "3").stdout for _ in range(2)]
    last = celeriac("tail", "j", "raw", "--reader", "r", "--no-follow", "--from", "begin")

    assert parts[0] + parts[1] + last.stdout == "".join(f'["ann",{number}]\n' for number in range(1, 8))
    assert last.stderr == "the reader r goes on where it stood, at 7; --from is for new ones\n"


def test_results_are_followed_until_the_job_ends(job: LocalJob, redis_url: str) -> None:
    with subprocess.Popen(
        command("tail", "j", "raw"), env=environment(redis_url), stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        for number in range(3):
            send(job, ("ann", number))
            assert process.stdout.readline() == f'["ann",{number}]\n'
        end(job)
        assert process.wait(30) == 0
        assert process.stdout.read() == ""


def test_ctrl_c_ends_quietly_and_says_where_to_go_on(job: LocalJob, redis_url: str) -> None:
    send(job, ("ann", 1), ("ann", 2))
    with subprocess.Popen(
        command("tail", "j", "raw"),
        env=environment(redis_url),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        assert [process.stdout.readline() for _ in range(2)] == ['["ann",1]\n', '["ann",2]\n']
        process.send_signal(signal.SIGINT)
        out, errors = process.communicate(timeout=30)

    assert (process.returncode, out, errors) == (130, "", "stopped; the next position is 3\n")
    assert unnamed(redis_url) == []


def unnamed(redis_url: str) -> list[str]:
    with Client(redis_url) as client:
        return [reader.name for output in client.outputs("j") for reader in output.readers if reader.is_temporary]


def test_a_closed_pipe_ends_with_141_and_leaves_no_reader(job: LocalJob, redis_url: str) -> None:
    send(job, *(("ann", number) for number in range(5_000)))
    with subprocess.Popen(
        command("tail", "j", "raw"),
        env=environment(redis_url),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == '["ann",0]\n'
        process.stdout.close()
        assert process.wait(30) == 141
        assert process.stderr is not None
        assert process.stderr.read() == ""
    assert unnamed(redis_url) == []


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["nobody"], f"error: there is no job 'nobody'\nhint: {NO_JOB}\n"),
        (["j"], "error: the job 'j' has several outputs to read: raw, averages\nhint: name one\n"),
        (["j", "rwa"], "error: the job 'j' has no sink 'rwa'\nhint: did you mean 'raw'?\n"),
        (
            ["j", "texts"],
            "error: the sink 'texts' writes text to {folder}/texts, which is not read here\n"
            "hint: see {folder}/texts; a folder of files appears when the job ends\n",
        ),
        (["j", "raw", "--from", "9"], "error: the result 9 of 'raw' is not there yet; the next one will be 1\n"),
        (
            ["j", "raw", "--reader", "_r"],
            "error: '_r' cannot be a reader's name\n"
            "hint: use 1 to 64 letters, digits, '-', '_' and '.'; 'console' is taken\n",
        ),
    ],
)
@pytest.mark.usefixtures("job")
def test_what_cannot_be_read_is_one_message(
    celeriac: Celeriac, tmp_path: Path, arguments: list[str], message: str
) -> None:
    done = celeriac("tail", *arguments)

    assert (done.returncode, done.stdout, done.stderr) == (2, "", message.replace("{folder}", str(tmp_path)))


def test_a_wrong_place_is_wrong_usage(celeriac: Celeriac) -> None:
    done = celeriac("tail", "j", "--from", "middle")

    assert done.returncode == 2
    assert "'middle' is neither 'begin' nor 'end' nor a position" in done.stderr


# state


def test_the_state_of_a_key_is_shown_as_its_result(job: LocalJob, celeriac: Celeriac) -> None:
    send(job, ("ann", 1), ("ann", 2), (1, 5), ("1", 6))

    assert celeriac("state", "get", "j", "average", "ann").stdout == "1.5\n"
    assert celeriac("state", "get", "j", "by_user", "1").stdout == 'average: 5.0\nboth: {"n":1,"average":5.0}\n'
    assert celeriac("state", "get", "j", "1", '"1"', "--operator", "average").stdout == "6.0\n"
    done = celeriac("state", "get", "j", "by_user", "ann", "--json")
    assert json.loads(done.stdout) == {
        "key": "ann",
        "operators": {
            "average": {"result": 1.5, "raw": [3, 0, 0.0, 2]},
            "both": {"result": {"n": 2, "average": 1.5}, "raw": [2, [3, 0, 0.0, 2]]},
        },
    }


def test_keys_are_listed_as_they_can_be_typed(job: LocalJob, celeriac: Celeriac) -> None:
    send(job, ("ann", 1), ("anton", 2), (1, 5), ("1", 6), ("", 7))

    done = celeriac("state", "keys", "j", "by_user")

    assert sorted(done.stdout.splitlines()) == ['""', '"1"', "1", "ann", "anton"]
    assert (done.returncode, done.stderr) == (0, "")
    for line in done.stdout.splitlines():
        assert celeriac("state", "get", "j", "average", line).returncode == 0
    assert sorted(celeriac("state", "keys", "j", "average", "--prefix", "an").stdout.split()) == ["ann", "anton"]


def test_more_keys_than_are_shown_are_not_kept_silent(job: LocalJob, celeriac: Celeriac) -> None:
    send(job, *((f"u{number}", 1) for number in range(7)))

    done = celeriac("state", "keys", "j", "1", "--limit", "5")

    assert len(done.stdout.splitlines()) == 5
    assert done.stderr == "there are more keys than 5; --limit shows more of them\n"
    assert celeriac("state", "keys", "j", "1", "--limit", "7").stderr == ""


def test_a_key_without_state_is_told_and_a_number_is_not_mixed_up_with_its_text(
    job: LocalJob, celeriac: Celeriac
) -> None:
    send(job, (7, 1), ("8", 1))

    number = celeriac("state", "get", "j", "average", "8")
    text = celeriac("state", "get", "j", "average", '"7"')
    nothing = celeriac("state", "get", "j", "by_user", "bob")

    assert [done.returncode for done in (number, text, nothing)] == [2, 2, 2]
    assert number.stderr.endswith("in stage average of job j\nhint: the text is another key: give it as '\"8\"'\n")
    assert text.stderr.endswith("hint: the number is another key: give it as 7\n")
    assert nothing.stderr == "error: there is no state for the key bob in stage by_user of job j\n"


# readers


def test_readers_are_listed_and_removed(job: LocalJob, celeriac: Celeriac, redis_url: str) -> None:
    with Client(redis_url) as client:
        client.results("j", "raw", reader="audit", expire_seconds=3600)
    send(job, ("ann", 1))

    listed = celeriac("readers", "list", "j")
    found = json.loads(celeriac("readers", "list", "j", "--json").stdout)

    lines = listed.stdout.splitlines()
    assert [lines[0], lines[2]] == ["raw: 1 result kept", "averages: 1 result kept, no readers"]
    assert re.fullmatch(r"  reader audit: at 1, 1 result unread, heard \d+(\.\d)? s ago", lines[1])
    assert (found[0]["output"], found[0]["next"], found[0]["readers"][0]["name"]) == ("raw", 2, "audit")
    assert (
        celeriac("readers", "remove", "j", "raw", "audit").stdout == "the reader audit of raw is removed from job j\n"
    )
    again = celeriac("readers", "remove", "j", "raw", "audit")
    assert (again.returncode, again.stderr) == (2, "error: the output 'raw' of job 'j' has no reader 'audit'\n")


HELD_UP = """
import time
from pathlib import Path

from pipeline import Pipeline, read, write

ROWS = 200_000


def numbers():
    while not Path("go").exists():
        time.sleep(0.01)
    yield from range(ROWS)


flow = Pipeline("held")
flow.source(read.iterable(numbers), name="numbers").sink(write.stream("out"), name="out")
"""


def test_a_run_that_a_reader_holds_up_says_so_and_goes_on_when_it_is_removed(
    tmp_path: Path, redis_url: str, celeriac: Celeriac
) -> None:
    (tmp_path / "flow.py").write_text(HELD_UP)
    with (tmp_path / "errors").open("w") as errors:
        run = subprocess.Popen(
            command("run", "flow.py", "--workers", "1", "--partitions", "1", "--job-id", "j"),
            cwd=tmp_path,
            env={**environment(redis_url), "TMPDIR": str(tmp_path)},
            stderr=errors,
        )
    try:
        with Client(redis_url) as client:
            wait_until(lambda: opens(client), "the reader is registered", 60)
        (tmp_path / "go").touch()
        said = "the output out is full: 1 partition of the job waits for the reader audit: start it, or "
        wait_until(lambda: said in (tmp_path / "errors").read_text(), "the run says who holds it up", 60)
        status = celeriac("status", "j")
        removed = celeriac("readers", "remove", "j", "out", "audit")
        assert run.wait(60) == 0
    finally:
        run.kill()
        run.wait()

    assert "`celeriac readers remove j out audit`" in (tmp_path / "errors").read_text()
    assert "    1 partition of the job waits for the reader audit" in status.stdout
    assert removed.returncode == 0
    last = celeriac("tail", "j", "--from", "200000")
    assert (last.returncode, last.stdout) == (0, "199999\n")


def opens(client: Client) -> bool:
    try:
        client.results("j", reader="audit")
    except StoreError:
        return False
    return True
