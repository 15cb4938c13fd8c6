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


OF_SPARK = f"{ZIP}:/spark/py4j-0.10.9.9-src.zip:/spark/jars/spark-core_2.13-4.3.0.jar"
PATHS = {
    OF_SPARK: [],
    f"/a user's [*]::{OF_SPARK}:/my pyspark.zip.d": ["/a user's [*]", "/my pyspark.zip.d"],
    "": [],
    None: [],
}


@pytest.mark.parametrize("name", ["plain", 'it\'s a "$folder"'])
def test_the_installed_pyspark_is_in_front_in_the_place_of_sparks_archives_and_other_paths_stay(
    tmp_path: Path, name: str
) -> None:
    (tmp_path / name).mkdir()
    program = python_program(tmp_path / name)
    bare = {variable: value for variable, value in os.environ.items() if variable != "PYTHONPATH"}
    own = _said(sys.executable, tmp_path, bare)[1:]

    for given, others in PATHS.items():
        file, *found = _said(program, tmp_path, bare if given is None else {**bare, "PYTHONPATH": given})

        assert file == f"{tmp_path / name}/python/pyspark/__init__.py"
        assert found == ["['-c', 'a b', '']", "", f"{tmp_path / name}/python", *others, *own[2:]]


def _said(program: Path | str, folder: Path, environment: dict[str, str]) -> list[str]:
    code = "import pyspark, sys; print(pyspark.__file__, sys.argv, *sys.path, sep='\\n')"
    done = subprocess.run(
        [program, "-c", code, "a b", ""],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    return done.stdout.splitlines()


def test_where_no_program_may_be_run_from_the_folder_it_is_this_python(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "access", lambda path, mode: not (path == tmp_path / "python3" and mode == os.X_OK))

    assert python_program(tmp_path) == Path(sys.executable)
