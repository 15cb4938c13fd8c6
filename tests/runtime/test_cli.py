"""The command line: what is wrong is said in one message, with the right exit code, and nothing secret in it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import pytest

from pipeline.cli.exits import Exit, JobFailed
from pipeline.cli.interrupts import Interrupts
from pipeline.cli.main import run_command
from pipeline.cli.nodes import NodeSettings
from pipeline.cli.openings import new_job_id
from pipeline.cli.services import Server, Workspace, troubled_logs
from pipeline.errors import DecodingError, JobTaken, PipelineError
from pipeline.sources.main import FeederSettings
from pipeline.store.jobs import JOB_ID
from stages.node import child_specs, hopeless, last_words
from stages.supervision import ChildState, ChildStatus
from tests.e2e.chaos import wait_until

NOBODY = "redis://:secret@127.0.0.1:1/0"

FLOW = """
from pipeline import Pipeline, read, write

flow = Pipeline("flow")
flow.source(read.text("{source}")).sink(write.text("{sink}"))
"""


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("CELERIAC_REDIS", raising=False)
    return tmp_path


def write_flow(source: str = "in.txt", sink: str = "out") -> None:
    Path("flow.py").write_text(FLOW.format(source=source, sink=sink))


def errors_of(capsys: pytest.CaptureFixture[str]) -> str:
    return capsys.readouterr().err


def a_settings() -> NodeSettings:
    return NodeSettings(NOBODY, "job", "flow.py", 2, ("lines", "more lines"), "", "/logs", "/tmp/x")


def a_child(role: str, deaths: int, *, quick: int = 0, state: ChildState = ChildState.WAITING) -> ChildStatus:
    return ChildStatus("it", role, state, 0, "1-a", deaths, 1, quick, 0.0)


@pytest.mark.parametrize("command", [[], ["--help"], ["run", "--help"], ["-h"]])
def test_help_has_the_exit_codes(command: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command(command) == 0

    text = capsys.readouterr().out
    for code in Exit:
        assert f"  {code.value:<5}" in text


def test_the_version_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command(["--version"]) == 0

    assert capsys.readouterr().out.startswith("celeriac")


def test_an_unknown_option_is_met_with_a_suggestion(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command(["run", "flow.py", "--worker", "2"]) == Exit.USAGE

    errors = errors_of(capsys)
    assert errors.startswith("error: No such option")
    assert "--workers" in errors
    assert "hint: see `celeriac run --help`" in errors


@pytest.mark.parametrize(
    "arguments",
    [["walk"], ["run"], ["run", "x.py", "--workers", "0"], ["run", "x.py", "--reader", "psychic"], ["status", "x"]],
)
def test_wrong_usage_is_one_message(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command(arguments) == Exit.USAGE

    assert errors_of(capsys).startswith("error: ")


@pytest.mark.parametrize("command", [[], ["savepoint"], ["dead-letters"]])
def test_help_cuts_no_sentence_of_a_command_in_80_columns(
    command: list[str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")

    assert run_command([*command, "--help"]) == 0

    said = capsys.readouterr().out
    assert "..." not in said.partition("Commands:")[2]
    assert max(map(len, said.partition("Exit codes:")[0].splitlines())) < 80


def test_an_option_without_its_argument_leads_to_the_help_of_its_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command(["savepoint", "create", "j", "--to"]) == Exit.USAGE

    errors = errors_of(capsys)
    assert "hint: see `celeriac savepoint create --help`" in errors


@pytest.mark.parametrize("job", ["../up", "a b", "", "x" * 101])
def test_a_job_id_that_could_leave_its_folder_is_refused(job: str, capsys: pytest.CaptureFixture[str]) -> None:
    write_flow()

    assert run_command(["run", "flow.py", "--job-id", job]) == Exit.USAGE

    assert "is no job id" in errors_of(capsys)


def test_a_missing_file_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command(["run", "nowhere.py"]) == Exit.USAGE

    assert errors_of(capsys).startswith("error: there is no file nowhere.py\nhint: ")


def test_a_syntax_error_has_its_file_and_line_and_no_traceback(capsys: pytest.CaptureFixture[str]) -> None:
    Path("flow.py").write_text("x = 1\ndef broken(:\n")

    assert run_command(["run", "flow.py"]) == Exit.USAGE

    errors = errors_of(capsys)
    assert errors.startswith("error: flow.py:2: ")
    assert "Traceback" not in errors


def test_debug_shows_the_traceback(capsys: pytest.CaptureFixture[str]) -> None:
    Path("flow.py").write_text("1 / 0\n")

    assert run_command(["run", "flow.py", "--debug"]) == Exit.USAGE

    errors = errors_of(capsys)
    assert "Traceback" in errors
    assert "error: flow.py:1: ZeroDivisionError" in errors


def test_a_sink_that_would_replace_something_else_is_refused_before_anything_starts(
    capsys: pytest.CaptureFixture[str],
) -> None:
    Path("out").mkdir()
    Path("out/thesis.txt").write_text("years of work")
    write_flow()

    assert run_command(["run", "flow.py"]) == Exit.USAGE

    assert "is not replaced" in errors_of(capsys)
    assert Path("out/thesis.txt").read_text() == "years of work"


def test_missing_input_is_named_and_leaves_nothing(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_flow(source="absent.txt")

    assert run_command(["run", "flow.py", "--job-id", "named"]) == Exit.ENVIRONMENT

    assert "absent.txt" in errors_of(capsys)
    assert [path.name for path in folder.iterdir()] == ["flow.py"]


@pytest.mark.parametrize("command", [["run", "flow.py"], ["status", "x"], ["list"], ["cancel", "x"], ["remove", "x"]])
def test_a_redis_that_is_not_there_is_told_soon_and_without_its_password(
    command: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    write_flow()
    started = time.monotonic()

    assert run_command([*command, "--redis", NOBODY]) == Exit.ENVIRONMENT

    assert time.monotonic() - started < 5
    output = capsys.readouterr()
    assert "error: Redis cannot be reached" in output.err
    assert "secret" not in output.out + output.err


def test_an_address_that_cannot_be_understood_is_shown_without_its_password(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert run_command(["list", "--redis", "http://me:secret@host"]) == Exit.ENVIRONMENT

    errors = errors_of(capsys)
    assert "http://me:***@host" in errors
    assert "secret" not in errors


def test_the_address_from_the_environment_is_used_and_not_shown_in_help(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("CELERIAC_REDIS", NOBODY)

    assert run_command(["list"]) == Exit.ENVIRONMENT
    assert run_command(["list", "--help"]) == 0

    output = capsys.readouterr()
    assert "CELERIAC_REDIS" in output.out
    assert "secret" not in output.out + output.err


def test_an_unknown_job_is_a_usage_error(redis_url: str, capsys: pytest.CaptureFixture[str]) -> None:
    for command in ("status", "cancel", "remove"):
        assert run_command([command, "nobody", "--redis", redis_url]) == Exit.USAGE
        assert "error: there is no job 'nobody'" in errors_of(capsys)
    assert run_command(["list", "--redis", redis_url]) == 0


def test_output_that_nobody_reads_is_no_complaint() -> None:
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    process = subprocess.Popen(
        [sys.executable, "-m", "pipeline.cli.main", "--help"],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert process.stdout is not None
    assert process.stderr is not None
    with process, process.stderr:
        process.stdout.close()
        errors = process.stderr.read()

    assert process.returncode == Exit.CLOSED_OUTPUT
    assert errors == b""


@pytest.mark.parametrize("is_buffered", [True, False])
def test_output_that_a_full_disk_does_not_take_is_one_message(is_buffered: bool) -> None:
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    environment["PYTHONUNBUFFERED"] = "" if is_buffered else "1"
    with open("/dev/full", "wb") as full:
        done = subprocess.run(
            [sys.executable, "-m", "pipeline.cli.main", "--help"],
            env=environment,
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
        )

    assert done.returncode == Exit.USAGE
    assert done.stderr.splitlines() == [
        "error: standard output cannot be written: No space left on device",
        "hint: free some space, or write it to another place",
    ]


def test_a_signal_is_counted_and_raised_only_where_that_is_allowed() -> None:
    with Interrupts() as interrupts:
        os.kill(os.getpid(), signal.SIGINT)
        assert interrupts.count == 1
        with pytest.raises(KeyboardInterrupt), interrupts.immediate():
            pytest.fail("an interrupt from before is raised at the start")
        with interrupts.immediate(above=1), interrupts.deferred():
            os.kill(os.getpid(), signal.SIGTERM)
        assert interrupts.count == 3
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_a_signal_is_raised_at_once_in_an_immediate_part() -> None:
    with Interrupts() as interrupts:
        with pytest.raises(KeyboardInterrupt), interrupts.immediate():
            os.kill(os.getpid(), signal.SIGHUP)
        assert interrupts.count == 2


def test_a_signal_that_does_not_break_off_what_the_main_thread_waits_for_is_raised_all_the_same() -> None:
    """It comes to another thread, as it may come just before the main thread begins to wait: Python hears neither."""
    is_waiting = threading.Lock()
    is_waiting.acquire()

    def interrupt() -> None:
        wait_until(lambda: "futex" in Path(f"/proc/self/task/{os.getpid()}/wchan").read_text(), "the main thread waits")
        signal.pthread_kill(threading.get_ident(), signal.SIGTERM)

    def wait() -> None:
        thread.start()
        is_waiting.acquire(timeout=60)

    with Interrupts() as interrupts:
        thread = threading.Thread(target=interrupt)
        with pytest.raises(KeyboardInterrupt), interrupts.immediate():
            wait()
        assert interrupts.count == 2
        thread.join()


def test_a_wait_of_pythons_own_that_fails_as_it_is_broken_off_is_interrupted_all_the_same() -> None:
    def wait() -> None:
        lock = threading.Lock()
        try:
            os.kill(os.getpid(), signal.SIGINT)
        finally:
            lock.release()  # as in Condition.wait, behind a release that a signal came with

    with Interrupts() as interrupts:
        with pytest.raises(KeyboardInterrupt), interrupts.immediate():
            wait()
        with pytest.raises(RuntimeError, match="unlocked"), interrupts.immediate(above=1):
            threading.Lock().release()


def test_there_is_a_waking_thread_only_while_signals_are_raised() -> None:
    def threads() -> list[str]:
        return [each.name for each in threading.enumerate() if each.name == "waker"]

    before = signal.getsignal(signal.SIGUSR1)
    with Interrupts() as interrupts:
        assert threads() == []
        with interrupts.immediate():
            assert threads() == ["waker"]
            with interrupts.deferred():
                assert threads() == []
            with interrupts.immediate(above=1):
                assert threads() == ["waker"]
    assert threads() == []
    assert (signal.getsignal(signal.SIGUSR1), signal.set_wakeup_fd(-1)) == (before, -1)


def test_linux_has_no_waking_thread_any_more_once_signals_are_not_raised() -> None:
    """Else the node of some runs would not be forked."""

    def threads() -> list[str]:
        return [each.name for each in Path("/proc/self/task").iterdir()]

    with Interrupts() as interrupts:
        before = threads()
        for _ in range(500):
            with interrupts.immediate():
                pass
            assert threads() == before


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # from Python 3.12 on: there are threads
def test_a_process_that_was_forked_meanwhile_keeps_no_waker_from_its_end() -> None:
    with Interrupts() as interrupts:
        with interrupts.immediate():
            pid = os.fork()
            if pid == 0:
                signal.pause()
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)


def test_a_signal_that_comes_in_a_finalizer_is_raised_after_it(capsys: pytest.CaptureFixture[str]) -> None:
    class Closing:
        def __del__(self) -> None:
            os.kill(os.getpid(), signal.SIGINT)

    def close_and_wait() -> None:
        Closing()
        threading.Event().wait(30)

    with Interrupts() as interrupts:
        with pytest.raises(KeyboardInterrupt), interrupts.immediate():
            close_and_wait()
        assert interrupts.count == 1
    assert capsys.readouterr().err == ""


def test_what_else_fails_in_a_finalizer_is_reported_as_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    reported: list[object] = []
    monkeypatch.setattr("sys.unraisablehook", reported.append)

    class Failing:
        def __del__(self) -> None:
            raise ValueError

    with Interrupts():
        Failing()
    assert len(reported) == 1


def test_a_failed_job_keeps_its_hint() -> None:
    assert JobFailed("no", hint="yes").hint == "yes"


def test_a_new_job_id_is_valid_whatever_the_name_of_the_pipeline() -> None:
    now = time.struct_time((2026, 11, 28, 2, 45, 0, 5, 332, 0))

    assert new_job_id("word count", now).startswith("word-count-20261128-024500-")
    for name in ("é" * 300, "..", "_x"):
        assert JOB_ID.match(new_job_id(name, now))


def test_a_workspace_goes_with_the_run_unless_it_is_kept(folder: Path) -> None:
    kept, other = Workspace.of_job("kept"), Workspace.of_job("other")
    (kept.scratch / "junk").write_text("x")
    kept.is_kept = True
    refused = Workspace.of_job("kept")  # another run of the same job, which finds that it is being run
    assert refused.scratch != kept.scratch
    refused.close()
    assert (kept.scratch / "junk").exists()

    kept.close()
    other.close()

    assert [path.name for path in (folder / ".celeriac").iterdir()] == ["kept"]
    assert list((folder / ".celeriac/kept").iterdir()) == []

    again = Workspace.of_job("kept")
    assert again.is_kept
    again.is_kept = False
    again.close()
    assert not (folder / ".celeriac").exists()


def test_of_two_first_runs_of_a_job_the_refused_one_leaves_the_folder_to_the_other(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("pipeline.embedded.redis._LOCK_SECONDS", 0.05)
    refused, other = Workspace.of_job("j"), Workspace.of_job("j")
    (refused.path / "tmp-of-one-that-was-killed").mkdir()
    scratch = other.scratch
    server = Server.start(other, "j")
    try:
        with pytest.raises(JobTaken, match="the job j is being run in this folder by another process"):
            Server.start(refused, "j")
        refused.close()

        assert server.embedded is not None
        assert server.embedded.is_alive()
        assert {path.name for path in other.path.iterdir()} == {"redis", scratch.name}
    finally:
        server.close()


def has_open(path: Path) -> bool:
    """Whether a thread of this process has opened the file."""
    for link in Path("/proc/self/fd").iterdir():
        with suppress(OSError):  # some are closed by now, as that of this listing
            if link.readlink() == path:
                return True
    return False


def test_a_run_that_begins_while_the_first_one_of_its_job_ends_has_a_folder_of_its_own(folder: Path) -> None:
    ending = Workspace.of_job("j")
    ended = Server.start(ending, "j")
    (ending.scratch / "junk").touch()
    (ending.logs / "node.log").touch()
    waiting = Workspace.of_job("j")
    with ThreadPoolExecutor(1) as pool:
        started = pool.submit(Server.start, waiting, "j")
        wait_until(lambda: has_open(ending.path / "redis/redis.lock"), "the next one waits for the lock")
        ending.set_aside()
        ended.close()
        ending.close()
        server = started.result(30)
        try:
            assert server.embedded is not None
            assert server.embedded.is_alive()
            assert [path.name for path in waiting.path.iterdir()] == ["redis"]
            assert [path.name for path in (folder / ".celeriac").iterdir()] == ["j"]
        finally:
            server.close()


def test_only_logs_that_tell_of_trouble_are_shown(folder: Path) -> None:
    (folder / "w0.log").write_text("fine\n")
    (folder / "w1.log").write_text("fine\n" * 50 + "Traceback (most recent call last):\nBad\n")

    assert troubled_logs(folder, lines=2) == [("w1.log", "Traceback (most recent call last):\nBad")]


def test_node_settings_travel_whole_and_never_show_the_address() -> None:
    settings = a_settings()

    assert NodeSettings.decode(settings.encode()) == settings
    assert "secret" not in repr(settings)
    with pytest.raises(DecodingError, match="settings of the node"):
        NodeSettings.decode(b'{"redis": 1}')


def test_a_node_keeps_a_leader_the_workers_and_a_feeder_for_each_source() -> None:
    specs = child_specs(a_settings())

    assert [spec.name for spec in specs] == ["leader", "w0", "w1", "source lines", "source more lines"]
    assert [spec.restart for spec in specs] == [True, True, True, False, False]
    assert specs[4].env["CELERIAC_SOURCE"] == "more lines"
    assert len({spec.log for spec in specs}) == 5
    assert all("secret" not in " ".join(spec.argv) for spec in specs)


@pytest.mark.parametrize(
    ("child", "is_heard", "is_hopeless"),
    [
        (a_child("source", 5), False, False),
        (a_child("source", 6), False, True),
        (a_child("source", 6, state=ChildState.DONE), False, False),
        (a_child("leader", 80, quick=7), False, False),
        (a_child("leader", 8, quick=8), False, True),
        (a_child("leader", 49, quick=49), True, False),
        (a_child("leader", 50, quick=50), True, True),
        (a_child("leader", 80), False, False),
        (a_child("worker", 5, quick=5), False, True),
        (a_child("worker", 50, quick=50), True, False),
        (a_child("worker", 50), False, False),
    ],
)
def test_a_child_is_given_up_only_when_it_can_never_work(child: ChildStatus, is_heard: bool, is_hopeless: bool) -> None:
    assert bool(hopeless(child, is_heard)) is is_hopeless


@pytest.mark.parametrize(("quick", "is_hopeless"), [(4, False), (5, True)])
def test_an_endless_feeder_is_given_up_only_when_it_dies_at_its_start(quick: int, is_hopeless: bool) -> None:
    assert bool(hopeless(a_child("source", 50, quick=quick), False, is_endless=True)) is is_hopeless


def test_the_last_words_of_a_log_are_its_last_line_that_says_something(folder: Path) -> None:
    (folder / "log").write_text("first\nRuntimeError: dry\n\n")

    assert last_words(folder / "log") == "RuntimeError: dry"
    assert last_words(folder / "absent") == "nothing"


def test_a_feeder_without_its_environment_says_what_is_missing() -> None:
    with pytest.raises(PipelineError, match="CELERIAC_JOB and CELERIAC_SOURCE"):
        FeederSettings.from_environment({"CELERIAC_REDIS": NOBODY, "CELERIAC_PIPELINE": "flow.py"})
