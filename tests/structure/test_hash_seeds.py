"""What processes must agree on is equal in all of them, however Python hashes texts there."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

SEEDS = ("0", "1", "2")


def answers(program: str) -> set[str]:
    """What the program prints in processes with different seeds."""
    return {
        subprocess.run(
            [sys.executable, "-c", program],
            env={**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": str(Path(__file__).parents[2])},
            capture_output=True,
            text=True,
            check=True,
            timeout=60,
        ).stdout
        for seed in SEEDS
    }


def test_the_fingerprint_of_a_pipeline_is_equal_everywhere() -> None:
    program = """
from pipeline import Pipeline, count, read, write
from pipeline.plan import fingerprint
flow = Pipeline("wordcount")
lines = flow.source(read.csv("/d/in.csv", columns=["b", "a"], types={"b": "int", "a": "text"}), name="lines")
words = lines.flat_map(str.split, name="split")
words.key_by(str.lower, name="by_word").aggregate(count(), name="n").sink(write.jsonl("/d/out"), name="out")
print(fingerprint(flow.graph()))
"""

    (only,) = answers(program)
    assert len(only.strip()) >= 16


def test_the_groups_of_keys_are_equal_everywhere() -> None:
    program = "from pipeline.keying import group_of; print([group_of(k) for k in ['AA', 'UA', 7, b'x', ('a', 1)]])"

    (only,) = answers(program)
    assert only.startswith("[189, ")
