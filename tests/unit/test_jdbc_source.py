"""read.jdbc without a database: its description, what is shown of its address, and whose copies lie where."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any, cast

import pytest

from pipeline import Pipeline, read, write
from pipeline.errors import EnvironmentFault, InputError, PipelineError
from pipeline.plan import compile_plan
from pipeline.settings import Limits
from pipeline.sources.jdbcaddress import JdbcAddress, shown_url
from pipeline.sources.layout import open_files
from pipeline.sources.snapshots import copying, folder_of, new_copy, owner_of, remove_copies
from pipeline.sources.versions import at_version, copy_split, needs_copy, pinned

URL = "jdbc:postgresql://shop:s3cret@db:5432/shop?password=s3cret2&ssl=true"
WITH = {"user": "shop", "password": "s3cret3"}


def test_nothing_secret_is_in_the_plan(tmp_path: Path) -> None:
    flow = Pipeline("rows")
    spec = read.jdbc(URL, "orders", staging=tmp_path, properties=WITH)
    flow.source(spec, name="in").sink(write.jsonl(tmp_path / "out"), name="out")

    plan = compile_plan(flow.graph(), 2, Limits())

    assert plan.sources[0].options == {
        "url": "jdbc:postgresql://db:5432/shop",
        "table": "orders",
        "staging": str(tmp_path),
        "driver": None,
        "ranges": None,
    }
    assert b"s3cret" not in plan.encode()
    assert "s3cret" not in repr(spec) + repr(JdbcAddress.of(spec))


def test_several_queries_need_a_column_and_its_bounds() -> None:
    spec = read.jdbc(
        URL, "t", staging="x", partition_column="day", lower="2026-01-01", upper="2026-02-01", partitions=4
    )

    assert spec.options["ranges"] == ["day", "2026-01-01", "2026-02-01", 4]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"url": "postgresql://shop:s3cret@db/shop"}, "the address does not begin with jdbc:"),
        ({"url": None}, "the address must be text"),
        ({"url": "env:NOT A NAME"}, "names no variable"),
        ({"table": " "}, "table must be text"),
        ({"staging": ""}, "cannot be a path"),
        ({"driver": ""}, "driver must be text"),
        ({"properties": {"password": 1}}, "properties must be a dict of text"),
        ({"properties": {"dbTable": "t"}}, "'dbTable' is no property here"),
        ({"partitions": 2}, "several partitions need partition_column, lower and upper"),
        ({"partitions": 0}, "partitions must be a number from 1 to 1,000"),
        ({"partition_column": "id"}, "partition_column, lower and upper go together"),
        ({"partition_column": "id", "lower": 1.5, "upper": 2}, "lower must be a whole number, or a date"),
    ],
)
def test_what_cannot_be_right_is_refused(arguments: dict[str, Any], said: str) -> None:
    with pytest.raises(PipelineError, match=said) as caught:
        read.jdbc(**{"url": "jdbc:h2:mem:x", "table": "t", "staging": "x", **arguments})

    assert "s3cret" not in str(caught.value) + caught.value.hint


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("env:SHOP", "env:SHOP"),
        (URL, "jdbc:postgresql://db:5432/shop"),
        ("jdbc:mysql://u:p@a@db/shop?password=s3cret", "jdbc:mysql://db/shop"),
        ("jdbc:mysql://(host=db,user=u,password=s3cret)/shop", "jdbc:mysql://"),
        ("jdbc:oracle:thin:scott/s3cret@//db:1521/shop", "jdbc:oracle://db:1521/shop"),
        ("jdbc:mysql://u:s3cr?et@db/shop", "jdbc:mysql:***"),
        ("jdbc:sqlserver://db:1433;databaseName=shop;password=s3cret", "jdbc:sqlserver://db:1433"),
        ("jdbc:derby:/data/shop;user=u;password=s3cret", "jdbc:derby:/data/shop"),
    ],
)
def test_an_address_is_shown_without_users_and_parameters(url: str, shown: str) -> None:
    assert shown_url(url) == shown


def test_what_a_driver_repeats_of_secrets_is_taken_out(tmp_path: Path) -> None:
    oracle = read.jdbc("jdbc:oracle:thin:scott/t1ger@//db/shop", "t", staging=tmp_path, properties=WITH)
    postgres = read.jdbc(URL, "t", staging=tmp_path)

    assert JdbcAddress.of(oracle).without_secrets("scott/t1ger was refused, s3cret3") == "scott/*** was refused, ***"
    assert JdbcAddress.of(postgres).without_secrets(f"no driver for {URL}") == (
        "no driver for jdbc:postgresql://db:5432/shop"
    )
    assert JdbcAddress.of(postgres).without_secrets("s3cret2, s3cret") == "***, ***"


def test_variables_are_looked_up_where_the_source_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    spec = read.jdbc("env:SHOP", "t", staging=tmp_path, properties={"password": "env:WORD"})
    monkeypatch.setenv("SHOP", "sqlite:///s3cret.db")
    with pytest.raises(EnvironmentFault, match=r"the property 'password' of read\.jdbc is in the variable WORD"):
        JdbcAddress.of(spec)

    monkeypatch.setenv("WORD", "s3cret")
    with pytest.raises(InputError, match="what env:SHOP holds is no address of JDBC"):
        JdbcAddress.of(spec)

    monkeypatch.setenv("SHOP", "jdbc:h2:mem:x")
    assert JdbcAddress.of(spec).properties == {"password": "s3cret"}


# --- copies


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def put(folder: Path) -> None:
    folder.mkdir()
    (folder / "part-0.parquet").write_bytes(b"rows")


def test_a_copy_appears_whole_and_takes_what_earlier_attempts_left_with_it(tmp_path: Path) -> None:
    owner = owner_of("j.1", "in")

    def dies(folder: Path) -> None:
        put(folder)
        raise KeyboardInterrupt

    with copying(str(tmp_path), owner):
        with pytest.raises(KeyboardInterrupt):
            new_copy(str(tmp_path), owner, dies)
        assert names(tmp_path / owner) == [".lock"]
        (tmp_path / owner / "0123456789abcdef.draft").mkdir()
        first = new_copy(str(tmp_path), owner, put)
        second = new_copy(str(tmp_path), owner, put)

    assert first != second
    assert names(tmp_path / owner) == [".lock", folder_of(str(tmp_path), second).name]
    assert folder_of(str(tmp_path), second).parent.name == "j.1.in"
    remove_copies(str(tmp_path), owner)
    remove_copies(str(tmp_path), owner)
    assert list(tmp_path.iterdir()) == []


def test_of_two_who_copy_for_one_owner_the_second_waits_and_other_owners_do_not(tmp_path: Path) -> None:
    looks, may_go, is_in = threading.Event(), threading.Event(), threading.Event()

    def second() -> None:
        def sleep(_seconds: float) -> None:
            looks.set()
            may_go.wait(30)

        with copying(str(tmp_path), "j.in", sleep):
            is_in.set()

    with copying(str(tmp_path), "j.in"):
        thread = threading.Thread(target=second)
        thread.start()
        assert looks.wait(30)
        with copying(str(tmp_path), "j.other"):
            assert not is_in.is_set()
    may_go.set()
    thread.join(30)

    assert is_in.is_set()


class LateFeed:
    """Another feeder names its copy after this one has looked for the first time."""

    def __init__(self) -> None:
        self.found: list[str] = []

    def splits(self, beginning: str = "") -> list[str]:
        before = [name for name in self.found if name.startswith(beginning)]
        self.found = [copy_split("j.in.0123456789abcdef")]
        return before

    def lane(self, split: str) -> Any:
        raise AssertionError(split)


def test_a_feeder_that_has_waited_reads_the_copy_that_the_other_one_made(tmp_path: Path) -> None:
    spec = read.jdbc(URL, "orders", staging=tmp_path)

    def copies() -> str:
        raise AssertionError

    found = pinned(spec, cast("Any", LateFeed()), "j.in", copies)

    assert found.options["copy"] == "j.in.0123456789abcdef"


def test_what_is_none_of_ours_is_never_removed(tmp_path: Path) -> None:
    (tmp_path / "j.in" / "mine").mkdir(parents=True)

    with copying(str(tmp_path), "j.in"):
        new_copy(str(tmp_path), "j.in", put)
    remove_copies(str(tmp_path), "j.in")

    assert names(tmp_path / "j.in") == ["mine"]


def test_a_copy_that_is_gone_is_named(tmp_path: Path) -> None:
    spec = read.jdbc(URL, "orders", staging=tmp_path)
    pinned = at_version(spec, ["part-1", copy_split("j.in.0123456789abcdef")])

    assert (needs_copy(spec), needs_copy(pinned)) == (True, False)
    with pytest.raises(InputError, match=r"the rows of orders that this job has copied are not in .*/j\.in/0123"):
        open_files(pinned)


@pytest.mark.parametrize("name", ["../x.0123456789abcdef", "j.in", "j.in.0123", "j.in.0123456789abcdef/.."])
def test_a_name_that_is_none_of_a_copy_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(InputError, match="names no copy"):
        folder_of(str(tmp_path), name)


def test_a_folder_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()

    with (
        pytest.raises(InputError, match=r"rows cannot be copied to .*/file/j\.in"),
        copying(str(tmp_path / "file"), "j.in"),
    ):
        raise AssertionError
