"""What `external` makes of its arguments, and what it refuses."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pipeline import KeyedStream, Pipeline, Stream, read, validation, write
from pipeline.errors import EnvironmentFault, PipelineError
from pipeline.graph import External, Graph
from pipeline.kernel.testing import Harness
from pipeline.plan import compile_plan, fingerprint
from pipeline.programs.checking import find_programs
from pipeline.settings import Limits


def a_source() -> Stream:
    return Pipeline("external").source(read.iterable(["a"]), name="in")


def made(stream: Stream) -> Graph:
    stream.sink(write.console(), name="out")
    return stream.pipeline.graph()


def test_the_node_holds_all_that_was_said() -> None:
    grep = a_source().external(
        ["grep", "hello"],
        protocol="lines",
        timeout_seconds=5,
        memory_bytes=1 << 30,
        exit_codes=[0, 1],
        name="grep",
    )

    graph = made(grep)

    assert graph.node("grep") == External("grep", ("in",), ("grep", "hello"), "lines", 5, 1 << 30, (0, 1))
    assert compile_plan(graph, 1, Limits()).stages[0].nodes == ("in", "grep", "out")


def test_one_text_is_split_as_a_shell_would_and_a_path_is_made_absolute(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    stream = a_source().external("sed -u 's/a b/c/'").external([Path("bin/../tool"), Path("x")])

    graph = made(stream)

    assert graph.node("external_1") == External("external_1", ("in",), ("sed", "-u", "s/a b/c/"))
    assert graph.node("external_2") == External("external_2", ("external_1",), (f"{tmp_path}/tool", "x"))


@pytest.mark.parametrize(("protocol", "is_keyed"), [("json", True), ("forward", False)])
def test_the_key_stays_with_json_only(protocol: Any, is_keyed: bool) -> None:
    stream = a_source().key_by(str, name="by").external("cat", protocol=protocol, name="op")

    sink = made(stream).node("out")

    assert isinstance(stream, KeyedStream) is is_keyed
    assert getattr(sink, "key_field", "") == ("key" if is_keyed else None)


def test_a_keyed_operator_behind_forward_is_told_to_key_by() -> None:
    stream = a_source().key_by(str, name="by").external("cat", protocol="forward", name="op")

    with pytest.raises(PipelineError, match="stream 'op' is not keyed"):
        stream.last()  # type: ignore[attr-defined]


def test_a_graph_made_by_hand_is_checked_too() -> None:
    keyed = made(a_source().key_by(str, name="by").external("cat", name="op"))

    def with_op(**changes: Any) -> Graph:
        return Graph(keyed.name, tuple(replace(n, **changes) if n.name == "op" else n for n in keyed.nodes))

    validation.check(with_op())
    with pytest.raises(PipelineError, match="its stream is keyed"):
        validation.check(with_op(protocol="lines"))
    with pytest.raises(PipelineError, match="names no program"):
        validation.check(with_op(argv=()))


REFUSED: dict[str, tuple[Any, dict[str, Any], str]] = {
    "nothing": ([], {}, "needs a program and its arguments"),
    "empty text": ("", {}, "needs a program and its arguments"),
    "empty name": ([""], {}, "needs a program and its arguments"),
    "a number": (["sleep", 1], {}, "needs a program and its arguments"),
    "a function": (print, {}, "needs a program and its arguments"),
    "a null byte": (["a\0b"], {}, "needs a program and its arguments"),
    "no Unicode": (["\ud800"], {}, "needs a program and its arguments"),
    "an open quote": ("sed 's/a", {}, "cannot be split: No closing quotation"),
    "unknown protocol": ("cat", {"protocol": "xml"}, "there is no protocol 'xml'"),
    "no time": ("cat", {"timeout_seconds": 0}, "timeout_seconds must be above 0 and at most 25, not 0"),
    "too much time": ("cat", {"timeout_seconds": 26}, "at most 25"),
    "no number": ("cat", {"timeout_seconds": "5"}, "at most 25"),
    "not a number": ("cat", {"timeout_seconds": float("nan")}, "at most 25"),
    "little memory": ("cat", {"memory_bytes": 1000}, "memory_bytes must be None or at least 1048576 bytes"),
    "half bytes": ("cat", {"memory_bytes": 2e9}, "memory_bytes must be"),
    "no codes": ("cat", {"protocol": "lines", "exit_codes": ()}, "exit_codes must be"),
    "one code": ("cat", {"protocol": "lines", "exit_codes": 1}, "exit_codes must be"),
    "a signal": ("cat", {"protocol": "lines", "exit_codes": (-9,)}, "exit_codes must be"),
    "codes of a lasting program": ("cat", {"exit_codes": (0, 1)}, "for protocol='lines' only"),
}


@pytest.mark.parametrize("kind", REFUSED)
def test_what_cannot_run_is_refused_by_name_when_it_is_built(kind: str) -> None:
    program, options, told = REFUSED[kind]

    with pytest.raises(PipelineError) as caught:
        a_source().external(program, name="tool", **options)

    assert told in str(caught.value)
    assert "'tool'" in str(caught.value)


def test_plain_lines_are_refused_on_a_keyed_stream() -> None:
    with pytest.raises(PipelineError, match="its stream is keyed") as caught:
        a_source().key_by(str).external("cat", protocol="lines")

    assert 'protocol="json"' in caught.value.hint


def test_the_fingerprint_changes_with_command_and_protocol_and_not_with_limits() -> None:
    def print_of(program: str, **options: Any) -> str:
        return fingerprint(made(a_source().external(program, name="op", **options)))

    assert print_of("cat") == print_of("cat", timeout_seconds=3, memory_bytes=1 << 30)
    assert len({print_of("cat"), print_of("cat -u"), print_of("cat", protocol="forward")}) == 3


def test_a_program_that_is_not_on_this_machine_is_named_before_anything_starts(tmp_path: Path) -> None:
    find_programs(made(a_source().external("cat")).nodes)

    with pytest.raises(EnvironmentFault, match="operator 'tool' needs the program 'no-such-tool'") as caught:
        find_programs(made(a_source().external("no-such-tool -x", name="tool")).nodes)
    assert "PATH" in caught.value.hint

    (tmp_path / "plain").write_text("")
    with pytest.raises(EnvironmentFault, match="plain', which is not here") as caught:
        find_programs(made(a_source().external([tmp_path / "plain"], name="tool")).nodes)
    assert "executable" in caught.value.hint


def test_an_engine_without_runners_refuses_the_graph() -> None:
    with pytest.raises(PipelineError, match="operator 'tool' runs a program, and this engine runs none"):
        Harness(made(a_source().external("cat", name="tool")))
