"""Programs that are forked from a process of ours: as if each had been executed, and gone when that is gone."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from pipeline.embedded.forks import can_fork
from tests.e2e.chaos import title_of, wait_until

ROOT = Path(__file__).parents[2]

FACTS = """
import json, os, signal, sys, tempfile

def facts(argv):
    return {
        "told": {k: v for k, v in os.environ.items() if k != "LC_CTYPE"}, "argv": argv, "input": sys.stdin.read(),
        "session": os.getsid(0) == os.getpid(), "temporary": tempfile.gettempdir(),
        "signals": [str(signal.getsignal(n)) for n in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1)],
        "open": sorted(int(each) for each in os.listdir("/proc/self/fd"))[:-1], "cwd": os.getcwd() in sys.path,
        "errors": sys.stderr.errors, "hook": sys.unraisablehook is sys.__unraisablehook__,
    }

def main():
    print(json.dumps(facts(sys.argv)), flush=True)
    print("a line", file=sys.stderr)
    return 7

if __name__ == "__main__":
    facts.__globals__["sys"].argv = ["tells"]
    sys.exit(main())
"""

BROKEN = "import sys\n\ndef main():\n    sys.stdin.read()\n    raise OSError('broken on purpose')\n"

LEAVES = "import sys\n\ndef main():\n    sys.stdin.read()\n    sys.exit({})\n"

LIVES = "import time\n\ndef main():\n    print('here', flush=True)\n    time.sleep(600)\n    return 0\n"

FORKS = """
import os, signal, sys, tempfile
from pipeline.embedded.forks import allow_forks, can_fork, fork_program

sys.path[0] = os.getcwd()
allow_forks()
assert can_fork()
module, log, *holds = sys.argv[1:]
held = [os.open(each, os.O_CREAT | os.O_RDONLY) for each in holds]
tempfile.gettempdir()
for number in (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1):
    signal.signal(number, lambda *_: None)
signal.signal(signal.SIGHUP, signal.SIG_IGN)
signal.signal(signal.SIGCHLD, signal.SIG_IGN)
sys.unraisablehook = print
secret = os.open(log + ".parent", os.O_CREAT | os.O_RDWR)
paths = f"{os.environ['PYTHONPATH']}:{os.getcwd()}/modules"
environment = {"PATH": os.environ["PATH"], "TMPDIR": os.getcwd(), "PYTHONPATH": paths}
with open(log, "ab") as file:
    child = fork_program(module, "celeriac: " + module, environment, file.fileno(), held)
with child.stdin as pipe:
    pipe.write(b"what it is told")
print(child.pid, flush=True)
print(child.wait(), child.poll(), child.returncode)
"""


Forks = Callable[..., subprocess.Popen[str]]


@pytest.fixture
def forks(tmp_path: Path) -> Iterator[Forks]:
    """Starts a process of ours that forks that module; its output is a pid, and what the child's end was.

    holds: names of files that the child is to have open.
    """
    modules = tmp_path / "modules"
    modules.mkdir()
    for name, text in (("tells", FACTS), ("broken", BROKEN), ("lives", LIVES)):
        (modules / f"{name}.py").write_text(text)
    made = []

    def start(module: str, *holds: str) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [sys.executable, "-c", FORKS, module, str(tmp_path / "log"), *holds],
            cwd=tmp_path,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            stdout=subprocess.PIPE,
            text=True,
        )
        made.append(process)
        return process

    yield start
    for process in made:
        with process:
            process.kill()


def test_a_forked_program_begins_as_one_that_was_executed(forks: Forks, tmp_path: Path) -> None:
    ours = forks("tells")
    ended = ours.communicate(timeout=30)[0].splitlines()[1]
    forked, line = (tmp_path / "log").read_text().splitlines()

    executed = subprocess.run(
        [sys.executable, "-P", "-m", "tells"],
        cwd=tmp_path,
        env={"PATH": os.environ["PATH"], "TMPDIR": str(tmp_path), "PYTHONPATH": f"{ROOT}:{tmp_path / 'modules'}"},
        input="what it is told",
        capture_output=True,
        text=True,
        start_new_session=True,
        timeout=30,
    )

    assert json.loads(forked) == json.loads(executed.stdout)
    assert line == "a line"
    assert ended == "7 7 7"


def test_a_forked_program_keeps_what_it_is_to_hold_and_nothing_else(forks: Forks, tmp_path: Path) -> None:
    forks("tells", "one", "two").communicate(timeout=30)

    facts = json.loads((tmp_path / "log").read_text().splitlines()[0])

    assert len(facts["open"]) == 5


def test_an_error_of_a_forked_program_is_in_its_log_and_ends_only_that(forks: Forks, tmp_path: Path) -> None:
    ended = forks("broken").communicate(timeout=30)[0].splitlines()

    assert ended[1:] == ["1 1 1"]
    assert (tmp_path / "log").read_text().splitlines()[-1] == "OSError: broken on purpose"


@pytest.mark.parametrize(("what", "code", "said"), [("None", 0, ""), ("3", 3, ""), ("'words'", 1, "words\n")])
def test_a_forked_program_that_leaves_by_an_exception_ends_as_one_that_was_executed(
    forks: Forks, tmp_path: Path, what: str, code: int, said: str
) -> None:
    (tmp_path / "modules/leaves.py").write_text(LEAVES.format(what))

    ended = forks("leaves").communicate(timeout=30)[0].splitlines()

    assert ended[1:] == [f"{code} {code} {code}"]
    assert (tmp_path / "log").read_text() == said


def test_a_forked_program_ends_when_its_parent_is_killed(forks: Forks, tmp_path: Path) -> None:
    ours = forks("lives")
    assert ours.stdout is not None
    child = psutil.Process(int(ours.stdout.readline()))
    wait_until(lambda: (tmp_path / "log").read_text() == "here\n", "it has begun")
    assert title_of(child) == "celeriac: lives"

    ours.kill()

    assert psutil.wait_procs([child], 10)[1] == []


def test_who_kills_it_hears_of_the_signal(forks: Forks) -> None:
    ours = forks("lives")
    assert ours.stdout is not None
    os.kill(int(ours.stdout.readline()), signal.SIGKILL)

    assert ours.communicate(timeout=30)[0] == "-9 -9 -9\n"


def test_a_process_that_is_not_ours_is_not_forked() -> None:
    assert not can_fork()


@pytest.mark.parametrize("arguments", [[], ["--job-id", "kept"]], ids=["temporary", "kept"])
def test_the_node_of_a_run_that_cannot_begin_is_gone_with_it(tmp_path: Path, arguments: list[str]) -> None:
    """It was forked before the file was read."""
    (tmp_path / "flow.py").write_text("import time\nopen('here', 'w').close()\ntime.sleep(600)\n")
    run = subprocess.Popen(
        [sys.executable, "-m", "celeriac", "run", "flow.py", *arguments],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    with run:
        try:
            wait_until((tmp_path / "here").exists, "the file is being read")
            children = psutil.Process(run.pid).children(recursive=True)
            assert bool(children) == (not arguments), "in the folder of a job another run may be at work"

            run.send_signal(signal.SIGINT)

            assert run.wait(30) == 130
        finally:
            run.kill()
    assert psutil.wait_procs(children, 10)[1] == []
    assert sorted(path.name for path in tmp_path.iterdir()) == ["flow.py", "here"]
