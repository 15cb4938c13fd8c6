"""read.delta: the rows of one version of a table, the same ones as the library of Delta gives, or a refusal."""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass, field
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline import read
from pipeline.errors import EnvironmentFault, InputError, PipelineError
from pipeline.records import Batch
from pipeline.settings import Limits
from pipeline.sources.layout import open_files
from pipeline.sources.runner import feed_source
from pipeline.sources.splits import Split
from pipeline.sources.versions import at_version, version_split
from pipeline.spark.bulk.portions import FilePortions, merged

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)


@dataclass
class ALane:
    values: list[Any] = field(default_factory=list)
    is_finished: bool = False

    @property
    def taken(self) -> int:
        return len(self.values)

    def append(self, first: int, batch: Batch, _place: Any) -> None:
        self.values += batch.values[self.taken + 1 - first :]

    def finish(self, count: int) -> None:
        assert count == self.taken
        self.is_finished = True


@dataclass
class AFeed:
    """What a job has of a source, for one feeder after the other."""

    lanes: dict[str, ALane] = field(default_factory=dict)
    completed: int = -1

    def open(self) -> AFeed:
        return self

    def lane(self, split: str) -> ALane:
        return self.lanes.setdefault(split, ALane())

    def splits(self, beginning: str = "") -> list[str]:
        return [name for name in self.lanes if name.startswith(beginning)]

    def complete(self, splits: int) -> None:
        assert splits == sum(lane.is_finished for lane in self.lanes.values())
        self.completed = splits

    @property
    def values(self) -> list[Any]:
        return [value for lane in self.lanes.values() for value in lane.values]


def rows(path: Path, **options: Any) -> list[Any]:
    feed = AFeed()
    feed_source(read.delta(path, **options), feed)
    return sorted(feed.values, key=repr)


def in_bulk(path: Path) -> list[Any]:
    portions = FilePortions.of(open_files(read.delta(path)))
    pieces = [piece for number in range(portions.count) for piece in portions.read(number, Limits())]
    return sorted((value for piece in pieces for value in merged([piece.payload]).values), key=repr)


def commit(table: Path, version: int, *actions: dict[str, Any]) -> None:
    """Adds a commit by hand, as another program with more features would."""
    text = "".join(json.dumps(action) + "\n" for action in actions)
    (table / "_delta_log" / f"{version:020d}.json").write_text(text)


def actions(table: Path, version: int = 0) -> list[dict[str, Any]]:
    text = (table / "_delta_log" / f"{version:020d}.json").read_text()
    return [json.loads(line) for line in text.splitlines()]


# --- the description


def test_a_delta_source_is_its_path_version_and_columns(tmp_path: Path) -> None:
    spec = read.delta(tmp_path, version=3, columns=["n"])

    assert (spec.format, spec.path, spec.options) == ("delta", str(tmp_path), {"version": 3, "columns": ["n"]})


@pytest.mark.parametrize("version", [-1, "3", 1.0, True])
def test_another_kind_of_version_is_refused(version: Any) -> None:
    with pytest.raises(PipelineError, match="version must be a number from 0 on"):
        read.delta("table", version=version)


def test_the_missing_library_is_named_with_its_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "deltalake", None)
    monkeypatch.delitem(sys.modules, "pipeline.sources.deltatable", raising=False)

    with pytest.raises(EnvironmentFault, match="reading Delta tables needs deltalake") as caught:
        open_files(read.delta(tmp_path))

    assert caught.value.hint == "pip install 'celeriac[delta]'"


# --- rows


def test_rows_have_the_typed_values_of_partition_columns(tmp_path: Path) -> None:
    table = pa.table(
        {
            "place": ["a b", "ü/%#", None],
            "day": [date(2026, 1, 1)] * 3,
            "at": pa.array([NOON] * 3, pa.timestamp("us", "UTC")),
            "number": pa.array([1, 2, None], pa.int32()),
            "price": pa.array([Decimal("1.50")] * 3, pa.decimal128(5, 2)),
            "n": [10, 20, 30],
        }
    )
    parted = ["place", "day", "at", "number", "price"]
    write_deltalake(tmp_path / "a table", table, partition_by=parted)

    found = rows(tmp_path / "a table")

    rest = {"day": "2026-01-01", "at": NOON, "price": "1.50"}
    assert found == sorted(
        [
            {"place": "a b", "day": rest["day"], "at": NOON, "number": 1, "price": "1.50", "n": 10},
            {"place": "ü/%#", "day": rest["day"], "at": NOON, "number": 2, "price": "1.50", "n": 20},
            {"place": None, "day": rest["day"], "at": NOON, "number": None, "price": "1.50", "n": 30},
        ],
        key=repr,
    )
    assert in_bulk(tmp_path / "a table") == found
    assert rows(tmp_path / "a table", columns=["place"]) == [{"place": "a b"}, {"place": "ü/%#"}, {"place": None}]


def test_columns_that_came_later_are_null_in_the_files_before(tmp_path: Path) -> None:
    write_deltalake(tmp_path, pa.table({"n": [1]}))
    write_deltalake(tmp_path, pa.table({"new": ["x"], "n": [2]}), mode="append", schema_mode="merge")

    assert rows(tmp_path) == [{"n": 1, "new": None}, {"n": 2, "new": "x"}]
    assert rows(tmp_path, columns=["new"]) == [{"new": "x"}, {"new": None}]


def test_an_empty_table_is_a_source_without_records(tmp_path: Path) -> None:
    write_deltalake(tmp_path, pa.table({"n": [1]}))
    DeltaTable(tmp_path).delete()

    assert rows(tmp_path) == in_bulk(tmp_path) == []


def test_files_that_no_commit_names_are_not_read(tmp_path: Path) -> None:
    write_deltalake(tmp_path, pa.table({"n": [1]}))
    write_deltalake(tmp_path, pa.table({"n": [2]}), mode="overwrite")

    assert rows(tmp_path) == [{"n": 2}]
    assert rows(tmp_path, version=0) == [{"n": 1}]


@settings(max_examples=20, deadline=None)
@given(
    st.lists(
        st.lists(st.tuples(st.sampled_from(["a", "b", None]), st.none() | st.integers(-9, 9)), min_size=1, max_size=6),
        min_size=1,
        max_size=4,
    ),
    st.data(),
)
def test_every_version_reads_as_the_library_reads_it(
    tmp_path_factory: pytest.TempPathFactory, writes: list[list[tuple[str | None, int | None]]], data: st.DataObject
) -> None:
    path = tmp_path_factory.mktemp("table")
    schema = pa.schema([("p", pa.string()), ("n", pa.int64())])
    for number, pairs in enumerate(writes):
        table = pa.Table.from_pylist([{"p": p, "n": n} for p, n in pairs], schema)
        mode = data.draw(st.sampled_from(["append", "overwrite"])) if number else "error"
        write_deltalake(path, table, mode=mode, partition_by=["p"])

    version = data.draw(st.integers(0, len(writes) - 1))

    expected = DeltaTable(path, version=version).to_pyarrow_table().to_pylist()
    assert rows(path, version=version) == sorted(({"p": row["p"], "n": row["n"]} for row in expected), key=repr)


def test_a_file_is_cut_into_splits_of_the_same_names_as_that_of_read_parquet(tmp_path: Path) -> None:
    write_deltalake(tmp_path, pa.table({"n": list(range(5000))}))

    table, files = (open_files(spec, split_bytes=1000) for spec in (read.delta(tmp_path), read.parquet(tmp_path)))

    assert [split.name for split in table.splits] == [split.name for split in files.splits]
    assert len(table.splits) > 3
    feed = AFeed()
    feed_source(read.delta(tmp_path), feed, split_bytes=1000)
    assert sorted(row["n"] for row in feed.values) == list(range(5000))


# --- the version of a job


def test_a_job_that_goes_on_reads_the_version_that_it_began_with(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_deltalake(tmp_path, pa.table({"n": [1]}))
    write_deltalake(tmp_path, pa.table({"n": [2]}), mode="append")
    feed = AFeed()

    def dies(_split: Split, _form: Any) -> Any:
        raise KeyboardInterrupt

    with monkeypatch.context() as context:
        context.setattr("pipeline.sources.parquetrows.split_rows", dies)
        with pytest.raises(KeyboardInterrupt):
            feed_source(read.delta(tmp_path), feed)
    write_deltalake(tmp_path, pa.table({"n": [3]}), mode="append")
    DeltaTable(tmp_path).optimize.compact()
    feed_source(read.delta(tmp_path), feed)
    feed_source(read.delta(tmp_path), feed)

    assert sorted(row["n"] for row in feed.values) == [1, 2]
    assert feed.completed == 2
    assert rows(tmp_path) == [{"n": 1}, {"n": 2}, {"n": 3}]


def test_of_two_versions_that_first_feeders_named_the_older_one_counts(tmp_path: Path) -> None:
    write_deltalake(tmp_path, pa.table({"n": [1]}))
    write_deltalake(tmp_path, pa.table({"n": [2]}), mode="append")
    feed = AFeed(lanes={version_split(1): ALane(), version_split(0): ALane()})

    feed_source(read.delta(tmp_path), feed)

    assert feed.values == [{"n": 1}]


def test_a_version_of_the_pipeline_needs_no_sender(tmp_path: Path) -> None:
    write_deltalake(tmp_path, pa.table({"n": [1]}))
    feed = AFeed()

    feed_source(read.delta(tmp_path, version=0), feed)

    assert feed.splits("~") == []
    assert at_version(read.delta(tmp_path, version=0), [version_split(4)]).options["version"] == 0
    assert at_version(read.parquet(tmp_path), [version_split(4)]) == read.parquet(tmp_path)


# --- refusals


def test_a_table_or_version_that_is_not_there_is_named(tmp_path: Path) -> None:
    write_deltalake(tmp_path / "table", pa.table({"n": [1]}))
    (tmp_path / "folder").mkdir()

    for path, version in (("none", None), ("folder", None), ("table", 7)):
        with pytest.raises(InputError, match=f"{path} cannot be read as a Delta table") as caught:
            open_files(read.delta(tmp_path / path, version=version))
        assert "check the path and the version" in caught.value.hint
    assert not (tmp_path / "none").exists()
    with pytest.raises(InputError, match="there is no column 'm'"):
        open_files(read.delta(tmp_path / "table", columns=["m"]))


def test_bytes_that_a_table_is_partitioned_by_are_refused_as_the_library_gives_others(tmp_path: Path) -> None:
    write_deltalake(tmp_path, pa.table({"p": [b"a\xff"], "n": [1]}), partition_by=["p"])

    with pytest.raises(InputError, match="column 'p' is binary, and the table is partitioned by it"):
        open_files(read.delta(tmp_path))

    assert rows(tmp_path, columns=["n"]) == [{"n": 1}]


def test_a_file_that_vacuum_took_is_named(tmp_path: Path) -> None:
    write_deltalake(tmp_path, pa.table({"n": [1]}))
    (file,) = tmp_path.glob("*.parquet")
    file.unlink()

    with pytest.raises(InputError, match=f"{file.name} cannot be read"):
        open_files(read.delta(tmp_path))


INLINE_DELETIONS = {
    # Six rows of thirty, within the log.
    "storageType": "i",
    "pathOrInlineDv": "^Bg9^0rr910000000000iXQKl0rr91000f55c8Xg0@@D72lkbi5=-{L",
    "sizeInBytes": 44,
    "cardinality": 6,
}


def test_deletion_vectors_are_refused_once_a_file_has_one(tmp_path: Path) -> None:
    write_deltalake(tmp_path, pa.table({"n": list(range(30))}))
    protocol = {
        "minReaderVersion": 3,
        "minWriterVersion": 7,
        "readerFeatures": ["deletionVectors"],
        "writerFeatures": ["deletionVectors"],
    }
    commit(tmp_path, 1, {"protocol": protocol})
    assert len(rows(tmp_path)) == 30

    (added,) = (action["add"] for action in actions(tmp_path) if "add" in action)
    gone = {"path": added["path"], "deletionTimestamp": 0, "dataChange": True, "size": added["size"]}
    commit(tmp_path, 2, {"remove": gone}, {"add": {**added, "deletionVector": INLINE_DELETIONS}})

    with pytest.raises(InputError, match="is a Delta table with deletion vectors, which is not supported") as caught:
        open_files(read.delta(tmp_path))

    assert "PURGE" in caught.value.hint
    assert len(rows(tmp_path, version=1)) == 30


def test_column_mapping_is_refused(tmp_path: Path) -> None:
    write_deltalake(tmp_path, pa.table({"n": [1]}))
    (metadata,) = (action["metaData"] for action in actions(tmp_path) if "metaData" in action)
    schema = json.loads(metadata["schemaString"])
    schema["fields"][0]["metadata"] = {"delta.columnMapping.id": 1, "delta.columnMapping.physicalName": "col-1"}
    mapped = {
        **metadata,
        "schemaString": json.dumps(schema),
        "configuration": {"delta.columnMapping.mode": "name", "delta.columnMapping.maxColumnId": "1"},
    }
    commit(tmp_path, 1, {"protocol": {"minReaderVersion": 2, "minWriterVersion": 5}}, {"metaData": mapped})

    with pytest.raises(InputError, match="with column mapping, which is not supported"):
        open_files(read.delta(tmp_path))


def test_a_feature_that_nobody_here_knows_is_refused(tmp_path: Path) -> None:
    write_deltalake(tmp_path, pa.table({"n": [1]}))
    features = {"readerFeatures": ["typeWidening"], "writerFeatures": ["typeWidening"]}
    commit(tmp_path, 1, {"protocol": {"minReaderVersion": 3, "minWriterVersion": 7, **features}})

    with pytest.raises(InputError, match="typeWidening"):
        open_files(read.delta(tmp_path))


def test_files_outside_of_the_table_are_refused(tmp_path: Path) -> None:
    write_deltalake(tmp_path / "other", pa.table({"n": [1]}))
    write_deltalake(tmp_path / "clone", pa.table({"n": [1]}))
    (added,) = (action["add"] for action in actions(tmp_path / "other") if "add" in action)
    commit(tmp_path / "clone", 1, {"add": {**added, "path": f"file://{tmp_path}/other/{added['path']}"}})

    with pytest.raises(InputError, match="files of another one"):
        open_files(read.delta(tmp_path / "clone"))
