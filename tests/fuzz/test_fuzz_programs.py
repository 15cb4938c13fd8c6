"""What programs, shells and environments hand us: a program's output, arguments, variables, pipeline files."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from leader.main import read_environment
from pipeline.cli.main import run_command
from pipeline.errors import CeleriacError, EncodingError, EnvironmentFault, PipelineError, ProgramError
from pipeline.graph import External
from pipeline.loader import load_graph
from pipeline.programs.protocols import Answers, ForwardAnswers, JsonAnswers, LineAnswers, Malformed, Rejected
from pipeline.programs.runners import Programs
from pipeline.records import Batch
from pipeline.store.connection import connect, without_password
from stages.app import WorkerSettings
from stages.member import MemberSettings
from tests.fuzz.hostile import bent, fields, tried

REAL_OUTPUT = st.sampled_from(
    [
        b'[1]\n["a", null]\n[]\n',
        b'{"error": "no"}\n[{"a": [1.5]}]\n',
        b"forward\nkey: k\nvalue: a\\\\nb\nfilter\n",
        b"filter\nfilter\n",
        b"one line\n\xc3\xa9 another\nthe rest",
    ]
)
OUTPUT = bent(REAL_OUTPUT) | REAL_OUTPUT | fields()


@pytest.mark.parametrize("kind", [JsonAnswers, ForwardAnswers, LineAnswers])
@given(data=OUTPUT, cuts=st.lists(st.integers(0, 60), max_size=5))
@example(data=b"[" * 100_000 + b"\n", cuts=[])
@example(data=b'{"error": ' + b"1" * 5000 + b"}\n", cuts=[])
@tried(80)
def test_whatever_a_program_writes_is_malformed_refused_or_outputs(
    kind: type[Answers], data: bytes, cuts: list[int]
) -> None:
    answers, places = kind(), sorted({0, *cuts, len(data)})
    try:
        for start, stop in pairwise(places):
            answers.take(data[start:stop])
        values, origins = answers.outputs()
    except (Malformed, Rejected):
        return
    assert origins is None or len(origins) == len(values)
    assert all(0 <= origin < answers.count for origin in origins or ())


@pytest.fixture(scope="module")
def writers() -> Iterator[Programs]:
    """Programs that read one line and then write what the line asks for, as it is."""
    body = """
import ast, json, sys
for line in sys.stdin.buffer:
    sys.stdout.buffer.write(ast.literal_eval(json.loads(line)["value"]))
    sys.stdout.buffer.flush()
"""
    programs = Programs([External("json", ("in",), (sys.executable, "-c", body), "json", timeout_seconds=1)])
    yield programs
    programs.close()


@given(data=OUTPUT)
@tried(8, cost=500)
def test_a_worker_outlives_whatever_its_program_writes(writers: Programs, data: bytes) -> None:
    run = writers.runners["json"]
    try:
        out = run(Batch([repr(data)]))
    except (ProgramError, EncodingError):
        pass
    else:
        assert isinstance(out.values, list)
    assert run(Batch([repr(b'["well"]\n')])) == Batch(["well"])


# The command line and the environment.

WORDS = st.sampled_from(
    [
        "run", "status", "list", "cancel", "drain", "remove", "tail", "state", "readers", "dead-letters", "show",
        "drop", "produce", "healthcheck", "--redis", "--json", "--job-id", "--workers", "--help", "--debug", "--", "-1",
        "0", "99999999999999999999", "redis://h:99999999", "nonsense", "no/such/file.py", "\x00", "é\ud800", "--all",
        "--operator", "a b", "../x", "--partitions", "NaN", "--reader", "1e9", "http://h",
    ]
)  # fmt: skip
"""No address of a server: commands wait for one that may come back."""


@given(arguments=st.lists(WORDS | st.text(max_size=8).filter(lambda t: t not in ("verify", "flower")), max_size=6))
@tried(60, cost=20)
def test_any_arguments_are_an_exit_code_and_one_message(arguments: list[str]) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("CELERIAC_REDIS", raising=False)
        assert run_command(arguments) in (0, 1, 2, 3)


NAMES = st.sampled_from(["REDIS", "JOB", "WORKER", "PIPELINE", "LEADER", "INCARNATION"]).map("CELERIAC_".__add__)


@given(environment=st.dictionaries(NAMES, st.text(max_size=20)))
@tried(60)
def test_any_environment_is_settings_or_a_named_fault(environment: dict[str, str]) -> None:
    for read in (WorkerSettings.from_environment, MemberSettings.from_environment, read_environment):
        try:
            read(environment)
        except (PipelineError, EnvironmentFault) as error:
            said = str(error)
        else:
            continue
        assert said


@given(
    url=st.text(max_size=30)
    | st.text(max_size=20).map("redis://".__add__)
    | st.text(max_size=20).map("unix://".__add__)
)
@example(url="redis://[::1")
@example(url="redis://h:0x10/1")
@tried(100)
def test_any_address_is_a_client_or_a_fault_without_its_password(url: str) -> None:
    without_password(url)
    try:
        connect(url).close()
    except CeleriacError as error:
        said = error.hint
    else:
        return
    assert "redis://" in said


FILE = b"""from pipeline import Pipeline, read, write
flow = Pipeline("a")
flow.source(read.producer(), name="in").sink(write.console(), name="out")
"""


@given(data=bent(st.just(FILE)))
@tried(40)
def test_any_pipeline_file_is_a_graph_or_one_readable_error(tmp_path_factory: Any, data: bytes) -> None:
    path: Path = tmp_path_factory.mktemp("flow") / "flow.py"
    path.write_bytes(data)
    try:
        load_graph(str(path))
    except CeleriacError as error:
        said = str(error)
    else:
        return
    assert 0 < len(said) < 3000
