"""Code versions of a pipeline's file, what is wanted of a worker, and what differs between two pipelines."""

from __future__ import annotations

from pathlib import Path

import pytest

from pipeline import Pipeline, count, read, skip, write
from pipeline.differences import plan_differences
from pipeline.errors import PipelineError
from pipeline.plan import Plan, compile_plan
from pipeline.settings import Limits
from pipeline.versions import Wanted, check_code, code_of, wanted_for, whole_target


def a_plan(
    *,
    operator: str = "n",
    path: str = "out",
    source: str = "in",
    key: str = "by",
    partitions: int = 2,
    skips: bool = False,
) -> Plan:
    flow = Pipeline("flow")
    users = flow.source(read.producer(), name=source).key_by(str, name=key, **({"on_error": skip()} if skips else {}))
    users.aggregate(count(), name=operator).sink(write.jsonl(path), name="result")
    return compile_plan(flow.graph(), partitions, Limits())


def test_pipelines_that_differ_in_functions_and_partitions_only_have_no_differences() -> None:
    assert plan_differences(a_plan(), a_plan(partitions=5)) == []


def test_what_differs_is_said_by_name() -> None:
    assert plan_differences(a_plan(), a_plan(operator="m")) == [
        "operator 'n' is gone",
        "operator 'm' is new",
        "operator with state 'n' is gone",
        "operator with state 'm' is new",
    ]
    assert plan_differences(a_plan(), a_plan(path="other")) == ["sink 'result' is another one"]
    assert "source 'other' is new" in plan_differences(a_plan(), a_plan(source="other"))
    assert plan_differences(a_plan(), a_plan(skips=True))[0] == "operator 'by' is another one"


def test_what_no_name_tells_is_a_difference_all_the_same() -> None:
    flow, other = Pipeline("flow"), Pipeline("flow")
    for each, kind in ((flow, "map"), (other, "filter")):
        getattr(each.source(read.producer(), name="in"), kind)(bool, name="f").sink(write.stream("o"), name="o")
    old, new = (compile_plan(each.graph(), 2, Limits()) for each in (flow, other))

    assert plan_differences(old, new) == ["the kind of an operator, the field of a key, or a program is another one"]


def test_the_code_version_follows_the_content_of_the_file_and_nothing_else(tmp_path: Path) -> None:
    one, other = tmp_path / "one.py", tmp_path / "other.py"
    one.write_text("x = 1\n")
    other.write_text("x = 1\n")

    assert code_of(str(one)) == code_of(f"{other}:flow")
    other.write_text("x = 2\n")
    assert code_of(str(one)) != code_of(str(other))
    with pytest.raises(PipelineError, match="cannot be read"):
        code_of(str(tmp_path / "none.py"))


def test_a_target_is_whole_wherever_it_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "flow.py").write_text("")
    monkeypatch.chdir(tmp_path)

    assert whole_target("flow.py") == str(tmp_path / "flow.py")
    assert whole_target("flow.py:late") == f"{tmp_path / 'flow.py'}:late"


def test_a_worker_runs_what_is_said_of_it_else_what_is_said_of_all(tmp_path: Path) -> None:
    file = tmp_path / "flow.py"
    file.write_text("x = 1\n")
    code = code_of(str(file))

    assert check_code({}, "w0", str(file)) == code
    assert check_code({"*": Wanted(code)}, "w0", str(file)) == code
    assert wanted_for({"*": Wanted("a"), "w0": Wanted("b")}, "w0") == Wanted("b")
    with pytest.raises(PipelineError, match=rf"is version {code}, and the job wants version b of worker w0") as caught:
        check_code({"*": Wanted(code), "w0": Wanted("b")}, "w0", str(file))
    assert "celeriac upgrade" in caught.value.hint


def test_what_is_wanted_survives_its_text() -> None:
    for wanted in (Wanted("a"), Wanted("a", "/x y/b.py:flow")):
        assert Wanted.decode(wanted.encode()) == wanted
