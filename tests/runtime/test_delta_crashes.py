"""A run is in a Delta table once, whoever publishes it, however often, and wherever a publisher is killed."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import CommitProperties, DeltaTable, Field, Transaction, write_deltalake
from deltalake.schema import PrimitiveType

from pipeline import Pipeline, read, write
from pipeline.errors import SinkError
from pipeline.plan import SinkPlan
from pipeline.sinks import delta_table
from pipeline.sinks.publisher import Published, discard, publish
from pipeline.sources import parquetrows
from pipeline.sources.runner import feed_source
from pipeline.store.senders import FeedAddress
from tests.deltas import JOB, a_sink, entries, rows_of, run, stage
from tests.runtime.harness import LocalJob


def test_publishing_again_commits_nothing_also_when_nothing_is_staged_any_more(tmp_path: Path) -> None:
    sink = a_sink(tmp_path / "table")
    facts = [stage(sink, {"n": 1}, {"n": 2})]

    first = publish(sink, JOB, facts, run="1.0")
    again = publish(sink, JOB, facts, run="1.0")
    discard(sink, JOB)
    last = publish(sink, JOB, facts, run="1.0")

    assert first == again == last
    assert DeltaTable(tmp_path / "table").version() == 0
    assert rows_of(tmp_path / "table") == [{"n": 1}, {"n": 2}]


def test_publishing_again_after_others_compacted_the_table_commits_nothing(tmp_path: Path) -> None:
    sink = a_sink(tmp_path / "table")
    run(sink, {"n": 0}, job="other")
    facts = [stage(sink, {"n": 1}), stage(sink, {"n": 2}, partition=1)]
    first = publish(sink, JOB, facts, run="1.0")
    table = DeltaTable(tmp_path / "table")
    table.optimize.compact()
    table.create_checkpoint()
    version = table.version()

    assert publish(sink, JOB, facts, run="1.0") == first

    assert DeltaTable(tmp_path / "table").version() == version
    assert rows_of(tmp_path / "table") == [{"n": 0}, {"n": 1}, {"n": 2}]


def test_two_sinks_and_two_runs_are_commits_of_their_own(tmp_path: Path) -> None:
    one = a_sink(tmp_path / "table")
    facts = [stage(one, {"n": 1})]

    publish(one, JOB, facts, run="1.0")
    publish(SinkPlan("other", "delta", one.path, {"mode": "append"}, None), JOB, facts, run="1.0")
    publish(one, JOB, facts, run="2.0")

    assert rows_of(tmp_path / "table") == [{"n": 1}] * 3


@pytest.mark.parametrize("is_late", [True, False], ids=["while it commits", "before it commits"])
@pytest.mark.parametrize("exists", [True, False], ids=["a table", "no table"])
def test_of_two_publishers_at_once_one_commits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, exists: bool, is_late: bool
) -> None:
    sink = a_sink(tmp_path / "table")
    if exists:
        run(sink, {"n": 0}, job="other")
    facts = [stage(sink, {"n": 1})]
    commit, opened = delta_table.TableSink.commit, delta_table.TableSink._open
    inner: list[Published] = []

    def while_another_is_faster(table: Any, *args: Any) -> None:
        monkeypatch.setattr(delta_table.TableSink, "commit", commit)
        seen = [opened(table)] if is_late else []
        inner.append(publish(sink, JOB, facts, run="1.0"))
        monkeypatch.setattr(delta_table.TableSink, "_open", lambda table: seen.pop() if seen else opened(table))
        commit(table, *args)

    monkeypatch.setattr(delta_table.TableSink, "commit", while_another_is_faster)
    outer = publish(sink, JOB, facts, run="1.0")

    assert [outer] == inner
    assert rows_of(tmp_path / "table") == [*([{"n": 0}] if exists else []), {"n": 1}]


def test_a_table_whose_columns_change_while_files_are_written_gets_no_commit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sink = a_sink(tmp_path / "table")
    run(sink, {"n": 0}, job="other")
    facts = [stage(sink, {"n": 1})]
    commit = delta_table.TableSink.commit

    def behind_a_change(*args: Any) -> None:
        DeltaTable(tmp_path / "table").alter.add_columns(Field("m", PrimitiveType("long")))
        commit(*args)

    with monkeypatch.context() as context:
        context.setattr(delta_table.TableSink, "commit", behind_a_change)
        with pytest.raises(SinkError, match="were changed just now"):
            publish(sink, JOB, facts, run="1.0")

    publish(sink, JOB, facts, run="1.0")
    assert rows_of(tmp_path / "table") == [{"n": 0, "m": None}, {"n": 1, "m": None}]


class _Killed(BaseException):
    """The process is gone: nothing that it would have done follows."""


STEPS = [
    (Path, "mkdir"),
    (Path, "open"),
    (Path, "rename"),
    (os, "fsync"),
    (shutil, "rmtree"),
    (delta_table, "create_table_with_add_actions"),
    (delta_table.DeltaTable, "create_write_transaction"),
]


def dying(monkeypatch: pytest.MonkeyPatch, at: int, *, is_done: bool) -> Callable[[], int]:
    """Has this process die at the `at`-th call that changes a disk, before it or behind it. Gives the calls so far."""
    numbers = count(1)
    seen = [0]

    def wrapped(call: Callable[..., Any]) -> Callable[..., Any]:
        def step(*args: Any, **options: Any) -> Any:
            seen[0] = next(numbers)
            if seen[0] > at or (seen[0] == at and not is_done):
                raise _Killed
            result = call(*args, **options)
            if seen[0] == at:
                if hasattr(result, "close"):
                    result.close()
                raise _Killed
            return result

        return step

    for owner, name in STEPS:
        monkeypatch.setattr(owner, name, wrapped(getattr(owner, name)))
    return lambda: seen[0]


def killings(case: Callable[[pytest.MonkeyPatch, int, bool], bool]) -> Iterator[tuple[int, bool]]:
    """Each step, killed before and behind it, until there is none left."""
    for at in count(1):
        for is_done in (False, True):
            with pytest.MonkeyPatch.context() as monkeypatch:
                if not case(monkeypatch, at, is_done):
                    return
            yield at, is_done


def test_an_overwrite_killed_behind_its_commit_is_not_done_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run(a_sink(tmp_path / "table"), {"n": 0}, job="other")
    sink = a_sink(tmp_path / "table", "overwrite")
    facts = [stage(sink, {"n": 1})]
    commit = delta_table.TableSink.commit

    def then_dies(*args: Any) -> None:
        commit(*args)
        raise _Killed

    with monkeypatch.context() as context:
        context.setattr(delta_table.TableSink, "commit", then_dies)
        with pytest.raises(_Killed):
            publish(sink, JOB, facts, run="1.0")
    run(a_sink(tmp_path / "table"), {"n": 2}, job="another")

    assert publish(sink, JOB, facts, run="1.0").records == 1
    assert rows_of(tmp_path / "table") == [{"n": 1}, {"n": 2}]


def test_an_error_behind_the_commit_is_no_failure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sink = a_sink(tmp_path / "table")
    commit = delta_table.TableSink.commit

    def then_fails(*args: Any) -> None:
        commit(*args)
        raise OSError("no checkpoint could be written")

    monkeypatch.setattr(delta_table.TableSink, "commit", then_fails)

    assert publish(sink, JOB, [stage(sink, {"n": 1})], run="1.0").records == 1
    assert rows_of(tmp_path / "table") == [{"n": 1}]


@pytest.mark.parametrize("exists", [True, False], ids=["a table", "no table"])
def test_a_publisher_killed_at_any_step_is_made_good_by_the_next(tmp_path: Path, exists: bool) -> None:
    ours = [{"n": 1}, {"n": 2}]
    earlier = [{"n": 0}] if exists else []
    numbers = count()
    held: dict[str, Any] = {}

    def killed(monkeypatch: pytest.MonkeyPatch, at: int, is_done: bool) -> bool:
        folder = tmp_path / f"{next(numbers)}"
        if exists:
            run(a_sink(folder / "table"), *earlier, job="other")
        sink = a_sink(folder / "table")
        facts = [stage(sink, ours[0]), stage(sink, ours[1], partition=1)]
        held.update(folder=folder, sink=sink, facts=facts)
        dying(monkeypatch, at, is_done=is_done)
        try:
            publish(sink, JOB, facts, run="1.0")
        except _Killed:
            return True
        return False

    whole = [*earlier, *ours]
    met = 0
    for _ in killings(killed):
        met += 1
        folder, sink, facts = held["folder"], held["sink"], held["facts"]
        if (folder / "table" / "_delta_log").exists():
            assert rows_of(folder / "table") in (earlier, whole)

        published = publish(sink, JOB, facts, run="1.0")
        discard(sink, JOB)

        assert (published.files, published.records) == (2, 2)
        assert rows_of(folder / "table") == whole
        assert DeltaTable(folder / "table").version() == int(exists)
        assert entries(folder) == ["table"]
        assert len(list((folder / "table").glob("part-*"))) == len(earlier) + 2, "the same names again"
    assert met > 20


def test_a_foreign_transaction_of_the_table_does_not_count_as_ours(tmp_path: Path) -> None:
    write_deltalake(
        tmp_path / "table",
        pa.table({"n": [0]}),
        commit_properties=CommitProperties({"celeriac": "no outcome"}, app_transactions=[Transaction("other", 5)]),
    )

    run(a_sink(tmp_path / "table"), {"n": 1})

    assert rows_of(tmp_path / "table") == [{"n": 0}, {"n": 1}]


def test_a_feeder_that_is_killed_goes_on_with_the_version_that_the_job_began_with(
    redis_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(3):
        write_deltalake(tmp_path / "table", pa.table({"n": [number]}), mode="append")
    flow = Pipeline("delta")
    source = read.delta(tmp_path / "table")
    flow.source(source, name="rows").sink(write.stream("all"), name="all")
    whole = parquetrows.split_rows
    splits = count()

    def dies_at_the_second(*args: Any) -> Any:
        if next(splits) == 1:
            raise _Killed
        return whole(*args)

    with LocalJob(redis_url, flow) as job:
        job.assign()
        address = FeedAddress(redis_url, job.job, "rows")
        with monkeypatch.context() as context:
            context.setattr(parquetrows, "split_rows", dies_at_the_second)
            with pytest.raises(_Killed):
                feed_source(source, address)
        DeltaTable(tmp_path / "table").optimize.compact()
        write_deltalake(tmp_path / "table", pa.table({"n": [3]}), mode="append")
        feed_source(source, address)
        job.end_input()
        job.run_until_idle()
        job.drain_outputs()

        assert sorted(value["n"] for _, value in job.outputs["all"]) == [0, 1, 2]
