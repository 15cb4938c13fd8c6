"""Pipelines of stories, with the sequence oracle: every key must come as 1, 2, 3, ..., once and in order."""

from __future__ import annotations

from typing import Final

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
