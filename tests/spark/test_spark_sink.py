"""The Parquet of a sink, written by a real Spark session."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pandas
import pytest

from pipeline.errors import SinkError
from pipeline.plan import SinkPlan
from pipeline.records import Batch
from pipeline.sinks.publisher import publish
from pipeline.sinks.staging import StagedFacts, StagingFile
from pipeline.spark.sink import write_parquet_with_spark

ROWS: list[dict[str, Any]] = [
    {"z": 1, "x": 1, "s": "ä", "b": True, "none": None, "list": [1, 2], "o": {"p": 1, "é `q`": "r"}},
    {"z": -(2**63), "x": 2.5, "s": "", "b": False, "extra": "only here"},
]


def stage(sink: SinkPlan, rows: list[dict[str, Any]], partition: int) -> StagedFacts:
    file = StagingFile.create(sink, "job", 0, partition, 1)
    file.write(Batch(list(rows), [f"key {number}" for number in range(len(rows))]))
    facts = file.sync()
    file.write(Batch([{"z": "never committed"}], ["lost"]))
    file.sync()
    file.close()
    return facts


@pytest.mark.usefixtures("spark")
def test_spark_and_pyarrow_write_the_same_table(tmp_path: Path) -> None:
    tables = {}
    for writer in ("spark", "local"):
        path = tmp_path / f"{writer} {{a,b}}*[1] 100%20"
        sink = SinkPlan("result", "parquet", str(path), {"writer": writer}, "key")
        published = publish(sink, "job", [stage(sink, ROWS, 0), stage(sink, ROWS[:1], 1)])
        assert published.records == 3
        names = sorted(file.name for file in path.iterdir())
        assert names == ["_manifest.json", *(f"part-{n:05d}.parquet" for n in range(published.files))]
        tables[writer] = pandas.read_parquet(path)

    assert list(tables["spark"].columns) == list(tables["local"].columns)
    assert tables["spark"].dtypes.to_dict() == tables["local"].dtypes.to_dict()
    assert sorted(map(str, tables["spark"].to_dict("records"))) == sorted(map(str, tables["local"].to_dict("records")))


def test_rows_that_spark_cannot_read_are_a_sink_error(tmp_path: Path, spark: Any) -> None:
    rows = tmp_path / "rows.jsonl"
    rows.write_text('{"n": 1}\n{"n": "text"}\n')

    with pytest.raises(SinkError, match="Spark could not write"):
        write_parquet_with_spark(spark, [rows], tmp_path, "n BIGINT")


def test_spark_derives_a_schema_where_none_is_given(tmp_path: Path, spark: Any) -> None:
    rows = tmp_path / "rows.jsonl"
    rows.write_text('{"n": 1}\n{"n": 2.5}\n')

    made = write_parquet_with_spark(spark, [rows], tmp_path)

    assert pandas.read_parquet(made[0])["n"].tolist() == [1.0, 2.5]
