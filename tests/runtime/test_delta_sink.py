"""write.delta: what a run adds to a table, and what is refused. Crashes are in tests/runtime/test_delta_crashes.py."""

from __future__ import annotations

from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline import write
from pipeline.errors import EnvironmentFault, PipelineError, SinkError
from pipeline.sinks import publisher
from pipeline.sinks.places import staging_folder
from pipeline.sinks.publisher import check_target, publish
from tests.deltas import JOB, a_sink, entries, rows_of, run, stage

# --- the description


def test_a_delta_sink_is_its_path_and_mode(tmp_path: Path) -> None:
    spec = write.delta(tmp_path / "table", mode="overwrite")

    assert (spec.format, spec.path, spec.options) == ("delta", str(tmp_path / "table"), {"mode": "overwrite"})


@pytest.mark.parametrize("mode", ["merge", "", None, 1])
def test_another_mode_is_refused(mode: Any) -> None:
    with pytest.raises(PipelineError, match=r"write.delta: mode must be one of append, overwrite"):
        write.delta("table", mode=mode)


def test_the_missing_library_is_named_with_its_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(publisher, "find_spec", lambda name: None if name == "deltalake" else object())

    with pytest.raises(EnvironmentFault, match="writes a Delta table, which needs deltalake") as caught:
        check_target(a_sink(tmp_path / "table"))

    assert caught.value.hint == "pip install 'celeriac[delta]'"


# --- what is in the table


def test_a_table_is_made_from_the_rows_by_one_commit(tmp_path: Path) -> None:
    sink = a_sink(tmp_path / "a table #1")
    facts = [
        stage(sink, {"n": 1, "x": 1, "all": None}, {"n": 2, "x": None, "tags": ["a"]}),
        stage(sink, {"n": 3, "x": 0.5, "at": {"lat": 1, "lon": 2.5}}, partition=1),
    ]

    published = publish(sink, JOB, facts, run="1.0")

    table = DeltaTable(published.path)
    assert (table.version(), published.files, published.records) == (0, 2, 3)
    assert published.bytes == sum(path.stat().st_size for path in published.path.glob("part-*"))
    assert rows_of(published.path) == [
        {"n": 1, "x": 1.0, "all": None, "tags": None, "at": None},
        {"n": 2, "x": None, "all": None, "tags": ["a"], "at": None},
        {"n": 3, "x": 0.5, "all": None, "tags": None, "at": {"lat": 1, "lon": 2.5}},
    ]
    actions = pa.table(table.get_add_actions(flatten=True)).to_pylist()
    assert sorted(action["num_records"] for action in actions) == [1, 2]
    assert {action["path"]: action["size_bytes"] for action in actions} == {
        path.name: path.stat().st_size for path in published.path.glob("part-*")
    }


def test_a_run_appends_to_what_is_there(tmp_path: Path) -> None:
    sink = a_sink(tmp_path / "table")

    run(sink, {"n": 1}, job="one")
    run(sink, {"n": 1}, job="two")

    assert rows_of(tmp_path / "table") == [{"n": 1}, {"n": 1}]
    assert DeltaTable(tmp_path / "table").version() == 1


def test_an_overwrite_takes_the_earlier_rows_out_by_the_same_commit(tmp_path: Path) -> None:
    run(a_sink(tmp_path / "table"), {"n": 1}, {"n": 2}, job="one")

    run(a_sink(tmp_path / "table", "overwrite"), {"n": 3}, job="two")

    assert rows_of(tmp_path / "table") == [{"n": 3}]
    assert rows_of_version(tmp_path / "table", 0) == [{"n": 1}, {"n": 2}]
    assert DeltaTable(tmp_path / "table").version() == 1


def rows_of_version(path: Path, version: int) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = DeltaTable(path, version=version).to_pyarrow_table().to_pylist()
    return rows


def test_a_run_without_rows_makes_no_table_and_no_commit(tmp_path: Path) -> None:
    sink = a_sink(tmp_path / "table")

    assert publish(sink, JOB, [], run="1.0").files == 0
    assert not (tmp_path / "table").exists()

    run(sink, {"n": 1}, job="one")
    assert publish(sink, "two", [], run="1.0").records == 0
    assert DeltaTable(tmp_path / "table").version() == 0


def test_an_overwrite_without_rows_empties_the_table(tmp_path: Path) -> None:
    run(a_sink(tmp_path / "table"), {"n": 1}, job="one")

    publish(a_sink(tmp_path / "table", "overwrite"), "two", [], run="1.0")

    assert rows_of(tmp_path / "table") == []


@settings(max_examples=25, deadline=None)
@given(
    st.lists(
        st.lists(
            st.fixed_dictionaries(
                {
                    "n": st.none() | st.integers(-(2**63), 2**63 - 1),
                    "t": st.none() | st.text(st.characters(exclude_categories=["Cs"]), max_size=5),
                }
            ),
            min_size=1,
            max_size=5,
        ),
        min_size=1,
        max_size=3,
    )
)
def test_any_rows_come_back_once_from_any_number_of_partitions(
    tmp_path_factory: pytest.TempPathFactory, parts: list[list[dict[str, Any]]]
) -> None:
    parts = [*parts, [{"n": 1, "t": "typed"}]]
    sink = a_sink(tmp_path_factory.mktemp("any") / "table")

    publish(sink, JOB, [stage(sink, *part, partition=number) for number, part in enumerate(parts)], run="1.0")

    expected = [row for part in parts for row in part]
    assert rows_of(Path(sink.path)) == sorted(expected, key=lambda row: str(sorted(row.items(), key=str)))


# --- a table that is there


def test_rows_take_the_types_of_the_table(tmp_path: Path) -> None:
    schema = pa.schema(
        [
            ("small", pa.int32()),
            ("share", pa.float64()),
            ("day", pa.date32()),
            ("at", pa.timestamp("us", "UTC")),
            ("there", pa.timestamp("us")),
            ("note", pa.string()),
        ]
    )
    write_deltalake(tmp_path / "table", pa.Table.from_pylist([], schema))
    at = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)

    run(a_sink(tmp_path / "table"), {"small": 7, "share": 2, "day": "2026-01-02", "at": at, "there": at})

    [row] = rows_of(tmp_path / "table")
    times = {"day": date(2026, 1, 2), "at": at, "there": at.replace(tzinfo=None)}
    assert row == {"small": 7, "share": 2.0, **times, "note": None}
    assert pa.schema(DeltaTable(tmp_path / "table").schema()) == schema


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        ({"n": "text"}, "'n' is int32 there, and text in the results"),
        ({"n": 0.5}, "'n' is int32 there, and a number with a fraction in the results"),
        ({"m": 1}, "'m' does not exist in it"),
        ({"n": 2**31}, "'n' of the table is int32, which does not hold all values"),
        ({"n": 1, "needed": None}, "'needed' of the table may not be null, and is in 1 row"),
        ({"n": 1}, "'needed' may not be null, and the results have no such field"),
        ({"n": 1, "needed": 1, "at": "noon"}, "'at' of the table is timestamp"),
        ({"n": 1, "needed": 1, "share": 1e39}, "'share' of the table is float, which does not hold all values"),
    ],
    ids=["text", "fraction", "unknown", "too large", "null", "left out", "no time", "infinite"],
)
def test_rows_that_do_not_fit_are_refused_by_the_columns_name_and_kept(
    tmp_path: Path, row: dict[str, Any], reason: str
) -> None:
    fields = [
        pa.field("n", pa.int32()),
        pa.field("needed", pa.int64(), nullable=False),
        pa.field("at", pa.timestamp("us")),
        pa.field("share", pa.float32()),
    ]
    if "needed" not in row and reason.startswith(("'n'", "'m'")):
        row = {**row, "needed": 1}
    write_deltalake(tmp_path / "table", pa.Table.from_pylist([], pa.schema(fields)))
    sink = a_sink(tmp_path / "table")
    facts = stage(sink, row)
    before = entries(tmp_path / "table")

    with pytest.raises(SinkError) as caught:
        publish(sink, JOB, [facts], run="1.0")

    assert reason in str(caught.value)
    assert entries(tmp_path / "table") == before
    assert (staging_folder(sink, JOB) / facts.file).exists()


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        ({"two words": 1}, "'two words' cannot be the name of a column"),
        ({"a": {"b c": 1}}, "'a.b c' cannot be the name of a column"),
        ({"a": [{"b;": 1}]}, "'a.b;' cannot be the name of a column"),
        ({"n": 1, "N": 2}, "'n' and 'N' differ in case only"),
    ],
)
def test_names_that_a_delta_table_cannot_have_are_refused(tmp_path: Path, row: dict[str, Any], reason: str) -> None:
    sink = a_sink(tmp_path / "table")

    with pytest.raises(SinkError, match=reason):
        publish(sink, JOB, [stage(sink, row)], run="1.0")

    assert not (tmp_path / "table").exists()


def test_a_key_that_the_table_has_not_is_refused_before_the_run(tmp_path: Path) -> None:
    write_deltalake(tmp_path / "table", pa.table({"word": ["a"], "n": [1]}))

    check_target(a_sink(tmp_path / "table", key_field="word"))
    with pytest.raises(SinkError, match="has no column 'carrier'"):
        check_target(a_sink(tmp_path / "table", key_field="carrier"))


def test_a_table_that_asks_more_of_its_writers_is_refused_before_the_run(tmp_path: Path) -> None:
    write_deltalake(tmp_path / "parted", pa.table({"p": ["a"], "n": [1]}), partition_by=["p"])
    write_deltalake(tmp_path / "checked", pa.table({"n": [1]}))
    DeltaTable(tmp_path / "checked").alter.add_constraint({"positive": "n > 0"})
    write_deltalake(tmp_path / "growing", pa.table({"n": [1]}), configuration={"delta.appendOnly": "true"})

    with pytest.raises(SinkError, match=r"partitions \(by p\)"):
        check_target(a_sink(tmp_path / "parted"))
    with pytest.raises(SinkError, match=r"checkConstraints|checks of rows \("):
        check_target(a_sink(tmp_path / "checked"))
    numbered = tmp_path / "numbered"
    write_deltalake(numbered, pa.table({"n": [1]}))
    protocol = '{"protocol":{"minReaderVersion":1,"minWriterVersion":6}}'
    (numbered / "_delta_log" / f"{1:020d}.json").write_text(protocol + "\n")
    with pytest.raises(SinkError, match="writer version 6"):
        check_target(a_sink(numbered))
    with pytest.raises(SinkError, match="rows can only be added"):
        check_target(a_sink(tmp_path / "growing", "overwrite"))
    check_target(a_sink(tmp_path / "growing"))


def test_a_folder_that_is_no_table_is_refused_before_the_run(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    check_target(a_sink(tmp_path / "folder"))
    (tmp_path / "folder" / "notes.txt").write_text("mine")
    (tmp_path / "file").write_text("mine")

    with pytest.raises(SinkError, match="not empty and no Delta table"):
        check_target(a_sink(tmp_path / "folder"))
    with pytest.raises(SinkError, match="is a file"):
        check_target(a_sink(tmp_path / "file"))


def test_a_log_that_cannot_be_read_is_an_error_of_the_sink(tmp_path: Path) -> None:
    write_deltalake(tmp_path / "table", pa.table({"n": [1]}))
    (tmp_path / "table" / "_delta_log" / f"{0:020d}.json").write_text("no json")

    with pytest.raises(SinkError, match="refuses"):
        check_target(a_sink(tmp_path / "table"))
