"""Small bytes never become much memory: measured by tracemalloc, and by a process that may have no more."""

from __future__ import annotations

import resource
import subprocess
import sys
import tracemalloc
from collections.abc import Callable
from contextlib import suppress

import pytest

from pipeline.codec import decode_batch, decode_value
from pipeline.errors import CeleriacError
from pipeline.messages import decode_header
from pipeline.plan import Plan
from pipeline.programs.protocols import ANSWER_BYTES, OUTPUT_BYTES, JsonAnswers, LineAnswers, Malformed

HEAD = b"\x01\x01\x95"
SIZE = 200_000
BOMBS = {
    "a list that claims four billion": HEAD + b"\xdd\xff\xff\xff\xff",
    "a map that claims four billion": HEAD + b"\x91\xdf\xff\xff\xff\xff" + b"\x01" * 100,
    "text that claims four gigabytes": HEAD + b"\x91\xdb\xff\xff\xff\xff" + b"a" * 100,
    "an extension that claims four gigabytes": HEAD + b"\x91\xc9\xff\xff\xff\xff\x05" + b"a" * 100,
    "empty dicts": HEAD + b"\xdd" + SIZE.to_bytes(4, "big") + b"\x80" * SIZE + b"\xc0\xc0\xc0\x80",
    "empty lists": HEAD + b"\xdd" + SIZE.to_bytes(4, "big") + b"\x90" * SIZE + b"\xc0\xc0\xc0\x80",
    "floats": HEAD + b"\xdd" + SIZE.to_bytes(4, "big") + (b"\xca" + b"\1" * 4) * SIZE + b"\xc0\xc0\xc0\x80",
    "lists in lists": HEAD + b"\x91" * SIZE,
}


def peak_of(call: Callable[[], object]) -> int:
    """The most bytes of Python that were held at once beyond those before."""
    tracemalloc.start()
    try:
        with suppress(CeleriacError, Malformed):
            call()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("kind", BOMBS)
def test_a_payload_takes_at_most_eighty_times_its_size(kind: str) -> None:
    bomb = BOMBS[kind]

    assert peak_of(lambda: decode_batch(bomb)) < 80 * len(bomb) + 50_000
    assert peak_of(lambda: decode_value(bomb[3:])) < 80 * len(bomb) + 50_000


@pytest.mark.parametrize(
    "bomb", [b"[" * SIZE, b'["D","a",1,' + b"9" * SIZE, b'["D","' + b"a" * SIZE, b'{"protocol":2,"x":' + b"[" * SIZE]
)
def test_a_header_or_a_plan_takes_a_few_times_its_size(bomb: bytes) -> None:
    assert peak_of(lambda: decode_header(bomb)) < 8 * len(bomb) + 50_000
    assert peak_of(lambda: Plan.decode(bomb)) < 8 * len(bomb) + 50_000


@pytest.mark.parametrize(
    ("kind", "chunk"),
    [(JsonAnswers, b"x" * (1 << 18)), (LineAnswers, b"x" * (1 << 18)), (LineAnswers, b"\n" * (1 << 18))],
)
def test_an_endless_output_of_a_program_is_cut_off(kind: type[JsonAnswers | LineAnswers], chunk: bytes) -> None:
    def flood() -> None:
        answers = kind()
        for _ in range(2 * OUTPUT_BYTES // len(chunk)):
            answers.take(chunk)
        raise AssertionError("it was never cut off")

    assert peak_of(flood) < 3 * ANSWER_BYTES


LIMITED = """
import resource, sys
from pipeline.codec import decode_batch
from pipeline.errors import DecodingError
resource.setrlimit(resource.RLIMIT_AS, ({limit}, {limit}))
for bomb in sys.stdin.buffer.read().split(b"SEPARATOR"):
    try:
        decode_batch(bomb)
    except DecodingError:
        pass
print("alive")
"""


def test_a_process_with_little_memory_survives_every_bomb() -> None:
    limit = 400 << 20
    assert resource.getrlimit(resource.RLIMIT_AS)[1] in (resource.RLIM_INFINITY, *range(limit, 1 << 62, 1 << 61))
    bombs = b"SEPARATOR".join(BOMBS.values())

    done = subprocess.run(
        [sys.executable, "-c", LIMITED.format(limit=limit)], input=bombs, capture_output=True, timeout=60, check=False
    )

    assert (done.stdout.strip(), done.returncode) == (b"alive", 0), done.stderr[-500:]
