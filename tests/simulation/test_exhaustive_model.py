"""The small model: every state that two workers, a sender and a leader can reach keeps its promises."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from pipeline.cli.main import run_command
from tests.simulation.guards import without
from verification.exhaustive.search import Search, check, start
from verification.exhaustive.steps import Broken, Steps

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def found_without_faults() -> tuple[int, int, int]:
    found = Search(faults=0).run()
    assert found.broken == "", found.way
    return found.states, found.steps, found.interleavings


def test_without_a_fault_every_interleaving_keeps_its_promises(found_without_faults: tuple[int, int, int]) -> None:
    states, steps, interleavings = found_without_faults

    assert states > 1_000
    assert steps > states
    assert interleavings > 10_000


def test_the_search_is_the_same_again(found_without_faults: tuple[int, int, int]) -> None:
    found = Search(faults=0).run()

    assert (found.states, found.steps, found.interleavings) == found_without_faults


@pytest.mark.parametrize(
    ("guard", "faults", "is_early"),
    [
        ("token", 0, False),
        ("trim bound", 0, False),
        ("position", 1, False),
        ("record of the position", 1, False),
        ("run of the server", 1, False),
        ("sequence", 1, True),
    ],
)
def test_without_a_guard_an_invariant_breaks(
    guard: str, faults: int, is_early: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    without(guard, monkeypatch)

    found = Search(faults, is_early=is_early).run()

    assert found.broken
    assert len(found.way) > 1


def test_a_lost_record_is_seen_in_the_state_itself() -> None:
    keyspace, memory = start()
    for what in ("appends", "looks at the table"):
        steps = Steps(Search().plan, memory)
        memory = steps.do(next(step for step in steps.all() if step.what == what), keyspace)
    check(keyspace, memory)
    inbox = next(value for value in keyspace.keys.values() if hasattr(value, "ids") and value.last == (1, 0))

    inbox.cut(1)

    with pytest.raises(Broken, match=r"2 records were taken; applied are \[\], waiting are \[\]"):
        check(keyspace, memory)


@pytest.mark.timeout(400)
def test_verify_says_how_much_it_has_seen() -> None:
    program = "import sys; from verification.main import main; from verification.exhaustive import command, search;"
    program += "command.Search = lambda: search.Search(0); sys.exit(main(['--exhaustive']))"

    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, timeout=300)

    assert done.returncode == 0, done.stderr
    assert "every invariant holds in each state" in done.stdout


def test_verify_tells_the_way_to_what_is_broken(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from verification.exhaustive.command import searched

    without("token", monkeypatch)

    assert searched(as_json=False) == 1
    told = capsys.readouterr().out.splitlines()
    assert told[-1].startswith("BROKEN  ")
    assert any("assigns to w1" in line for line in told)


def test_a_search_does_not_go_with_seeds(capfd: pytest.CaptureFixture[str]) -> None:
    assert run_command(["verify", "--exhaustive", "--seed", "3"]) == 2

    assert "neither goes with anything else" in capfd.readouterr().err
