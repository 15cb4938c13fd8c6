"""Processes that are forked from one that has imported everything: as if each had been started by itself."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.e2e.chaos import title_of, wait_until

ROOT = Path(__file__).parents[2]

AGENT = """
import json, sys, threading
from pathlib import Path
from stages.agent import Agent
from stages.nursery import Forking, Nursery
from stages.supervision import PYTHON, ChildSpec

try:
    nursery = Nursery.open(["helpers"])
except SystemExit:
    print("a copy of the agent goes on")


class Store:
    def report_death(self, name, incarnation): ...
    def is_up(self): return True
    def heard_from(self, name): return None
    def run_id(self): return "one"


def spec(name, module):
    env = {"TOLD": "secret", "CELERIAC_JOB": "j"}
    return ChildSpec(name, (*PYTHON, module), env, "worker", module == "lives", Path("logs") / name)


agent = Agent([spec(*each.split("=")) for each in sys.argv[1:]], Store(), starter=Forking(nursery))
stop = threading.Event()


def listen():
    for line in sys.stdin:
        found = [(each.name, each.state.value, each.pid, each.exit_code) for each in agent.children()]
        print(json.dumps(found), flush=True)
    stop.set()


agent.start()
threading.Thread(target=listen, daemon=True).start()
agent.run(stop)
agent.stop(5.0)
nursery.close()
"""

HELPERS = "LOADED = object()\n"

TELLS = """
import json, os, signal, sys
import helpers


def main():
    facts = {
        "told": os.environ.get("TOLD"), "argv": sys.argv, "input": sys.stdin.read(), "session": os.getsid(0),
        "pid": os.getpid(), "term": signal.getsignal(signal.SIGTERM) == signal.SIG_DFL,
        "int": signal.getsignal(signal.SIGINT) == signal.default_int_handler,
        "open": sorted(int(each) for each in os.listdir("/proc/self/fd")),
    }
    print(json.dumps(facts))
    return 7 if "TOLD" in os.environ else 0
"""

LIVES = """
import signal

def main():
    signal.pause()
    return 0


if __name__ == "__main__":
    main()
"""


LEAVES = """
import sys

def main():
    print("leaving")
    sys.exit(5)
"""


class Bench:
    """An agent with a nursery, as a process of its own."""

    def __init__(self, folder: Path, *children: str) -> None:
        self.folder = folder
        self.process = subprocess.Popen(
            [sys.executable, "-c", AGENT, *children],
            cwd=folder,
            env={**os.environ, "PYTHONPATH": f"{ROOT}:{folder}"},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def children(self) -> dict[str, tuple[str, int, int | None]]:
        """Name -> state, pid, exit code."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write("\n")
        self.process.stdin.flush()
        return {name: (state, pid, code) for name, state, pid, code in json.loads(self.process.stdout.readline())}

    def said(self, name: str) -> dict[str, Any]:
        """The first line of its log, once it is there."""
        log = self.folder / "logs" / name
        wait_until(lambda: log.is_file() and "\n" in log.read_text(), f"{name} has said something")
        found: dict[str, Any] = json.loads(log.read_text().splitlines()[0])
        return found

    def nursery(self) -> psutil.Process:
        found: list[psutil.Process] = []

        def is_there() -> bool:
            children = psutil.Process(self.process.pid).children()
            found[:] = [each for each in children if title_of(each) == "celeriac: nursery"]
            return bool(found)

        wait_until(is_there, "the nursery is there")
        return found[0]

    def end(self) -> int:
        self.process.communicate(timeout=30)
        return self.process.returncode


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., Bench]]:
    for name, text in (("helpers", HELPERS), ("tells", TELLS), ("lives", LIVES), ("leaves", LEAVES)):
        (tmp_path / f"{name}.py").write_text(textwrap.dedent(text))
    made: list[Bench] = []

    def make(*children: str) -> Bench:
        made.append(Bench(tmp_path, *children))
        return made[-1]

    yield make
    for bench in made:
        if bench.process.poll() is None:
            bench.process.kill()
        bench.process.communicate()


def test_a_forked_process_begins_as_one_that_was_executed(start: Callable[..., Bench]) -> None:
    bench = start("a=tells")

    facts = bench.said("a")

    assert facts["told"] == "secret"
    assert facts["argv"] == ["tells"]
    assert facts["input"] == ""
    assert facts["session"] == facts["pid"]
    assert facts["term"]
    assert facts["int"]
    assert facts["open"][:3] == [0, 1, 2]
    assert len(facts["open"]) == 4  # and the folder that it lists
    assert bench.end() == 0


def test_an_exit_code_reaches_the_agent_which_starts_the_process_again(start: Callable[..., Bench]) -> None:
    bench = start("a=tells")

    wait_until(lambda: bench.children()["a"][2] == 7, "its exit code is known")
    wait_until(lambda: len((bench.folder / "logs/a").read_text().splitlines()) > 1, "it was started again")

    assert bench.end() == 0


def test_a_process_that_leaves_by_an_exception_is_no_copy_of_the_agent_then(start: Callable[..., Bench]) -> None:
    bench = start("a=leaves")

    wait_until(lambda: bench.children()["a"][2] == 5, "its exit code is known")

    assert bench.end() == 0
    assert set((bench.folder / "logs/a").read_text().splitlines()) == {"leaving"}


def test_a_killed_process_is_replaced_under_a_title_that_names_it(start: Callable[..., Bench]) -> None:
    bench = start("a=lives", "b=lives")
    before = bench.children()
    wait_until(lambda: title_of(psutil.Process(before["a"][1])) == "celeriac: worker a of j", "it has its title")

    os.kill(before["a"][1], signal.SIGKILL)
    wait_until(lambda: bench.children()["a"][:2] not in {before["a"][:2], ("waiting", 0)}, "another one is there")

    assert bench.children()["a"][2] == -signal.SIGKILL
    assert bench.children()["b"] == before["b"]
    assert bench.end() == 0


def test_nothing_outlives_a_killed_agent(start: Callable[..., Bench]) -> None:
    bench = start("a=lives")
    living = [bench.nursery(), psutil.Process(bench.children()["a"][1])]

    bench.process.kill()

    assert psutil.wait_procs(living, 10)[1] == []


def test_without_its_nursery_an_agent_goes_on(start: Callable[..., Bench]) -> None:
    bench = start("a=lives", "b=lives")
    before = bench.children()

    bench.nursery().kill()
    for name in ("a", "b"):
        wait_until(lambda name=name: bench.children()[name][1] not in (0, before[name][1]), "it was started again")

    words = psutil.Process(bench.children()["a"][1]).cmdline()
    assert words[-1] == "lives"
    assert bench.children()["a"][2] == -signal.SIGKILL
    assert bench.end() == 0


LATE = """
import os, signal, sys, threading
from stages import nursery as module

module.ANSWER_SECONDS = 0.5
nursery = module.Nursery.open(["helpers"])
log = os.open("log", os.O_CREAT | os.O_WRONLY)
pid = nursery.start("tells", "t", {}, log)
os.kill(nursery._pid, signal.SIGSTOP)
print("no answer:", module.Forked(pid, nursery).wait())
try:
    print("started:", nursery.start("tells", "t", {}, log))
except module.NurseryGone:
    print("gone")
nursery.close()
"""


def test_a_late_answer_is_never_taken_for_another_one(start: Callable[..., Bench], tmp_path: Path) -> None:
    start("a=tells").end()  # the modules are there

    done = subprocess.run(
        [sys.executable, "-c", LATE],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": f"{ROOT}:{tmp_path}"},
        capture_output=True,
        text=True,
        timeout=60,
    )

    assert done.stdout.splitlines() == ["no answer: -9", "gone"], done.stderr
