"""File sinks: rows, staging files, publishing, and the crashes in between."""

from __future__ import annotations

import csv
import json
import os
import threading
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec
import pyarrow.json
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyarrow import parquet

from pipeline.errors import DecodingError, EncodingError, SinkError
from pipeline.plan import SinkPlan
from pipeline.records import Batch
from pipeline.sinks import parts
from pipeline.sinks.places import remove_folder, side_folder, staging_folder, target_path
from pipeline.sinks.publisher import Published, check_target, discard, publish
from pipeline.sinks.rows import encode_rows
from pipeline.sinks.staging import StagedFacts, StagingFile

JOB = "job-1"


def a_sink(path: Path | str, form: str = "jsonl", key_field: str | None = None, **options: Any) -> SinkPlan:
    return SinkPlan("result", form, str(path), options, key_field)


def stage(
    sink: SinkPlan, *values: Any, partition: int = 0, term: int = 1, keys: list[Any] | None = None
) -> StagedFacts:
    file = StagingFile.create(sink, JOB, 0, partition, term)
    file.write(Batch(list(values), keys))
    facts = file.sync()
    file.close()
    return facts


def lines(published: Published) -> list[str]:
    files = sorted(published.path.glob("part-*"))
    return [line for file in files for line in file.read_text().splitlines()]


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir())}


def leftovers(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir() if path.name.startswith("."))


json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(exclude_categories=["Cs"])),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.text(st.characters(exclude_categories=["Cs"])), inner, max_size=3)
    ),
    max_leaves=8,
)


# --- rows


@given(st.lists(json_values, max_size=8))
def test_jsonl_rows_of_an_unkeyed_stream_come_back_as_they_were(values: list[Any]) -> None:
    data = encode_rows(a_sink("out"), Batch(values))

    assert [json.loads(line) for line in data.decode().split("\n")[:-1]] == values


@given(st.lists(st.tuples(st.text(st.characters(exclude_categories=["Cs"])) | st.integers(), json_values)))
def test_jsonl_rows_of_a_keyed_stream_hold_key_and_value(pairs: list[tuple[Any, Any]]) -> None:
    batch = Batch([value for _, value in pairs], [key for key, _ in pairs])

    data = encode_rows(a_sink("out", key_field="the key"), batch)

    rows = [json.loads(line) for line in data.decode().split("\n")[:-1]]
    assert rows == [
        {"the key": key, **value} if isinstance(value, dict) else {"the key": key, "value": value}
        for key, value in pairs
    ]


@pytest.mark.parametrize("key_field", ["word", "value", "key", 'a "name"', "two\nlines", "wörd"])
@pytest.mark.parametrize("others", [[1, "two", None, [3], 4.5, b"6"], []], ids=["many kinds", "none"])
def test_a_keyed_row_is_the_same_beside_an_object_as_without_one(key_field: str, others: list[Any]) -> None:
    sink, keys = a_sink("out", key_field=key_field), [f"k{number}" for number in range(len(others))]

    alone = encode_rows(sink, Batch(others, keys))
    beside = encode_rows(sink, Batch([*others, {}], [*keys, "last"]))

    assert beside.splitlines()[:-1] == alone.splitlines()
    assert beside.splitlines()[-1:] == encode_rows(sink, Batch([{}], ["last"])).splitlines()


def test_a_value_that_json_has_not_is_refused_on_a_keyed_stream_too() -> None:
    with pytest.raises(EncodingError) as refused:
        encode_rows(a_sink("out", key_field="word"), Batch([1, msgspec.UNSET], ["a", "b"]))

    assert refused.value.index == 1


@given(st.lists(st.text(st.characters(exclude_categories=["Cs"])), max_size=8))
def test_a_text_row_is_always_one_line(values: list[str]) -> None:
    data = encode_rows(a_sink("out", "text"), Batch(list(values)))

    assert data.count(b"\n") == len(values)
    assert b"\r" not in data


@pytest.mark.parametrize(
    ("key", "value", "line"),
    [
        ("a", 3, "a: 3"),
        ("a", "text", "a: text"),
        (7, {"n": 1}, '7: {"n":1}'),
        (("AA", 1), [True, None], '["AA",1]: [true,null]'),
        (b"\x00", b"\x01", "AA==: AQ=="),
        ("two\nlines", "x\r\ny", "two\\nlines: x\\r\\ny"),
    ],
)
def test_a_keyed_text_line_is_key_colon_value(key: Any, value: Any, line: str) -> None:
    assert encode_rows(a_sink("out", "text", "key"), Batch([value], [key])).decode() == line + "\n"


@pytest.mark.parametrize(
    ("form", "key_field", "key", "value", "row"),
    [
        ("csv", "carrier", "AA", {"n": 1}, {"carrier": "AA", "n": 1}),
        ("csv", "carrier", "AA", {"n": 1, "carrier": "own"}, {"carrier": "own", "n": 1}),
        ("csv", "carrier", "AA", 5, {"carrier": "AA", "value": 5}),
        ("csv", "value", "AA", 5, {"value": "AA", "value_1": 5}),
        ("csv", "pair", ("AA", 1), 5, {"pair": '["AA",1]', "value": 5}),
        ("jsonl", "pair", ("AA", 1), 5, {"pair": ["AA", 1], "value": 5}),
        ("parquet", None, None, 5, {"value": 5}),
        ("parquet", None, None, {"n": b"\x00"}, {"n": "AA=="}),
    ],
)
def test_table_rows_have_the_key_first(form: str, key_field: str | None, key: Any, value: Any, row: Any) -> None:
    data = encode_rows(a_sink("out", form, key_field), Batch([value], None if key_field is None else [key]))

    assert list(json.loads(data).items()) == list(row.items())


@pytest.mark.parametrize("form", ["text", "jsonl", "csv", "parquet"])
def test_a_value_without_a_form_is_named_by_its_index(form: str) -> None:
    with pytest.raises(EncodingError, match="cannot be written") as caught:
        encode_rows(a_sink("out", form), Batch([1, object(), 3]))

    assert caught.value.index == 1
    assert ".map" in caught.value.hint


# --- staging files


def test_a_staging_file_reports_what_is_on_the_disk(tmp_path: Path) -> None:
    sink = a_sink(tmp_path / "deep" / "out")
    file = StagingFile.create(sink, JOB, 2, 3, 4)
    nothing = file.sync()
    untouched = not staging_folder(sink, JOB).exists()

    file.write(Batch([1, 2]))
    first = file.sync()
    file.write(Batch([3]))
    second = file.sync()
    file.close()

    assert untouched
    assert (nothing.length_bytes, nothing.records) == (0, 0)
    assert (first.length_bytes, first.records) == (4, 2)
    assert (second.length_bytes, second.records) == (6, 3)
    assert file.path == tmp_path / "deep" / f".out.{JOB}.staging" / second.file
    assert file.path.read_bytes() == b"1\n2\n3\n"


def test_facts_survive_their_encoding() -> None:
    facts = StagedFacts("000-00001-00000002-0000.jsonl", 10, 3)

    assert StagedFacts.decode(facts.encode()) == facts


@pytest.mark.parametrize("data", [b"", b"[]", b'{"file":"a"}', b'{"file":"a","length_bytes":-1,"records":0}'])
def test_facts_that_cannot_be_read_are_refused(data: bytes) -> None:
    with pytest.raises(DecodingError):
        StagedFacts.decode(data)


def test_a_staging_file_of_the_same_term_is_never_opened_again(tmp_path: Path) -> None:
    sink = a_sink(tmp_path / "out")
    stage(sink, 1)

    with pytest.raises(SinkError, match="exists already") as caught:
        stage(sink, 2)

    assert "new term" in caught.value.hint


def test_a_failed_staging_file_takes_nothing_more(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    file = StagingFile.create(a_sink(tmp_path / "file" / "out"), JOB, 0, 0, 1)

    with pytest.raises(SinkError, match="Not a directory") as caught:
        file.write(Batch([1]))
    with pytest.raises(SinkError, match="failed before"):
        file.sync()

    assert isinstance(caught.value.__cause__, NotADirectoryError)
    assert "another path" in caught.value.hint


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_a_full_disk_is_a_sink_error_with_a_hint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = StagingFile.create(a_sink(tmp_path / "out"), JOB, 0, 0, 1)
    real_open = os.open

    def open_full(path: Path, flags: int, mode: int = 0o777) -> int:
        return real_open("/dev/full", os.O_WRONLY) if flags & os.O_EXCL else real_open(path, flags, mode)

    monkeypatch.setattr("pipeline.sinks.staging.os.open", open_full)

    with pytest.raises(SinkError, match="No space left") as caught:
        file.write(Batch([1]))
    file.close()

    assert "free some space" in caught.value.hint


def test_a_batch_that_cannot_be_encoded_leaves_the_file_as_it_was(tmp_path: Path) -> None:
    file = StagingFile.create(a_sink(tmp_path / "out"), JOB, 0, 0, 1)
    file.write(Batch([1]))

    with pytest.raises(EncodingError):
        file.write(Batch([2, object()]))
    file.write(Batch([3]))
    facts = file.sync()
    file.close()

    assert file.path.read_bytes() == b"1\n3\n"
    assert facts.records == 2


@pytest.mark.parametrize("is_synced", [True, False])
def test_rows_of_a_refused_step_are_taken_back(tmp_path: Path, is_synced: bool) -> None:
    file = StagingFile.create(a_sink(tmp_path / "out"), JOB, 0, 0, 1)
    file.write(Batch([1]))
    committed = file.sync()

    file.write(Batch([22]))
    if is_synced:
        file.sync()
    file.rewind(committed)
    file.write(Batch([333]))
    facts = file.sync()
    file.rewind(None)
    empty = file.sync()
    file.close()

    assert (facts.length_bytes, facts.records) == (6, 2)
    assert (empty.length_bytes, empty.records) == (0, 0)
    assert file.path.read_bytes() == b""


# --- publishing


def test_only_committed_bytes_are_published(tmp_path: Path) -> None:
    sink = a_sink(tmp_path / "out")
    file = StagingFile.create(sink, JOB, 0, 0, 1)
    file.write(Batch([1, 2]))
    committed = file.sync()

    file.write(Batch([3]))
    file.sync()
    published = publish(sink, JOB, [committed], pipeline="delays")
    file.write(Batch([4]))
    file.sync()
    file.close()

    assert lines(published) == ["1", "2"]
    assert published == Published(tmp_path / "out", 1, 2, 4)
    assert json.loads((tmp_path / "out" / "_manifest.json").read_text()) == {
        "program": "celeriac",
        "job": JOB,
        "pipeline": "delays",
        "sink": "result",
        "format": "jsonl",
        "records": 2,
        "files": [{"name": "part-00000.jsonl", "records": 2, "bytes": 4}],
    }


def test_two_terms_of_a_partition_are_published_in_their_order(tmp_path: Path) -> None:
    sink = a_sink(tmp_path / "out", "text")
    later = stage(sink, "later", partition=0, term=10)
    other = stage(sink, "other", partition=1, term=1)
    earlier = stage(sink, "earlier", partition=0, term=9)
    nothing = StagedFacts("000-00002-00000001-0000.txt", 0, 0)

    published = publish(sink, JOB, [other, later, nothing, earlier])

    assert lines(published) == ["earlier", "later", "other"]
    assert published.files == 3


def test_publishing_twice_gives_the_same_content(tmp_path: Path) -> None:
    sink = a_sink(tmp_path / "out", "csv", "key")
    facts = [stage(sink, {"n": 1}, {"m": 2}, keys=["a", "b"])]

    first = publish(sink, JOB, facts)
    before = contents(tmp_path / "out")
    second = publish(sink, JOB, facts)
    after = contents(tmp_path / "out")
    discard(sink, JOB)
    third = publish(sink, JOB, facts)

    assert first == second == third
    assert before == after == contents(tmp_path / "out")
    assert leftovers(tmp_path) == []


def test_a_publisher_killed_while_it_copied_leaves_nothing(tmp_path: Path) -> None:
    sink = a_sink(tmp_path / "out[1]")
    facts = [stage(sink, 1)]
    killed = side_folder(sink, JOB, "publishing")
    others = side_folder(sink, JOB + ".2", "publishing")
    for folder in (killed, others):
        folder.mkdir()
        (folder / "part-00000.jsonl").write_text("half a f")

    published = publish(sink, JOB, facts)

    assert lines(published) == ["1"]
    assert not killed.exists()
    assert others.exists()


def test_a_publisher_killed_between_its_two_renames_is_made_good(tmp_path: Path) -> None:
    sink = a_sink(tmp_path / "out")
    facts = [stage(sink, 1)]
    publish(sink, "earlier", [])
    before = contents(tmp_path / "out")
    (tmp_path / "out").rename(side_folder(sink, JOB, "replaced"))

    with pytest.raises(SinkError):
        publish(sink, JOB, [StagedFacts(facts[0].file, 100, 1)])
    kept = contents(tmp_path / "out")
    published = publish(sink, JOB, facts)

    assert kept == before
    assert lines(published) == ["1"]
    assert leftovers(tmp_path) == [f".out.{JOB}.staging"]


def test_an_earlier_result_is_replaced_whole(tmp_path: Path) -> None:
    sink = a_sink(tmp_path / "out")
    publish(sink, JOB, [stage(sink, 1), stage(sink, 2, partition=1)])
    discard(sink, JOB)

    facts = [stage(sink, 3, term=2)]
    published = publish(sink, JOB, facts)

    assert lines(published) == ["3"]


@pytest.mark.parametrize("form", ["text", "jsonl", "csv", "parquet"])
def test_a_sink_without_rows_is_published_as_one_file(tmp_path: Path, form: str) -> None:
    published = publish(a_sink(tmp_path / "out", form), JOB, [])

    assert (published.files, published.records) == (1, 0)
    assert len(list((tmp_path / "out").glob("part-00000.*"))) == 1


def test_less_than_was_committed_is_never_published(tmp_path: Path) -> None:
    sink = a_sink(tmp_path / "out")
    facts = stage(sink, 1, 2)
    cut = StagedFacts(facts.file, facts.length_bytes + 1, 3)
    lost = StagedFacts("000-00007-00000001-0000.jsonl", 4, 2)
    damaged = StagedFacts(facts.file, facts.length_bytes, 1)

    for wrong, reason in ((cut, "only 4 bytes"), (lost, "is missing"), (damaged, "2 whole lines")):
        with pytest.raises(SinkError, match=reason) as caught:
            publish(sink, JOB, [wrong])
        assert wrong.file in str(caught.value)

    assert not (tmp_path / "out").exists()
    assert leftovers(tmp_path) == [f".out.{JOB}.staging"]


@pytest.mark.parametrize("name", ["../secret", "000-00000-00000001-0000.csv", "part-00000.jsonl", ""])
def test_a_name_that_is_no_staging_file_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(SinkError, match="not the name of a staging file"):
        publish(a_sink(tmp_path / "out"), JOB, [StagedFacts(name, 1, 1)])


def test_a_file_of_the_user_is_not_replaced(tmp_path: Path) -> None:
    (tmp_path / "out").write_text("precious")
    sink = a_sink(tmp_path / "out")
    facts = [stage(sink, 1)]

    for attempt in (lambda: check_target(sink), lambda: publish(sink, JOB, facts)):
        with pytest.raises(SinkError, match="is a file"):
            attempt()

    assert (tmp_path / "out").read_text() == "precious"


def test_a_folder_of_the_user_is_not_replaced(tmp_path: Path) -> None:
    sink = a_sink(tmp_path / "out")
    (tmp_path / "out").mkdir()
    check_target(sink)
    (tmp_path / "out" / "_manifest.json").write_text('{"program": "another"}')

    with pytest.raises(SinkError, match="not written by this program"):
        check_target(sink)


def test_a_result_with_files_of_the_user_is_not_replaced(tmp_path: Path) -> None:
    sink = a_sink(tmp_path / "out")
    publish(sink, JOB, [])
    check_target(sink)
    (tmp_path / "out" / "notes.txt").write_text("precious")

    with pytest.raises(SinkError, match=r"notes\.txt"):
        check_target(sink)


@pytest.mark.parametrize(
    ("sink", "reason"),
    [
        (a_sink("out", "console"), "not written to files"),
        (a_sink(""), "no path"),
        (a_sink("/"), "not empty"),
        (a_sink("/dev/null/out"), "is a file"),
        (a_sink("out", "parquet", writer="magic"), "magic"),
    ],
)
def test_a_sink_that_cannot_work_is_refused_before_the_run(sink: SinkPlan, reason: str) -> None:
    with pytest.raises(SinkError, match=reason):
        check_target(sink)


def test_checking_a_target_makes_no_folder(tmp_path: Path) -> None:
    check_target(a_sink(tmp_path / "a" / "b" / "out"))

    assert list(tmp_path.iterdir()) == []


def test_a_path_behind_a_link_is_written_where_the_link_leads(tmp_path: Path) -> None:
    (tmp_path / "disk").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "disk" / "out")
    sink = a_sink(tmp_path / "link")

    published = publish(sink, JOB, [stage(sink, 1)])

    assert published.path == target_path(sink) == tmp_path / "disk" / "out"
    assert (tmp_path / "link").is_symlink()


def test_a_disk_that_refuses_leaves_the_path_as_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sink = a_sink(tmp_path / "out")
    publish(sink, "earlier", [])
    before = contents(tmp_path / "out")
    facts = [stage(sink, 1)]

    def refuse(_handle: int) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr("pipeline.sinks.parts.os.fsync", refuse)
        with pytest.raises(SinkError, match="No space left"):
            publish(sink, JOB, facts)

    assert contents(tmp_path / "out") == before
    assert leftovers(tmp_path) == [f".out.{JOB}.staging"]


# --- tables


def test_csv_cells_are_quoted_so_that_a_reader_gets_them_back(tmp_path: Path) -> None:
    sink = a_sink(tmp_path / "out", "csv", "key")
    values = ['say "hi"', "a,b", "two\nlines", "cr\rhere", " spaced ", "", "ümlaut"]

    publish(sink, JOB, [stage(sink, *values, keys=[str(n) for n in range(len(values))])])

    with (tmp_path / "out" / "part-00000.csv").open(newline="", encoding="utf-8") as file:
        rows = list(csv.reader(file))
    assert rows == [["key", "value"], *([str(n), value] for n, value in enumerate(values))]


def test_csv_columns_are_the_union_in_order_of_appearance(tmp_path: Path) -> None:
    sink = a_sink(tmp_path / "out", "csv", "key")
    one = stage(sink, {"b": 1, "a": None}, {"a": True}, keys=["x", "y"])
    two = stage(sink, {"c": [1, "q"], "b": 2.5}, keys=["z"], partition=1)

    publish(sink, JOB, [one, two])

    assert (tmp_path / "out" / "part-00000.csv").read_text() == "key,b,a,c\nx,1,,\ny,,true,\n"
    assert (tmp_path / "out" / "part-00001.csv").read_text() == 'key,b,a,c\nz,2.5,,"[1,""q""]"\n'


def test_csv_of_one_column_has_no_empty_lines(tmp_path: Path) -> None:
    sink = a_sink(tmp_path / "out", "csv")

    publish(sink, JOB, [stage(sink, 1, None, {}, 2)])

    assert (tmp_path / "out" / "part-00000.csv").read_text() == 'value\n1\n""\n""\n2\n'


def test_parquet_fills_missing_fields_with_null(tmp_path: Path) -> None:
    sink = a_sink(tmp_path / "out", "parquet", "key")

    publish(sink, JOB, [stage(sink, {"a": 1, "o": {}}, {"l": [{"p": 1}, {"q": 0.5}]}, keys=["x", ("y", 1)])])

    assert parquet.read_table(tmp_path / "out" / "part-00000.parquet").to_pylist() == [
        {"key": "x", "a": 1, "l": None},
        {"key": '["y",1]', "a": None, "l": [{"p": 1, "q": None}, {"p": None, "q": 0.5}]},
    ]


@pytest.mark.parametrize(
    ("values", "reason"),
    [
        ([{"good": 1, "bad": 1}, {"good": 2, "bad": "text"}], "'bad'.*an integer.*text"),
        ([{"bad": {"inner": [1]}}, {"bad": {"inner": ["text"]}}], "'bad'"),
        ([{"bad": 2**63}], "'bad'"),
    ],
)
def test_a_column_without_a_parquet_type_is_named(tmp_path: Path, values: list[Any], reason: str) -> None:
    sink = a_sink(tmp_path / "out", "parquet")

    with pytest.raises(SinkError, match=reason) as caught:
        publish(sink, JOB, [stage(sink, *values)])

    assert ".map" in caught.value.hint
    assert not (tmp_path / "out").exists()


def a_spark_writer(files: list[Path], folder: Path, schema: str) -> list[Path]:
    """Stands in for Spark: one Parquet file for each file of rows."""
    assert schema == "`key` STRING, `n` BIGINT"
    made = []
    for number, file in enumerate(files):
        made.append(folder / f"part-{number:05d}.parquet")
        parquet.write_table(pyarrow.json.read_json(file), made[-1])
    return made


def test_a_large_parquet_sink_is_handed_to_spark(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sink = a_sink(tmp_path / "out", "parquet", "key")
    facts = [stage(sink, {"n": 1}, keys=["a"]), stage(sink, {"n": 2}, keys=["b"], partition=1)]
    monkeypatch.setattr(parts, "SPARK_WORTHWHILE_BYTES", 10)

    published = publish(sink, JOB, facts, spark_writer=a_spark_writer)

    assert (published.files, published.records) == (2, 2)
    assert parquet.read_table(published.path).to_pydict() == {"key": ["a", "b"], "n": [1, 2]}
    assert sorted(contents(published.path)) == ["_manifest.json", "part-00000.parquet", "part-00001.parquet"]


def test_rows_that_spark_lost_are_noticed(tmp_path: Path) -> None:
    sink = a_sink(tmp_path / "out", "parquet", "key", writer="spark")
    facts = [stage(sink, {"n": 1}, keys=["a"]), stage(sink, {"n": 2}, keys=["b"], partition=1)]

    def loses_one(files: Sequence[Path], folder: Path, schema: str) -> list[Path]:
        return a_spark_writer(list(files[:1]), folder, schema)

    with pytest.raises(SinkError, match="1 of 2 records"):
        publish(sink, JOB, facts, spark_writer=loses_one)

    assert not (tmp_path / "out").exists()


def test_a_folder_is_removed_though_another_process_still_writes_into_it(tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    begun = threading.Event()

    def write() -> None:
        with suppress(FileNotFoundError):  # it was removed: what comes next fails
            for number in range(3_000):
                (folder / str(number)).touch()
                begun.set()

    writing = threading.Thread(target=write)
    writing.start()
    assert begun.wait(10)
    remove_folder(folder)
    writing.join()

    assert not folder.exists()


def test_discard_removes_the_staging_folder_and_keeps_the_result(tmp_path: Path) -> None:
    sink = a_sink(tmp_path / "out")
    published = publish(sink, JOB, [stage(sink, 1)])

    discard(sink, JOB)
    discard(sink, JOB)

    assert lines(published) == ["1"]
    assert leftovers(tmp_path) == []
