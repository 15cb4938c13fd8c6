"""The Python processes of Spark: each finds the installed PySpark, also those that Spark asks about a data source."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyspark
import pytest
from pyspark import cloudpickle
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition

from pipeline.spark.python import python_program

INSTALLED = Path(pyspark.__file__).resolve().parent
ZIP = INSTALLED / "python/lib/pyspark.zip"


def loaded_from() -> str:
    import pyspark

    return str(Path(pyspark.__file__).resolve().parent)


class Where(DataSource):
    """A row of its reader's: where the process that knew the schema, and the one that read, have PySpark from."""

    def schema(self) -> str:
        return f"`{loaded_from()}` string"

    def reader(self, schema: Any) -> DataSourceReader:
        return WhereReader()


class WhereReader(DataSourceReader):
    def read(self, partition: InputPartition) -> Iterator[tuple[str]]:
        yield (loaded_from(),)


def test_every_python_process_of_a_session_has_the_installed_pyspark(spark: Any) -> None:
    cloudpickle.register_pickle_by_value(sys.modules[__name__])  # else each of them imports pytest
    spark.dataSource.register(Where)

    frame = spark.read.format("Where").load()

    assert (frame.columns, [tuple(row) for row in frame.collect()]) == ([str(INSTALLED)], [(str(INSTALLED),)])


@pytest.mark.parametrize("name", ["plain", 'it\'s a "$folder"'])
def test_the_installed_pyspark_comes_before_sparks_own_zip(tmp_path: Path, name: str) -> None:
    (tmp_path / name).mkdir()
    program = python_program(tmp_path / name)

    for paths in ({"PYTHONPATH": str(ZIP)}, {}):
        said = subprocess.run(
            [program, "-c", "import pyspark, sys; print(pyspark.__file__, sys.argv, '' in sys.path[1:])", "a b", ""],
            cwd=tmp_path,
            env={**{name: value for name, value in os.environ.items() if name != "PYTHONPATH"}, **paths},
            capture_output=True,
            text=True,
            timeout=60,
            check=True,
        )

        assert said.stdout == f"{tmp_path / name}/python/pyspark/__init__.py ['-c', 'a b', ''] False\n"


def test_where_no_program_may_be_run_from_the_folder_it_is_this_python(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "access", lambda path, mode: not (path == tmp_path / "python3" and mode == os.X_OK))

    assert python_program(tmp_path) == Path(sys.executable)
