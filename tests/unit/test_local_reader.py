"""The plain reader: lines, formats, numbering and the choice of the reader."""

from __future__ import annotations

import bz2
import gzip
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.errors import EncodingError, EnvironmentFault, InputError
from pipeline.graph import SourceSpec
from pipeline.records import Batch
from pipeline.sources.feed import BATCH_RECORDS, FAULT_CHARACTERS, SplitWriter
from pipeline.sources.formats import TextFormat
from pipeline.sources.layout import open_files
from pipeline.sources.lines import split_lines
from pipeline.sources.local import ItemChunk
from pipeline.sources.runner import feed_source
from pipeline.sources.splits import Split, plan_splits


@dataclass
class FakeLane:
    """Refuses gaps and values that `is_bad`, cuts what it has."""

    taken: int = 0
    values: list[Any] = field(default_factory=list)
    faults: dict[int, str] = field(default_factory=dict)
    appends: list[int] = field(default_factory=list)
    count: int = -1

    def append(self, first: int, batch: Batch, place: Callable[[int], str]) -> None:
        assert first <= self.taken + 1, f"a gap: {first} after {self.taken}"
        for index, value in enumerate(batch.values):
            if value == "bad":
                raise EncodingError("a bad value", index)
            if len(repr(value)) > 100_000:
                raise EncodingError("a large value", index)
        cut = self.taken + 1 - first
        self.values += batch.values[cut:]
        self.faults |= {first + index: why for index, why in batch.faults.items() if index >= cut}
        self.taken += len(batch) - cut
        self.appends.append(len(batch))

    def finish(self, count: int) -> None:
        assert count == self.taken
        self.count = count


@dataclass
class FakeFeed:
    lanes: dict[str, FakeLane] = field(default_factory=dict)
    completed: int = -1

    def open(self) -> FakeFeed:
        return self

    def lane(self, split: str) -> FakeLane:
        return self.lanes.setdefault(split, FakeLane())

    def splits(self, beginning: str = "") -> list[str]:
        return [name for name in self.lanes if name.startswith(beginning)]

    def complete(self, splits: int) -> None:
        assert splits == sum(1 for lane in self.lanes.values() if lane.count >= 0)
        self.completed = splits

    @property
    def values(self) -> list[Any]:
        return [value for lane in self.lanes.values() for value in lane.values]

    @property
    def faults(self) -> list[str]:
        return [why for lane in self.lanes.values() for why in lane.faults.values()]


def read(form: str, path: Path, split_bytes: int = 1 << 20, **options: Any) -> FakeFeed:
    feed = FakeFeed()
    feed_source(SourceSpec(form, str(path), options), feed, reader="local", split_bytes=split_bytes)
    return feed


def a_file(folder: Path, content: bytes | str, name: str = "in.txt") -> Path:
    path = folder / name
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


def test_lines_end_in_three_ways_and_the_empty_rest_is_no_record(tmp_path: Path) -> None:
    assert read("text", a_file(tmp_path, "a\r\nb\rc\n\nlast")).values == ["a", "b", "c", "", "last"]
    assert read("text", a_file(tmp_path, "a\n")).values == ["a"]


def test_a_byte_order_mark_is_dropped_and_bad_utf_8_is_replaced(tmp_path: Path) -> None:
    assert read("text", a_file(tmp_path, b"\xef\xbb\xbfa\nb\xffc\n")).values == ["a", "b\ufffdc"]


_BROKEN = st.sampled_from(
    [b"\xe2\x82", b"\xf0\x9f\x98", b"\x82", b"\xff", b"\xed\xa0\x80", b"\xc2", "\u2028\x85ü".encode()]
)


@given(st.lists(st.lists(_BROKEN | st.binary(max_size=3), max_size=3).map(b"".join), max_size=8))
def test_each_line_is_decoded_as_it_would_be_alone(lines: list[bytes]) -> None:
    lines = [line.replace(b"\n", b"").replace(b"\r", b"") for line in lines]

    batch = TextFormat().decode(lines, [])

    assert batch.values == [line.decode("utf-8", "replace") for line in lines]


@pytest.mark.parametrize(("name", "pack"), [("a.gz", gzip.compress), ("a.bz2", bz2.compress)])
def test_a_compressed_file_is_unpacked_as_one_split(tmp_path: Path, name: str, pack: Any) -> None:
    feed = read("text", a_file(tmp_path, pack(b"one\ntwo\n" * 50), name), split_bytes=10)

    assert feed.values == ["one", "two"] * 50
    assert feed.completed == 1


def test_a_damaged_file_is_named_in_the_error(tmp_path: Path) -> None:
    path = a_file(tmp_path, gzip.compress(b"one\ntwo\n" * 500)[:-10], "a.gz")

    with pytest.raises(InputError, match=r"a\.gz cannot be unpacked"):
        read("text", path)


@given(
    text=st.text(alphabet="ab\r\n", max_size=40),
    block=st.integers(1, 12),
    chunk=st.integers(1, 9),
)
def test_any_blocks_give_each_line_once_and_in_the_split_in_which_it_starts(
    tmp_path_factory: pytest.TempPathFactory, text: str, block: int, chunk: int
) -> None:
    path = a_file(tmp_path_factory.mktemp("lines"), text)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("pipeline.sources.lines._READ_BYTES", chunk)

        found = {split: [line for some in split_lines(split) for line in some] for split in plan_splits([path], block)}

    assert list(found.values()) == [lines_by_hand(text.encode(), split) for split in found]
    assert [line for lines in found.values() for line in lines] == text.encode().splitlines()


def lines_by_hand(data: bytes, split: Split) -> list[bytes]:
    lines, position = [], 0
    for line in data.splitlines(keepends=True):
        if split.start < position <= split.end or position == split.start == 0:
            lines.append(line.rstrip(b"\r\n"))
        position += len(line)
    return lines


def test_csv_rows_become_dicts_with_inferred_types_and_nulls(tmp_path: Path) -> None:
    content = 'id,delay,name,empty\n1,2.5,"Doe, ""J""",\n\n  \n-2,NA,,NA\r\n3,1e3,ü,'

    feed = read("csv", a_file(tmp_path, content))

    assert feed.values == [
        {"id": 1, "delay": 2.5, "name": 'Doe, "J"', "empty": None},
        {"id": -2, "delay": None, "name": None, "empty": None},
        {"id": 3, "delay": 1000.0, "name": "ü", "empty": None},
    ]
    assert not feed.faults


def test_csv_columns_types_nulls_and_delimiter_can_be_chosen(tmp_path: Path) -> None:
    path = a_file(tmp_path, "a;b;c\n1;-;x\n2;7;NA\n")

    feed = read("csv", path, columns=["c", "b"], types={"b": "float"}, null_values=["-"], delimiter=";")

    assert feed.values == [{"c": "x", "b": None}, {"c": "NA", "b": 7.0}]


def test_the_columns_and_their_types_are_described(tmp_path: Path) -> None:
    path = a_file(tmp_path, "a,b,c,d\n1,1,x,12345678901234567890\n2,1.5,1,1\n")

    assert open_files(SourceSpec("csv", str(path))).describe() == "a: int, b: float, c: text, d: text"


def test_a_row_that_does_not_fit_is_a_fault_with_a_number_of_its_own(tmp_path: Path) -> None:
    path = a_file(tmp_path, 'n,t\n1,a\n\nabc,b\n3\n4,"open\n5,e\n1_0,f\n9223372036854775808,g\n')

    feed = read("csv", path, types={"n": "int"})

    assert feed.values == [
        {"n": 1, "t": "a"},
        "abc,b",
        "3",
        '4,"open',
        {"n": 5, "t": "e"},
        "1_0,f",
        "9223372036854775808,g",
    ]
    assert feed.faults == [
        f"{path}:4: column 'n': 'abc' is no int",
        f"{path}:5: 1 field, but the header names 2",
        f"{path}:6: unexpected end of data",
        f"{path}:8: column 'n': '1_0' is no int",
        f"{path}:9: column 'n': '9223372036854775808' is no int",
    ]
    assert set(next(iter(feed.lanes.values())).faults) == {2, 3, 4, 6, 7}


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("", "has no header"),
        ("a,a\n1,2\n", "two columns are named 'a'"),
        ("a,,c\n1,2,3\n", "column 2 has no name"),
        ('a,"b\n1,2\n', "the header cannot be read"),
    ],
)
def test_a_bad_header_is_an_error_that_names_the_file(tmp_path: Path, content: str, words: str) -> None:
    with pytest.raises(InputError, match=words) as caught:
        read("csv", a_file(tmp_path, content, "bad.csv"))

    assert "bad.csv" in str(caught.value)


def test_files_with_different_columns_are_refused(tmp_path: Path) -> None:
    a_file(tmp_path, "a,b\n1,2\n", "1.csv")
    a_file(tmp_path, "b,a\n1,2\n", "2.csv")

    with pytest.raises(InputError, match=r"2\.csv has the columns b, a, but"):
        read("csv", tmp_path)


def test_a_column_that_is_not_there_is_an_error_that_lists_those_that_are(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no column 'x'") as caught:
        read("csv", a_file(tmp_path, "a,b\n1,2\n"), columns=["x"])

    assert "a, b" in caught.value.hint


def test_json_lines_give_values_and_faults(tmp_path: Path) -> None:
    path = a_file(tmp_path, '{"a": [1, null]}\n\n{"a"\n"text"\r\n')

    feed = read("json", path)

    assert feed.values == [{"a": [1, None]}, '{"a"', "text"]
    assert feed.faults[0].startswith(f"{path}:3: no JSON: ")


def test_a_parquet_row_with_a_time_that_no_record_holds_is_a_fault_and_the_others_are_records(tmp_path: Path) -> None:
    days = pa.array([0, 5_000_000, None, 5_000_001], pa.date32())
    instants = pa.array([10**16, 0, 0, 0], pa.timestamp("ms"))  # as microseconds it has no 64 bits
    pq.write_table(pa.table({"n": range(4), "day": days, "at": instants}), tmp_path / "a.parquet")

    [lane] = read("parquet", tmp_path / "a.parquet").lanes.values()

    assert lane.values[2] == {"n": 2, "day": None, "at": datetime.fromtimestamp(0, UTC)}
    assert {number: why.partition(":")[0] for number, why in lane.faults.items()} == {
        1: "column 'at'",
        2: "column 'day'",
        4: "column 'day'",
    }
    assert "years 1 to 9999: [ 15659-07-15 ]" in lane.faults[2]
    assert lane.values[1] == repr({"n": 1, "day": None, "at": datetime.fromtimestamp(0, UTC)})


def test_parquet_rows_are_plain_values_and_row_groups_go_to_the_block_of_their_middle(tmp_path: Path) -> None:
    moment = datetime(2013, 1, 1, 5, 15, tzinfo=UTC)
    table = pa.table(
        {
            "n": pa.array([1, None, 3] * 100),
            "at": pa.array([moment, None, moment] * 100, pa.timestamp("ns", "UTC")),
            "day": pa.array([moment.date(), None, None] * 100),
            "price": pa.array([Decimal("1.50"), None, None] * 100, pa.decimal128(9, 2)),
            "rate": pa.array([Decimal("-0.00000001"), None, Decimal(0)] * 100, pa.decimal128(18, 8)),
            "tags": pa.array([[("k", 1)], None, []] * 100, pa.map_(pa.string(), pa.int64())),
        }
    )
    pq.write_table(table, tmp_path / "a.parquet", row_group_size=30)

    feed = read("parquet", tmp_path / "a.parquet", split_bytes=1_000)

    assert feed.completed > 1
    row = {"n": 1, "at": moment, "day": "2013-01-01", "price": "1.50", "rate": "-0.00000001", "tags": {"k": 1}}
    assert feed.values[0] == row
    assert feed.values[2]["rate"] == "0.00000000"
    assert feed.values[1] == dict.fromkeys(table.column_names)
    assert [value["n"] for value in feed.values] == [1, None, 3] * 100


def test_a_restart_skips_what_is_taken_without_a_gap(tmp_path: Path) -> None:
    path = a_file(tmp_path, "".join(f"{n}\n" for n in range(10_000)))
    whole = read("text", path)
    (name,) = whole.lanes
    feed = FakeFeed({name: FakeLane(4_321, [str(n) for n in range(4_321)])})

    feed_source(SourceSpec("text", str(path)), feed, reader="local")

    assert feed.values == whole.values
    assert sum(feed.lanes[name].appends) == 10_000 - 4_321


def test_appends_are_bounded_in_records_and_bytes(tmp_path: Path) -> None:
    short = read("text", a_file(tmp_path, "x\n" * 10_000))
    long = read("text", a_file(tmp_path, ("x" * 400_000 + "\n") * 10), split_bytes=1 << 30)

    assert max(max(lane.appends) for lane in short.lanes.values()) <= BATCH_RECORDS
    assert max(max(lane.appends) for lane in long.lanes.values()) <= 2


def test_an_iterable_is_one_split_numbered_by_position() -> None:
    feed = FakeFeed()

    summary = feed_source(SourceSpec("iterable", items=lambda: iter(range(5_000))), feed)

    assert feed.lanes["iterable"].values == list(range(5_000))
    assert (summary.splits, summary.records, feed.completed) == (1, 5_000, 1)


def test_a_source_without_records_completes_with_no_split(tmp_path: Path) -> None:
    assert read("text", a_file(tmp_path, "")).completed == 0
    assert read("csv", a_file(tmp_path, "a,b\n")).completed == 0


def test_a_value_that_cannot_be_encoded_becomes_a_fault() -> None:
    feed = FakeFeed()
    writer = SplitWriter(feed, "s")

    writer.add(ItemChunk(["good", "bad", "good", "bad"]))

    assert feed.values == ["good", "'bad'", "good", "'bad'"]
    assert set(feed.lanes["s"].faults) == {2, 4}


def test_a_line_that_is_too_large_becomes_a_fault_and_is_cut(tmp_path: Path) -> None:
    feed = read("json", a_file(tmp_path, f'"{"x" * 200_000}"\n{"y" * 200_000}\n1\n'))

    assert [len(str(value)) for value in feed.values] == [FAULT_CHARACTERS, FAULT_CHARACTERS, 1]
    faults = next(iter(feed.lanes.values())).faults
    assert faults[1].endswith("in.txt:1: a large value")
    assert "no JSON" in faults[2]


def test_auto_reads_small_input_without_spark(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pipeline.spark.session", None)
    feed = FakeFeed()

    feed_source(SourceSpec("text", str(a_file(tmp_path, "a\n")), {"reader": "auto"}), feed)

    assert feed.values == ["a"]


def test_a_missing_file_is_reported_before_spark_starts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pipeline.spark.session", None)

    with pytest.raises(InputError, match="no such file"):
        feed_source(SourceSpec("text", str(tmp_path / "no.txt")), FakeFeed(), reader="spark")


def test_a_missing_extra_is_named_with_the_command_that_installs_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delitem(sys.modules, "pipeline.spark.session", raising=False)
    monkeypatch.setitem(sys.modules, "py4j.protocol", None)

    with pytest.raises(EnvironmentFault) as caught:
        feed_source(SourceSpec("text", str(a_file(tmp_path, "a\n"))), FakeFeed(), reader="spark")

    assert caught.value.hint == "pip install 'celeriac[spark]'"
