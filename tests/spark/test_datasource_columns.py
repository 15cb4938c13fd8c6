"""Values and frames without Spark: what comes back from columns, options, the numbers of rows."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql.types import IntegerType, StructField, StructType

from pipeline.codec import encode_batch, encode_value
from pipeline.errors import DecodingError, InboxFull, ProducerError, ReadingError, StaleSender
from pipeline.reading.keytext import parse_key
from pipeline.records import Batch
from pipeline.settings import Limits
from pipeline.spark.datasource.columns import ResultColumns
from pipeline.spark.datasource.numbered import NumberedRows
from pipeline.spark.datasource.options import OPTIONS, Use, parse, table_of_options
from pipeline.spark.datasource.records import CHUNK_RECORDS, Records, check_order, chunks_of, layout_of, records_of
from pipeline.spark.datasource.staged import StagedBatch, write_part
from pipeline.spark.datasource.writing import plan_write
from pipeline.store.ranges import Piece
from tests.docs.pages import DOCS
from tests.runtime.harness import LocalJob
from tests.spark.frames import a_job, outputs

TIME = pa.timestamp("us", "UTC")
RESULTS = pa.schema(
    [
        ("key", pa.string()),
        ("value", pa.string()),
        ("packed", pa.binary()),
        ("time", TIME),
        ("partition", pa.int32()),
        ("position", pa.int64()),
    ]
)
SCALARS = (
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats()
    | st.text()
    | st.binary()
    | st.datetimes(timezones=st.just(UTC))
)
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text() | st.integers(0, 9), inner, max_size=4),
)
PLAIN = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
)
KEYS = st.text() | st.integers(-(2**63), 2**63 - 1) | st.binary() | st.tuples(st.text(), st.integers(0, 9))


def pieces_of(values: list[Any], keys: list[Any] | None = None, times: list[int] | None = None) -> list[Piece]:
    return [Piece(7, len(values), 0, 1, encode_batch(Batch(values, keys, times)))]


@given(st.lists(VALUES, max_size=6), st.data())
def test_every_value_and_key_comes_back_exactly(values: list[Any], data: Any) -> None:
    keys = data.draw(st.lists(KEYS, min_size=len(values), max_size=len(values)))
    stored = [encode_value(value) for value in values]

    table = ResultColumns(RESULTS, "json").batch(pieces_of(values, keys)).to_pylist()

    again = [
        encode_value(msgspec.json.decode(row["value"])) if row["packed"] is None else row["packed"] for row in table
    ]
    assert again == stored
    assert [parse_key(row["key"]) for row in table] == keys
    assert [row["position"] for row in table] == list(range(7, 7 + len(values)))


@given(st.lists(PLAIN, min_size=1, max_size=6))
def test_what_json_gives_back_is_json_and_nothing_else(values: list[Any]) -> None:
    table = ResultColumns(RESULTS, "json").batch(pieces_of(values)).to_pylist()

    assert [(json.loads(row["value"]), row["packed"]) for row in table] == [(value, None) for value in values]


@pytest.mark.parametrize(
    "odd", [float("nan"), float("inf"), b"x", {1: 2}, [[[b"x"]]], {"a": {"b": -float("inf")}}], ids=str
)
def test_one_value_that_json_has_not_is_packed_and_leaves_the_others_as_they_are(odd: Any) -> None:
    pieces = [*pieces_of([1, "a\n"]), Piece(9, 2, 0, 0, encode_batch(Batch([{"a": [1.5]}, odd])))]

    table = ResultColumns(RESULTS, "json").batch(pieces).to_pylist()

    assert [row["value"] for row in table] == ["1", '"a\\n"', '{"a":[1.5]}', None]
    assert [row["packed"] for row in table] == [None, None, None, encode_value(odd)]
    assert [(row["partition"], row["position"]) for row in table] == [(1, 7), (1, 8), (0, 9), (0, 10)]


def test_part_of_an_entry_is_read_and_one_that_is_too_short_is_an_error() -> None:
    payload = encode_batch(Batch([1, 2, 3], ["a", "b", "c"]))
    columns = ResultColumns(RESULTS, "json")

    table = columns.batch([Piece(8, 2, 1, 0, payload)]).to_pylist()

    assert [(row["key"], row["value"], row["position"]) for row in table] == [("b", "2", 8), ("c", "3", 9)]
    with pytest.raises(DecodingError, match="result 7: its entry holds 3 records, not 4"):
        columns.batch([Piece(7, 4, 0, 0, payload)])


def test_entries_with_and_without_keys_and_times_stand_in_one_batch() -> None:
    pieces = [*pieces_of([1]), Piece(8, 1, 0, 0, encode_batch(Batch(["a"], [("k", 1)], [1_000])))]

    table = ResultColumns(RESULTS, "text").batch(pieces).to_pylist()

    moment = datetime.fromtimestamp(1, UTC)
    assert [(row["key"], row["value"], row["time"], row["partition"]) for row in table] == [
        (None, "1", None, 1),
        ('["k", 1]', "a", moment, 0),
    ]


def test_columns_of_a_schema_come_from_the_value() -> None:
    schema = pa.schema(
        [
            ("n", pa.int32()),
            ("day", pa.date32()),
            ("price", pa.decimal128(9, 2)),
            ("deep", pa.list_(pa.struct([("a", pa.int64()), ("b", pa.date32())]))),
            ("names", pa.map_(pa.string(), pa.float64())),
            ("key", pa.int64()),
        ]
    )
    value = {
        "n": 1,
        "day": "2024-02-29",
        "price": "1.5",
        "deep": [{"a": 2, "b": "2024-01-01"}, None],
        "names": {"x": 1},
    }

    [row] = ResultColumns(schema, "json").batch(pieces_of([value], [5])).to_pylist()

    assert (row["n"], str(row["day"]), str(row["price"]), row["key"]) == (1, "2024-02-29", "1.50", 5)
    assert row["names"] == [("x", 1.0)]
    assert row["deep"][0]["a"] == 2
    [missing] = ResultColumns(schema, "json").batch(pieces_of([{}], [5])).to_pylist()
    assert missing["n"] is None


def test_a_field_is_found_under_any_name_and_is_null_where_it_is_missing() -> None:
    names = ["field_1", "n.x", "ü b", "class", "values"]
    values = [{name: number for number, name in enumerate(names)}, {"values": 9, "other": b"x"}]

    for more in ([], ['a"b', "a\\b"]):
        schema = pa.schema([(name, pa.int64()) for name in [*names, *more]])
        table = ResultColumns(schema, "json").batch(pieces_of(values)).to_pylist()
        assert table == [{name: value.get(name) for name in schema.names} for value in values]


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        (pa.int32(), 1.5),
        (pa.float64(), 2**53 + 1),
        (pa.int32(), 2**40),
        (pa.float32(), 1e39),
        (pa.list_(pa.float32()), [1e39]),
        (pa.int32(), True),
        (pa.int64(), "1"),
        (pa.string(), b"x"),
        (pa.string(), 1),
        (pa.binary(), "x"),
        (pa.bool_(), 1),
        (pa.date32(), "yesterday"),
        (pa.list_(pa.int32()), [1, 2.5]),
        (pa.struct([("a", pa.int32())]), {"a": 1.5}),
        (pa.map_(pa.string(), pa.int32()), {"a": 1.5}),
        (pa.list_(pa.int32()), {}),
    ],
    ids=str,
)
def test_a_value_that_would_be_cut_or_guessed_is_refused_with_its_number(kind: Any, value: Any) -> None:
    columns = ResultColumns(pa.schema([("n", kind)]), "json")

    with pytest.raises(ReadingError, match=r"result 8: column 'n' is .*, and the value is"):
        columns.batch(pieces_of([{"n": None}, {"n": value}]))


def test_a_value_that_is_no_object_has_no_columns() -> None:
    with pytest.raises(ReadingError, match="result 7 is 3, which has no columns n"):
        ResultColumns(pa.schema([("n", pa.int32())]), "json").batch(pieces_of([3]))

    [row] = ResultColumns(pa.schema([("value", pa.int32())]), "json").batch(pieces_of([3])).to_pylist()
    assert row == {"value": 3}


@pytest.mark.parametrize(
    ("use", "given", "message"),
    [
        (Use.RESULTS, {"jub": "j"}, "spark.read of results has no option 'jub'"),
        (
            Use.RESULTS,
            {"job": "j", "order_by": "n"},
            "option 'order_by' does not belong to spark.read of results, but to df",
        ),
        (Use.RESULTS, {}, "spark.read of results needs option 'job'"),
        (Use.RESULTS, {"job": "j", "start": "0"}, "option 'start' cannot be '0'"),
        (Use.RESULTS, {"job": "j", "value_as": "xml"}, "option 'value_as' cannot be 'xml'"),
        (Use.RESULTS, {"job": "j", "partition_records": "many"}, "option 'partition_records' cannot be 'many'"),
        (Use.STREAM, {"job": "j"}, "spark.readStream needs option 'reader'"),
        (Use.SAVEPOINT, {}, "needs option 'path'"),
        (Use.JOBS, {"redis": "env:NOT_THERE_AT_ALL"}, "in the variable NOT_THERE_AT_ALL, which is not set"),
    ],
)
def test_a_wrong_option_is_named_with_what_it_may_be(use: Use, given: dict[str, str], message: str) -> None:
    with pytest.raises(ReadingError, match=message) as caught:
        parse({"redis": "redis://x", **given} if use is not Use.SAVEPOINT else given, use)

    assert caught.value.hint


def test_options_are_told_without_their_values() -> None:
    told = repr(parse({"redis": "redis://:hush@x", "JOB": "j"}, Use.RESULTS))

    assert told == "Options(RESULTS, ['job', 'redis'])"


def test_the_page_lists_every_option() -> None:
    assert table_of_options() in (DOCS / "spark-data-source.md").read_text()
    assert len({option.name for option in OPTIONS}) == len(OPTIONS)


def frame_schema(**columns: Any) -> Any:
    return pa.schema(list(columns.items()))


@pytest.mark.parametrize(
    ("schema", "options", "message"),
    [
        (frame_schema(n=pa.duration("us")), {}, "column 'n' is duration"),
        (frame_schema(n=pa.int32()), {"order_by": "m"}, "option 'order_by': the frame has no column 'm'"),
        (frame_schema(value=pa.int32(), other=pa.int32()), {}, "beside a column 'value' there may be .* not 'other'"),
        (frame_schema(value=pa.int32(), key=pa.string()), {}, "the source takes no keys"),
        (
            frame_schema(value=pa.int32(), time=pa.string()),
            {},
            "column 'time' is string; a record's time is a timestamp",
        ),
        (frame_schema(value=pa.int32()), {"value_as": "json"}, "option 'value_as' is about a column 'value' of text"),
    ],
)
def test_a_frame_that_no_source_takes_is_refused(schema: Any, options: dict[str, str], message: str) -> None:
    with pytest.raises(ProducerError, match=message):
        layout_of(schema, parse({"redis": "redis://x", "job": "j", **options}, Use.WRITE), with_keys=False)


def a_layout(schema: Any, *, with_keys: bool = False, **options: str) -> Any:
    return layout_of(schema, parse({"redis": "redis://x", "job": "j", **options}, Use.WRITE), with_keys=with_keys)


def test_rows_become_objects_or_the_column_value() -> None:
    rows = pa.record_batch({"n": [1, 2], "t": pa.array([0, 1], pa.timestamp("ms", "UTC")), "i": ["a", None]})
    made = records_of(a_layout(rows.schema, time_column="t", id_column="i", order_by="n"), rows, 1)
    assert made.batch.values[0] == {"n": 1, "t": datetime.fromtimestamp(0, UTC), "i": "a"}
    assert (made.batch.times, made.ids, made.order) == ([0, 1], ["a", None], [1, 2])

    rows = pa.record_batch({"value": ['{"a": [1]}', None], "packed": [None, encode_value(b"x")], "key": [1, 2]})
    made = records_of(a_layout(rows.schema, with_keys=True, value_as="json"), rows, 1)
    assert made.batch.values == [{"key": 1, "value": {"a": [1]}}, {"key": 2, "value": b"x"}]

    rows = pa.record_batch({"k": ["a", "b"]})  # an object of all other columns, of which there are none
    made = records_of(a_layout(rows.schema, with_keys=True, key_column="k"), rows, 1)
    assert made.batch.values == [{"key": "a", "value": {}}, {"key": "b", "value": {}}]


def test_a_time_that_no_record_holds_is_refused_with_its_row_and_column() -> None:
    rows = pa.record_batch({"n": [1, 2], "at": pa.array([1, 5_000_000], pa.date32())})

    with pytest.raises(ProducerError, match=r"row 8: column 'at': a date or time outside of the years 1 to 9999"):
        records_of(a_layout(rows.schema), rows, 7)


@given(st.lists(st.integers(0, 3 * CHUNK_RECORDS), max_size=6))
def test_chunks_are_the_same_however_the_rows_come(sizes: list[int]) -> None:
    whole = pa.record_batch({"n": list(range(sum(sizes)))})
    starts = [sum(sizes[:at]) for at in range(len(sizes))]

    made = list(chunks_of(whole.slice(start, size) for start, size in zip(starts, sizes, strict=True)))

    assert [n for chunk in made for n in chunk.column(0).to_pylist()] == list(range(sum(sizes)))
    assert all(chunk.num_rows == CHUNK_RECORDS for chunk in made[:-1])


@pytest.mark.parametrize("order", [[1, 1], [2, 1], [None], [1, None], [float("nan"), 1.0]], ids=str)
def test_rows_that_are_not_in_an_order_of_their_own_are_refused(order: list[Any]) -> None:
    layout = a_layout(pa.schema([("n", pa.int32())]), order_by="n")

    with pytest.raises(ProducerError, match="are not in the order of n") as caught:
        check_order(layout, order, None, 1)
    assert "sortWithinPartitions" in caught.value.hint
    with pytest.raises(ProducerError, match="rows 5 and 6"):
        check_order(layout, [3, 4], 3, 6)
    check_order(layout, [4, 5], 3, 6)


@pytest.fixture
def job(redis_url: str) -> Iterator[LocalJob]:
    with a_job(redis_url) as made:
        yield made


def chunk(*numbers: int) -> Records:
    return Records(Batch([{"n": number} for number in numbers]), None, list(numbers))


def attempt(job: LocalJob, batch: int) -> NumberedRows:
    return NumberedRows(job.feed().lane("spark:x/0-of-1"), batch, "write 'x'")


def test_two_attempts_at_once_put_each_row_in_once_and_in_order(job: LocalJob) -> None:
    for batch, first in enumerate((0, 100)):
        one, other = attempt(job, batch), attempt(job, batch)
        one.add(chunk(first, first + 1))
        other.add(chunk(first, first + 1))
        other.add(chunk(first + 2, first + 3))
        late = attempt(job, batch)
        one.add(chunk(first + 2, first + 3))
        for numbers in ((first, first + 1), (first + 2, first + 3), (first + 4,)):
            late.add(chunk(*numbers))
        one.add(chunk(first + 4))
        assert one.finish() == late.finish() == 5

    assert [value["n"] for value in outputs(job)] == [*range(5), *range(100, 105)]


def test_a_write_goes_on_as_it_was_begun_and_no_row_comes_in_under_two_numbers(job: LocalJob, tmp_path: Path) -> None:
    schema = StructType([StructField("n", IntegerType())])
    ways = {"ordered": {"order_by": "n", "frame_partitions": "1"}, "staged": {"staging": str(tmp_path)}}

    def planned(name: str, way: str) -> None:
        given = {"redis": job.url, "job": "j", "source": "in", "name": name, **ways[way]}
        plan_write(parse(given, Use.WRITE), schema)

    for name, ending in (("ordered", "1"), ("staged", "staged")):
        NumberedRows(job.feed().lane(f"spark:{name}/0-of-{ending}"), 0, "write").add(chunk(1, 2))
        planned(name, name)

    with pytest.raises(ProducerError, match="'ordered' was begun with 1 partition, and now it has a staging folder"):
        planned("ordered", "staged")
    with pytest.raises(ProducerError, match="'staged' was begun with a staging folder, and now it has 1 partition"):
        planned("staged", "ordered")


def test_an_attempt_with_other_rows_is_refused_before_it_sends_any(job: LocalJob) -> None:
    attempt(job, 3).add(chunk(1, 2, 3))

    for other in (chunk(1, 3, 2, 4), chunk(1, 2, 4, 5, 6)):
        with pytest.raises(ProducerError, match="what is in the job is not its first 3 rows"):
            attempt(job, 3).add(other)
    short = attempt(job, 3)
    short.add(chunk(1, 2))
    with pytest.raises(ProducerError, match="the job has 3 rows of it, and now there are 2"):
        short.finish()
    with pytest.raises(StaleSender, match="batch 3 is in the job, and this is batch 2"):
        attempt(job, 2)

    assert [value["n"] for value in outputs(job)] == [1, 2, 3]


def test_a_piece_of_a_chunk_is_found_again(redis_url: str) -> None:
    with a_job(redis_url, Limits(inbox_records=80)) as job:  # so that an append takes 10 at most
        with pytest.raises(InboxFull, match="write 'x': the inbox") as caught:
            attempt(job, 0).add(chunk(*range(200)))
        assert "full_timeout_seconds" in caught.value.hint
        job.run_until_idle()
        with pytest.raises(ProducerError, match="what is in the job is not its first 80 rows"):
            attempt(job, 0).add(chunk(*range(79), 80, 79, *range(81, 200)))
        for _ in range(2):
            with contextlib.suppress(InboxFull):
                attempt(job, 0).add(chunk(*range(200)))
            job.run_until_idle()
        assert attempt(job, 0).lane.taken == 200


def test_what_cannot_be_stored_is_a_dead_letter_that_says_where_it_stood(job: LocalJob) -> None:
    rows = Records(Batch([{"n": 1}, {"n": 2**70}, {"n": 3}]), None, [1, 2, 3])
    for _ in range(2):
        attempt(job, 0).add(rows)

    assert [value["n"] for value in outputs(job)] == [1, 3]
    [letter] = job.letters()
    assert "write 'x', row 2: " in letter.error


def test_a_staged_batch_is_closed_once_and_keeps_its_rows(tmp_path: Path) -> None:
    one, other = StagedBatch(str(tmp_path), "w", 0), StagedBatch(str(tmp_path), "w", 0)
    rows = pa.record_batch({"n": [1, 2]})
    parts = [write_part(one, 0, iter([rows])), write_part(other, 0, iter([rows, rows]))]
    assert not one.is_closed()

    first, second = one.close([parts[0]]), other.close([parts[1]])

    assert first == second
    assert one.is_closed()
    assert [batch.num_rows for batch in other.rows(second[0])] == [2]
    with pytest.raises(ProducerError, match="has 2 rows, and was written with 3"):
        list(one.rows((second[0][0], 3)))
    one.end()
    assert one.is_sent()
    assert list(one.folder.glob("*.parquet")) == []
