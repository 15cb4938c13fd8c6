"""Delta tables in and out of real runs: `celeriac run`, live."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pandas as pd
import pyarrow as pa
import pytest
from deltalake import DeltaTable, Field, write_deltalake
from deltalake.schema import PrimitiveType

from tests.e2e.test_run import Site

FLOW = """
from pipeline import Pipeline, read, total, write

flow = Pipeline("sums")
sales = flow.source(read.delta("sales"), name="sales").key_by("place", name="by_place")
sums = sales.map(lambda row: row["n"], name="number").aggregate(total(), name="sum").last(name="last")
sums.map(lambda n: {{"n": n}}, name="row").sink(write.delta("sums", mode="{mode}"), name="sums")
"""


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    for name in ("work", "tmp"):
        (tmp_path / name).mkdir()
    made = Site(tmp_path / "work", tmp_path / "tmp")
    yield made
    made.close()


def some_sales(site: Site) -> pd.DataFrame:
    sales = pd.DataFrame({"place": [f"p{n % 7}" for n in range(700)], "n": range(700)})
    write_deltalake(site.folder / "sales", sales, partition_by=["place"])
    sums: pd.DataFrame = sales.groupby("place", as_index=False).sum()
    return sums


def read_sums(site: Site) -> pd.DataFrame:
    found: pd.DataFrame = DeltaTable(site.folder / "sums").to_pandas()
    return found.sort_values("place", ignore_index=True)


def test_a_table_is_read_and_another_one_is_made_and_then_overwritten(site: Site) -> None:
    sums = some_sales(site)
    site.write(FLOW.format(mode="overwrite"))

    for version in (0, 1):
        done = site.run("run", "flow.py", "--workers", "2")

        assert done.returncode == 0, done.stderr
        pd.testing.assert_frame_equal(read_sums(site), sums)
        assert DeltaTable(site.folder / "sums").version() == version
        assert not [path.name for path in site.folder.iterdir() if path.name.startswith(".")]


def test_results_that_do_not_fit_are_kept_until_the_table_has_their_column(site: Site) -> None:
    sums = some_sales(site)
    write_deltalake(site.folder / "sums", pa.table({"place": pa.array([], pa.string())}))
    site.write(FLOW.format(mode="append"))

    failed = site.run("run", "flow.py", "--workers", "1", "--job-id", "kept")
    DeltaTable(site.folder / "sums").alter.add_columns(Field("n", PrimitiveType("long")))
    done = site.run("run", "flow.py", "--workers", "1", "--job-id", "kept")

    assert failed.returncode == 1
    assert "the column 'n' does not exist in it" in failed.stderr
    assert "go on with --job-id" in failed.stderr
    assert done.returncode == 0, done.stderr
    pd.testing.assert_frame_equal(read_sums(site), sums)
