"""`celeriac backfill --job` with Spark: files that were read, and files that grow, up to just where the job stands."""

from __future__ import annotations

import json
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import chdir
from pathlib import Path
from typing import Any

import pytest

from pipeline.cli.main import run_command
from pipeline.codec import decode_batch, encode_batch
from pipeline.errors import InputError
from pipeline.graph import Graph
from pipeline.lifecycle import JobState
from pipeline.loader import load_graph
from pipeline.recomputing.computed import Computed, Given
from pipeline.records import Batch
from pipeline.sources.following import Following
from pipeline.sources.layout import open_files
from pipeline.sources.local import read_locally
from pipeline.sources.opening import open_source
from pipeline.spark.bulk.history import History
from pipeline.spark.bulk.letters import Letter
from pipeline.spark.bulk.recompute import SparkRecompute
from pipeline.store.ownership import Ownership
from pipeline.store.scripts import Scripts
from pipeline.store.senders import FeedAddress
from pipeline.store.swaps import SwapStore
from tests.e2e.chaos import Site, read_rows
from tests.runtime.harness import LocalJob

pytestmark = pytest.mark.timeout(300)

FLOW = """
from pathlib import Path

from pipeline import Pipeline, count, read, write

FLAG = Path("broken").absolute()


def worth(row):
    return row["n"] * (10 if FLAG.exists() and row["k"] in FLAG.read_text().split() else 1)


def counted(key, row, before):
    return {**row, "n": row["n"] + (before or 0)}, (before or 0) + 1


flow = Pipeline("balances")
old = flow.source(read.json("old"), name="old")
live = flow.source(read.json("live.jsonl*", follow=True), name="live")
rows = old.union(live, name="rows").filter(lambda row: row["n"] != 13, name="lucky")
hop = rows.key_by(lambda row: row["k"], name="hop").stateful_map(counted, name="counted")
by_key = hop.key_by(lambda row: row["k"], name="by_key")
total = by_key.map(worth, name="worth").reduce(lambda one, other: one + other, name="total")
total.sink(write.stream("out"), name="running")
total.last(name="last").sink(write.jsonl("end"), name="end")
rests = rows.key_by(lambda row: row["n"] % 3, name="by_rest").aggregate(count(), name="counts")
rests.sink(write.stream("counts"), name="all_counts")
"""

SENT_BY_APPLICATIONS = """
from pipeline import Pipeline, count, read, write

flow = Pipeline("sent")
flow.source(read.producer(), name="in").key_by(lambda v: v, name="by").aggregate(count(), name="counts").sink(
    write.stream("out"), name="out"
)
"""

OF_FRAMES = """
from pipeline import Pipeline, count, read, write

flow = Pipeline("framed")
rows = flow.source(read.text("old.txt"), name="in").map(lambda line: {"k": line}, name="row")
framed = rows.transform(lambda frame: frame, schema="k string", name="framed")
framed.key_by("k", name="by").aggregate(count(), name="counts").sink(write.stream("out"), name="out")
"""

KEYS = [f"k{number}" for number in range(6)]
WRONG = ["k1", "k4"]


class FileFlow:
    """The pipeline of a file, for a `LocalJob`."""

    def graph(self) -> Graph:
        return load_graph("flow.py")


class Story:
    """A job that has read the old files and what there is of the growing one, wrong for some keys."""

    def __init__(self, job: LocalJob) -> None:
        self.job = job
        self.rows: list[dict[str, Any]] = []
        job.assign()
        Path("broken").write_text(" ".join(WRONG))
        Path("old").mkdir()
        for number in range(2):
            text = "".join(json.dumps(row) + "\n" for row in self.some(10 * number, 10))
            Path(f"old/{number}.jsonl").write_text(text + ("this is no JSON\n" if number else ""))
        graph = load_graph("flow.py")
        specs = {node.name: node.spec for node in graph.nodes if hasattr(node, "spec")}
        read_locally(open_files(specs["old"]), FeedAddress(job.url, "j", "old", 0.0))
        feed = FeedAddress(job.url, "j", "live", 0.0).open()
        self.feeder = Following(open_source(specs["live"], feed), feed)
        self.grow(100, 20)
        Path("broken").unlink()

    def some(self, first: int, count: int) -> list[dict[str, Any]]:
        rows = [{"k": key, "n": number} for number in range(first, first + count) for key in KEYS]
        self.rows += rows
        return rows

    def taken(self) -> int:
        return sum(part.taken for part in self.job.jobs.facts("j").partitions if part.stage == 1)

    def grow(self, first: int, count: int, name: str = "live.jsonl") -> None:
        """The file grows, and all of it is processed."""
        with open(name, "a") as file:
            file.writelines(json.dumps(row) + "\n" for row in self.some(first, count))
        goal = self.taken() + len(KEYS) * count
        while self.taken() < goal:
            self.feeder._look_at = 0.0
            for strand in self.feeder._strands.values():
                strand.due_at = 0.0
            self.feeder.round()
            self.job.look()
            self.job.run_until_idle()

    def stand(self) -> Given:
        """What the sources have given."""
        stage = next(stage for stage in self.job.plan.stages if stage.name == "by_key")
        record = self.job.jobs.read("j")
        return SwapStore(Scripts(self.job.client), record, self.job.plan.up_to(stage.index)).stand().senders

    def right(self) -> dict[str, int]:
        numbers = {key: [row["n"] for row in self.rows if row["k"] == key and row["n"] != 13] for key in KEYS}
        return {key: sum(found) + sum(range(len(found))) for key, found in numbers.items()}

    def totals(self) -> dict[str, int]:
        stage = next(stage.index for stage in self.job.plan.stages if stage.name == "by_key")
        return {key: value for (operator, key), value in self.job.state(stage).items() if operator == "total"}

    def assert_right(self) -> None:
        stages = {stage.name: stage.index for stage in self.job.plan.stages}
        right = self.right()
        assert self.job.state(stages["by_key"]) == {
            (name, key): right[key] for key in KEYS for name in ("total", "last")
        }
        assert sum(self.job.state(stages["hop"]).values()) == sum(row["n"] != 13 for row in self.rows)
        counts = self.job.state(stages["by_rest"])
        assert sum(counts.values()) == sum(row["n"] != 13 for row in self.rows)
        assert self.job.jobs.read("j").paused == {}


@pytest.fixture
def story(redis_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Story]:
    monkeypatch.chdir(tmp_path)
    Path("flow.py").write_text(FLOW)
    with LocalJob(redis_url, FileFlow(), partitions=3) as job:  # type: ignore[arg-type]
        yield Story(job)


def backfill(story: Story, *arguments: str) -> int:
    given = ["backfill", "flow.py", "--job", "j", "--redis", story.job.url, "--partitions", "2", *arguments]
    return run_command(given)


def between(monkeypatch: pytest.MonkeyPatch, call: Callable[[int], None]) -> list[int]:
    """What happens behind each of its calls."""
    compute, calls = SparkRecompute.__call__, list[int]()

    def called(self: SparkRecompute, given: Any) -> Any:
        found = compute(self, given)
        calls.append(found.records)
        call(len(calls))
        return found

    monkeypatch.setattr(SparkRecompute, "__call__", called)
    return calls


def test_the_state_of_some_keys_is_that_of_the_files_while_these_grow(
    spark: Any,  # noqa: ARG001 - the command takes it
    story: Story,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def grow(call: int) -> None:
        if call == 1:
            Path("live.jsonl").rename("live.jsonl.1")  # it is rotated, too
            story.grow(200, 3, "live.jsonl.1")
            story.grow(300, 4, "live.jsonl")

    wrong, limit = story.totals(), max(story.right().values())
    assert {key for key, total in story.right().items() if wrong[key] != total} == set(WRONG)
    for condition in ("valu > 3", "value >"):
        assert backfill(story, "--where", condition, "--operator", "total") == 2
        assert "error: --where: " in capsys.readouterr().err
    assert backfill(story, "--where", "operator = 'none'", "--operator", "total") == 0
    assert "no key of stage by_key is meant: nothing to do" in capsys.readouterr().err
    assert story.totals() == wrong
    read = between(monkeypatch, grow)
    monkeypatch.setattr("pipeline.spark.bulk.recompute.HERE_RECORDS", 0)  # the rest on Spark as well

    code = backfill(story, "--where", f"operator = 'total' and value > {limit}", "--operator", "last")

    said = capsys.readouterr().err
    assert code == 0, said
    assert read == [241, 42]
    assert "stage by_key: the state of these keys is what 283 records of history give: 2 changed" in said
    story.job.look()
    story.assert_right()
    story.grow(400, 2)
    story.assert_right()
    assert [past.about.change for past in story.job.jobs.read("j").operations] == [
        "backfill of 2 keys of by_key by flow.py"
    ]


@pytest.mark.usefixtures("no_spark")
def test_files_that_are_not_as_they_were_are_named_and_nothing_is_changed(
    story: Story,
    capsys: pytest.CaptureFixture[str],
) -> None:
    wrong, arguments = story.totals(), ("--keys", "keys.txt", "--operator", "total")
    Path("keys.txt").write_text("k1")

    old = Path("old/0.jsonl").rename("old-0")
    assert backfill(story, *arguments) == 3
    assert "what the job has read is not there as it was: 0.jsonl@0-" in capsys.readouterr().err
    old.rename("old/0.jsonl")
    lines = Path("live.jsonl").read_text()
    Path("live.jsonl").write_text(lines[:-20])
    assert backfill(story, *arguments) == 3
    assert "live.jsonl*: what the job has read is not there as it was" in capsys.readouterr().err

    assert story.totals() == wrong
    assert story.job.jobs.read("j").paused == {}


def test_a_growing_file_is_read_from_place_to_place_and_no_further(story: Story) -> None:
    before = story.stand()
    story.grow(200, 3)
    lines = Path("live.jsonl").read_text()
    portions = History(load_graph("flow.py")).portions(story.stand(), before)

    def rows() -> list[Any]:
        return [
            value
            for number in range(portions["live"].count)
            for piece in portions["live"].read(number, story.job.limits)
            for value in decode_batch(piece.payload).values
        ]

    with open("live.jsonl", "a") as file:
        file.write('{"k": "k0", "n": 999}\n')
    assert rows() == story.rows[-18:]
    assert portions["old"].count == 0
    middle = lines.rindex("\n", 0, -100)
    Path("live.jsonl").write_text(lines[:middle] + " " + lines[middle + 1 :])  # the marks at both ends do not see it
    with pytest.raises(InputError, match="does not hold any more what was read of it"):
        rows()
    Path("live.jsonl").unlink()
    with pytest.raises(InputError, match="cannot be read"):
        rows()


@pytest.fixture
def no_spark(monkeypatch: pytest.MonkeyPatch) -> None:
    def never(*_: Any, **__: Any) -> Any:
        raise AssertionError("Spark was started")

    monkeypatch.setattr("pipeline.spark.bulk.engine.open_session", never)


@pytest.mark.usefixtures("no_spark")
def test_what_cannot_be_is_said_before_anything_is_begun(story: Story, capsys: pytest.CaptureFixture[str]) -> None:
    Path("keys.txt").write_text("k1")
    Path("none.txt").write_text("\n \n")
    Path("wrong.txt").write_text("k1\n[1.5]\n")

    def refused(*arguments: str) -> str:
        assert backfill(story, *arguments) == 2
        return capsys.readouterr().err

    assert "--job needs --keys FILE or --where SQL" in refused()
    assert "--job needs --keys FILE or --where SQL" in refused("--keys", "keys.txt", "--where", "true")
    assert "'gone.txt' does not exist" in refused("--keys", "gone.txt")
    assert "--keys none.txt: there is no key in it" in refused("--keys", "none.txt")
    assert "--keys wrong.txt, line 2" in refused("--keys", "wrong.txt")
    assert "several stages with state: counted (hop), total (by_key)" in refused("--keys", "keys.txt")
    assert "has no stage 'nobody'" in refused("--keys", "keys.txt", "--operator", "nobody")
    assert "--until makes no sense with --job" in refused("--keys", "keys.txt", "--until", "old=3")
    assert run_command(["backfill", "flow.py", "--keys", "keys.txt"]) == 2
    assert "--keys goes with --job" in capsys.readouterr().err

    Path("flow.py").write_text(FLOW.replace('name="worth"', 'name="other"'))
    assert "is not the pipeline that job 'j' was started with" in refused("--keys", "keys.txt", "--operator", "total")
    Path("flow.py").write_text(FLOW)
    old = Ownership(Scripts(story.job.client), "j", "w9", "1-a")
    old.heartbeat(json.dumps({"code": "c0de00000001"}))
    assert "worker w9 of job 'j' runs version c0de00000001" in refused("--keys", "keys.txt", "--operator", "total")
    story.job.jobs.transition("j", JobState.CANCELLED)
    assert "job 'j' is cancelled: only state of a running job" in refused("--keys", "keys.txt", "--operator", "total")


@pytest.mark.parametrize(
    ("flow", "why"),
    [
        (SENT_BY_APPLICATIONS, "records of in reach the stage by, and only what is in files can be read again"),
        (OF_FRAMES, "operator 'framed' works on DataFrames, and a backfill of keys"),
    ],
)
def test_a_pipeline_whose_history_cannot_be_computed_again_is_refused(
    redis_url: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    flow: str,
    why: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("flow.py").write_text(flow)
    Path("keys.txt").write_text("k1")
    with LocalJob(redis_url, FileFlow()) as job:  # type: ignore[arg-type]
        code = run_command(["backfill", "flow.py", "--job", "j", "--redis", job.url, "--keys", "keys.txt"])

    assert code == 2
    assert why in capsys.readouterr().err


LIVE = """
from pathlib import Path

from pipeline import Pipeline, read, write

FLAG = Path("broken").absolute()


def worth(pair):
    return pair[1] * (10 if pair[0] in ("k1", "k4") and FLAG.exists() else 1)


flow = Pipeline("live")
lines = flow.source(read.json("live.jsonl", follow=True, poll_seconds=0.05), name="lines")
by_key = lines.key_by(lambda pair: pair[0], name="hop").key_by(lambda pair: pair[0], name="by_key")
total = by_key.map(worth, name="worth").reduce(lambda one, other: one + other, name="total")
total.sink(write.jsonl("out"), name="out")
"""


@pytest.mark.usefixtures("no_spark")
def test_a_run_goes_on_with_right_state_while_its_file_grows_all_the_time(
    redis_url: str,
    site: Site,
    capsys: pytest.CaptureFixture[str],
) -> None:
    site.write(LIVE)
    with chdir(site.root / "work"):  # and out of it before the site ends all that is in there
        Path("broken").touch()
        stop, written = threading.Event(), [0]

        def write_on(number: int) -> None:
            with open("live.jsonl", "a") as file:
                for _ in range(number):
                    written[0] += 1
                    file.writelines(json.dumps([key, written[0]]) + "\n" for key in KEYS)

        def grow() -> None:
            while not stop.wait(0.02):
                write_on(1)

        write_on(300)
        run = site.start("flow.py", "--workers", "2", "--redis", redis_url, "--job-id", "j")
        run.wait_for_taken(3 * 300 * len(KEYS))
        Path("broken").unlink()
        writer = threading.Thread(target=grow)
        writer.start()
        try:
            Path("keys.txt").write_text('k1\n\n"k4"\nnobody\n')
            code = run_command(["backfill", "flow.py", "--job", "j", "--redis", redis_url, "--keys", "keys.txt"])
        finally:
            stop.set()
            writer.join()
        write_on(20)
        run.wait_for_taken(3 * written[0] * len(KEYS))
        run.process.send_signal(signal.SIGINT)
        run.finish(code=130)

        said = capsys.readouterr().err
        assert code == 0, said
        assert "2 changed, 1 without any state, before and now" in said
        assert "the input was held back for" in said
        found: dict[str, list[int]] = {}
        for row in read_rows(Path("out")):
            found.setdefault(row["key"], []).append(row["value"])
        clean = [number * (number + 1) // 2 for number in range(1, written[0] + 1)]
        for key in KEYS:
            wrong = [place for place, (one, other) in enumerate(zip(found[key], clean, strict=True)) if one != other]
            # What was given before the swap stays as it was given; from there on all is as if nothing had been wrong.
            assert wrong == (list(range(len(wrong))) if key in WRONG else [])
            assert len(wrong) <= written[0] - 20


@pytest.fixture
def computed(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[], Computed]], None]:
    """What is computed, in the place of all that computes."""

    def give(call: Callable[[], Computed]) -> None:
        monkeypatch.setattr(SparkRecompute, "__call__", lambda _self, _given: call())

    return give


ARGUMENTS = ("--keys", "keys.txt", "--operator", "total")


def test_an_interrupted_command_changes_nothing_and_lets_the_input_flow(
    story: Story, computed: Callable[..., None], capsys: pytest.CaptureFixture[str]
) -> None:
    Path("keys.txt").write_text("k1")
    wrong = story.totals()

    def interrupted() -> Computed:
        signal.raise_signal(signal.SIGINT)
        raise AssertionError("it was interrupted")

    computed(interrupted)
    code = backfill(story, *ARGUMENTS)

    assert code == 130
    assert "cancelled the backfill of job j: nothing is changed" in capsys.readouterr().err
    record = story.job.jobs.read("j")
    assert (story.totals(), record.paused, record.held_back) == (wrong, {}, "")
    assert [past.outcome for past in record.operations] == ["interrupted"]


def test_what_is_not_drained_is_named_and_the_input_flows(
    story: Story, computed: Callable[..., None], capsys: pytest.CaptureFixture[str]
) -> None:
    Path("keys.txt").write_text("k1")
    stages = {stage.name: stage.index for stage in story.job.plan.stages}
    for name in ("hop", "by_rest"):
        story.job.append_entry(
            (stages[name], 0), b'["D","replay:1-1",1,1,null,1,[]]', encode_batch(Batch([0], ["a"])), 1
        )
    computed(lambda: Computed({}))

    assert backfill(story, *ARGUMENTS, "--wait", "0") == 1

    said = capsys.readouterr().err
    assert "the state is not swapped, not drained after 0 s: stage 'hop' partition 0 has 1 record" in said
    assert "by_rest" not in said
    assert story.job.jobs.read("j").paused == {}
    story.job.run_until_idle()
    story.job.is_tampered = True


def test_records_that_fail_in_the_history_alone_are_kept_in_a_file(
    story: Story, computed: Callable[..., None], capsys: pytest.CaptureFixture[str]
) -> None:
    Path("keys.txt").write_text("k1")
    payloads = [letter.payload for letter in story.job.letters()]
    letters = [Letter(0, 0, "", "no JSON", "", payload) for payload in payloads]
    lucky = Letter(0, 0, "lucky", "ValueError: 7", "", encode_batch(Batch([{"k": "k1", "n": 7}])))
    computed(lambda: Computed({("total", "k1"): 1}, letters=(*letters, lucky)))

    assert backfill(story, *ARGUMENTS) == 4

    said = capsys.readouterr().err
    assert "1 record of the history failed, and not in the state; kept in" in said
    [line] = Path("j.backfill.dead-letters.jsonl").read_text().splitlines()
    assert (json.loads(line)["operator"], json.loads(line)["value"]) == ("lucky", {"k": "k1", "n": 7})
    assert story.totals()["k1"] == 1
