"""Bad files and bad records as a user meets them: one message that says what to do, or a dead letter; nothing lost."""

from __future__ import annotations

import gzip
import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.parquet
import pytest

from pipeline.codec import decode_batch
from pipeline.store.connection import connect
from pipeline.store.jobs import JobStore
from pipeline.store.letters import DeadLetter
from pipeline.store.scripts import Scripts
from tests.e2e.chaos import Site

HEAD = "from pipeline import Pipeline, count, read, write\n\n"


def a_copy(source: str) -> str:
    """A pipeline that writes what it reads."""
    return f"""{HEAD}flow = Pipeline("copy")
flow.source({source}, name="input").sink(write.jsonl("out"), name="result")
"""


def rows(folder: Path) -> list[Any]:
    return [json.loads(line) for path in sorted(folder.glob("part-*")) for line in path.read_text().splitlines()]


def letters_of(url: str, job: str) -> list[DeadLetter]:
    return JobStore(Scripts(connect(url))).dead_letters(job)


def told(errors: str, name: str) -> str:
    """The lines of standard error that begin with `error:` or `hint:`; exactly one."""
    found = [line for line in errors.splitlines() if line.startswith(f"{name}: ")]
    assert len(found) == 1, errors
    return found[0]


def nothing(_folder: Path) -> None:
    """The file is missing."""


def bytes_in(name: str, data: bytes) -> Callable[[Path], None]:
    def make(folder: Path) -> None:
        (folder / name).write_bytes(data)

    return make


def an_empty_folder(folder: Path) -> None:
    (folder / "in").mkdir()


def a_truncated_parquet_file(folder: Path) -> None:
    pyarrow.parquet.write_table(pyarrow.table({"n": list(range(10_000))}), folder / "x.parquet")
    data = (folder / "x.parquet").read_bytes()
    (folder / "x.parquet").write_bytes(data[: len(data) // 2])


GARBAGE = random.Random(7).randbytes(5_000)

UNREADABLE = {
    "missing": ('read.text("nope.txt")', nothing, "there is no such file or folder", "check the path"),
    "empty folder": ('read.text("in")', an_empty_folder, "has no files to read", "with files in it"),
    "empty csv": ('read.csv("x")', bytes_in("x", b""), "has no header: it is empty", "must name the columns"),
    "doubled column": ('read.csv("x")', bytes_in("x", b"a,a\n1,2\n"), "two columns are named 'a'", "rename one"),
    "binary csv": ('read.csv("x")', bytes_in("x", GARBAGE), "the header is not UTF-8 text", "is this a CSV file?"),
    "nul in csv": ('read.csv("x")', bytes_in("x", b"a\0b,c\n1,2\n"), "bytes that are no text", "is this a CSV file?"),
    "utf-16 csv": ('read.csv("x")', bytes_in("x", "a,b\n1,2\n".encode("utf-16")), "in UTF-16", "iconv -f UTF-16"),
    "utf-16 json": ('read.json("x")', bytes_in("x", "[1]\n".encode("utf-16")), "in UTF-16", "iconv -f UTF-16"),
    "utf-16 text": ('read.text("x")', bytes_in("x", "a b\n".encode("utf-16")), "in UTF-16", "iconv -f UTF-16"),
    "no gzip": ('read.text("x.gz")', bytes_in("x.gz", b"plain text"), "cannot be unpacked", "damaged or cut off"),
    "cut parquet": ('read.parquet("x.parquet")', a_truncated_parquet_file, "is no Parquet file", "write it again"),
}


@pytest.mark.parametrize(("source", "make", "error", "hint"), UNREADABLE.values(), ids=UNREADABLE.keys())
def test_input_that_cannot_be_read_is_told_before_anything_is_started(
    site: Site, source: str, make: Callable[[Path], None], error: str, hint: str
) -> None:
    site.write(a_copy(source))
    make(site.root / "work")
    files = [path.name for path in (site.root / "work").iterdir()]

    done = site.command("run", "flow.py", "--workers", "1")

    assert done.returncode == 3, done.stderr
    assert error in told(done.stderr, "error")
    assert hint in told(done.stderr, "hint")
    assert len(done.stderr.splitlines()) == 2
    site.assert_clean(*files)


def test_a_file_that_turns_out_damaged_while_it_is_read_fails_the_job(site: Site) -> None:
    site.write(a_copy('read.text("x.gz")'))
    packed = gzip.compress(random.Random(7).randbytes(5_000).hex().encode())
    (site.root / "work/x.gz").write_bytes(packed[: len(packed) // 2])

    done = site.command("run", "flow.py", "--workers", "1")

    assert done.returncode == 1, done.stderr
    assert "x.gz cannot be unpacked" in told(done.stderr, "error")
    assert "damaged or cut off" in told(done.stderr, "error")
    assert "Traceback" not in done.stderr
    site.assert_clean("flow.py", "x.gz")


TOLD_AS_IT_ENDS = f"""{HEAD}import atexit
import os
import signal
from pathlib import Path


def told_to_leave():
    Path("told").touch()
    os.kill(os.getpid(), signal.SIGTERM)


if "CELERIAC_SOURCE" in os.environ:
    atexit.register(told_to_leave)  # as Spark's end, which takes its time

flow = Pipeline("copy")
flow.source(read.text("x.gz"), name="input").sink(write.jsonl("out"), name="result")
"""


def test_a_feeder_that_has_failed_and_is_told_to_leave_as_it_ends_shows_no_fault_of_its_own(site: Site) -> None:
    site.write(TOLD_AS_IT_ENDS)
    packed = gzip.compress(random.Random(7).randbytes(5_000).hex().encode())
    (site.root / "work/x.gz").write_bytes(packed[: len(packed) // 2])

    run = site.start("flow.py", "--workers", "1")
    run.finish(code=1)

    assert (run.folder / "told").exists()
    assert "x.gz cannot be unpacked" in told(run.said(), "error")
    assert "the end of" not in run.said()


def test_a_delimiter_that_looks_wrong_is_warned_of(site: Site) -> None:
    site.write(a_copy('read.csv("x.csv", delimiter=";")'))
    (site.root / "work/x.csv").write_text("a,b\n1,2\n")

    done = site.command("run", "flow.py", "--workers", "1")

    assert done.returncode == 0, done.stderr
    assert "warning: " in done.stderr
    assert "the only column is 'a,b'; is its delimiter ','?" in done.stderr


def test_each_bad_row_or_line_is_a_dead_letter_with_its_place_and_the_others_pass(site: Site, redis_url: str) -> None:
    site.write(f"""{HEAD}flow = Pipeline("lines")
sources = {{"csv": read.csv("x.csv"), "json": read.json("x.jsonl"), "text": read.text("x.txt")}}
for name, spec in sources.items():
    flow.source(spec, name=name).sink(write.jsonl(f"out/{{name}}"), name=f"{{name}}_result")
""")
    work = site.root / "work"
    numbers = [f"{number},{number}" for number in range(6_000)]
    numbers[4_998] = "x,1"
    numbers[5_001] = "1"
    (work / "x.csv").write_text("\n".join(["a,b", *numbers]) + "\n")
    (work / "x.jsonl").write_text('{"a": 1}\n{"a":\n{"a": 3}\n')
    (work / "x.txt").write_text("small\n" + "a" * 2_000_000 + "\nsmall too\n")

    done = site.command("run", "flow.py", "--workers", "1", "--redis", redis_url, "--job-id", "lines")

    assert done.returncode == 4, done.stderr
    assert "dead letters: 4 records given up" in done.stderr
    assert {letter.error for letter in letters_of(redis_url, "lines")} == {
        f"{work}/x.csv:5000: column 'a': 'x' is no int",
        f"{work}/x.csv:5003: 1 field, but the header names 2",
        f"{work}/x.jsonl:2: no JSON: Input data was truncated",
        f"{work}/x.txt:2: the record has 2000005 bytes, more than the limit of 1048576",
    }
    assert len(rows(work / "out/csv")) == 5_998
    assert rows(work / "out/json") == [{"a": 1}, {"a": 3}]
    assert rows(work / "out/text") == ["small", "small too"]


FUNCTIONS = """import sys

class Mute(Exception):
    def __str__(self):
        raise ValueError("no")

def throw(error):
    raise error

def endless():
    found = []
    found.append(found)
    return found
"""

IN_MAP = {
    "1 // 0": "ZeroDivisionError: integer division or modulo by zero",
    "__import__('missing_module')": "ModuleNotFoundError: No module named 'missing_module'",
    "sys.exit(3)": "SystemExit: 3",
    "next(iter(()))": "StopIteration",
    "map_it(n)": "RecursionError: maximum recursion depth exceeded",
    "throw(Mute())": "Mute: (its message cannot be shown)",
    "throw(ValueError('\\ud800'))": "ValueError: \\ud800",
    "object()": "a value cannot be encoded: <object object",
    "(lambda: 1)": "a value cannot be encoded: <function",
    "'\\ud800'": "a value cannot be encoded: ",
    "2**70": "a value cannot be encoded: 1180591620717411303424",
    "endless()": "a value cannot be encoded: [[",
    "'x' * 2_000_000": "an output has 2000",
}
IN_KEY_BY = {
    "object()": "EncodingError: a key must be text, an integer, bytes or a tuple of these; <object",
    "1.5": "EncodingError: a key must be text, an integer, bytes or a tuple of these; 1.5 is float",
    "None['carrier']": "TypeError: 'NoneType' object is not subscriptable",
    "'\\ud800'": "the key '\\ud800' is not valid Unicode text",
    "2**70": "a value cannot be encoded: 1180591620717411303424",
}
IN_REDUCE = {
    "object()": "EncodingError: a value cannot be encoded: <object object",
    "1 // 0": "ZeroDivisionError: integer division or modulo by zero",
    "'x' * 2_000_000": "the state of key 0 in 'total' has 2000",
}


def test_what_a_function_does_to_one_record_costs_only_that_record(site: Site, redis_url: str) -> None:
    faults = {"map_it": IN_MAP, "key_it": IN_KEY_BY, "add": IN_REDUCE}
    records = iter(range(100, 200))
    expected = {next(records): (fn, expression, error) for fn in faults for expression, error in faults[fn].items()}
    cases = {
        fn: "\n".join(f"    if n == {n}: return {what}" for n, (owner, what, _) in expected.items() if owner == fn)
        for fn in faults
    }
    site.write(f"""{HEAD}{FUNCTIONS}
def map_it(n):
{cases["map_it"]}
    return n

def key_it(n):
{cases["key_it"]}
    return 0

def add(total, n):
{cases["add"]}
    return total + n

flow = Pipeline("faulty")
numbers = flow.source(read.iterable([*range(50), *range(100, 150), *range(50, 100)]), name="numbers")
numbers.map(map_it, name="mapped").key_by(key_it, name="keyed").reduce(add, name="total").last(name="last").sink(
    write.jsonl("out"), name="result"
)
""")

    done = site.command("run", "flow.py", "--workers", "1", "--redis", redis_url, "--job-id", "faulty")

    assert done.returncode == 4, done.stderr
    assert f"dead letters: {len(expected)} records given up" in done.stderr
    assert "Traceback" not in done.stderr
    found = {}
    for letter in letters_of(redis_url, "faulty"):
        [value] = decode_batch(letter.payload).values
        found[value] = letter.error
    assert found.keys() == expected.keys()
    for number, (fn, expression, error) in expected.items():
        assert found[number].startswith(error), (fn, expression, found[number][:200])
    total = sum(range(150)) - sum(expected)
    assert rows(site.root / "work/out") == [{"key": 0, "value": total}]
    site.assert_clean("flow.py", "out")


def test_a_function_that_fails_for_every_record_is_told_once_with_its_line(site: Site) -> None:
    site.write(f"""{HEAD}flow = Pipeline("hopeless")
numbers = flow.source(read.iterable(range(500)), name="numbers")
numbers.map(lambda n: n["a"], name="field").sink(write.jsonl("out"), name="result")
""")

    done = site.command("run", "flow.py", "--workers", "1")

    assert done.returncode == 4, done.stderr
    assert done.stderr.count("field: TypeError: 'int' object is not subscriptable (flow.py:5)") == 1
    assert "and 499 more" in done.stderr
    assert rows(site.root / "work/out") == []


@pytest.mark.parametrize("end", ["os._exit(1)", "ctypes.string_at(0)", "exec('raise KeyboardInterrupt')"])
def test_a_record_that_kills_its_worker_is_given_up_at_the_third_death(site: Site, end: str) -> None:
    site.write(f"""import ctypes, os
{HEAD}
flow = Pipeline("deadly")
numbers = flow.source(read.iterable(range(20)), name="numbers")
numbers.map(lambda n: {end} if n == 7 else n, name="deadly").sink(write.jsonl("out"), name="result")
""")

    done = site.command("run", "flow.py", "--workers", "1")

    assert done.returncode == 4, done.stderr
    assert "numbers: killed its worker 3 times" in done.stderr
    assert sorted(rows(site.root / "work/out")) == [n for n in range(20) if n != 7]
    site.assert_clean("flow.py", "out")


def test_an_iterable_of_what_cannot_be_stored_loses_only_that(site: Site) -> None:
    site.write(a_copy("read.iterable(lambda: iter([1, object(), 3]))"))

    done = site.command("run", "flow.py", "--workers", "1")

    assert done.returncode == 4, done.stderr
    assert "record 2: a value cannot be encoded: <object object" in done.stderr
    assert rows(site.root / "work/out") == [1, 3]
