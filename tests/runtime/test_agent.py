"""The node agent: its decisions without processes, its behaviour with real ones."""

from __future__ import annotations

import logging
import os
import signal
import socket
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from pipeline.errors import EnvironmentFault, ForeignData, PipelineError, StoreError, StoreUnavailable
from stages.agent import Agent
from stages.supervision import (
    REPLACED,
    AgentCounts,
    ChildSpec,
    ChildState,
    ChildStatus,
    Done,
    Restart,
    StoreWatch,
    decide_restart,
    is_cut_off,
    is_silent,
)

SLEEPS = "import time; print('up', flush=True); time.sleep(600)"
IGNORES_SIGTERM = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); " + SLEEPS
WITH_A_CHILD = """
import subprocess
child = subprocess.Popen(["sleep", "600"])
print("grandchild", child.pid, flush=True)
child.wait()
"""


def wait_until(predicate: Callable[[], bool], seconds: float = 10.0) -> None:
    deadline = time.monotonic() + seconds
    while not predicate():
        assert time.monotonic() < deadline, "the condition did not come true in time"
        threading.Event().wait(0.005)


def is_running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except (FileNotFoundError, ProcessLookupError):
        return False


@dataclass
class FakeStore:
    """What the agent sees of the store, set by hand."""

    up: bool = True
    accepts_reports: bool = True
    heard: dict[str, float] = field(default_factory=dict)
    reported: list[tuple[str, str]] = field(default_factory=list)
    fault: StoreError | None = None
    run: str = "one"
    report_fault: StoreError | None = None

    def run_id(self) -> str:
        if self.fault is not None:
            raise self.fault
        return self.run

    def report_death(self, name: str, incarnation: str) -> None:
        if self.report_fault is not None:
            raise self.report_fault
        if not (self.up and self.accepts_reports):
            raise StoreUnavailable("no answer")
        self.reported.append((name, incarnation))

    def is_up(self) -> bool:
        return self.up

    def heard_from(self, name: str) -> float | None:
        if self.fault is not None:
            raise self.fault
        return self.heard.get(name)


@dataclass
class Bench:
    """An agent under a clock that is set by hand: processes are real, time is not."""

    folder: Path
    store: FakeStore = field(default_factory=FakeStore)
    now: float = 1000.0

    def __post_init__(self) -> None:
        self.agent = Agent([], self.store, clock=lambda: self.now)

    def log(self, name: str) -> Path:
        return self.folder / "logs" / f"{name}.log"

    def add(self, name: str, code: str, role: str = "worker", restart: bool = True, *, yields: bool = False) -> None:
        argv = (sys.executable, "-S", "-c", code)
        self.agent.add(ChildSpec(name, argv, {"GREETING": "hello"}, role, restart, self.log(name), yields=yields))

    def round(self, after_seconds: float = 0.0) -> AgentCounts:
        self.now += after_seconds
        return self.agent.run_once(self.now)

    def child(self, name: str) -> ChildStatus:
        return next(child for child in self.agent.children() if child.name == name)

    def rounds_until(self, predicate: Callable[[], bool]) -> AgentCounts:
        """Rounds at a standing clock."""
        total = AgentCounts()

        def holds() -> bool:
            nonlocal total
            total += self.round()
            return predicate()

        wait_until(holds)
        return total

    def says(self, name: str, words: str) -> None:
        wait_until(lambda: self.log(name).is_file() and words in self.log(name).read_text())


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    bench = Bench(tmp_path)
    yield bench
    bench.agent.stop(0.0)


def test_a_child_that_may_end_and_ends_well_is_done() -> None:
    assert decide_restart(False, 0, 1.0, 0) == Done()


@pytest.mark.parametrize(("restart", "exit_code"), [(True, 0), (True, 1), (True, -9), (False, 1), (False, -9)])
def test_every_other_end_leads_to_a_restart(restart: bool, exit_code: int) -> None:
    assert isinstance(decide_restart(restart, exit_code, 1.0, 0), Restart)


def test_a_child_that_lived_well_is_replaced_at_once() -> None:
    assert decide_restart(True, -9, 10.1, 4) == Restart(0.0, 0, False)


def test_the_delay_grows_to_five_seconds_and_a_crash_loop_is_told_once() -> None:
    decisions = []
    quick_deaths = 0
    for _ in range(2000):
        decision = decide_restart(True, 1, 0.5, quick_deaths)
        assert isinstance(decision, Restart)
        decisions.append(decision)
        quick_deaths = decision.quick_deaths

    assert [round(decision.delay_seconds, 1) for decision in decisions[:8]] == [
        *(0.1, 0.2, 0.4, 0.8, 1.6, 3.2),
        *(5.0, 5.0),
    ]
    assert decisions[-1].delay_seconds == 5.0
    assert [index for index, decision in enumerate(decisions, 1) if decision.is_new_crash_loop] == [5]


def test_deaths_without_a_store_are_no_crash_loop_and_none_is_started_until_it_is_back(bench: Bench) -> None:
    bench.add("w0", "import sys; sys.exit(1)")

    def die(times: int) -> None:
        for deaths in range(bench.child("w0").deaths + 1, bench.child("w0").deaths + times + 1):
            bench.round(5.0)
            bench.rounds_until(lambda deaths=deaths: bench.child("w0").deaths == deaths)  # type: ignore[misc]

    bench.agent.start()
    die(3)
    bench.store.up = False
    die(1)  # started before the outage was noticed
    assert [bench.round(60.0) for _ in range(5)] == [AgentCounts()] * 5
    assert not bench.child("w0").is_crash_looping

    bench.store.up = True
    bench.round()
    die(1)
    assert not bench.child("w0").is_crash_looping
    die(1)
    assert bench.child("w0").is_crash_looping


def test_workers_are_looked_at_once_two_seconds_after_an_outage() -> None:
    watch = StoreWatch()
    answers = [(True, 0.0), (False, 1.0), (False, 2.0), (True, 3.0), (True, 4.9), (True, 5.0)]

    due = []
    for is_up, now in answers:
        watch = watch.after(is_up, now)
        due.append(watch.is_due(now))

    assert due == [False, False, False, False, False, True]


def test_a_second_outage_begins_the_wait_anew() -> None:
    watch = StoreWatch().after(False, 1.0).after(True, 2.0).after(False, 3.0).after(True, 3.5)

    assert not watch.is_due(4.5)
    assert watch.is_due(5.5)


def test_only_a_worker_older_than_the_outage_and_unheard_is_cut_off() -> None:
    assert is_cut_off(None, started_at=1.0, back_at=5.0)
    assert is_cut_off(2.1, started_at=1.0, back_at=5.0)
    assert not is_cut_off(1.9, started_at=1.0, back_at=5.0)
    assert not is_cut_off(None, started_at=5.5, back_at=5.0)


def test_a_child_gets_its_environment_and_incarnation_and_writes_to_its_log(bench: Bench) -> None:
    bench.add(
        "w1",
        "import os; print(os.environ['GREETING'], os.environ['CELERIAC_INCARNATION'], flush=True);" + SLEEPS,
    )

    assert bench.agent.start() == AgentCounts(started=1)

    bench.says("w1", f"hello {bench.child('w1').incarnation}\nup")
    assert bench.child("w1").state is ChildState.RUNNING


def test_a_killed_worker_is_reported_and_replaced_under_its_name(bench: Bench) -> None:
    bench.add("w1", SLEEPS)
    bench.agent.start()
    before = bench.child("w1")

    bench.now += 11.0
    os.kill(before.pid, signal.SIGKILL)
    counts = bench.rounds_until(lambda: bench.child("w1").deaths == 1)

    after = bench.child("w1")
    assert counts == AgentCounts(deaths=1, restarts=1)
    assert bench.store.reported == [("w1", before.incarnation)]
    assert (after.state, after.exit_code) == (ChildState.RUNNING, -signal.SIGKILL)
    assert after.pid != before.pid
    assert after.incarnation != before.incarnation


def test_a_worker_that_was_replaced_by_another_of_its_name_is_left_to_that_where_it_yields(bench: Bench) -> None:
    bench.add("yields", f"raise SystemExit({REPLACED})", yields=True)
    bench.add("insists", f"raise SystemExit({REPLACED})")
    bench.agent.start()

    bench.rounds_until(lambda: bench.child("yields").is_replaced and bench.child("insists").deaths == 1)
    counts = bench.round(after_seconds=60.0)

    assert (counts.restarts, bench.child("yields").state) == (1, ChildState.DONE)
    assert [name for name, _ in bench.store.reported] == ["insists"]


def test_only_the_death_of_a_worker_is_reported(bench: Bench) -> None:
    bench.add("leader", SLEEPS, role="leader")
    bench.agent.start()

    os.kill(bench.child("leader").pid, signal.SIGKILL)
    bench.rounds_until(lambda: bench.child("leader").deaths == 1)

    assert bench.store.reported == []
    assert bench.child("leader").state is ChildState.WAITING
    assert bench.round(after_seconds=0.11) == AgentCounts(restarts=1)


def test_a_death_that_cannot_be_reported_does_not_hinder_the_replacement(bench: Bench) -> None:
    bench.store.accepts_reports = False
    bench.add("w1", SLEEPS)
    bench.agent.start()

    bench.now += 11.0
    os.kill(bench.child("w1").pid, signal.SIGKILL)

    assert bench.rounds_until(lambda: bench.child("w1").deaths == 1).restarts == 1


def test_a_source_that_ends_well_is_done_and_one_that_fails_is_started_again(bench: Bench) -> None:
    bench.add("good", "", role="source", restart=False)
    bench.add("bad", "raise SystemExit(3)", role="source", restart=False)
    bench.agent.start()

    bench.rounds_until(lambda: all(child.deaths for child in bench.agent.children()))

    assert bench.child("good").state is ChildState.DONE
    assert (bench.child("bad").state, bench.child("bad").exit_code) == (ChildState.WAITING, 3)
    assert bench.store.reported == []


def test_a_source_that_was_done_is_asked_again_when_the_store_was_restarted(bench: Bench) -> None:
    bench.add("source", "print('fed')", role="source", restart=False)
    bench.agent.start()
    bench.rounds_until(lambda: bench.child("source").state is ChildState.DONE)
    bench.round(after_seconds=6)
    assert bench.child("source").state is ChildState.DONE

    bench.store.run = "two"
    bench.round(after_seconds=6)
    bench.rounds_until(lambda: bench.child("source").state is ChildState.DONE)

    assert bench.log("source").read_text().count("fed") == 2
    assert bench.child("source").deaths == 1
    bench.round(after_seconds=6)
    assert bench.child("source").state is ChildState.DONE


def test_a_death_that_the_store_cannot_note_is_told_in_the_log_and_the_worker_starts_again(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    bench.add("w1", SLEEPS)
    bench.agent.start()
    bench.says("w1", "up")
    bench.store.report_fault = ForeignData("a key of ours holds something else: workers")

    os.kill(bench.child("w1").pid, signal.SIGKILL)
    bench.rounds_until(lambda: bench.child("w1").deaths == 1)
    bench.round(after_seconds=1)

    assert bench.child("w1").state is ChildState.RUNNING
    assert "death not reported child=w1 error=a key of ours holds something else" in caplog.text


def test_a_log_that_has_grown_begins_anew_and_its_child_goes_on_in_it(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("stages.supervision.MOST_LOG_BYTES", 1_000)
    loud = "import sys\nprint('x' * 2_000, flush=True)\nsys.stdin = open('go')\nprint(sys.stdin.read(), flush=True)"
    os.mkfifo(bench.folder / "go")
    bench.add("w1", f"import os; os.chdir({str(bench.folder)!r})\n{loud}", restart=False)
    bench.agent.start()
    bench.says("w1", "x" * 2_000 + "\n")

    bench.round()
    (bench.folder / "go").write_text("on it goes")
    bench.says("w1", "on it goes")

    assert bench.log("w1").read_text() == "on it goes\n"
    assert bench.log("w1").with_name("w1.log.1").read_text() == "x" * 2_000 + "\n"
    bench.round(after_seconds=6)
    assert bench.log("w1").read_text() == "on it goes\n"


def test_a_crash_loop_is_told_once_with_the_end_of_the_log(bench: Bench, caplog: pytest.LogCaptureFixture) -> None:
    bench.add("w1", "print('the reason'); raise SystemExit(1)")
    bench.agent.start()

    for deaths in range(1, 8):
        bench.rounds_until(lambda deaths=deaths: bench.child("w1").deaths == deaths)  # type: ignore[misc]
        assert bench.child("w1").is_crash_looping is (deaths >= 5)
        assert bench.round(after_seconds=5.0).restarts == 1

    errors = [record for record in caplog.records if record.levelno == logging.ERROR]
    assert len(errors) == 1
    assert "the reason" in errors[0].getMessage()
    assert str(bench.log("w1")) in errors[0].getMessage()


def test_a_child_that_recovers_from_a_crash_loop_is_no_longer_called_one(bench: Bench) -> None:
    once = bench.folder / "count"
    bench.add("w1", f"open({str(once)!r}, 'a').write('x'); n = len(open({str(once)!r}).read());\nif n > 5: {SLEEPS}")
    began = bench.now
    bench.agent.start()
    for deaths in range(1, 6):
        bench.rounds_until(lambda deaths=deaths: bench.child("w1").deaths == deaths)  # type: ignore[misc]
        bench.round(after_seconds=5.0)
    assert bench.child("w1").is_crash_looping
    assert bench.child("w1").quick_since == began

    bench.round(after_seconds=10.1)

    assert not bench.child("w1").is_crash_looping


def test_workers_that_do_not_come_back_after_an_outage_are_restarted(bench: Bench) -> None:
    bench.add("fresh", SLEEPS)
    bench.add("silent", SLEEPS)
    bench.add("stubborn", IGNORES_SIGTERM)
    bench.add("leader", SLEEPS, role="leader")
    bench.agent.start()
    for name in ("fresh", "silent", "stubborn", "leader"):
        bench.says(name, "up")
    before = {child.name: child for child in bench.agent.children()}

    bench.store.up = False
    bench.round(after_seconds=0.25)
    bench.store.up = True
    bench.store.heard = {"fresh": 0.5, "stubborn": 7.0}
    bench.round(after_seconds=0.25)
    bench.round(after_seconds=1.9)
    assert {child.state for child in bench.agent.children()} == {ChildState.RUNNING}

    bench.round(after_seconds=0.2)
    bench.rounds_until(lambda: bench.child("silent").deaths == 1)
    assert bench.child("stubborn").state is ChildState.ENDING
    bench.round(after_seconds=1.0)
    bench.rounds_until(lambda: bench.child("stubborn").deaths == 1)

    replaced = {child.name for child in bench.agent.children() if child.pid != before[child.name].pid}
    assert replaced == {"silent", "stubborn"}
    assert bench.child("silent").exit_code == -signal.SIGTERM
    assert bench.child("stubborn").exit_code == -signal.SIGKILL
    assert {name for name, _incarnation in bench.store.reported} == replaced


def test_a_worker_that_is_silent_far_beyond_its_lease_is_killed_while_the_store_answers(bench: Bench) -> None:
    bench.add("silent", IGNORES_SIGTERM)
    bench.add("fresh", SLEEPS)
    bench.add("unheard", SLEEPS)
    bench.agent.start()
    for name in ("silent", "fresh", "unheard"):
        bench.says(name, "up")
    bench.store.heard = {"silent": 29.0, "fresh": 0.3}
    bench.round(after_seconds=60)
    assert {child.state for child in bench.agent.children()} == {ChildState.RUNNING}

    bench.store.heard["silent"] = 31.0
    bench.round(after_seconds=6)

    bench.rounds_until(lambda: bench.child("silent").deaths == 1)
    assert bench.child("silent").exit_code == -signal.SIGKILL
    assert [name for name, _incarnation in bench.store.reported] == ["silent"]
    assert {bench.child(name).deaths for name in ("fresh", "unheard")} == {0}


def test_a_new_worker_is_not_blamed_for_the_silence_of_the_one_before() -> None:
    assert not is_silent(100.0, lived_seconds=29.0)
    assert not is_silent(None, lived_seconds=100.0)
    assert not is_silent(45.0, lived_seconds=40.0)  # it is still loading the pipeline
    assert is_silent(31.0, lived_seconds=40.0)


def test_an_agent_outlives_a_job_that_cannot_be_read(bench: Bench) -> None:
    bench.add("w1", SLEEPS)
    bench.agent.start()
    bench.says("w1", "up")
    bench.store.fault = ForeignData("a key of ours holds something else")

    bench.round(after_seconds=60)
    bench.store.up = False
    bench.round(after_seconds=1)
    bench.store.up = True
    bench.round(after_seconds=1)
    bench.round(after_seconds=10)

    assert bench.child("w1").state is ChildState.RUNNING


def test_a_program_that_cannot_be_started_is_named_in_the_error(bench: Bench) -> None:
    bench.agent.add(ChildSpec("w1", ("/no/such/program",), {}, "worker", True, bench.log("w1")))

    with pytest.raises(EnvironmentFault, match="worker w1 cannot be started") as caught:
        bench.agent.start()

    assert "/no/such/program" in caught.value.hint


def test_a_program_that_is_missing_later_is_tried_again(bench: Bench) -> None:
    program = bench.folder / "program"
    bench.agent.add(ChildSpec("w1", (str(program),), {}, "worker", True, bench.log("w1")))
    assert bench.round() == AgentCounts()

    program.write_text("#!/bin/sh\nexec sleep 600\n")
    program.chmod(0o755)

    assert bench.round() == AgentCounts()
    assert bench.round(after_seconds=0.11) == AgentCounts(restarts=1)


def test_two_living_children_cannot_share_a_name(bench: Bench) -> None:
    bench.add("w1", SLEEPS)

    with pytest.raises(PipelineError, match="already has a child named w1"):
        bench.add("w1", SLEEPS)


def test_a_retired_child_ends_for_good_and_its_name_is_free(bench: Bench) -> None:
    bench.add("w1", IGNORES_SIGTERM)
    bench.agent.start()
    bench.says("w1", "up")

    bench.agent.retire("w1", deadline_seconds=3.0)
    bench.round()
    assert bench.child("w1").state is ChildState.ENDING
    bench.round(after_seconds=3.0)
    bench.rounds_until(lambda: bench.child("w1").state is ChildState.DONE)

    assert bench.store.reported == []
    bench.add("w1", SLEEPS)
    assert bench.round() == AgentCounts(started=1)


def test_retiring_an_unknown_child_is_an_error(bench: Bench) -> None:
    with pytest.raises(PipelineError, match="no child named w9"):
        bench.agent.retire("w9", 1.0)


def test_what_a_dead_child_left_running_is_ended_too(bench: Bench) -> None:
    bench.add("w1", WITH_A_CHILD)
    bench.agent.start()
    bench.says("w1", "grandchild")
    wait_until(lambda: bench.log("w1").read_text().endswith("\n"))
    grandchild = int(bench.log("w1").read_text().split()[1])

    os.kill(bench.child("w1").pid, signal.SIGKILL)
    bench.rounds_until(lambda: bench.child("w1").deaths == 1)

    wait_until(lambda: not is_running(grandchild))


def test_stop_asks_first_and_kills_at_the_deadline(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    agent = bench.agent = Agent([], bench.store)
    bench.add("polite", SLEEPS)
    bench.add("stubborn", IGNORES_SIGTERM)
    bench.add("unstarted", SLEEPS)
    agent.retire("unstarted", 0.0)
    agent.run_once(time.monotonic())
    for name in ("polite", "stubborn"):
        bench.says(name, "up")

    began = time.monotonic()
    killed = agent.stop(0.5)
    took_seconds = time.monotonic() - began

    assert killed == ("stubborn",)
    assert 0.5 <= took_seconds < 2.0
    assert bench.child("polite").exit_code == -signal.SIGTERM
    assert bench.child("stubborn").exit_code == -signal.SIGKILL
    assert {child.state for child in agent.children()} == {ChildState.DONE}
    assert bench.store.reported == []


def test_stop_kills_before_its_deadline_when_it_is_hurried(bench: Bench) -> None:
    bench.add("stubborn", IGNORES_SIGTERM)
    bench.agent.start()
    bench.says("stubborn", "up")

    killed = bench.agent.stop(1e9, lambda: True)

    assert killed == ("stubborn",)
    assert bench.child("stubborn").exit_code == -signal.SIGKILL


def test_stop_does_not_wait_for_the_deadline_when_all_are_gone(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    agent = bench.agent = Agent([], bench.store)
    bench.add("w1", SLEEPS)
    bench.add("gone", "")
    agent.start()
    bench.says("w1", "up")

    began = time.monotonic()

    assert agent.stop(60.0) == ()
    assert time.monotonic() - began < 10.0


def test_the_loop_sees_a_death_and_its_own_end_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("stages.agent.ROUND_SECONDS", 60.0)  # only the death itself, and the event, can end the wait
    bench = Bench(tmp_path)
    agent = bench.agent = Agent([], bench.store)
    bench.add("w1", SLEEPS, restart=False)
    stop = threading.Event()

    def live() -> None:
        agent.start()
        agent.run(stop)
        agent.stop(5.0)

    # The children belong to the thread that starts them, so one thread does it all.
    loop = threading.Thread(target=live)
    loop.start()
    bench.says("w1", "up")
    first = bench.child("w1").pid

    os.kill(first, signal.SIGKILL)
    wait_until(lambda: bench.child("w1").pid not in (0, first))
    stop.set()
    loop.join(10.0)

    assert not loop.is_alive()
    assert [name for name, _incarnation in bench.store.reported][:1] == ["w1"]


SPEAKING_AGENT = r"""
import os, sys, threading
from stages.agent import Agent
from stages.supervision import ChildSpec

class Store:
    def is_up(self): return True
    def run_id(self): return "one"
    def heard_from(self, name): return 0.0

says = "import os\nfor number in range(200): os.write(1, b'child %d\\n' % number)"
agent = Agent([ChildSpec("w1", (sys.executable, "-S", "-c", says), {}, "source", False, None)], Store())
over = threading.Event()

def write():
    for number in range(200):
        os.write(1, b"agent %d\n" % number)
    while agent.children()[0].exit_code is None:
        over.wait(0.01)
    over.set()

writing = threading.Thread(target=write)
agent.start()
writing.start()
agent.run(over)
writing.join()
os.write(1, b"agent has ended\n")
"""


@contextmanager
def a_file(folder: Path) -> Iterator[tuple[int, Callable[[], str]]]:
    with open(folder / "log", "wb") as file:
        yield file.fileno(), (folder / "log").read_text


@contextmanager
def a_socket(_: Path) -> Iterator[tuple[int, Callable[[], str]]]:
    """As systemd gives its services for their output: it cannot be opened by a name."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        theirs.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 20)

        def text() -> str:
            theirs.close()
            with ours.makefile() as lines:
                return lines.read()

        yield theirs.fileno(), text


@pytest.mark.parametrize("place", [a_file, a_socket])
def test_a_child_without_a_log_of_its_own_writes_where_its_agent_does_and_no_line_is_lost(
    tmp_path: Path, place: Callable[[Path], AbstractContextManager[tuple[int, Callable[[], str]]]]
) -> None:
    with place(tmp_path) as (output, text):
        subprocess.run([sys.executable, "-c", SPEAKING_AGENT], stdout=output, check=True, timeout=60)
        lines = text().splitlines()

    assert [line for line in lines if line.startswith("agent")] == [
        *(f"agent {number}" for number in range(200)),
        "agent has ended",
    ]
    assert [line for line in lines if line.startswith("child")] == [f"child {number}" for number in range(200)]


def test_a_killed_agent_leaves_no_orphan(tmp_path: Path) -> None:
    script = textwrap.dedent(
        f"""
        import sys, threading
        from pathlib import Path
        from stages.agent import Agent
        from stages.supervision import ChildSpec

        class Store:
            def is_up(self): return True
            def run_id(self): return "one"

        code = {IGNORES_SIGTERM!r}
        specs = [
            ChildSpec(n, (sys.executable, "-S", "-c", code), {{}}, "worker", True, Path(sys.argv[1]) / n)
            for n in ("w1", "w2")
        ]
        agent = Agent(specs, Store())
        agent.start()
        print(*(child.pid for child in agent.children()), flush=True)
        agent.run(threading.Event())
        """
    )
    with subprocess.Popen([sys.executable, "-c", script, str(tmp_path)], stdout=subprocess.PIPE, text=True) as agent:
        assert agent.stdout is not None
        pids = [int(word) for word in agent.stdout.readline().split()]
        assert len(pids) == 2
        assert all(is_running(pid) for pid in pids)

        agent.kill()

        wait_until(lambda: not any(is_running(pid) for pid in pids))
