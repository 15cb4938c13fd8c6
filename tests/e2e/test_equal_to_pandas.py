"""What pandas makes of the same numbers and rows: a mean, the types of a Parquet sink, a Delta table."""

from __future__ import annotations

import random
from functools import reduce
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from deltalake import DeltaTable

from pipeline.aggregates import mean
from pipeline.plan import SinkPlan
from pipeline.sinks.publisher import publish
from tests import deltas

ROWS: list[dict[str, Any]] = [
    {"n": 1, "x": 1, "s": "ä", "b": True, "none": None, "list": [1, 2], "o": {"p": 1}},
    {"n": -(2**63), "x": 2.5, "s": "", "b": False, "none": None, "list": [], "o": {"p": 2}},
    {"n": 2**63 - 1, "x": 2**60 + 1, "s": "z", "b": True, "none": None, "list": [3], "o": {"p": 3}},
]


def test_the_mean_of_30_000_floats_equals_that_of_pandas() -> None:
    source = random.Random(8)
    values = [source.gauss(10, 40) for _ in range(30_000)]
    aggregation = mean()

    state = reduce(aggregation.add, values, aggregation.create())

    assert aggregation.result(state) == pytest.approx(pd.Series(values).mean(), rel=1e-12)


def test_a_parquet_sink_has_the_types_and_rows_that_pandas_would_give(tmp_path: Path) -> None:
    sink = SinkPlan("result", "parquet", str(tmp_path / "out"), {}, None)
    facts = [deltas.stage(sink, *ROWS[:1]), deltas.stage(sink, *ROWS[1:], partition=1)]

    published = publish(sink, deltas.JOB, facts)

    table, expected = pd.read_parquet(published.path), pd.DataFrame(ROWS)
    assert (published.files, published.records) == (2, 3)
    assert list(table.columns) == list(expected.columns)
    assert table.dtypes.to_dict() == expected.dtypes.to_dict()
    for column in ("n", "x", "s", "b", "none", "o"):
        assert table[column].tolist() == expected[column].tolist()
    assert [list(value) for value in table["list"]] == [[1, 2], [], [3]]


def test_pandas_reads_back_a_delta_table(tmp_path: Path) -> None:
    rows = [{"word": f"w{number}", "n": number, "share": number / 7} for number in range(1000)]

    deltas.run(deltas.a_sink(tmp_path / "table"), *rows)

    pd.testing.assert_frame_equal(DeltaTable(tmp_path / "table").to_pandas(), pd.DataFrame(rows))
