"""The loader finds the pipeline of a user's file, or says what is wrong with the file, in the user's terms."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from importlib.abc import PathEntryFinder
from pathlib import Path

import pytest

from pipeline import Pipeline
from pipeline.errors import PipelineError
from pipeline.graph import Map
from pipeline.loader import load_graph, load_pipeline

GOOD = """
from pipeline import Pipeline, read, write
flow = Pipeline("good")
flow.source(read.iterable([1])).map(str).sink(write.console())
"""


@pytest.fixture(autouse=True)
def _imports_put_back(tmp_path: Path) -> Iterator[None]:
    path, modules = list(sys.path), dict(sys.modules)
    for name in registered():
        del sys.modules[name]
    yield
    for name, module in list(sys.modules.items()):
        if str(getattr(module, "__file__", None)).startswith(str(tmp_path)):
            del sys.modules[name]
    sys.modules.update(modules)
    sys.path[:] = path


def a_file(folder: Path, text: str = GOOD, name: str = "flow.py") -> Path:
    file = folder / name
    file.write_text(text)
    return file


def refusal(target: object) -> PipelineError:
    with pytest.raises(PipelineError) as caught:
        load_pipeline(str(target))
    return caught.value


def registered() -> set[str]:
    return {name for name in sys.modules if name.startswith("_celeriac_user_")}


def test_the_only_pipeline_of_a_file_is_found(tmp_path: Path) -> None:
    flow = load_pipeline(str(a_file(tmp_path)))

    assert isinstance(flow, Pipeline)
    assert flow.name == "good"


def test_load_graph_gives_the_checked_graph(tmp_path: Path) -> None:
    file = a_file(tmp_path, GOOD + "flow.source(read.iterable([2]), name='forgotten')\n", "open.py")

    assert [node.name for node in load_graph(str(a_file(tmp_path))).nodes] == ["source_1", "map_1", "sink_1"]
    with pytest.raises(PipelineError, match="'forgotten' of the pipeline 'good' ends nowhere"):
        load_graph(str(file))


def test_a_relative_path_counts_from_the_current_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    a_file(tmp_path)
    monkeypatch.chdir(tmp_path)

    assert load_pipeline("flow.py").name == load_pipeline("./flow.py:flow").name == "good"


def test_the_hint_for_a_missing_file_lists_those_beside_it_in_the_order_of_their_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = ["zeta.py", "alpha.py", "mid.py"]
    monkeypatch.setattr(Path, "glob", lambda self, _pattern: iter([self / name for name in names]))

    assert refusal(tmp_path / "?").hint == "there are: alpha.py, mid.py, zeta.py"


def test_a_name_chooses_among_several_pipelines(tmp_path: Path) -> None:
    file = a_file(tmp_path, "from pipeline import Pipeline\nfirst = Pipeline('a')\nsecond = Pipeline('b')\n")

    assert load_pipeline(f"{file}:second").name == "b"
    error = refusal(file)
    assert str(error) == f"{file} defines several pipelines: first, second"
    assert error.hint == f"choose one: {file}:first"


def test_one_pipeline_under_two_names_is_one(tmp_path: Path) -> None:
    file = a_file(tmp_path, GOOD + "alias = flow\n")

    assert load_pipeline(str(file)) is not None


def test_a_file_without_a_pipeline_is_refused(tmp_path: Path) -> None:
    error = refusal(a_file(tmp_path, "x = 1\n"))

    assert "flow.py defines no pipeline" in str(error)
    assert "Pipeline('name')" in error.hint


def test_a_name_that_is_not_there_gets_a_suggestion(tmp_path: Path) -> None:
    file = a_file(tmp_path, GOOD + "number = 3\n")

    assert (str(refusal(f"{file}:flwo")), refusal(f"{file}:flwo").hint) == (
        f"{file} has no 'flwo'",
        "did you mean 'flow'?",
    )
    assert str(refusal(f"{file}:number")) == f"'number' in {file} is no pipeline but of type int"
    assert refusal(f"{file}:number").hint == "there are: flow"
    assert "names no pipeline after the colon" in str(refusal(f"{file}:"))


def test_a_missing_file_is_named_in_the_error(tmp_path: Path) -> None:
    a_file(tmp_path)

    error = refusal(tmp_path / "flwo.py")

    assert str(error) == f"there is no file {tmp_path}/flwo.py"
    assert error.hint == "did you mean 'flow.py'?"
    assert "there is no file /nowhere/flow.py" in str(refusal("/nowhere/flow.py"))


def test_what_is_no_python_file_is_refused(tmp_path: Path) -> None:
    assert str(refusal(tmp_path)) == f"{tmp_path} is a folder, not a Python file"
    assert "does not end in .py" in str(refusal(a_file(tmp_path, name="flow.txt")))
    assert "cannot be a path" in str(refusal("a\0.py"))
    assert "cannot be read: File name too long" in str(refusal("a" * 300 + ".py"))


def test_a_colon_in_the_path_is_no_name(tmp_path: Path) -> None:
    folder = tmp_path / "a:b"
    folder.mkdir()

    assert load_pipeline(str(a_file(folder))).name == "good"
    assert load_pipeline(str(a_file(folder, name="x:y.py"))).name == "good"


def test_a_syntax_error_is_told_with_its_line(tmp_path: Path) -> None:
    file = a_file(tmp_path, "x = 1\ndef broken(:\n    pass\n")

    error = refusal(file)

    assert str(error).startswith(f"{file}:2: ")
    assert str(error).endswith("\n    def broken(:")
    assert isinstance(error.__cause__, SyntaxError)
    assert registered() == set()


def test_a_syntax_error_in_a_text_that_the_file_runs_is_told_with_the_files_line(tmp_path: Path) -> None:
    assert "flow.py:2: SyntaxError: " in str(refusal(a_file(tmp_path, "\nexec('x = = 1')\n")))


def test_bytes_that_are_no_python_are_refused(tmp_path: Path) -> None:
    (tmp_path / "latin.py").write_bytes(b"x = '\xe4'\n")
    (tmp_path / "null.py").write_bytes(b"x = 1\0\n")

    assert f"{tmp_path}/latin.py" in str(refusal(tmp_path / "latin.py"))
    assert f"{tmp_path}/null.py" in str(refusal(tmp_path / "null.py"))


def test_an_exception_while_importing_is_told_with_the_users_line(tmp_path: Path) -> None:
    file = a_file(tmp_path, "import json\n\ndef load():\n    return json.loads('{')\n\nload()\n")

    error = refusal(file)

    assert str(error).startswith(f"{file}:4: JSONDecodeError: Expecting property name")
    assert error.__cause__ is not None
    assert registered() == set()
    assert str(tmp_path) not in sys.path


def test_an_exception_in_a_module_beside_the_file_is_told_with_its_line(tmp_path: Path) -> None:
    a_file(tmp_path, "def check():\n    raise KeyError('gone')\n", "beside_that_raises.py")
    a_file(tmp_path, "x = = 1\n", "beside_that_is_broken.py")

    raised = refusal(a_file(tmp_path, "import beside_that_raises\nbeside_that_raises.check()\n"))
    broken = refusal(a_file(tmp_path, "import beside_that_is_broken\n"))

    assert str(raised) == f"{tmp_path}/beside_that_raises.py:2: KeyError: 'gone'"
    assert str(broken).startswith(f"{tmp_path}/beside_that_is_broken.py:1: ")


def test_an_exception_in_a_library_is_told_with_the_users_line(tmp_path: Path) -> None:
    library = tmp_path / "venv" / "site-packages"
    library.mkdir(parents=True)
    a_file(library, "def fail():\n    raise OSError('full')\n", "library_that_fails.py")
    text = f"import sys\nsys.path.append({str(library)!r})\nimport library_that_fails\nlibrary_that_fails.fail()\n"

    assert str(refusal(a_file(tmp_path, text))) == f"{tmp_path}/flow.py:4: OSError: full"


def test_a_missing_module_says_what_to_do(tmp_path: Path) -> None:
    error = refusal(a_file(tmp_path, "\nimport no_such_module_here\n"))

    assert str(error).endswith("flow.py:2: ModuleNotFoundError: No module named 'no_such_module_here'")
    assert "install it" in error.hint


def test_a_refused_operator_is_told_with_the_users_line_and_its_hint(tmp_path: Path) -> None:
    text = "from pipeline import Pipeline, read\ns = Pipeline('p').source(read.iterable([1]))\ns.last()\n"

    error = refusal(a_file(tmp_path, text))

    assert str(error) == f"{tmp_path}/flow.py:3: stream 'source_1' is not keyed; call key_by first"
    assert ".key_by(...)" in error.hint


def test_a_file_that_exits_is_refused(tmp_path: Path) -> None:
    assert "flow.py:2: the file ended the program" in str(refusal(a_file(tmp_path, "import sys\nsys.exit(3)\n")))


def test_modules_beside_the_file_are_imported_but_hide_no_installed_ones(tmp_path: Path) -> None:
    a_file(tmp_path, "raise RuntimeError('must not be imported')\n", "json.py")
    a_file(tmp_path, "def shout(value):\n    return value.upper()\n", "beside_the_flow.py")
    text = GOOD.replace("map(str)", "map(shout)") + "import json\n"

    graph = load_graph(str(a_file(tmp_path, "from beside_the_flow import shout\n" + text)))

    node = graph.node("map_1")
    assert isinstance(node, Map)
    assert node.fn("a") == "A"
    assert sys.path[-1] == str(tmp_path)


def test_functions_of_the_file_find_their_module(tmp_path: Path) -> None:
    text = GOOD.replace("map(str)", "map(make)")
    head = "from __future__ import annotations\nfrom dataclasses import dataclass\n"
    data = "@dataclass\nclass Word:\n    text: str\ndef make(value):\n    return Word(str(value))\n"

    node = load_graph(str(a_file(tmp_path, head + data + text))).node("map_1")

    assert isinstance(node, Map)
    assert repr(node.fn(1)) == "Word(text='1')"
    assert node.fn.__module__ in registered()


def test_an_edit_is_seen_even_when_time_and_size_are_the_same(tmp_path: Path) -> None:
    file = a_file(tmp_path)
    load_pipeline(str(file))
    before = file.stat()

    file.write_text(GOOD.replace("good", "best"))
    os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns))

    assert load_pipeline(str(file)).name == "best"
    assert not (tmp_path / "__pycache__").exists()


def test_a_module_that_came_since_the_folder_was_listed_is_found_though_the_folders_time_is_the_same(
    tmp_path: Path,
) -> None:
    file = a_file(tmp_path, "import came_late\n" + GOOD)
    before = tmp_path.stat()
    assert "No module named 'came_late'" in str(refusal(file))

    (tmp_path / "came_late.py").write_text("")
    os.utime(tmp_path, ns=(before.st_atime_ns, before.st_mtime_ns))

    assert load_pipeline(str(file)).name == "good"


class Archive(PathEntryFinder):
    """As a finder of modules in a zip file, which reads the whole of it for this on Python 3.11."""

    is_read_again = False

    def invalidate_caches(self) -> None:
        self.is_read_again = True


def test_archives_in_the_path_are_not_read_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    archive = Archive()
    monkeypatch.setitem(sys.path_importer_cache, "/lib/modules.zip", archive)

    load_pipeline(str(a_file(tmp_path)))

    assert not archive.is_read_again


def test_a_failed_load_leaves_the_earlier_module(tmp_path: Path) -> None:
    file = a_file(tmp_path)
    load_pipeline(str(file))
    before = registered()

    a_file(tmp_path, "1 / 0\n")

    assert "ZeroDivisionError" in str(refusal(file))
    assert registered() == before


@pytest.mark.parametrize("name", ["pipeline.py", "stages.py", "leader.py", "stages/__init__.py"])
def test_a_module_with_the_name_of_ours_is_refused_before_anything_runs(tmp_path: Path, name: str) -> None:
    (tmp_path / "stages").mkdir()
    shadow = a_file(tmp_path, "", name)

    error = refusal(a_file(tmp_path, "raise RuntimeError('ran')\n"))

    assert str(error).startswith(f"{shadow} has the name of a package of celeriac")
    assert "rename it" in error.hint


def test_a_pipeline_file_named_like_our_package_is_refused(tmp_path: Path) -> None:
    assert "pipeline.py has the name of a package of celeriac" in str(refusal(a_file(tmp_path, GOOD, "pipeline.py")))


def test_a_folder_without_modules_shadows_nothing(tmp_path: Path) -> None:
    (tmp_path / "stages").mkdir()
    (tmp_path / "leader").mkdir()
    (tmp_path / "leader" / "notes.txt").write_text("")

    assert load_pipeline(str(a_file(tmp_path))).name == "good"


def test_our_own_packages_beside_the_file_are_no_shadow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    checkout = Path(__file__).resolve().parents[2]
    for package in ("pipeline", "stages", "leader"):
        (tmp_path / package).symlink_to(checkout / package)
    monkeypatch.chdir(tmp_path)

    assert load_pipeline(str(a_file(tmp_path))).name == "good"
