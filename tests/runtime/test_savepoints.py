"""Savepoints of a job that works on: what is restored goes on exactly as the job that was never disturbed."""

from __future__ import annotations

import itertools
import json
from collections import defaultdict
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import fsspec
import pandas as pd
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from leader.duties.cuts import Cuts
from pipeline import Pipeline, count, hold_key, read, write
from pipeline.cli.progress import stage_rows
from pipeline.errors import JobStateError, SavepointError, SavepointLost
from pipeline.kernel.contract import Emitted, KeyedOperator, TimerChanges
from pipeline.lifecycle import JobState
from pipeline.records import Batch
from pipeline.savepoints.difference import differences, state_lines
from pipeline.savepoints.export import take_savepoint
from pipeline.savepoints.manifest import Manifest, new_name
from pipeline.savepoints.places import LocalPlace, place_of
from pipeline.savepoints.reading import Savepoint
from pipeline.settings import Limits
from pipeline.store import keys
from pipeline.store.cuts import CutStore
from pipeline.store.letters import LetterStore
from tests.runtime.harness import LocalJob, numbered, oracle_of, sequence_pipeline

KEYS = ["a", "b", "c", "d", 7, "7"]


def save(job: LocalJob, folder: Path, between: Callable[[], None] = lambda: None, **options: Any) -> Savepoint:
    """A savepoint of the job in the folder; `between` is called after each page."""
    place = LocalPlace(folder)
    record = job.jobs.read(job.job)
    name = new_name(job.job, (2026, 1, 2, 3, 4, 5, 0, 0, 0))  # type: ignore[arg-type]
    take_savepoint(job._scripts, record, place, name, between=between, **options)
    return Savepoint(place, name)


def outputs_until(job: LocalJob, manifest: Manifest, stream: str = "out") -> dict[Any, list[Any]]:
    """key -> the values that the job had put out before the cut."""
    found: dict[Any, list[Any]] = defaultdict(list)
    for key, value in job.read(stream)[: manifest.outputs[stream] - 1]:
        found[key].append(value)
    return dict(found)


def together(before: dict[Any, list[Any]], after: dict[Any, list[Any]]) -> dict[Any, list[Any]]:
    return {key: before.get(key, []) + after.get(key, []) for key in {**before, **after}}


def worked(job: LocalJob, slices: int) -> None:
    """So many slices of partitions that have a ticket, in turn."""
    for _ in range(slices):
        if not job.serve():
            return


# One example takes seconds: it is not made smaller.
@settings(
    suppress_health_check=[HealthCheck.function_scoped_fixture],
    max_examples=12,
    phases=[Phase.explicit, Phase.reuse, Phase.generate],
)
@given(
    data=st.data(),
    cut_at=st.integers(0, 40),
    stages=st.integers(1, 2),
    partitions=st.integers(1, 3),
    others=st.integers(1, 4),
)
def test_from_any_cut_a_restored_job_ends_as_the_one_that_was_never_disturbed(
    redis_url: str,
    tmp_path_factory: pytest.TempPathFactory,
    data: Any,
    cut_at: int,
    stages: int,
    partitions: int,
    others: int,
) -> None:
    values = numbered(KEYS, 12)
    limits = Limits(step_records=data.draw(st.sampled_from([3, 7, 8_000])))
    first = data.draw(st.integers(0, len(values)))
    with LocalJob(redis_url, sequence_pipeline(stages), partitions=partitions, limits=limits) as job:
        try:
            job.assign()
            for split in ("a", "b"):
                part = [pair for pair in values[:first] if (pair[0] in KEYS[:3]) == (split == "a")]
                if part:
                    job.send(part, split, entry_records=data.draw(st.integers(1, 9)))
            worked(job, cut_at)
            seen = itertools.count()

            def between() -> None:
                if next(seen) % 3 == 0:
                    job.serve()

            savepoint = save(job, tmp_path_factory.mktemp("s"), between)
            run_to_the_end(job, values[first:])
            before, whole, state = outputs_until(job, savepoint.manifest), job.by_key(), job.state(stages)

            with LocalJob(
                redis_url, sequence_pipeline(stages), partitions=others, limits=limits, job="k", savepoint=savepoint
            ) as restored:
                restored.assign()
                run_to_the_end(restored, values[first:])
                assert together(before, restored.by_key()) == whole == {key: list(range(1, 13)) for key in KEYS}
                assert restored.state(stages) == state
                assert restored.letters() == []
        finally:
            job.client.flushall()
            job.is_tampered = True


def run_to_the_end(job: LocalJob, rest: Sequence[Any]) -> None:
    for split in ("a", "b"):
        part = [pair for pair in rest if (pair[0] in KEYS[:3]) == (split == "a")]
        if part:
            job.send(part, split)
    job.run_to_the_end()


# what belongs to a savepoint


def counting(name: str = "counts", **options: Any) -> Pipeline:
    """Words -> a running count of each."""
    flow = Pipeline("counting", **options)
    words = flow.source(read.producer(), name="in").key_by(lambda word: word, name="by_word")
    words.aggregate(count(), name=name).sink(write.stream("out"), name="out")
    return flow


class Alarm(KeyedOperator):
    """Counts the records of each key, and hands the count out when the input has ended."""

    def process(self, keys: list[Any], values: list[Any], state: dict[Any, Any], timers: TimerChanges) -> Emitted:
        for key in keys:
            state[key] = state.get(key, 0) + 1
            timers.set(key, 1_000)
        return Emitted([], [])

    def on_timer(
        self, keys: Sequence[Any], dues: Sequence[int], state: dict[Any, Any], timers: TimerChanges
    ) -> Emitted:
        return Emitted([state[key] for key in keys], list(range(len(keys))))


def alarms() -> Pipeline:
    flow = Pipeline("alarms")
    words = flow.source(read.producer(), name="in").key_by(lambda word: word, name="by_word")
    words.process(Alarm(), name="alarm").sink(write.stream("out"), name="out")
    return flow


@pytest.mark.parametrize("others", [2, 3])
def test_timers_that_have_not_fired_fire_once_in_the_restored_job(redis_url: str, tmp_path: Path, others: int) -> None:
    with LocalJob(redis_url, alarms()) as job:
        job.assign()
        job.send("abab")
        job.run_until_idle()
        savepoint = save(job, tmp_path)

    with LocalJob(redis_url, alarms(), partitions=others, job="k", savepoint=savepoint) as restored:
        restored.assign()
        restored.send("c")
        restored.run_until_idle()
        assert restored.read() == []
        restored.run_to_the_end()

        assert restored.by_key() == {"a": [2], "b": [2], "c": [1]}


@pytest.mark.parametrize("others", [2, 5])
def test_a_job_that_was_cut_in_its_end_comes_to_its_end(redis_url: str, tmp_path: Path, others: int) -> None:
    with LocalJob(redis_url, alarms()) as job:
        job.assign()
        job.send("abab")
        job.end_input()
        job.serve()
        savepoint = save(job, tmp_path)
        before = outputs_until(job, savepoint.manifest)
        job.run_until_idle()

    with LocalJob(redis_url, alarms(), partitions=others, job="k", savepoint=savepoint) as restored:
        restored.assign()
        restored.run_until_idle()

        restored.assert_done()
        assert together(before, restored.by_key()) == {"a": [2], "b": [2]}


def fragile() -> Pipeline:
    """[key, number] through the oracle; a number below zero cannot be handled."""
    flow = Pipeline("fragile")
    stream = flow.source(read.producer(), name="in").key_by(lambda pair: pair[0], name="by_key", on_error=hold_key())
    stream.map(_checked, name="checked").aggregate(count(), name="counts").sink(write.stream("out"), name="out")
    return flow


def _checked(pair: list[Any]) -> list[Any]:
    if pair[1] < 0:
        raise ValueError("below zero")
    return pair


@pytest.mark.parametrize("others", [2, 5])
def test_held_keys_and_their_dead_letters_are_restored_and_go_on_when_they_are_mended(
    redis_url: str, tmp_path: Path, others: int
) -> None:
    with LocalJob(redis_url, fragile()) as job:
        job.assign()
        job.send([["a", 1], ["a", -2], ["a", 3], ["b", 1], ["b", -1], ["a", 4]])
        job.run_until_idle()
        letters = LetterStore(job._scripts, job.jobs.read("j"))
        letters.edit(next(one for one in letters.read() if one.record().keys == ["a"]), ["a", 2])
        savepoint = save(job, tmp_path)
        assert savepoint.manifest.letters == 2

    with LocalJob(redis_url, fragile(), partitions=others, job="k", savepoint=savepoint) as restored:
        restored.assign()
        restored.send([["a", 5], ["c", 1]])
        restored.run_until_idle()
        assert restored.by_key() == {"c": [1]}
        letters = LetterStore(restored._scripts, restored.jobs.read("k"))
        for letter in list(letters.read()):
            assert letter.behind == (3 if letter.record().keys == ["a"] else 0)
            if letter.record().keys == ["a"]:
                letters.replay(letter)
            else:
                letters.drop([letter.id])
        restored.run_until_idle()

        assert restored.by_key() == {"c": [1], "a": [2, 3, 4, 5]}
        assert restored.letters() == []
        restored.run_to_the_end()


@pytest.mark.parametrize("others", [2, 3])
def test_records_whose_ids_were_seen_before_the_cut_are_dropped_after_it(
    redis_url: str, tmp_path: Path, others: int
) -> None:
    with LocalJob(redis_url, counting()) as job:
        job.assign()
        job.lane().append(1, Batch(["a", "b"]), ids=["1", "2"])
        savepoint = save(job, tmp_path)
        job.lane().append(3, Batch(["c"]), ids=["3"])

    with LocalJob(redis_url, counting(), partitions=others, job="k", savepoint=savepoint) as restored:
        restored.assign()
        restored.lane("other").append(1, Batch(["a", "b", "c"]), ids=["1", "2", "3"])
        restored.run_to_the_end()

        assert restored.by_key() == {"a": [1], "b": [1], "c": [1]}


@pytest.mark.parametrize("others", [2, 3])
def test_a_source_goes_on_at_the_position_of_the_cut(redis_url: str, tmp_path: Path, others: int) -> None:
    with LocalJob(redis_url, counting()) as job:
        job.assign()
        job.lane().append(1, Batch(["a", "b"]), position=lambda index: {"at": index + 1})
        savepoint = save(job, tmp_path)
        job.lane().append(3, Batch(["c"]), position=lambda index: {"at": index + 3})

    with LocalJob(redis_url, counting(), partitions=others, job="k", savepoint=savepoint) as restored:
        lane = restored.lane()

        assert (lane.taken, lane.position, lane.position_at) == (2, {"at": 2}, 2)


@pytest.mark.parametrize("others", [1, 3])
def test_file_sinks_get_what_comes_behind_the_cut_and_the_books_balance(
    redis_url: str, tmp_path: Path, others: int
) -> None:
    def filed(folder: str) -> Pipeline:
        flow = Pipeline("filed")
        words = flow.source(read.producer(), name="in").key_by(lambda word: word, name="by_word")
        words.aggregate(count(), name="counts").sink(write.jsonl(str(tmp_path / folder)), name="files")
        return flow

    with LocalJob(redis_url, filed("one"), partitions=1) as job:
        job.assign()
        job.send("aab")
        job.run_until_idle()
        savepoint = save(job, tmp_path / "s")

    with LocalJob(redis_url, filed("one"), partitions=others, job="k", savepoint=savepoint) as restored:
        assert any("gets what comes behind the savepoint" in line for line in restored.restored.lines)
        restored.assign()
        restored.send("bb")
        restored.run_to_the_end()

        assert restored.state() == {("counts", "a"): 2, ("counts", "b"): 3}
        assert restored.jobs.log_totals(restored.jobs.read("k")) == {}


def test_with_other_partitions_counts_begin_anew_but_for_what_a_source_has_taken(
    redis_url: str, tmp_path: Path
) -> None:
    with LocalJob(redis_url, counting(), partitions=1) as job:
        job.assign()
        job.send("aab")
        job.run_until_idle()
        savepoint = save(job, tmp_path)

    with LocalJob(redis_url, counting(), partitions=3, job="k", savepoint=savepoint) as restored:
        begun = [(row.taken, row.emitted) for row in stage_rows(None, restored.jobs.facts("k"))]
        restored.assign()
        restored.send("bc")
        restored.run_to_the_end()

        assert begun == [(3, 0), (0, 0)]
        assert [(row.taken, row.emitted) for row in stage_rows(None, restored.jobs.facts("k"))] == [(5, 2), (2, 2)]
        told = [line for line in restored.restored.lines if "counts begin anew" in line]
        assert len(told) == 1
        assert "but for what a source's stage has taken" in told[0]


# other pipelines


def test_a_dropped_operator_is_refused_by_its_name_and_left_out_when_that_is_allowed(
    redis_url: str, tmp_path: Path
) -> None:
    with LocalJob(redis_url, counting()) as job:
        job.assign()
        job.send("aab")
        job.run_until_idle()
        savepoint = save(job, tmp_path)

    with pytest.raises(SavepointError, match=r"operator 'counts' and its state"):
        LocalJob(redis_url, counting("other"), job="k", savepoint=savepoint)
    with LocalJob(redis_url, counting("other"), job="k", savepoint=savepoint, allow_dropped=True) as restored:
        assert "new: operator 'other' begins without state" in restored.restored.lines
        assert "dropped: operator 'counts' and its state" in restored.restored.lines
        restored.assign()
        restored.send("b")
        restored.run_to_the_end()

        assert restored.by_key() == {"b": [1]}


def test_a_pipeline_with_more_stages_takes_each_operator_by_its_name(redis_url: str, tmp_path: Path) -> None:
    def grown() -> Pipeline:
        flow = Pipeline("counting")
        words = flow.source(read.producer(), name="in")
        oracle_of(flow.source(read.iterable([["x", 1]]), name="second"), "before").sink(
            write.stream("seen"), name="seen"
        )
        words.key_by(lambda word: word, name="by_word").aggregate(count(), name="counts").sink(
            write.stream("out"), name="out"
        )
        return flow

    with LocalJob(redis_url, counting()) as job:
        job.assign()
        job.send("aab")
        job.run_until_idle()
        savepoint = save(job, tmp_path)

    with LocalJob(redis_url, grown(), job="k", savepoint=savepoint) as restored:
        assert "new: source 'second' is read from its beginning" in restored.restored.lines
        restored.assign()
        restored.send("a", feeds="in")
        restored.run_to_the_end()

        assert restored.by_key() == {"a": [3]}


# edits


def edit(savepoint: Savepoint, change: Callable[[pd.DataFrame], pd.DataFrame]) -> None:
    path = Path(savepoint.where) / "state" / "part-00000.parquet"
    change(pd.read_parquet(path)).to_parquet(path)


def a_counted_savepoint(redis_url: str, folder: Path) -> Savepoint:
    with LocalJob(redis_url, counting()) as job:
        job.assign()
        job.send("aabbbc")
        job.run_until_idle()
        return save(job, folder)


def test_a_savepoint_that_was_edited_with_pandas_differs_in_that_key_only(redis_url: str, tmp_path: Path) -> None:
    savepoint = a_counted_savepoint(redis_url, tmp_path)

    def change(rows: pd.DataFrame) -> pd.DataFrame:
        rows.loc[rows["key"] == "b", "value"] = "40"
        return rows

    edit(savepoint, change)

    with pytest.raises(SavepointError, match="was changed: the table 'state'"):
        LocalJob(redis_url, counting(), job="k", savepoint=savepoint)
    with LocalJob(redis_url, counting(), job="k", savepoint=savepoint, allow_edits=True) as restored:
        assert restored.state() == {("counts", "a"): 2, ("counts", "b"): 40, ("counts", "c"): 1}
        restored.assign()
        restored.send("b")
        restored.run_to_the_end()
        assert restored.by_key() == {"b": [41]}


@pytest.mark.parametrize(
    ("column", "value", "told"),
    [
        ("value", "{", "its `value` is no JSON"),
        ("value", None, "it needs either `value` or `packed`"),
        ("packed", b"\xc1", "and has both"),
        ("key", "zebra", "is of the key group"),
        ("operator", "nobody", "there is no such operator"),
        ("stage", "in", "its `stage` is 'in'"),
        ("group", 3, "is of the key group"),
    ],
)
def test_a_broken_edit_is_refused_with_its_row_and_no_job_is_made(
    redis_url: str, tmp_path: Path, column: str, value: Any, told: str
) -> None:
    savepoint = a_counted_savepoint(redis_url, tmp_path)

    def change(rows: pd.DataFrame) -> pd.DataFrame:
        at = rows.index[rows["key"] == "b"][0]
        rows[column] = rows[column].astype(object)
        rows.at[at, column] = value
        return rows

    edit(savepoint, change)

    with pytest.raises(SavepointError, match=r"state/part-00000.parquet row \d") as caught:
        LocalJob(redis_url, counting(), job="k", savepoint=savepoint, allow_edits=True)
    assert told in str(caught.value)
    with LocalJob(redis_url, counting(), job="k") as job:
        assert job.jobs.list_ids() == ["j", "k"]


def test_a_key_that_is_there_twice_is_refused(redis_url: str, tmp_path: Path) -> None:
    savepoint = a_counted_savepoint(redis_url, tmp_path)
    edit(savepoint, lambda rows: pd.concat([rows, rows[:1]]))

    with pytest.raises(SavepointError, match=r"row 4 .*the key is there twice"):
        LocalJob(redis_url, counting(), job="k", savepoint=savepoint, allow_edits=True)


@pytest.mark.parametrize("table", ["facts", "in_flight", "letters", "held", "ids"])
def test_a_table_that_nobody_may_edit_is_refused_when_a_byte_of_it_is_another(
    redis_url: str, tmp_path: Path, table: str
) -> None:
    savepoint = a_counted_savepoint(redis_url, tmp_path)
    path = Path(savepoint.where) / table / "part-00000.parquet"
    path.write_bytes(path.read_bytes()[:-9] + b"x" + path.read_bytes()[-8:])

    with pytest.raises(SavepointError, match=f"damaged: the table '{table}'"):
        LocalJob(redis_url, counting(), job="k", savepoint=savepoint, allow_edits=True)


# faults


def test_an_exporter_that_fails_leaves_nothing_and_the_job_goes_on(redis_url: str, tmp_path: Path) -> None:
    with LocalJob(redis_url, counting()) as job:
        job.assign()
        job.send("aab")

        def dies() -> None:
            raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            save(job, tmp_path, dies)

        assert list(tmp_path.iterdir()) == []
        assert kept(job) == []
        job.run_to_the_end()
        assert job.newest() == {"a": 2, "b": 1}


def test_what_a_killed_exporter_left_is_let_go_by_the_leader_and_removed_by_the_next_one(
    redis_url: str, tmp_path: Path
) -> None:
    with LocalJob(redis_url, counting()) as job:
        job.assign()
        job.send("aab")
        place = LocalPlace(tmp_path)
        name = new_name("j", (2026, 1, 2, 3, 4, 5, 0, 0, 0))  # type: ignore[arg-type]
        draft = place.begin(name, "j")
        draft.create("facts/part-00000.parquet").close()
        CutStore(job._scripts, "j", job.plan).cut(name)
        job.run_until_idle()
        assert kept(job) != []
        duty = Cuts(job._scripts)
        assert duty.run_once(job.jobs.facts("j"), job.token) == {}
        assert place.names() == []

        job.client.hset(keys.savepoint("j"), "until", 0)
        assert Cuts(job._scripts).run_once(job.jobs.facts("j"), job.token) == {"savepoints_let_go": 1}

        assert kept(job) == []
        assert duty.run_once(job.jobs.facts("j"), job.token) == {}
        savepoint = save(job, tmp_path)
        assert [path.name for path in tmp_path.iterdir()] == [savepoint.name]


def kept(job: LocalJob) -> list[bytes]:
    prefix = keys.of_job(job.job)
    names = (f"{prefix}:was".encode(), f"{prefix}:savepoint".encode())
    return [name for name in job.client.scan_iter(count=1000) if name.startswith(names)]


def test_a_savepoint_that_costs_too_much_is_given_up_and_leaves_nothing(redis_url: str, tmp_path: Path) -> None:
    with LocalJob(redis_url, counting(), limits=Limits(savepoint_bytes=100)) as job:
        job.assign()
        job.send("aab")
        job.run_until_idle()
        job.send(["a", "b"] * 5)

        with pytest.raises(SavepointLost, match="given up"):
            save(job, tmp_path, job.run_until_idle)

        assert (list(tmp_path.iterdir()), kept(job)) == ([], [])
        job.run_to_the_end()
        assert job.newest() == {"a": 7, "b": 6}


def test_an_interrupted_restore_leaves_a_job_that_never_runs(redis_url: str, tmp_path: Path) -> None:
    savepoint = a_counted_savepoint(redis_url, tmp_path)
    pages = Savepoint.original_pages

    def breaks(self: Savepoint) -> Any:
        yield from itertools.islice(pages(self), 1)
        raise KeyboardInterrupt

    Savepoint.original_pages = breaks  # type: ignore[assignment, method-assign]
    try:
        with pytest.raises(KeyboardInterrupt):
            LocalJob(redis_url, counting(), job="k", savepoint=savepoint)
    finally:
        Savepoint.original_pages = pages  # type: ignore[method-assign]

    with LocalJob(redis_url, counting(), job="other") as job:
        record = job.jobs.read("k")
        assert (record.state, record.restoring) == (JobState.CANCELLED, savepoint.name)
        with pytest.raises(JobStateError, match="is being restored"):
            job.jobs.transition("k", JobState.RUNNING)
        job.jobs.remove("k")
        with LocalJob(redis_url, counting(), job="k", savepoint=savepoint) as restored:
            assert restored.jobs.state("k") is JobState.RUNNING
            assert restored.jobs.read("k").restoring == ""


def test_senders_of_the_job_before_are_refused_by_one_that_has_its_id(redis_url: str, tmp_path: Path) -> None:
    with LocalJob(redis_url, counting()) as job:
        job.assign()
        job.send("aab")
        savepoint = save(job, tmp_path, ends=JobState.CANCELLED)
        job.jobs.remove("j")
        with LocalJob(redis_url, counting(), savepoint=savepoint) as restored:
            with pytest.raises(Exception, match="removed"):
                job.send("c")
            restored.assign()
            restored.send("c")
            restored.run_to_the_end()
            assert restored.newest() == {"a": 2, "b": 1, "c": 1}
        job.is_tampered = True


# places, and looking


def test_a_savepoint_may_lie_where_fsspec_reaches(redis_url: str) -> None:
    with LocalJob(redis_url, counting()) as job:
        job.assign()
        job.send("aab")
        job.run_until_idle()
        place = place_of("memory://savepoints/deep")
        name = new_name("j", (2026, 1, 2, 3, 4, 5, 0, 0, 0))  # type: ignore[arg-type]
        take_savepoint(job._scripts, job.jobs.read("j"), place, name)
        assert place.names() == [name]

        with LocalJob(redis_url, counting(), job="k", savepoint=Savepoint.at(f"memory://savepoints/deep/{name}")) as k:
            assert k.state() == {("counts", "a"): 2, ("counts", "b"): 1}

        half = new_name("j", (2026, 1, 2, 3, 4, 6, 0, 0, 0))  # type: ignore[arg-type]
        with place.begin(half, "j").create("state/part-00000.parquet") as file:
            file.write(b"x")
        assert place.names() == [name]
        place.begin(new_name("j", (2026, 1, 2, 3, 4, 7, 0, 0, 0)), "j")  # type: ignore[arg-type]
        assert not fsspec.filesystem("memory").exists(f"/savepoints/deep/{half}")
        place.delete(name)
        assert place.names() == []


def test_values_that_json_cannot_say_are_kept_exactly_and_lines_show_all(redis_url: str, tmp_path: Path) -> None:
    flow = Pipeline("values")
    keyed = flow.source(read.producer(), name="in").key_by(lambda pair: pair[0], name="by_key")
    keyed.stateful_map(lambda _key, pair, _last: (pair[1], pair[1]), name="last").sink(write.stream("out"), name="out")
    values = [1, 1.0, True, "1", b"\x00\xff", float("inf"), -0.0, 2**63, {1: 2}, {"a": [None, 1.5]}, "\u2028 ü"]
    with LocalJob(redis_url, flow) as job:
        job.assign()
        job.send([[number, value] for number, value in enumerate(values)])
        job.run_until_idle()
        savepoint = save(job, tmp_path)

        with LocalJob(redis_url, flow, job="k", savepoint=savepoint) as restored:
            for group in range(256):
                one, two = (job.client.hgetall(keys.state(name, 1, group)) for name in ("j", "k"))
                assert one == two
            other = save(restored, tmp_path)

    assert list(differences(savepoint, other)) == []
    lines = [json.loads(line) for line in state_lines(savepoint)]
    assert {line["key"] for line in lines} == {str(number) for number in range(len(values))}
    assert sum("packed" in line for line in lines) == 3


def test_a_difference_names_each_key(redis_url: str, tmp_path: Path) -> None:
    with LocalJob(redis_url, counting()) as job:
        job.assign()
        job.send("ab")
        job.run_until_idle()
        one = save(job, tmp_path)
        job.send("abac")
        job.run_until_idle()
        other = save(job, tmp_path)

    expected = ["differs: counts a", "differs: counts b", f"only in {other.name}: counts c"]
    assert sorted(differences(one, other)) == sorted(differences(other, one)) == expected
