"""Imports run one way, heavy libraries stay behind their doors, and nothing is ever pickled."""

from __future__ import annotations

import ast
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
MODULES = sorted(
    path.relative_to(ROOT)
    for package in ("pipeline", "stages", "leader", "verification")
    for path in (ROOT / package).rglob("*.py")
)
PICKLES = {"pickle", "cloudpickle", "dill", "shelve", "marshal"}


@cache
def imports(module: Path) -> set[str]:
    """Full names of all that a module imports, wherever in its text."""
    found = set()
    for node in ast.walk(ast.parse((ROOT / module).read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{module} imports relatively"
            found.add(node.module or "")
            found.update(f"{node.module}.{alias.name}" for alias in node.names)
    return found


def offenders(inside: str, *forbidden: str, outside: tuple[str, ...] = ()) -> list[str]:
    """Modules under `inside`, but not under `outside`, that import something forbidden."""
    return [
        f"{module} imports {name}"
        for module in MODULES
        if module.is_relative_to(inside) and not any(module.is_relative_to(place) for place in outside)
        for name in sorted(imports(module))
        if any(name == bad or name.startswith(bad + ".") for bad in forbidden)
    ]


def test_there_is_something_to_check() -> None:
    assert len(MODULES) > 30


def test_the_kernel_knows_neither_store_nor_engines() -> None:
    forbidden = ("pipeline.store", "pipeline.spark", "redis", "celery", "kombu", "pyspark", "stages", "leader")

    assert offenders("pipeline/kernel", *forbidden) == []


def test_pipeline_imports_neither_stages_nor_leader() -> None:
    assert offenders("pipeline", "stages", "leader") == []


def test_stages_and_leader_never_import_each_other() -> None:
    assert offenders("stages", "leader") == []
    assert offenders("leader", "stages") == []


def test_nothing_that_runs_a_job_imports_its_verification() -> None:
    for package in ("pipeline", "stages", "leader"):
        assert offenders(package, "verification") == []


def test_only_the_store_imports_redis() -> None:
    assert offenders(".", "redis", outside=("pipeline/store",)) == []


def test_only_the_spark_package_imports_pyspark() -> None:
    assert offenders(".", "pyspark", outside=("pipeline/spark",)) == []


def test_celery_is_imported_at_the_edges_only() -> None:
    assert offenders(".", "celery", "kombu", outside=("stages", "leader", "pipeline/flower")) == []


def test_only_the_flower_package_imports_tornado() -> None:
    assert offenders(".", "tornado", "flower", outside=("pipeline/flower",)) == []


def test_delta_rs_is_imported_by_two_modules_only() -> None:
    places = ("pipeline/sinks/delta_table.py", "pipeline/sources/deltatable.py")

    assert offenders(".", "deltalake", outside=places) == []


def test_the_store_knows_no_engine_and_no_user_interface() -> None:
    assert offenders("pipeline/store", "pipeline.spark", "pipeline.cli", "pipeline.sources", "pipeline.sinks") == []


def test_the_data_that_everybody_shares_imports_no_behaviour() -> None:
    behaviour = ("pipeline.store", "pipeline.sources", "pipeline.sinks", "pipeline.spark", "pipeline.cli")
    for module in ("errors", "records", "keying", "codec", "messages", "positions", "plan", "graph", "lifecycle"):
        assert offenders(f"pipeline/{module}.py", *behaviour) == []


@pytest.mark.parametrize("name", sorted(PICKLES))
def test_nothing_is_ever_pickled(name: str) -> None:
    assert offenders(".", name) == []


def test_what_users_import_is_light() -> None:
    heavy = ("redis", "celery", "kombu", "pyspark", "pyarrow", "pandas", "numpy", "deltalake", "tenacity", "asyncio")

    assert loaded_by("pipeline", *heavy) == []


@pytest.mark.parametrize("module", ["pipeline.spark.datasource.entry", "pipeline.spark.bulk.engine", "stages.main"])
def test_no_process_imports_pandas_before_it_is_asked_to(module: str) -> None:
    # Half a second for each process of Python that Spark starts. To make any scalar of pyarrow imports it.
    assert loaded_by(module, "pandas") == []


def test_a_command_imports_no_other() -> None:
    program = """
import sys
from pipeline.cli.commands import celeriac
celeriac.commands["ping"]
print(*(name for name in sys.modules if name.startswith("pipeline.cli.")))
"""
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, timeout=60)

    assert "pipeline.cli.health" in done.stdout
    assert "pipeline.cli.run" not in done.stdout


def loaded_by(module: str, *names: str) -> list[str]:
    """Which of these modules are there when a fresh process has imported that one."""
    program = f"import sys, {module}; print(*(name for name in {names!r} if name in sys.modules))"
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True, timeout=60
    )
    return done.stdout.split()


def test_no_package_imports_in_a_circle() -> None:
    names = {".".join(module.with_suffix("").parts).removesuffix(".__init__"): module for module in MODULES}
    edges = {name: {found for found in imports(module) if found in names} for name, module in names.items()}
    visited: dict[str, bool] = {}

    def visit(name: str, path: tuple[str, ...]) -> None:
        assert visited.get(name, True), " -> ".join((*path[path.index(name) :], name))
        if name in visited:
            return
        visited[name] = False
        for other in sorted(edges[name] - {name}):
            # `from pipeline import read` depends on the module that it names, not on the package around it.
            if not any(one.startswith(other + ".") for one in edges[name]):
                visit(other, (*path, name))
        visited[name] = True

    for name in names:
        visit(name, ())
