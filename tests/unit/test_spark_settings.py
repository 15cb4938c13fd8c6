"""What a user sets of Spark: checked, handed on to children, and written where nobody else can read it."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.cli.main import run_command
from pipeline.errors import PipelineError
from pipeline.spark import settings


def test_settings_are_pairs_of_which_the_last_of_a_name_counts() -> None:
    lines = ["spark.driver.memory=2g", "spark.a=b=c", " spark.driver.memory = 4g "]

    assert settings.parse(lines) == {"spark.driver.memory": "4g", "spark.a": "b=c"}


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("spark.driver.memory", "is no setting of Spark"),
        ("driver.memory=4g", "'driver.memory' is no setting of Spark"),
        ("spark.sql.caseSensitive=false", "spark.sql.caseSensitive cannot be set"),
        ("spark.master=local", "spark.master is given by --master"),
    ],
)
def test_what_cannot_be_set_is_refused_by_its_name(line: str, words: str) -> None:
    with pytest.raises(PipelineError, match=words):
        settings.parse([line])


def test_a_refusal_does_not_show_the_value() -> None:
    with pytest.raises(PipelineError) as raised:
        settings.parse(["fs.s3a.secret.key=hunter2"])

    assert "hunter2" not in f"{raised.value} {raised.value.hint}"


def test_what_is_told_reaches_children_beside_what_was_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(settings.SETTINGS_VARIABLE, "spark.a=1\n\nspark.b=2\n")

    settings.tell({"spark.b": "3", "spark.c": "4"})

    assert settings.told() == {"spark.a": "1", "spark.b": "3", "spark.c": "4"}


def _read(path: Path) -> dict[str, str]:
    """As java.util.Properties does."""
    found = {}
    for line in path.read_text("ascii").splitlines():
        name, _, value = line.partition("=")
        found[name] = _plain(value)
    return found


def _plain(text: str) -> str:
    return text.encode("ascii").decode("unicode_escape").encode("utf-16", "surrogatepass").decode("utf-16")


@given(value=st.text(st.characters(exclude_categories=["Cs"])))
def test_any_value_is_the_same_in_the_file_that_spark_reads(
    value: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = tmp_path_factory.mktemp("spark") / "settings.properties"

    settings.write_properties({"spark.hadoop.fs.s3a.secret.key": value}, path)

    assert _read(path) == {"spark.hadoop.fs.s3a.secret.key": value}
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


@pytest.mark.parametrize("command", ["run", "backfill"])
def test_a_setting_that_cannot_be_is_a_usage_error_of_the_command(
    command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_command([command, "flow.py", "--conf", "memory=4g"]) == 2

    assert "'memory' is no setting of Spark" in capsys.readouterr().err
