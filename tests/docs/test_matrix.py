"""The matrix of the guarantees names what is verified."""

from __future__ import annotations

from tests.docs.matrix import PAGE, scenarios, table
from verification.points import Variant
from verification.scenarios import SCENARIOS


def test_the_published_matrix_has_a_row_for_each_scenario() -> None:
    assert scenarios(PAGE.read_text()) == [scenario.name for scenario in SCENARIOS]


def test_the_matrix_counts_what_befell_runs_and_says_how_many_ended_equal() -> None:
    runs = {Variant.BEFORE.value: 3, Variant.AFTER.value: 4, Variant.LOST_REPLY.value: 5, "pair of crashes": 2_000}
    rows = [
        {"scenario": "one", "points": 9, "runs": runs, "failed": 0},
        {
            "scenario": "other",
            "points": 1,
            "runs": {"error inside a script": 6, "foreign key in a script": 1},
            "failed": 2,
        },
    ]

    lines = table(rows).splitlines()

    assert lines[2:] == [
        "| one | 9 | 7 | 5 | 2,000 |  | all |",
        "| other | 1 |  |  |  | 7 | 5 of 7 |",
        "| **all** | 10 | 7 | 5 | 2,000 | 7 | 2,017 of 2,019 |",
    ]
