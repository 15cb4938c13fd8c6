"""Spark and the plain reader give the same splits, numbers, values and faults, through failing tasks too."""

from __future__ import annotations

import bz2
import gzip
import json
import sqlite3
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyspark
import pytest

from pipeline.errors import InputError, StaleSender
from pipeline.graph import SourceSpec
from pipeline.records import Batch
from pipeline.sources.feed import SourceSummary
from pipeline.sources.layout import open_files
from pipeline.sources.local import read_locally
from pipeline.sources.runner import feed_source
from pipeline.sources.splits import portions_of

pytestmark = pytest.mark.timeout(180)


@dataclass
class TableLane:
    """A sender in a database file: refuses gaps, cuts what it has."""

    address: TableFeed
    split: str

    @property
    def taken(self) -> int:
        rows = self.address.run("select coalesce(max(number), 0) from records where split = ?", self.split)
        return int(rows[0][0])

    def append(self, first: int, batch: Batch, place: Callable[[int], str]) -> None:
        mark = Path(self.address.mark)
        if self.address.fails_at and first >= self.address.fails_at and not mark.exists():
            mark.touch()
            raise StaleSender("this attempt was told to fail")
        taken = self.taken
        assert first <= taken + 1, f"a gap: {first} after {taken}"
        rows = [
            (self.split, first + index, repr(batch.values[index]), batch.faults.get(index))
            for index in range(taken + 1 - first, len(batch))
        ]
        with closing(sqlite3.connect(self.address.path, timeout=30)) as database, database:
            database.executemany("insert into records values (?, ?, ?, ?)", rows)

    def finish(self, count: int) -> None:
        assert count == self.taken
        self.address.run("insert or ignore into splits values (?, ?)", self.split, count)


@dataclass(frozen=True)
class TableFeed:
    """Feed and address at once: a path, so that it can travel to an executor."""

    path: str
    fails_at: int = 0

    @property
    def mark(self) -> str:
        return self.path + ".failed"

    def run(self, statement: str, *values: Any) -> list[Any]:
        with closing(sqlite3.connect(self.path, timeout=30, isolation_level=None)) as database:
            return database.execute(statement, values).fetchall()

    def open(self) -> TableFeed:
        self.run("create table if not exists records (split, number, value, fault, primary key (split, number))")
        self.run("create table if not exists splits (split primary key, count)")
        return self

    def lane(self, split: str) -> TableLane:
        return TableLane(self, split)

    def complete(self, splits: int) -> None:
        assert self.run("select count(*) from splits") == [(splits,)]

    def content(self) -> list[Any]:
        return self.run("select * from records order by split, number")


@pytest.fixture(scope="module", autouse=True)
def _feed_travels_by_value() -> None:
    pyspark.cloudpickle.register_pickle_by_value(sys.modules[__name__])


def read_twice(
    spark: Any, folder: Path, form: str, path: Path, split_bytes: int = 1 << 20, **options: Any
) -> tuple[TableFeed, SourceSummary]:
    """Reads with both readers, compares everything, and returns what Spark gave."""
    from pipeline.spark.source import read_with_spark

    source = open_files(SourceSpec(form, str(path), options), split_bytes)
    local, bulk = (TableFeed(str(folder / name)).open() for name in ("local.db", "spark.db"))
    wanted = read_locally(source, local)
    got = read_with_spark(spark, source, bulk)
    assert got == wanted
    assert bulk.content() == local.content()
    bulk.complete(got.splits)
    return bulk, got


def a_folder(tmp_path: Path, files: dict[str, bytes]) -> Path:
    folder = tmp_path / "a [1]{x}%20 ü*"
    folder.mkdir()
    for name, content in files.items():
        (folder / name).write_bytes(content)
    return folder


def test_text_is_equal_over_files_blocks_and_line_ends(spark: Any, tmp_path: Path) -> None:
    lines = [b"x" * (n % 37) + str(n).encode() for n in range(400)]
    folder = a_folder(
        tmp_path,
        {
            "windows.txt": b"\r\n".join(lines),
            "unix [2].txt": b"\n".join(lines) + b"\n",
            "old mac?.txt": b"\r".join(lines),
            "mark.txt": b"\xef\xbb\xbffirst\n\xff\xfe\n\n\xc3\xbc\xf0\x9f\x98\x80",
            "long.txt": b"y" * 5_000 + b"\nend",
            "empty.txt": b"",
            "_hidden.txt": b"not read\n",
            "packed.gz": gzip.compress(b"\n".join(lines)),
            "packed.bz2": bz2.compress(b"\n".join(lines)),
            "aligned.txt": b"z" * 1023 + b"\n" + b"z" * 1022 + b"\r\n" + b"last",
        },
    )

    bulk, summary = read_twice(spark, tmp_path, "text", folder, 1024)

    assert summary.splits > 20
    assert summary.records == 5 * 400 + 4 + 2 + 3
    assert bulk.run("select count(distinct split) from records where split like 'packed%'") == [(2,)]


def test_csv_is_equal_with_quotes_nulls_blank_lines_and_faults(spark: Any, tmp_path: Path) -> None:
    rows = [f'{n},{n}.5,"a, ""{n}"" ü",' if n % 10 else f"NA,NA,,{n}\n\n  " for n in range(300)]
    rows[150] = "x,1.5,unfit,"
    rows[151] = "too few"
    rows[152] = '1,1,"open,'
    text = "\n".join(["n,x,name,note", *rows]).encode()
    folder = a_folder(tmp_path, {"1.csv": text, "2.csv": text.replace(b"\n", b"\r\n"), "3.csv": b"n,x,name,note\n"})

    bulk, summary = read_twice(spark, tmp_path, "csv", folder, 1024, types={"n": "int"})

    assert summary.columns == "n: int, x: float, name: text, note: int"
    assert summary.records == 600
    assert bulk.run("select count(*) from records where fault is not null") == [(6,)]


def test_json_lines_are_equal(spark: Any, tmp_path: Path) -> None:
    lines = [json.dumps({"n": n, "text": "ü" * (n % 9)}, ensure_ascii=False) for n in range(200)]
    lines[100] = '{"n": '
    folder = a_folder(tmp_path, {"a.jsonl": "\n\n".join(lines).encode()})

    bulk, summary = read_twice(spark, tmp_path, "json", folder, 1024)

    assert summary.records == 200
    assert bulk.run("select count(*) from records where fault is not null") == [(1,)]


def test_parquet_is_equal_in_values_and_row_groups(spark: Any, tmp_path: Path) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    moment = datetime(2013, 1, 1, 5, 15, 0, 123456, tzinfo=UTC)
    size = 500
    columns = {
        "n.x": pa.array([*range(size - 1), None], pa.int32()),
        "big": pa.array([2**64 - 1] * size, pa.uint64()),
        "ns": pa.array([moment] * size, pa.timestamp("ns", "Europe/Berlin")),
        "plain": pa.array([moment.replace(tzinfo=None)] * size, pa.timestamp("us")),
        "ms": pa.array([datetime(2020, 2, 2, tzinfo=UTC)] * size, pa.timestamp("ms", "UTC")),
        "day": pa.array([date(1969, 2, 1)] * size),
        "price": pa.array([Decimal("1.50"), None] * (size // 2), pa.decimal128(9, 2)),
        "kind": pa.array(["a", "b"] * (size // 2)).dictionary_encode(),
        "nested": pa.array([{"a": [1, None], "b": {"c": date(2020, 1, 1)}}, None] * (size // 2)),
        "map": pa.array([[("k", 1.5)], []] * (size // 2), pa.map_(pa.string(), pa.float64())),
        "raw": pa.array([b"\x00\xff"] * size),
        "flag": pa.array([True, None] * (size // 2)),
    }
    folder = a_folder(tmp_path, {})
    pq.write_table(pa.table(columns), folder / "a.parquet", row_group_size=40)

    _, summary = read_twice(spark, tmp_path, "parquet", folder, 4096)

    assert summary.records == size
    assert summary.splits > 1


def test_a_large_file_is_equal_when_several_tasks_append_it(spark: Any, tmp_path: Path) -> None:
    path = tmp_path / "in.txt"
    path.write_text("".join(f"{n} {'x' * (n % 2_000)}\n" for n in range(6_000)))

    _, summary = read_twice(spark, tmp_path, "text", path, 1 << 20)

    assert len(portions_of(open_files(SourceSpec("text", str(path)), 1 << 20).splits)) > 2
    assert (summary.splits, summary.records) == (6, 6_000)


@pytest.mark.usefixtures("spark")
def test_a_failing_task_is_tried_again_and_each_record_taken_once(tmp_path: Path) -> None:
    path = tmp_path / "in.txt"
    path.write_text("".join(f"{n}\n" for n in range(20_000)))
    feed = TableFeed(str(tmp_path / "spark.db"), fails_at=9_000).open()

    summary = feed_source(SourceSpec("text", str(path)), feed, reader="spark")

    assert Path(feed.mark).exists()
    assert summary == SourceSummary(1, 20_000)
    assert [row[2] for row in feed.content()] == [repr(str(n)) for n in range(20_000)]


def test_errors_of_the_executors_keep_their_type(spark: Any, tmp_path: Path) -> None:
    from pipeline.spark.source import read_with_spark

    path = tmp_path / "in.txt"
    path.write_text("a\nb\n")
    source = open_files(SourceSpec("text", str(path)))
    path.write_text("changed\n")

    with pytest.raises(InputError, match=r"in\.txt was changed while it was being read"):
        read_with_spark(spark, source, TableFeed(str(tmp_path / "spark.db")))


@pytest.mark.usefixtures("spark")
def test_a_file_that_is_named_is_read_also_when_its_name_is_one_that_folders_hide(tmp_path: Path) -> None:
    path = tmp_path / "_in.txt"
    path.write_text("a\n")

    summary = feed_source(SourceSpec("text", str(path)), TableFeed(str(tmp_path / "spark.db")), reader="spark")

    assert summary == SourceSummary(1, 1)


def test_all_threads_of_a_process_share_one_session(spark: Any) -> None:
    from pipeline.spark.session import spark_session

    with ThreadPoolExecutor(1) as pool:
        assert pool.submit(spark_session).result() is spark


def test_the_session_leaves_nothing_in_the_current_folder(spark: Any) -> None:
    assert spark.range(3).count() == 3

    for name in ("spark-warehouse", "metastore_db", "artifacts", "derby.log"):
        assert not Path(name).exists()
