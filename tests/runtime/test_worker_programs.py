"""External programs in a job: each record applied once and in order, whatever the program does; only bad ones fall."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pipeline import Pipeline, Stream, count, read, write
from pipeline.codec import decode_batch
from pipeline.errors import EnvironmentFault
from pipeline.lifecycle import JobState
from pipeline.loader import load_graph
from pipeline.plan import compile_plan
from pipeline.settings import Limits
from pipeline.store.connection import connect
from pipeline.store.jobs import JobStore
from pipeline.store.scripts import Scripts
from stages.app import WorkerSettings, make_app
from stages.partition import SliceEnd
from tests.runtime.harness import LocalJob, SteppingClock, assert_sequence, in_sequence, numbered, sequence_pipeline

ANSWER = """
import json, os, sys, time
for line in sys.stdin:
    record = json.loads(line)
    value = record["value"]
    {body}
    print(json.dumps(answer), flush=True)
"""


def answering(body: str) -> list[str]:
    """A program of the JSON protocol: one line that makes `answer` from `value` and `record`."""
    return [sys.executable, "-c", ANSWER.format(body=body)]


def a_source() -> Stream:
    return Pipeline("external").source(read.iterable([0]), name="in")


def run(job: LocalJob, values: list[Any], **options: Any) -> LocalJob:
    job.assign()
    job.send(values, **options)
    job.run_to_the_end()
    return job


def test_grep_hello_and_replace_it_with_hi_give_two_lines_of_three(redis_url: str) -> None:
    hellos = a_source().external(["grep", "hello"], protocol="lines", exit_codes=(0, 1), name="grep")
    replaced = hellos.external("sed s/hello/hi/", protocol="lines", name="replace")
    replaced.sink(write.stream("out"), name="out")

    with LocalJob(redis_url, replaced.pipeline) as job:
        run(job, ["hello world", "goodbye", "say hello"], entry_records=1)

        assert job.values() == ["hi world", "say hi"]
        assert job.letters() == []


@pytest.mark.parametrize("partitions", [1, 3])
def test_every_key_keeps_its_sequence_through_programs_before_and_behind_the_exchange(
    redis_url: str, partitions: int
) -> None:
    flow = Pipeline("sequence")
    first = flow.source(read.iterable([0]), name="in").external(answering("answer = [value]"), name="before")
    keyed = first.key_by(lambda pair: pair[0], name="by")
    numbers = keyed.external(answering("assert record['key'] == value[0]; answer = [value[1]]"), name="behind")
    numbers.stateful_map(in_sequence, name="oracle").sink(write.stream("out"), name="out")

    with LocalJob(redis_url, flow, partitions=partitions) as job:
        run(job, numbered("abcde", 300), entry_records=100)

        assert_sequence(job, "abcde", 300)


def test_forwarded_keys_are_keys_again_behind_key_by(redis_url: str) -> None:
    # The word count of the original description: a program forwards each word as the key of a "1".
    words = a_source().external(
        ["sed", "-u", "-n", r"s/^value: \(.*\)/forward\nkey: \1\nvalue: 1/p"], protocol="forward"
    )
    words.key_by("key").aggregate(count(), name="n").sink(write.stream("out"), name="out")

    with LocalJob(redis_url, words.pipeline) as job:
        run(job, ["a", "b", "a", "c", "a"])

        assert job.newest() == {"a": 3, "b": 1, "c": 1}


FAULTS: dict[str, tuple[Callable[[Stream], Stream], str]] = {
    "refused": (
        lambda s: s.external(answering("answer = [value] if value % 7 else {'error': 'no seven'}"), name="bad"),
        "refused the record: no seven",
    ),
    "killed": (
        lambda s: s.external(answering("value % 7 or os.kill(os.getpid(), 9); answer = [value]"), name="bad"),
        "was killed by SIGKILL after 0 of 1 answers",
    ),
    "ended": (
        lambda s: s.external(answering("value % 7 or sys.exit('boo'); answer = [value]"), name="bad"),
        "ended with exit code 1 after 0 of 1 answers; it said: boo",
    ),
    "garbage": (
        lambda s: s.external(answering("answer = [value] if value % 7 else 'garbage'"), name="bad"),
        "answer 1 is no list of outputs",
    ),
    "hung": (
        lambda s: s.external(
            answering("time.sleep(0 if value % 7 else 300); answer = [value]"), name="bad", timeout_seconds=0.7
        ),
        "no answer in 0.7 s",
    ),
    "lines": (
        lambda s: (
            s.map(str, name="text")
            .external(["sh", "-c", "sed '/^7$\\|14/{w /dev/stderr\nq 3\n}'"], protocol="lines", name="bad")
            .map(int, name="number")
        ),
        "ended with exit code 3; it said: ",
    ),
}


@pytest.mark.parametrize("kind", FAULTS)
def test_only_the_records_that_a_program_fails_at_are_dead_letters(redis_url: str, kind: str) -> None:
    make, told = FAULTS[kind]
    stream = make(a_source())
    stream.sink(write.stream("out"), name="out")

    with LocalJob(redis_url, stream.pipeline, partitions=1) as job:
        run(job, list(range(1, 20)))

        assert job.values() == [n for n in range(1, 20) if n % 7]
        assert [int(value) for value in job.dead_values()] == [7, 14]
        for letter in job.letters():
            assert letter.operator == "bad"
            assert letter.error.startswith("ProgramError: ")
            assert told in letter.error
        assert decode_batch(job.letters()[0].payload).values == [7]


def test_a_program_that_is_killed_from_outside_in_the_middle_of_a_batch_costs_no_record(
    redis_url: str, tmp_path: Path
) -> None:
    once = tmp_path / "once"
    die = f"[open({str(once)!r}, 'w'), os.kill(os.getpid(), 9)]"
    program = answering(f"value == ['b', 150] and not os.path.exists({str(once)!r}) and {die}; answer = [value]")
    flow = sequence_pipeline(between=lambda stream: stream.external(program, name="fragile"))

    with LocalJob(redis_url, flow) as job:
        run(job, numbered("abc", 300))

        assert once.exists()
        assert_sequence(job, "abc", 300)


def test_a_new_owner_repeats_what_the_old_one_had_not_committed_and_nothing_counts_twice(redis_url: str) -> None:
    flow = sequence_pipeline(between=lambda stream: stream.external(answering("answer = [value]"), name="echo"))

    with LocalJob(redis_url, flow) as job:
        job.assign()
        job.send(numbered("ab", 200), entry_records=50)
        job.serve()
        job.scripts["w0"].break_call("after", ahead=3)
        job.run_and_sweep()
        job.workers["w0"].close()
        job.restart("w0")
        job.send(numbered("ab", 200, first=201), entry_records=50)
        job.end_input()
        job.run_and_sweep()

        assert_sequence(job, "ab", 400)


def test_a_worker_starts_a_program_once_for_all_its_partitions_and_ends_it(redis_url: str) -> None:
    stream = a_source().external(answering("answer = [os.getpid()]"), name="pid")
    stream.sink(write.stream("out"), name="out")

    with LocalJob(redis_url, stream.pipeline, partitions=3) as job:
        job.assign()
        for split in "abcdef":
            job.send([0] * 20, split)
        job.run_to_the_end()
        pids = set(job.values())

        assert len(job.values()) == 120
        assert len(pids) == 1

    with pytest.raises(ProcessLookupError):
        os.kill(pids.pop(), signal.SIGKILL)


def test_nothing_is_lost_or_doubled_when_the_time_is_over_while_records_are_tried_alone(redis_url: str) -> None:
    stream = a_source().external(answering("answer = [value] if value != 30 else {'error': 'no'}"), name="slow")
    stream.sink(write.stream("out"), name="out")

    # Each look at the clock is as long as a slice: a step of records that are tried alone is one record.
    with LocalJob(redis_url, stream.pipeline, partitions=1, clock=SteppingClock(1.0)) as job:
        run(job, list(range(60)))

        assert job.values() == [n for n in range(60) if n != 30]
        assert job.dead_values() == [30]


def test_a_program_that_vanishes_fails_the_job_and_makes_no_dead_letters(redis_url: str, tmp_path: Path) -> None:
    program = tmp_path / "program"
    program.write_text("#!/bin/sh\nexec cat")
    program.chmod(0o755)
    stream = a_source().external([program], name="gone")
    stream.sink(write.stream("out"), name="out")

    with LocalJob(redis_url, stream.pipeline, partitions=1, limits=Limits()) as job:
        job.assign()
        program.unlink()
        job.send(["a"])
        job.run_until_idle()

        record = job.jobs.read(job.job)
        assert job.ends[-1][2] is SliceEnd.STOPPED
        assert record.state is JobState.FAILED
        assert f"operator 'gone' needs the program '{program}', which is not here" in record.reason
        assert job.letters() == []


def test_a_worker_does_not_start_without_the_program(redis_url: str, tmp_path: Path) -> None:
    program = tmp_path / "program"
    program.write_text("#!/bin/sh\nexec cat")
    program.chmod(0o755)
    file = tmp_path / "flow.py"
    file.write_text(
        "from pipeline import Pipeline, read, write\n"
        'flow = Pipeline("gone")\n'
        f'flow.source(read.iterable([0])).external({str(program)!r}, name="tool").sink(write.stream("out"))\n'
    )
    plan = compile_plan(load_graph(str(file)), 1, Limits())
    JobStore(Scripts(connect(redis_url))).create("j", plan)
    program.unlink()

    with pytest.raises(EnvironmentFault, match="operator 'tool' needs the program"):
        make_app(WorkerSettings(redis_url, "j", "w0", "1-a", str(file)))
