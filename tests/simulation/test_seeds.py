"""Simulated jobs: each seed ends as it must, and is the same wherever it runs."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

from pipeline.cli.main import run_command
from tests.sampling import some
from tests.simulation.guards import without
from verification.simulation import seeds as seeds_module
from verification.simulation.fates import Fate
from verification.simulation.plots import PLOTS
from verification.simulation.seeds import Outcome, expected_of, simulate
from verification.simulation.shard import SeedWork, pieces

ROOT = Path(__file__).parents[2]
CI_SEEDS = 1_000
"""As many as `.ci/run` simulates; a guard that is missing must be noticed among them."""

BITTEN = {
    "token": 42,
    "position": 69,
    "sequence": 10,
    "trim bound": 16,
    "ids that were seen": 59,
    "number of a sender that comes back": 2,
}
"""Guard -> a seed of those in CI that fails without it. When chance is drawn in another way another one does."""


SEEDS = range(1, 41)


@cache
def simulated(seed: int) -> Outcome:
    return simulate(seed)


@pytest.mark.sampled
@pytest.mark.parametrize("seed", some(SEEDS))
def test_a_simulated_job_ends_as_without_faults(seed: int) -> None:
    outcome = simulated(seed)

    assert outcome.failure == "", "\n".join(outcome.trace.told(40))


def test_a_seed_repeats_itself_byte_for_byte() -> None:
    for seed in (3, 5, 8):
        first, second = simulate(seed), simulate(seed)

        assert first.trace.lines() == second.trace.lines()
        assert first.trace.faults > 0


def test_a_seed_is_the_same_in_processes_that_hash_differently() -> None:
    program = (
        "from verification.simulation.seeds import simulate; print([simulate(s).trace.digest() for s in (4, 6, 7)])"
    )
    digests = {
        subprocess.run(
            [sys.executable, "-c", program],
            cwd=ROOT,
            env={**os.environ, "PYTHONHASHSEED": hash_seed},
            capture_output=True,
            text=True,
            timeout=110,
            check=True,
        ).stdout
        for hash_seed in ("1", "2")
    }

    assert len(digests) == 1


def test_among_the_seeds_are_all_jobs_and_all_kinds_of_faults() -> None:
    outcomes = [simulated(seed) for seed in SEEDS]

    text = "\n".join(line for outcome in outcomes for line in outcome.trace.lines())
    assert {outcome.plot for outcome in outcomes} == {plot.name for plot in PLOTS}
    assert [fate for fate in Fate if f": {fate.value}\n" not in text] == []
    for what in ("is restarted", "its clock is set", "is lost", "is doubled", "is late", "arrives only now", "goes on"):
        assert what in text


@pytest.mark.parametrize(("guard", "first"), BITTEN.items())
def test_without_a_guard_some_seed_of_those_in_ci_fails(
    guard: str, first: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    for plot in PLOTS:
        expected_of(plot)  # by the scripts as they are
    without(guard, monkeypatch)

    assert any(simulate(seed).failure for seed in (first, *range(1, CI_SEEDS + 1)))


def test_a_seed_that_fails_is_told_with_what_befell_whom(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(seeds_module, "difference", lambda *_: "nothing is equal")
    monkeypatch.setattr(seeds_module, "expected_of", lambda _: {})

    piece = next(iter(pieces(SeedWork(5, 6, 1))))
    told = simulate(5)

    assert [(fallen.seed, fallen.what) for fallen in piece.fallen] == [(5, "nothing is equal")]
    assert any("commit ->" in line for line in piece.fallen[0].trace)
    assert len(piece.fallen[0].trace) < len(told.trace.lines())


def test_verify_runs_seeds_on_several_processes_and_says_how_they_ended() -> None:
    program = "import sys; from pipeline.cli.main import run_command; sys.exit(run_command(sys.argv[1:]))"
    command = [sys.executable, "-c", program, "verify", "--seeds", "12", "--seed", "100", "--processes", "2", "--json"]

    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=110, check=False)

    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert told["seeds"] == 12 == sum(told["jobs"].values())
    assert told["failures"] == []
    assert told["commands"] > 1_200


def test_verify_tells_all_of_one_seed() -> None:
    program = "import sys; from pipeline.cli.main import run_command; sys.exit(run_command(sys.argv[1:]))"

    done = subprocess.run(
        [sys.executable, "-c", program, "verify", "--seed", "8"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=110,
        check=False,
    )

    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[1:-1] == simulate(8).trace.lines()


def test_seeds_and_scenarios_are_not_mixed(capfd: pytest.CaptureFixture[str]) -> None:
    assert run_command(["verify", "--seeds", "5", "--quick"]) == 2

    assert "--seeds and --seed simulate, --exhaustive searches" in capfd.readouterr().err


def test_without_the_extra_the_command_names_it() -> None:
    program = (
        "import sys; sys.modules['greenlet'] = None\n"
        "from verification.main import main; sys.exit(main(['--seed', '1']))"
    )

    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, timeout=60)

    assert done.returncode == 3
    assert "hint: pip install 'celeriac[verify]'" in done.stderr
