"""The first hour and the worst night: wrong commands, wrong files, wrong servers, full disks, and sudden ends."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import signal
import struct
import subprocess
import sys
import termios
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import redis

from pipeline.embedded.redis import EmbeddedRedis
from tests.e2e.chaos import Site, read_rows, wait_until

HEAD = "from pipeline import Pipeline, read, write\n\n"
SMALL = f"""{HEAD}flow = Pipeline("small")
flow.source(read.iterable(range(1000)), name="numbers").sink(write.jsonl("out"), name="result")
"""
ENDLESS = SMALL.replace("range(1000)", "lambda: iter(int, 1)")
SHOWN = SMALL.replace('write.jsonl("out")', "write.console()")
LARGE = f"""{HEAD}flow = Pipeline("large")
values = flow.source(read.iterable(lambda: ("x" * 900 + str(n) for n in range(30_000))), name="texts")
values.key_by(lambda text: text[900:], name="keyed").last(name="last").sink(write.jsonl("out"), name="result")
"""
SECRET = "s3cret-of-the-test"


@pytest.fixture
def server(redis_server: EmbeddedRedis) -> Iterator[EmbeddedRedis]:  # noqa: ARG001 - skips where there is none
    """A server of the story's own, to be spoiled."""
    with EmbeddedRedis.start(fsync="no") as server:
        yield server


def client_of(server: EmbeddedRedis, **options: Any) -> redis.Redis:
    return redis.Redis.from_url(server.url, **options)


def installed(site: Site, *arguments: str) -> subprocess.CompletedProcess[str]:
    """The command as its console script runs it: without the current folder on the import path."""
    return subprocess.run(
        [sys.executable, "-P", "-m", "celeriac", *arguments],
        cwd=site.root / "work",
        env=site.environment(),
        capture_output=True,
        text=True,
        timeout=60,
    )


def test_a_ctrl_c_while_python_still_loads_the_command_is_quiet(site: Site) -> None:
    early = """
import os, signal, sys
from importlib.abc import MetaPathFinder

class CtrlC(MetaPathFinder):
    def find_spec(self, name, path, target=None):
        if name == "pipeline.cli":
            os.kill(os.getpid(), signal.SIGINT)

sys.meta_path.insert(0, CtrlC())
from celeriac import main
main()
"""
    done = subprocess.run(
        [sys.executable, "-c", early, "list"], env=site.environment(), capture_output=True, text=True, timeout=60
    )

    assert (done.returncode, done.stdout, done.stderr) == (-signal.SIGINT, "", "")


def assert_refused(done: subprocess.CompletedProcess[str], code: int, error: str, hint: str = "") -> None:
    """One error, perhaps with a hint, and nothing else."""
    lines = done.stderr.splitlines()
    assert done.returncode == code, done.stderr
    assert lines[0].startswith("error: ")
    assert error in lines[0]
    assert hint in lines[-1]
    assert sum(line.startswith(("error: ", "hint: ")) for line in lines) == (2 if hint else 1), done.stderr
    assert "Traceback" not in done.stderr
    assert done.stdout == ""


MISTAKES = {
    "syntax": ("x = (\n", "flow.py:1: '(' was never closed", ""),
    "missing module": ("import not_there\n", "flow.py:1: ModuleNotFoundError", "install it, or put the module beside"),
    "relative import": ("from .mine import f\n", "attempted relative import", "without the dot"),
    "an exception": ("raise ValueError('early')\n", "flow.py:1: ValueError: early", ""),
    "sys.exit": ("import sys\nsys.exit(1)\n", "flow.py:2: the file ended the program", "if __name__"),
    "no pipeline": ("x = 1\n", "flow.py defines no pipeline", "flow = Pipeline('name')"),
    "two pipelines": (SMALL + SMALL.replace("flow", "other"), "several pipelines: flow, other", "flow.py:flow"),
    "no sink": (f"{HEAD}flow = Pipeline('p')\nflow.source(read.iterable([1]))\n", "has no sink", "end it with .sink"),
}


@pytest.mark.parametrize(("text", "error", "hint"), MISTAKES.values(), ids=MISTAKES.keys())
def test_a_wrong_pipeline_file_is_told_with_its_place(site: Site, text: str, error: str, hint: str) -> None:
    site.write(text)

    assert_refused(site.command("run", "flow.py"), 2, error, hint)

    site.assert_clean("flow.py")


@pytest.mark.parametrize("name", ["pipeline.py", "stages.py", "leader.py"])
def test_a_module_with_the_name_of_one_of_ours_is_refused(site: Site, name: str) -> None:
    site.write(SMALL)
    (site.root / "work" / name).write_text("x = 1\n")

    assert_refused(installed(site, "run", "flow.py"), 2, f"{name} has the name of a package of celeriac", "rename it")


def test_modules_beside_the_file_are_found_and_shadow_no_library(site: Site) -> None:
    site.write(SMALL.replace("\n\n", "\nfrom mine import double\n\n", 1).replace(".sink", ".map(double).sink"))
    for name in ("redis", "click", "celery", "msgspec"):
        (site.root / f"work/{name}.py").write_text("raise RuntimeError('imported')\n")
    (site.root / "work/mine.py").write_text("def double(n):\n    return 2 * n\n")

    done = installed(site, "run", "flow.py", "--workers", "1")

    assert done.returncode == 0, done.stderr
    assert sorted(read_rows(site.root / "work/out")) == list(range(0, 2000, 2))


COMMANDS = {
    "no such file": (("run", "flwo.py"), "there is no file flwo.py", "did you mean 'flow.py'?"),
    "a folder": (("run", "."), ". is a folder", "the path of the Python file"),
    "no such variable": (("run", "flow.py:flwo"), "flow.py has no 'flwo'", "did you mean 'flow'?"),
    "no workers": (("run", "flow.py", "--workers", "0"), "0 is not in the range", "celeriac run --help"),
    "many partitions": (("run", "flow.py", "--partitions", "1000"), "1000 is not in the range", "celeriac run --help"),
    "an option": (("run", "flow.py", "--partition", "3"), "Did you mean '--partitions'?", "celeriac run --help"),
    "a command": (("rnu",), "Did you mean 'run'?", "celeriac --help"),
    "a job id": (("run", "flow.py", "--job-id", "a/../b"), "'a/../b' is no job id", "celeriac run --help"),
    "no server": (("status", "job"), "Missing option '--redis'", "celeriac status --help"),
}


@pytest.mark.parametrize(("arguments", "error", "hint"), COMMANDS.values(), ids=COMMANDS.keys())
def test_a_wrong_command_is_told_with_what_is_right(
    site: Site, arguments: tuple[str, ...], error: str, hint: str
) -> None:
    site.write(SMALL)

    assert_refused(site.command(*arguments), 2, error, hint)

    site.assert_clean("flow.py")


def test_an_output_path_of_somebody_else_is_left_alone(site: Site) -> None:
    site.write(SMALL)
    out = site.root / "work/out"
    out.write_text("a file")

    assert_refused(site.command("run", "flow.py"), 2, "out is a file", "give the sink another path")
    assert out.read_text() == "a file"
    out.unlink()
    out.mkdir()
    (out / "mine.txt").write_text("precious")
    assert_refused(site.command("run", "flow.py"), 2, "is not empty and was not written by this program", "move that")
    assert [path.name for path in out.iterdir()] == ["mine.txt"]


@pytest.mark.parametrize("address", ["localhost", f"http://:{SECRET}@localhost", f"redis://:{SECRET}@localhost:x/0"])
def test_what_is_no_redis_address_is_refused_without_its_password(site: Site, address: str) -> None:
    site.write(SMALL)

    done = site.command("run", "flow.py", "--redis", address)

    assert_refused(done, 3, "not a Redis address", "use redis://host:6379/0")
    assert SECRET not in done.stderr


def test_a_redis_that_is_not_there_is_told(site: Site) -> None:
    site.write(SMALL)

    done = site.command("run", "flow.py", "--redis", f"unix://{site.root}/none.sock")

    assert_refused(done, 3, "Redis cannot be reached", "is the server up?")
    site.assert_clean("flow.py")


def test_a_redis_that_cannot_carry_a_job_is_refused_with_the_reason(site: Site, server: EmbeddedRedis) -> None:
    site.write(SMALL)
    at = ("run", "flow.py", "--redis", server.url)
    with client_of(server) as client:
        client.config_set("maxmemory-policy", "allkeys-lru")
        assert_refused(site.command(*at), 3, "this Redis evicts keys", "maxmemory-policy noeviction")
        client.config_set("maxmemory-policy", "noeviction")
        client.config_set("maxmemory", 1 << 20)
        assert_refused(site.command(*at), 3, "this Redis is full", "raise maxmemory")
        client.config_set("maxmemory", 0)
        client.replicaof("127.0.0.1", 1)
        assert_refused(site.command(*at), 3, "this Redis is a replica", "the address of the primary")

    site.assert_clean("flow.py")


def test_a_password_is_needed_and_appears_nowhere(site: Site, server: EmbeddedRedis) -> None:
    site.write(ENDLESS)
    with client_of(server) as client:
        client.config_set("requirepass", SECRET)
    wrong = site.command("run", "flow.py", "--redis", server.url.replace("unix://", "unix://:wrong@"))
    assert_refused(wrong, 3, "Redis refuses us: invalid username-password pair", "check user and password")
    assert_refused(
        site.command("run", "flow.py", "--redis", server.url),
        3,
        "Redis refuses us: Authentication required",
        "check user",
    )

    run = site.start("flow.py", "--workers", "1", CELERIAC_REDIS=server.url.replace("unix://", f"unix://:{SECRET}@"))
    run.wait_for_taken(1)
    words = [word for process in site.processes() for word in process.cmdline()]
    logs = [path for path in site.temporary.rglob("*.log") if SECRET in path.read_text()]
    run.process.terminate()
    run.finish(code=130)

    assert words
    assert not any(SECRET in word for word in words)
    assert logs == []
    assert SECRET not in run.said()
    with client_of(server, password=SECRET) as client:
        assert not any(SECRET.encode() in (client.dump(key) or b"") for key in client.scan_iter("*"))


def test_a_full_redis_makes_the_job_wait_until_it_has_room_again(site: Site, server: EmbeddedRedis) -> None:
    site.write(LARGE)
    with client_of(server) as client:
        client.config_set("maxmemory", 12 << 20)
        run = site.start("flow.py", "--workers", "1", "--redis", server.url)
        # Which of the two it is depends on how much the last step before the gate was closed has written.
        why = ("Redis is full: the job waits", "Redis is nearly full: no input is taken")
        wait_until(lambda: any(text in run.said() for text in why), "the run says why it waits")
        client.config_set("maxmemory", 0)
    run.finish()

    assert sum(1 for _ in read_rows(site.root / "work/out")) == 30_000


def test_after_a_kill_of_the_command_no_process_is_left_and_the_next_run_works(site: Site) -> None:
    site.write(ENDLESS)
    run = site.start("flow.py", "--workers", "2")
    run.wait_for_taken(1)
    assert len(site.processes()) >= 6

    run.process.kill()
    run.process.wait()
    wait_until(lambda: not site.processes(), "all processes have ended", 10.0)
    assert {path.name.partition("-")[0] for path in site.temporary.iterdir()} == {"celeriac", "clr"}
    assert [path.name for path in (site.root / "work").glob(".out.small-*.staging")]
    site.write(SMALL)
    done = site.command("run", "flow.py", "--workers", "1")

    assert done.returncode == 0, done.stderr
    assert sorted(read_rows(site.root / "work/out")) == list(range(1000))
    site.assert_clean("flow.py", "out")  # what the killed one has left is gone


def test_what_a_killed_run_has_staged_stays_as_long_as_its_job_may_go_on(site: Site) -> None:
    site.write(ENDLESS)
    run = site.start("flow.py", "--workers", "1", "--job-id", "j")
    run.wait_for_taken(1)
    run.process.kill()
    run.process.wait()
    wait_until(lambda: not site.processes(), "all processes have ended", 10.0)
    staged = {path.name: path.stat().st_size for path in (site.root / "work/.out.j.staging").iterdir()}
    site.write(SMALL.replace('"out"', '"other"'))

    done = site.command("run", "flow.py", "--workers", "1")

    assert done.returncode == 0, done.stderr
    site.assert_clean("flow.py", "other", ".celeriac", ".out.j.staging")
    assert {path.name: path.stat().st_size for path in (site.root / "work/.out.j.staging").iterdir()} == staged


def test_a_terminal_that_is_closed_cancels_and_leaves_nothing(site: Site) -> None:
    site.write(ENDLESS)
    run = site.start("flow.py", "--workers", "1")
    run.wait_for_taken(1)

    run.process.send_signal(signal.SIGHUP)
    run.finish(code=130, seconds=20)

    assert "cancelled job small-" in run.said()
    site.assert_clean("flow.py")


def test_two_runs_into_one_sink_leave_the_whole_result_of_one(site: Site) -> None:
    site.write(SMALL)

    runs = [site.start("flow.py", "--workers", "1") for _ in range(2)]
    for run in runs:
        run.finish()

    assert sorted(read_rows(site.root / "work/out")) == list(range(1000))
    site.assert_clean("flow.py", "out")


def test_a_cancel_is_repeated_without_harm_and_a_finished_job_is_not_cancelled(site: Site, redis_url: str) -> None:
    site.write(ENDLESS)
    at = ("--redis", redis_url)
    run = site.start("flow.py", "--workers", "1", "--job-id", "once", *at)
    run.wait_for_taken(1)

    first, second = site.command("cancel", "once", *at), site.command("cancel", "once", *at)
    run.finish(code=130)
    removed = site.command("remove", "once", *at)
    unknown = site.command("cancel", "once", *at)

    assert (first.returncode, first.stdout) == (0, "job once is cancelled\n")
    assert (second.returncode, second.stdout) == (0, "job once is cancelled already\n")
    assert "run it again with --job-id once to go on" in run.said()
    assert removed.returncode == 0
    assert_refused(unknown, 2, "there is no job 'once'", "celeriac list")


def test_a_job_that_is_removed_under_a_run_ends_it_with_that_word(site: Site, redis_url: str) -> None:
    site.write(ENDLESS)
    run = site.start("flow.py", "--workers", "1", "--job-id", "gone", "--redis", redis_url)
    run.wait_for_taken(1)

    site.command("remove", "gone", "--force", "--redis", redis_url)
    run.finish(code=1)

    assert run.said().splitlines()[-2].startswith("error: this Redis no longer knows job 'gone': it was removed")
    assert "Traceback" not in run.said()


def spawned(site: Site, columns: int, **variables: str) -> tuple[int, str]:
    """Runs the pipeline in a terminal of so many columns; its exit code, and all that the terminal was sent."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 40, columns, 0, 0))
    process = subprocess.Popen(
        [sys.executable, "-m", "pipeline.cli.main", "run", "flow.py", "--workers", "1"],
        cwd=site.root / "work",
        env=site.environment(TERM="xterm-256color", **variables),
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        start_new_session=True,
    )
    os.close(theirs)
    sent = b""
    with suppress(OSError):  # EIO: nobody has the terminal open any more
        while data := os.read(ours, 65_536):
            sent += data
    os.close(ours)
    return process.wait(30), sent.decode()


def test_the_progress_fits_a_terminal_and_stands_apart_from_the_records(site: Site) -> None:
    site.write(SHOWN.replace('name="numbers"', 'name="numbers_that_have_a_really_long_name_for_a_terminal"'))

    code, sent = spawned(site, 80, NO_COLOR="1")

    lines = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", sent).replace("\r", "\n").split("\n")
    table = [line for line in lines if "numbers_that" in line or line.startswith(" stage")]
    assert code == 0, sent
    assert table
    assert max(map(len, table)) <= 80
    assert not re.search(r"\x1b\[[0-9;]*3[0-7]m", sent), "colour in spite of NO_COLOR"
    assert [int(line) for line in lines if line.isdecimal()] == list(range(1000))
    site.assert_clean("flow.py")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_records_that_standard_output_does_not_take_fail_the_job(site: Site) -> None:
    site.write(SHOWN)

    with open("/dev/full", "wb") as full:
        done = subprocess.run(
            [sys.executable, "-m", "pipeline.cli.main", "run", "flow.py", "--workers", "1"],
            cwd=site.root / "work",
            env=site.environment(),
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            timeout=60,
        )

    assert done.returncode == 1, done.stderr
    assert "standard output cannot be written: No space left on device" in done.stderr
    assert "Traceback" not in done.stderr
    assert "Exception ignored" not in done.stderr
    site.assert_clean("flow.py")


@pytest.mark.parametrize("redirection", ["2>/dev/full", "2>&-", "<&- >&- 2>&-"])
def test_an_error_output_that_is_full_or_closed_costs_messages_and_no_job(site: Site, redirection: str) -> None:
    site.write(SMALL)

    done = subprocess.run(
        ["sh", "-c", f'exec "$@" {redirection}', "sh", *(sys.executable, "-m", "pipeline.cli.main", "run", "flow.py")],
        cwd=site.root / "work",
        env=site.environment(),
        timeout=60,
        check=False,
    )

    assert done.returncode == 0
    assert sum(len(path.read_text().splitlines()) for path in (site.root / "work" / "out").glob("part-*")) == 1000
    site.assert_clean("flow.py", "out")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may mount a small disk")
def test_a_full_disk_fails_the_job_with_its_path_and_leaves_nothing_there(site: Site) -> None:
    site.write(SMALL.replace("range(1000)", "['x' * 100_000] * 60"))
    disk = site.root / "work/disk"
    disk.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(disk)], capture_output=True)
    if mounted.returncode:
        pytest.skip("mounting is not allowed here")
    try:
        site.write((site.root / "work/flow.py").read_text().replace('"out"', '"disk/out"'))
        done = site.command("run", "flow.py", "--workers", "1")
        left = list(disk.iterdir())
    finally:
        subprocess.run(["umount", str(disk)], check=True)

    assert done.returncode == 1, done.stderr
    assert "No space left on device (free some space on that disk, or write to another one)" in done.stderr
    assert "Traceback" not in done.stderr
    assert left == []
