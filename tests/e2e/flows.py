"""Pipelines of stories, with the sequence oracle: every key must come as 1, 2, 3, ..., once and in order."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from tests.e2e.chaos import read_rows

RESTING: Final = '''"""The sequence oracle behind a source that rests until the file `go_on` is there."""

import time
from pathlib import Path

from pipeline import Pipeline, read, write

KEYS, COUNT, FIRST = {keys}, {count}, {first}


def numbered(position):
    for place in range(position or 0, KEYS * COUNT):
        while place >= KEYS * FIRST and not Path("go_on").exists():
            time.sleep(0.05)
        yield place + 1, [f"k{{place % KEYS}}", place // KEYS + 1]


def worked(pair):
    time.sleep(0.002)
    return pair[1]


def in_sequence(key, number, last):
    if number != (last or 0) + 1:
        raise ValueError(f"{{key}}: {{number}} came after {{last}}")
    return number, number


flow = Pipeline("resting")
(
    flow.source(read.generator(numbered, poll_seconds=None), name="numbers")
    .key_by(lambda pair: pair[0], name="by_key")
    .map(worked, name="number")
    .stateful_map(in_sequence, name="oracle")
    .sink(write.jsonl("out"), name="result")
)
'''

PACED: Final = """
import threading
from pathlib import Path

from pipeline import Pipeline, read, write


def numbered():
    number, pace = 0, threading.Event()
    while not Path("enough").exists():
        number += 1
        for key in range({keys}):
            yield [f"k{{key}}", number]
        pace.wait(0.02)


def in_sequence(key, number, last):
    if number != (last or 0) + 1:
        raise ValueError(f"{{key}}: {{number}} came after {{last}}")
    return number, number


flow = Pipeline("paced")
(
    flow.source(read.iterable(numbered), name="numbers")
    .key_by(lambda pair: pair[0], name="hop")
    .key_by(lambda pair: pair[0], name="by_key")
    .map(lambda pair: pair[1], name="number")
    .stateful_map(in_sequence, name="oracle")
    .sink(write.jsonl("out"), name="result")
)
"""
"""Goes on, each key once in 20 ms, until there is a file `enough`."""


def check_paced(folder: Path, keys: int) -> int:
    """The last number of each key of a PACED job: all up to it are there, once.

    In which order they came is told by the oracle: a key's rows lie in files of several partitions after a rescale.
    """
    found: dict[str, list[int]] = {}
    for row in read_rows(folder):
        found.setdefault(row["key"], []).append(row["value"])
    last = max(found["k0"])
    assert {key: sorted(numbers) for key, numbers in found.items()} == {
        f"k{key}": list(range(1, last + 1)) for key in range(keys)
    }
    return last
