"""History in bulk, then live from the next record, and the other way round: as if all of it had been live."""

from __future__ import annotations

import itertools
import random
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from msgspec import structs

from pipeline import Pipeline, count, hold_key, read, write
from pipeline.codec import decode_batch
from pipeline.errors import PipelineError, SavepointError
from pipeline.plan import compile_plan, stream_name
from pipeline.savepoints.export import take_savepoint
from pipeline.savepoints.places import LocalPlace
from pipeline.savepoints.reading import Savepoint
from pipeline.settings import Limits
from pipeline.sources.local import ITERABLE_SPLIT
from pipeline.spark.bulk.beginning import SavepointSeed, first_records, open_savepoint, rest_of
from pipeline.spark.bulk.engine import BulkOptions, BulkRun
from pipeline.spark.bulk.handover import handed_over
from pipeline.spark.bulk.sources import open_sources
from pipeline.store.senders import FeedAddress
from tests.conformance.cases import CASES, FRAMES, Case
from tests.conformance.engines import Results, keyed_streams, run_live
from tests.e2e.chaos import wait_until
from tests.runtime.harness import LocalJob

pytestmark = pytest.mark.timeout(600)

HOLDING = {case.name for case in CASES if case.policy is not None and case.policy.holds_keys}
SEAMS = [case for case in CASES if case.name not in HOLDING]

ON_SPARK = [
    case
    for case in SEAMS
    if case.name in ("branch and union", "two keyed stages", "timers of an operator of the user's own", "dead letters")
]
"""What Spark has to carry over a seam. That each operator gives the same on it is shown in test_both_engines."""

CUTS = 2


def compute(run: BulkRun, spark: Any) -> None:
    """On the session, or its tasks in this process when there is none."""
    run.prepare()
    if spark is None:
        run.compute_here()
    else:
        run.compute(spark)


def backfill(spark: Any, pipeline: Pipeline, partitions: int, count: int, folder: Path) -> tuple[Results, Savepoint]:
    """The first so many records in bulk, and the savepoint behind them."""
    found = Results()
    plan = compile_plan(pipeline.graph(), partitions, Limits())
    takers = {sink.name: taker(found, stream_name(sink)) for sink in plan.sinks}
    ranges = first_records(pipeline.graph(), {"in": count}, plan.limits)
    options = BulkOptions(
        partitions=partitions, takers=takers, ranges=ranges, keeps_state=True, ends_input=False, job="history"
    )
    with BulkRun(pipeline, options) as run:
        compute(run, spark)
        with handed_over(run, LocalPlace(folder), "s"):
            run.publish()
    return found, Savepoint(LocalPlace(folder), "s")


def taker(found: Results, stream: str) -> Any:
    return lambda batch: found.outputs[stream].extend(zip(batch.keys or [None] * len(batch), batch.values, strict=True))


def rest_live(
    redis_url: str,
    pipeline: Pipeline,
    partitions: int,
    savepoint: Savepoint,
    rest: Sequence[Any],
    done: int,
    transforms: Any = None,
    job: str = "k",
) -> Results:
    """The records behind the cut, live, by the sender whose records before it were read on Spark."""
    given = {"partitions": partitions, "savepoint": savepoint, "transforms": transforms}
    with LocalJob(redis_url, pipeline, job=job, **given) as live:
        live.assign()
        assert live.lane(ITERABLE_SPLIT).taken == done
        live.send(rest, ITERABLE_SPLIT, entry_records=37)
        live.end_input()
        live.run_through_pauses()
        live.assert_done()
        live.drain_outputs()
        found = Results()
        for name, records in live.outputs.items():
            found.outputs[name] = list(records)
        for stage in live.plan.stages:
            found.state.update(live.state(stage.index) if stage.keyed else {})
        found.letters = [letter_facts(each) for each in live.letters()]
        return found


def letter_facts(letter: Any) -> tuple[str, str, str, str]:
    batch = letter.record()
    return letter.operator, letter.kind, letter.error, repr((batch.keys, batch.values))


def assert_together(case: Case, values: list[Any], before: Results, after: Results, whole: Results) -> None:
    plan = compile_plan(case.pipeline(values).graph(), case.partitions, Limits())
    keyed = keyed_streams(plan)
    both = Results(state=after.state, letters=after.letters)
    for part in (before, after):
        for name, records in part.outputs.items():
            both.outputs[name].extend(records)
    mine, expected = both.comparable(keyed), whole.comparable(keyed)
    for field in ("outputs", "state", "letters"):
        assert mine[field] == expected[field], field


def history_and_then_live(
    case: Case, spark: Any, redis_url: str, folder: Path, rng: random.Random, cuts: int = 1
) -> None:
    """Gives what live alone gives, for so many cuts."""
    values = case.drawn(7)
    pipeline = case.pipeline(values)
    whole = run_live(redis_url, pipeline, values, case.partitions)
    for number in range(cuts):
        cut, others = rng.randrange(0, len(values) + 1), rng.choice([case.partitions, case.partitions + 2])

        before, savepoint = backfill(spark, pipeline, case.partitions, cut, folder / str(number))
        after = rest_live(redis_url, pipeline, others, savepoint, values[cut:], cut, job=f"k{number}")

        assert_together(case, values, before, after, whole)


@pytest.mark.parametrize("case", SEAMS, ids=lambda case: case.name)
def test_history_in_bulk_and_then_live_gives_what_live_alone_gives(case: Case, redis_url: str, tmp_path: Path) -> None:
    history_and_then_live(case, None, redis_url, tmp_path, random.Random(f"seam {case.name}"), CUTS)


@pytest.mark.parametrize("case", ON_SPARK, ids=lambda case: case.name)
def test_history_on_spark_and_then_live_gives_what_live_alone_gives(
    case: Case, spark: Any, redis_url: str, tmp_path: Path
) -> None:
    history_and_then_live(case, spark, redis_url, tmp_path, random.Random(f"spark {case.name}"))


def test_history_of_frames_in_bulk_and_then_live_gives_what_live_alone_gives(
    spark: Any, redis_url: str, tmp_path: Path
) -> None:
    from pipeline.spark.transforms import Transforms

    values, cut = FRAMES.drawn(1), 15
    pipeline = FRAMES.pipeline(values)
    transforms = Transforms(pipeline.graph().nodes, opener=lambda: spark)
    wait_until(transforms.is_ready, "Spark is there", 120.0)
    whole = run_live(redis_url, pipeline, values, FRAMES.partitions, transforms)

    before, savepoint = backfill(spark, pipeline, FRAMES.partitions, cut, tmp_path)
    after = rest_live(redis_url, pipeline, 3, savepoint, values[cut:], cut, transforms)

    assert_together(FRAMES, values, before, after, whole)
    bad = [value["n"] == "bad" for value in values]
    assert 0 < sum(bad[:cut]) < sum(bad) == len(whole.letters)
    assert {len(whole.outputs[name]) > 0 for name in ("copies", "renamed", "sums")} == {True}


def live_and_then_in_bulk(
    case: Case, spark: Any, redis_url: str, folder: Path, rng: random.Random, cuts: int = 1
) -> None:
    """Gives what live alone gives, for so many cuts."""
    values = case.drawn(8)
    pipeline = case.pipeline(values)
    whole = run_live(redis_url, pipeline, values, case.partitions)
    for number in range(cuts):
        cut, job = rng.randrange(0, len(values) + 1), f"k{number}"

        before, after = first_live(redis_url, pipeline, case.partitions, values[:cut], folder, job), Results()
        savepoint = open_savepoint(str(folder / job))
        plan = compile_plan(pipeline.graph(), case.partitions + 1, Limits())
        options = BulkOptions(
            partitions=case.partitions + 1,
            takers={sink.name: taker(after, stream_name(sink)) for sink in plan.sinks},
            ranges=rest_of(savepoint, plan),
            seed=SavepointSeed(savepoint.where),
            keeps_state=True,
        )
        with BulkRun(pipeline, options) as run:
            compute(run, spark)
            run.publish()
            after.state = {(operator, key): value for _, operator, key, value in run.states()}
            letters = [letter_facts(each) for each in run.facts.letters]
        after.letters = before.letters + letters

        assert_together(case, values, before, after, whole)


def first_live(
    redis_url: str, pipeline: Pipeline, partitions: int, values: Sequence[Any], folder: Path, name: str
) -> Results:
    """The records before the cut, live, and the savepoint behind them, which has the name of the job."""
    found = Results()
    with LocalJob(redis_url, pipeline, partitions=partitions, job=name) as job:
        job.assign()
        job.send(values, ITERABLE_SPLIT, entry_records=37)
        job.run_through_pauses()
        job.drain_outputs()
        for stream, records in job.outputs.items():
            found.outputs[stream] = list(records)
        found.letters = [letter_facts(each) for each in job.letters()]
        take_savepoint(job._scripts, job.jobs.read(name), LocalPlace(folder), name)
    return found


@pytest.mark.parametrize("case", SEAMS, ids=lambda case: case.name)
def test_live_first_and_then_in_bulk_gives_what_live_alone_gives(case: Case, redis_url: str, tmp_path: Path) -> None:
    live_and_then_in_bulk(case, None, redis_url, tmp_path, random.Random(f"back {case.name}"), CUTS)


@pytest.mark.parametrize("case", ON_SPARK, ids=lambda case: case.name)
def test_live_first_and_then_on_spark_gives_what_live_alone_gives(
    case: Case, spark: Any, redis_url: str, tmp_path: Path
) -> None:
    live_and_then_in_bulk(case, spark, redis_url, tmp_path, random.Random(f"back on spark {case.name}"))


def words(path: Path) -> Pipeline:
    flow = Pipeline("words")
    lines = flow.source(read.text(str(path)), name="lines")
    (
        lines.flat_map(str.split, name="split")
        .key_by(lambda word: word, name="by_word")
        .aggregate(count(), name="counts")
        .sink(write.stream("counts"), name="out")
    )
    return flow


def test_a_cut_in_files_is_a_number_of_records_in_the_order_of_their_splits(tmp_path: Path) -> None:
    for name, lines in (("a", 3), ("b", 4), ("c", 2)):
        (tmp_path / f"{name}.txt").write_text("".join(f"{name}{n}\n" for n in range(lines)))
    graph = words(tmp_path).graph()

    def cut(number: int) -> list[tuple[int, int | None]]:
        return list(first_records(graph, {"lines": number}, Limits())["lines"].values())

    assert cut(0) == [(0, 0), (0, 0), (0, 0)]
    assert cut(3) == [(0, 3), (0, 0), (0, 0)]
    assert cut(5) == [(0, None), (0, 2), (0, 0)]
    assert cut(9) == [(0, None), (0, None), (0, 2)]
    assert cut(100) == [(0, None), (0, None), (0, None)]
    with pytest.raises(PipelineError, match="no source 'lins' is read in bulk"):
        first_records(graph, {"lins": 1}, Limits())


def test_files_that_were_read_to_a_cut_go_on_there(spark: Any, redis_url: str, tmp_path: Path) -> None:
    """With the feeder of the live engine, which knows the splits by their names."""
    from pipeline.sources.runner import feed_source

    (tmp_path / "in").mkdir()
    lines = [f"w{n % 7} w{n % 3}" for n in range(500)]
    for number in range(5):
        (tmp_path / "in" / f"{number}.txt").write_text("\n".join(lines[number * 100 : number * 100 + 100]) + "\n")
    pipeline = words(tmp_path / "in")
    graph = pipeline.graph()
    options = BulkOptions(
        partitions=2,
        ranges=first_records(graph, {"lines": 250}, Limits()),
        keeps_state=True,
        ends_input=False,
        results=tmp_path / "history",
    )
    with BulkRun(pipeline, options) as run:
        run.prepare()
        run.compute(spark)
        with handed_over(run, LocalPlace(tmp_path / "savepoints"), "s") as manifest:
            run.publish()

    with LocalJob(redis_url, pipeline, savepoint=Savepoint.at(str(tmp_path / "savepoints/s"))) as job:
        job.assign()
        source = next(node for node in graph.nodes if node.name == "lines")
        feed_source(source.spec, FeedAddress(redis_url, "j", "lines"), reader="local")
        job.end_input()
        job.run_until_idle()
        job.assert_done()
        job.drain_outputs()
        results = list(job.outputs["counts"])
        assert job.jobs.facts("j").partitions[0].taken + job.jobs.facts("j").partitions[1].taken == 500

    expected = Counter(" ".join(lines).split())
    assert manifest.outputs == {"counts": 501}
    history = [path.read_text() for path in sorted((tmp_path / "history/out").glob("part-*"))]
    assert sum(len(text.splitlines()) for text in history) == 500
    assert len(results) == 500
    assert {key: max(value for each, value in results if each == key) for key in expected} == expected


def test_a_table_that_was_read_to_a_cut_goes_on_there_in_the_same_version(
    spark: Any, redis_url: str, tmp_path: Path
) -> None:
    from pipeline.sources.runner import feed_source

    write_deltalake(tmp_path / "table", pa.table({"n": list(range(100))}))
    write_deltalake(tmp_path / "table", pa.table({"n": list(range(100, 200))}), mode="append")
    pipeline = Pipeline("table")
    spec = read.delta(tmp_path / "table")
    pipeline.source(spec, name="rows").map(lambda row: row["n"], name="n").sink(write.stream("all"), name="all")
    graph, history = pipeline.graph(), list[Any]()
    options = BulkOptions(
        partitions=2,
        ranges=first_records(graph, {"rows": 150}, Limits()),
        keeps_state=True,
        ends_input=False,
        takers={"all": lambda batch: history.extend(batch.values)},
    )
    with BulkRun(pipeline, options) as run:
        run.prepare()
        run.compute(spark)
        with handed_over(run, LocalPlace(tmp_path / "savepoints"), "s"):
            run.publish()
    DeltaTable(tmp_path / "table").optimize.compact()

    with LocalJob(redis_url, pipeline, savepoint=Savepoint.at(str(tmp_path / "savepoints/s"))) as job:
        job.assign()
        feed_source(spec, FeedAddress(redis_url, "j", "rows"))
        job.end_input()
        job.run_until_idle()
        job.assert_done()
        job.drain_outputs()
        rest = [value for _, value in job.outputs["all"]]

    assert len(history) == 150
    assert sorted([*history, *rest]) == list(range(200))


def test_a_dead_letter_that_holds_its_key_lets_no_savepoint_be_written(spark: Any, tmp_path: Path) -> None:
    flow = Pipeline("holding")
    stream = flow.source(read.iterable([1, 0, 2]), name="in").key_by(lambda _: "k", name="by", on_error=hold_key())
    stream.map(lambda n: 8 // n, name="divide").sink(write.stream("out"), name="out")
    with BulkRun(flow, BulkOptions(keeps_state=True, ends_input=False, results=tmp_path / "r")) as run:
        run.prepare()
        run.compute(spark)
        with (
            pytest.raises(SavepointError, match="keys are held by 1 dead letter,"),
            handed_over(run, LocalPlace(tmp_path / "s"), "s"),
        ):
            pytest.fail("nothing may be published then")

    assert LocalPlace(tmp_path / "s").names() == []


def test_sources_of_producers_are_left_to_the_live_job(spark: Any, redis_url: str, tmp_path: Path) -> None:
    def flow() -> Pipeline:
        made = Pipeline("both")
        history = made.source(read.iterable(["a", "b", "a"]), name="history")
        fresh = made.source(read.producer(), name="fresh")
        keyed = history.union(fresh, name="all").key_by(lambda word: word, name="by_word")
        keyed.aggregate(count(), name="counts").sink(write.stream("counts"), name="out")
        return made

    notes: list[str] = []
    options = BulkOptions(
        leaves_followed=True, keeps_state=True, ends_input=False, results=tmp_path / "r", note=notes.append
    )
    with BulkRun(flow(), options) as run:
        run.prepare()
        run.compute(spark)
        with handed_over(run, LocalPlace(tmp_path), "s"):
            run.publish()

    assert notes == ["source fresh is not read here: it begins with the live job"]
    with LocalJob(redis_url, flow(), savepoint=Savepoint.at(str(tmp_path / "s"))) as job:
        job.assign()
        job.send(["a", "c"], "p", "fresh")
        job.end_input()
        job.run_until_idle()
        job.drain_outputs()
        assert sorted(job.outputs["counts"]) == [("a", 3), ("c", 1)]


def test_a_dead_letter_of_the_last_of_many_portions_goes_on_in_the_live_job(
    spark: Any, redis_url: str, tmp_path: Path
) -> None:
    flow = Pipeline("faulty")
    lines = flow.source(read.iterable([*range(3_000), "x"]), name="in")
    lines.map(lambda n: n + 1, name="add").sink(write.stream("out"), name="out")
    options = BulkOptions(partitions=1, keeps_state=True, ends_input=False, results=tmp_path / "r")
    with BulkRun(flow, options) as run:
        run.prepare()
        run.compute(spark)
        run.facts.letters = [structs.replace(letter, partition=7) for letter in run.facts.letters]
        with handed_over(run, LocalPlace(tmp_path), "s"):
            run.publish()

    with LocalJob(redis_url, flow, partitions=1, savepoint=Savepoint.at(str(tmp_path / "s"))) as job:
        assert [(letter.partition, letter.operator) for letter in job.letters()] == [(0, "add")]


def test_a_draft_of_a_killed_backfill_does_not_keep_its_name(tmp_path: Path) -> None:
    place = LocalPlace(tmp_path)
    place.begin("s", "s").create("facts/part-0.parquet").close()

    place.begin("s", "s").publish(b"{}")

    assert [path.name for path in tmp_path.iterdir()] == ["s"]
    assert [path.name for path in (tmp_path / "s").iterdir()] == ["manifest.json"]


def test_the_end_of_a_cut_ends_an_iterable_that_has_none(tmp_path: Path) -> None:
    flow = Pipeline("endless")
    flow.source(read.iterable(itertools.count), name="in").sink(write.jsonl(str(tmp_path / "o")), name="o")
    ranges = first_records(flow.graph(), {"in": 10}, Limits())

    portions, _ = open_sources(flow.graph(), tmp_path, Limits(), ranges)

    records = [decode_batch(piece.payload).values for piece in portions["in"].read(0, Limits())]
    assert list(itertools.chain(*records)) == list(range(10))
