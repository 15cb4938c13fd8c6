"""The runners of external operators, with real programs that answer, hang, lie, die and eat memory."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.errors import EncodingError, EnvironmentFault, PipelineError, ProgramError
from pipeline.graph import External
from pipeline.kernel.contract import Runner
from pipeline.programs.runners import Programs
from pipeline.records import Batch
from tests.e2e.chaos import wait_until

MakeRunner = Callable[..., Runner]

ANSWER = """
import json, os, sys, time
for line in sys.stdin:
    record = json.loads(line)
    value = record["value"]
    {body}
    print(json.dumps(answer), flush=True)
"""


@pytest.fixture
def runner() -> Iterator[MakeRunner]:
    """Makes runners of one operator each, and ends their programs."""
    made: list[Programs] = []

    def make(*argv: str, **options: Any) -> Runner:
        made.append(Programs([External("op", ("in",), argv, **options)]))
        return made[-1].runners["op"]

    yield make
    for programs in made:
        programs.close()


def python(text: str) -> tuple[str, ...]:
    return (sys.executable, "-c", textwrap.dedent(text))


def answering(body: str) -> tuple[str, ...]:
    """A program of the JSON protocol: `body` makes `answer` from `value` and `record`."""
    return python(ANSWER.format(body=textwrap.indent(textwrap.dedent(body), "    ").strip()))


def is_alive(pid: int) -> bool:
    return psutil.pid_exists(pid) and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE


def test_each_record_gives_the_outputs_of_its_answer_in_order_with_its_columns(runner: MakeRunner) -> None:
    run = runner(*answering("answer = [[record['key'], n] for n in range(value)]"))

    out = run(Batch([2, 0, 1], ["a", "b", "c"], [10, 20, 30], ["x", "y", "z"]))

    assert out == Batch([["a", 0], ["a", 1], ["c", 0]], ["a", "a", "c"], [10, 10, 30], ["x/op/0", "x/op/1", "z"])
    assert run(Batch([1, 1])) == Batch([[None, 0], [None, 0]])


def test_a_program_is_started_once_and_not_for_each_batch(runner: MakeRunner) -> None:
    run = runner(*answering("answer = [os.getpid()]"))

    pids = {pid for size in (1, 3, 500) for pid in run(Batch([0] * size)).values}

    assert len(pids) == 1
    assert pids != {os.getpid()}


TEXTS = st.lists(st.text(st.characters(codec="utf-8")) | st.sampled_from(["\\n", "\n\r\\", " a ", "key: b", "\0"]))


@pytest.fixture(scope="module")
def echoes() -> Iterator[Programs]:
    """Programs that give back what they get, whatever it is."""
    forward = """
        import sys
        while key := sys.stdin.buffer.readline():
            sys.stdout.buffer.write(b"forward\\n" + key + sys.stdin.buffer.readline())
            sys.stdout.buffer.flush()
    """
    programs = Programs(
        [
            External("json", ("in",), answering("answer = [value]")),
            External("forward", ("in",), python(forward), "forward"),
            External("lines", ("in",), ("cat",), "lines"),
        ]
    )
    yield programs
    programs.close()


@given(texts=TEXTS.filter(bool))
@settings(deadline=None)
def test_any_text_returns_unharmed(echoes: Programs, texts: list[str]) -> None:
    keyed = Batch([*texts], texts[::-1])

    assert echoes.runners["json"](keyed) == keyed
    assert echoes.runners["forward"](keyed) == Batch(
        [{"key": key, "value": value} for key, value in zip(texts[::-1], texts, strict=True)]
    )


@given(texts=st.lists(st.text(st.characters(codec="utf-8", exclude_characters="\n")), min_size=1))
@settings(deadline=None, max_examples=10)
def test_any_line_returns_unharmed_from_a_program_of_plain_lines(echoes: Programs, texts: list[str]) -> None:
    assert echoes.runners["lines"](Batch(texts, ids=["id"] * len(texts))) == Batch(texts)


HELLO_IN_SHELL = r"""
while read -r key && read -r value; do
    case "$value" in
        *hello*) printf 'forward\n%s\nvalue: %s\n' "$key" "${value#value: }" ;;
        *) echo filter ;;
    esac
done
"""


def test_the_forward_form_filters_and_chains_without_keys(runner: MakeRunner) -> None:
    grep = runner("sh", "-c", HELLO_IN_SHELL, protocol="forward")
    replace = runner("sed", "-u", "s/hello/hi/; /^key:/s/^/forward\\n/", protocol="forward")

    found = grep(Batch(["hello a", "b", "c hello"], None, None, ["1", "2", "3"]))

    assert found == Batch([{"key": "", "value": "hello a"}, {"key": "", "value": "c hello"}], ids=["1", "3"])
    assert [each["value"] for each in replace(found).values] == ["hi a", "c hi"]


def test_a_program_of_the_forward_form_may_change_the_key_and_the_stream_has_none_then(runner: MakeRunner) -> None:
    run = runner("sed", "-u", "s/^key: /forward\\nkey: of /", protocol="forward")

    assert run(Batch(["v", "w"], ["k", 7])) == Batch([{"key": "of k", "value": "v"}, {"key": "of 7", "value": "w"}])


def test_plain_lines_keep_their_order_and_may_become_fewer_or_more(runner: MakeRunner) -> None:
    some = runner("grep", "-v", "0$", protocol="lines")
    twice = runner("sed", "p", protocol="lines")
    unended = runner("printf", "a\\nb", protocol="lines")

    assert some(Batch([str(n) for n in range(5000)])).values == [str(n) for n in range(5000) if n % 10]
    assert twice(Batch(["a", "b"])).values == ["a", "a", "b", "b"]
    assert unended(Batch(["never read"])).values == ["a", "b"]


def test_a_program_of_plain_lines_need_not_read_all_nor_write_to_the_end(runner: MakeRunner) -> None:
    values = [f"{n}" * 50 for n in range(20_000)]
    first = runner("head", "-n", "1", protocol="lines")
    early = runner("sh", "-c", "echo done; exec >&-; cat >/dev/null", protocol="lines")

    assert first(Batch(values)).values == values[:1]
    assert early(Batch(values)).values == ["done"]


def test_a_filter_that_selects_nothing_is_well_only_where_its_exit_code_is_named(runner: MakeRunner) -> None:
    told = runner("grep", "hello", protocol="lines", exit_codes=(0, 1))
    untold = runner("grep", "hello", protocol="lines")

    assert told(Batch(["bye"])) == Batch([])
    with pytest.raises(ProgramError, match="grep hello: ended with exit code 1") as caught:
        untold(Batch(["bye"]))
    assert "exit_codes=(0, 1)" in caught.value.hint


def test_a_batch_larger_than_all_pipes_flows_both_ways_while_errors_are_written(runner: MakeRunner) -> None:
    values = [f"{n}" * 50 for n in range(20_000)]
    run = runner(*answering("sys.stderr.write('e' * 500 + chr(10)); answer = [value]"))
    lines = runner("cat", protocol="lines")

    assert run(Batch(values)).values == values
    assert lines(Batch(values)).values == values


def test_a_program_that_answers_only_after_it_has_read_the_whole_batch_is_not_waited_for_in_vain(
    runner: MakeRunner,
) -> None:
    text = """
        import sys
        while True:
            lines = [sys.stdin.readline() for _ in range(1000)]
            print("".join("[1]\\n" for _ in lines), end="", flush=True)
    """

    assert runner(*python(text))(Batch(["x" * 100] * 1000)).values == [1] * 1000


def test_a_program_that_is_killed_in_a_batch_is_named_and_the_next_batch_has_a_new_one(runner: MakeRunner) -> None:
    body = """
        if value == "die":
            sys.stderr.write("so\\nlong\\n"); sys.stderr.flush()
            os.kill(os.getpid(), 9)
        answer = [os.getpid()]
    """
    run = runner(*answering(body))
    first = run(Batch(["a"])).values

    with pytest.raises(ProgramError, match=r"was killed by SIGKILL after 2 of 4 answers; it said: so\nlong"):
        run(Batch(["a", "b", "die", "c"]))

    assert run(Batch(["a"])).values != first


KILLED_AT_FIRST = """
    import os, pathlib, signal, sys
    line = sys.stdin.readline()
    died = pathlib.Path({died!r})
    deaths = len(died.read_text()) if died.exists() else 0
    died.write_text("x" * (deaths + 1))
    if deaths < {deaths}:
        os.kill(os.getpid(), signal.{signal})
    {answer}
    sys.stdout.flush()
    sys.stdin.read()
"""

ANSWERS = {
    "json": ("print('[1]')", 1),
    "forward": ("print('forward\\nkey: a\\nvalue: 1')", {"key": "a", "value": "1"}),
    "lines": ("print('1')", "1"),
}


@pytest.mark.parametrize("protocol", ANSWERS)
@pytest.mark.parametrize(("signal", "deaths", "is_given_up"), [("SIGKILL", 1, False), ("SIGTERM", 2, True)])
def test_a_record_alone_is_tried_once_more_where_its_program_was_killed(
    runner: MakeRunner, tmp_path: Path, protocol: str, signal: str, deaths: int, is_given_up: bool
) -> None:
    died, (answer, value) = tmp_path / "died", ANSWERS[protocol]
    text = KILLED_AT_FIRST.format(died=str(died), deaths=deaths, signal=signal, answer=answer)
    run = runner(*python(text), protocol=protocol)

    if is_given_up:
        with pytest.raises(ProgramError, match="was killed by SIGTERM"):
            run(Batch(["a"]))
    else:
        assert run(Batch(["a"])).values == [value]
    assert len(died.read_text()) == 2


@pytest.mark.parametrize("end", ["sys.exit(3)", "os.kill(os.getpid(), signal.SIGSEGV)"])
def test_a_record_whose_program_ends_by_itself_is_not_tried_again(runner: MakeRunner, tmp_path: Path, end: str) -> None:
    died = tmp_path / "died"
    text = KILLED_AT_FIRST.format(died=str(died), deaths=0, signal="SIGKILL", answer=end)

    with pytest.raises(ProgramError, match=r"(ended with exit code 3|was killed by SIGSEGV) after 0 of 1 answers"):
        runner(*python(text))(Batch(["a"]))

    assert len(died.read_text()) == 1


def test_a_program_that_ends_is_named_with_its_exit_code(runner: MakeRunner) -> None:
    run = runner("sh", "-c", "read -r line; echo no such thing >&2; exit 3")

    with pytest.raises(
        ProgramError, match=r"^sh -c '.*: ended with exit code 3 after 0 of 1 answers; it said: no such"
    ):
        run(Batch(["a"]))


def test_a_program_that_closes_its_output_is_ended(runner: MakeRunner) -> None:
    with pytest.raises(ProgramError, match="closed its output after 0 of 1 answers"):
        runner(*python("import os, time; os.close(1); time.sleep(60)"))(Batch(["a"]))


@pytest.mark.parametrize("protocol", ["json", "forward", "lines"])
def test_a_program_that_hangs_is_killed_at_its_deadline_with_all_that_it_started(
    runner: MakeRunner, tmp_path: Path, protocol: str
) -> None:
    note = tmp_path / "pids"
    command = f"sleep 300 & echo $! $$ > {note}; echo waiting >&2; wait"
    run = runner("sh", "-c", command, protocol=protocol, timeout_seconds=0.5)

    with pytest.raises(ProgramError, match=r"(no answer in|did not end within) 0.5 s; it said: waiting"):
        run(Batch(["a", "b"]))

    pids = [int(pid) for pid in note.read_text().split()]
    assert len(pids) == 2
    wait_until(lambda: not any(is_alive(pid) for pid in pids), "all are gone")


def test_a_batch_that_is_only_partly_answered_in_time_says_so(runner: MakeRunner) -> None:
    run = runner(*answering("time.sleep(60 * (value == 2)); answer = [1]"), timeout_seconds=1.5)

    with pytest.raises(ProgramError, match=r"2 of 3 answers in 1.5 s") as caught:
        run(Batch([0, 1, 2]))
    assert "flush" in caught.value.hint


GARBAGE = {
    "no JSON": ("json", "print('hello')", "answer 1 is no JSON: b'hello'"),
    "no list": ("json", "print('3')", "answer 1 is no list of outputs: b'3'"),
    "no UTF-8": ("json", "sys.stdout.buffer.write(b'[\"\\xff\"]\\n')", "answer 1 is no JSON"),
    "two answers": ("json", "print('[1]\\n[2]')", "answered more than the 1 record"),
    "half an answer more": ("json", "print('[1]\\n[', end='')", "answered more than the 1 record"),
    "no word": ("forward", "print('hello')", "has b'hello' where 'forward' or 'filter' must stand"),
    "no key": ("forward", "print('forward\\nvalue: a')", "where a line that begins with 'key:' must stand"),
    "bad escape": ("forward", "print('forward\\nkey: a\\nvalue: \\\\d')", "is no escape"),
    "no text": ("forward", "sys.stdout.buffer.write(b'forward\\nkey: \\xff\\nvalue: a\\n')", "a line is no UTF-8"),
    "no text in lines": ("lines", "sys.stdout.buffer.write(b'\\xff\\n')", "a line is no UTF-8"),
    "a line without end": (
        "json",
        "[sys.stdout.write('x' * 1000000) for _ in range(100)]",
        "a line of more than 8 MiB",
    ),
    "output without end": ("lines", "[print('x' * 1000000) for _ in range(100)]", "more than 64 MiB for one batch"),
}


@pytest.mark.parametrize("kind", GARBAGE)
def test_garbage_is_told_and_ends_the_program(runner: MakeRunner, kind: str) -> None:
    protocol, output, told = GARBAGE[kind]
    program = f"import os, sys\nsys.stdin.readline()\nprint(os.getpid(), file=sys.stderr)\n{output}\nsys.stdout.flush()"
    if protocol != "lines":
        program += "\nsys.stdin.read()"
    run = runner(*python(program), protocol=protocol)

    with pytest.raises(ProgramError) as caught:
        run(Batch(["a"]))

    assert told in str(caught.value)
    assert not is_alive(int(str(caught.value).rpartition("it said: ")[2]))


def test_output_that_was_not_asked_is_never_taken_for_an_answer(runner: MakeRunner, tmp_path: Path) -> None:
    go, gone = tmp_path / "go", tmp_path / "gone"
    os.mkfifo(go)
    text = f"""
        import pathlib, sys
        sys.stdin.readline()
        print("[1]", flush=True)
        pathlib.Path({str(go)!r}).read_text()
        print("[2]", flush=True)
        pathlib.Path({str(gone)!r}).touch()
        sys.stdin.read()
    """
    run = runner(*python(text))
    assert run(Batch(["a"])).values == [1]
    go.write_text("")
    wait_until(gone.exists, "the program has written")

    with pytest.raises(ProgramError, match=r"wrote what it was not asked: b'\[2\]"):
        run(Batch(["b"]))


def test_a_program_that_takes_too_much_memory_fails_alone(runner: MakeRunner) -> None:
    run = runner(*answering("answer = [len(bytearray(value))]"), memory_bytes=200 << 20)

    assert run(Batch([1000])).values == [1000]
    with pytest.raises(ProgramError, match=r"limited to 209715200 bytes\); it said: [\s\S]*MemoryError"):
        run(Batch([1 << 30]))
    assert run(Batch([1000])).values == [1000]


def test_a_refused_record_is_told_and_the_program_goes_on(runner: MakeRunner) -> None:
    run = runner(*answering("answer = [os.getpid()] if value else {'error': 'no value'}"))
    first = run(Batch([1])).values

    with pytest.raises(ProgramError, match="refused the record: no value"):
        run(Batch([1, 0, 1]))

    assert run(Batch([1])).values == first


def test_a_program_that_is_killed_while_it_is_idle_is_started_anew_and_nothing_fails(runner: MakeRunner) -> None:
    run = runner(*answering("answer = [os.getpid()]"))
    (first,) = run(Batch([0])).values
    os.kill(first, signal.SIGKILL)
    wait_until(lambda: not is_alive(first), "it is dead")

    (second,) = run(Batch([0])).values

    assert second != first


def test_a_program_never_sees_the_address_of_redis(runner: MakeRunner, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CELERIAC_REDIS", "redis://:secret@host")
    monkeypatch.setenv("OTHER", "seen")

    out = runner(*answering("answer = [sorted(os.environ.items())]"))(Batch([0])).values

    assert ["OTHER", "seen"] in out[0]
    assert "secret" not in str(out)


def test_a_program_dies_with_the_process_that_started_it(tmp_path: Path) -> None:
    note = tmp_path / "pid"
    deaf = f"echo $$ > {note}.new; mv {note}.new {note}; exec sleep 300"
    text = f"""
        from pipeline.graph import External
        from pipeline.programs.runners import Programs
        from pipeline.records import Batch
        Programs([External("op", ("in",), ("sh", "-c", {deaf!r}), timeout_seconds=20)]).runners["op"](Batch([1]))
    """
    parent = subprocess.Popen(python(text))
    wait_until(note.exists, "the program runs")
    pid = int(note.read_text())
    assert is_alive(pid)

    parent.kill()
    parent.wait()

    wait_until(lambda: not is_alive(pid), "the program is gone too")


def test_closing_lets_a_program_end_by_itself_and_a_later_batch_starts_it_anew(tmp_path: Path) -> None:
    done = tmp_path / "done"
    text = answering("answer = [value]")[2] + f"\nopen({str(done)!r}, 'w').close()\n"
    programs = Programs([External("op", ("in",), (sys.executable, "-c", text))])
    programs.runners["op"](Batch([1]))

    programs.close()

    assert done.exists()
    assert programs.runners["op"](Batch([2])).values == [2]
    programs.close()


BAD_VALUES = [
    ("forward", Batch([1]), "only text goes to a program of plain lines, not 1"),
    ("forward", Batch([{"key": "a", "value": "b", "more": "c"}]), "only text"),
    ("forward", Batch(["a"], [("t", "u")]), "only text"),
    ("lines", Batch([b"a"]), "only text"),
    ("lines", Batch(["a\nb"]), "would take 'a\\nb' for several lines"),
    ("lines", Batch(["\ud800"]), "no valid Unicode text"),
    ("json", Batch([{"a": object()}]), "a record has no JSON form"),
    ("json", Batch(["\ud800"]), "a record has no JSON form"),
]


@pytest.mark.parametrize(("protocol", "batch", "told"), BAD_VALUES)
def test_a_value_that_a_protocol_does_not_carry_is_refused_before_it_is_sent(
    runner: MakeRunner, protocol: str, batch: Batch, told: str
) -> None:
    with pytest.raises(EncodingError) as caught:
        runner("a program that is not there", protocol=protocol)(batch)

    assert told in str(caught.value)
    assert caught.value.index == 0


def test_plain_lines_refuse_a_stream_with_event_times(runner: MakeRunner) -> None:
    with pytest.raises(PipelineError, match="has event times, which it loses"):
        runner("cat", protocol="lines")(Batch(["a"], times=[1]))


@pytest.mark.parametrize("protocol", ["json", "lines"])
def test_a_program_that_cannot_be_started_is_no_fault_of_a_record(
    runner: MakeRunner, tmp_path: Path, protocol: str
) -> None:
    no_program = tmp_path / "text"
    no_program.write_text("no program")
    no_program.chmod(0o755)

    with pytest.raises(EnvironmentFault, match="'op' needs the program 'not-there-at-all', which is not here"):
        runner("not-there-at-all", protocol=protocol)(Batch(["a"]))
    with pytest.raises(EnvironmentFault, match=r"cannot be started.*Exec format"):
        runner(str(no_program), protocol=protocol)(Batch(["a"]))


def documented(language: str) -> str:
    """The program in the documentation."""
    page = (Path(__file__).parents[2] / "docs/external.md").read_text()
    blocks = re.findall(rf"^```{language}\n(.*?)^```", page, re.DOTALL | re.MULTILINE)
    return next(block for block in blocks if "stdin" in block or "read" in block)


def test_the_programs_of_the_documentation_do_what_it_says(runner: MakeRunner) -> None:
    words = runner(sys.executable, "-c", documented("python"))
    hellos = runner("sh", "-c", documented("sh"), protocol="forward")

    assert words(Batch(["a b", "", "c"], ["k", "l", "m"])) == Batch(["a", "b", "c"], ["k", "k", "m"])
    assert hellos(Batch([" hello\n\\o/ ", "bye"], ["k", "l"])) == Batch([{"key": "k", "value": " hello\n\\o/ "}])
