"""The examples as they are on the Spark engine: what they give live, to a user's eye. Nothing is left behind.

Their process is told settings of Spark, which must reach the JVM before it starts, and stand in no process list.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas
import pytest

from pipeline.spark.settings import SETTINGS_VARIABLE
from tests.e2e import nexmark
from tests.e2e.chaos import Site, a_chance, read_rows
from tests.e2e.references import (
    EXAMPLES,
    check_delays,
    delays_by_pandas,
    flights,
    read_counts,
    write_texts,
)

pytestmark = pytest.mark.timeout(900)

SECONDS = 600.0
"""Spark's start takes its time on a busy machine."""

ONE_BY_ONE = """
import sys
from pipeline.cli.main import run_command

for example in sys.argv[1:]:
    if code := run_command(["run", example, "--engine", "spark", "--master", "local[2,4]"]):
        sys.exit(code)

import json, os, psutil
from pipeline.spark.session import spark_session

session = spark_session()
children = [each for each in psutil.Process().children(recursive=True) if each.status() != psutil.STATUS_ZOMBIE]
lines = [" ".join(each.cmdline()) for each in children]
names = [line.partition("=")[0] for line in os.environ["CELERIAC_SPARK_CONF"].splitlines()] + ["spark.ui.enabled"]
told = {name: session.conf.get(name) for name in names}
properties = {name: session._jvm.System.getProperty(name) for name in ("told.by", "user.timezone", "java.io.tmpdir")}
runtime = session._jvm.java.lang.Runtime.getRuntime().maxMemory()
hadoop = session._jsc.hadoopConfiguration().get("fs.s3a.secret.key")
print(json.dumps({"told": told, "properties": properties, "memory": runtime, "hadoop": hadoop, "lines": lines}))
"""

JAVA = "spark.driver.extraJavaOptions"
SECRET = "hunter2 \N{GREEK SMALL LETTER PI}=:#!"
SET = {
    "spark.driver.memory": "520m",
    JAVA: "-Dtold.by=user",
    "spark.sql.shuffle.partitions": "3",
    "spark.hadoop.fs.s3a.secret.key": SECRET,
}
"""Settings of the user's, in the place of ours; what the JVM is started with comes behind ours."""


@dataclass(frozen=True)
class InBulk:
    """Three examples, run by one process one after the other: Spark starts once. `said`: on standard error.

    found: what the process has seen of its session at the end.
    """

    site: Site
    words: Counter[str]
    flights: pandas.DataFrame
    said: str
    found: dict[str, Any]

    @property
    def out(self) -> Path:
        return self.site.root / "work/out"


@pytest.fixture(scope="module")
def in_bulk(tmp_path_factory: pytest.TempPathFactory) -> Iterator[InBulk]:
    root = tmp_path_factory.mktemp("examples")
    site = Site(root)
    words = write_texts(root / "texts", a_chance(), files=4, lines=500)
    some = flights()[::3]  # two splits; the whole file is read live, in tests/e2e
    written = root / "work/out/flights.csv"
    written.parent.mkdir(parents=True)
    some.to_csv(written, index=False)
    events = root / "events.jsonl"
    subprocess.run([sys.executable, str(EXAMPLES / "nexmark.py"), str(events), "3000"], check=True, timeout=60)
    names = ("wordcount.py", "flights.py", "nexmark.py")
    try:
        done = subprocess.run(
            [sys.executable, "-c", ONE_BY_ONE, *(str(EXAMPLES / name) for name in names)],
            cwd=root / "work",
            env=site.environment(
                WORDS=str(root / "texts"),
                NEXMARK=str(events),
                **{SETTINGS_VARIABLE: "\n".join(f"{name}={value}" for name, value in SET.items())},
            ),
            capture_output=True,
            text=True,
            timeout=SECONDS,
        )
        assert done.returncode == 0, done.stderr
        site.assert_clean("out")
        yield InBulk(site, words, some, done.stderr, json.loads(done.stdout.splitlines()[-1]))
    finally:
        site.close()


def test_wordcount_on_spark_equals_the_standard_library_as_it_does_live(in_bulk: InBulk) -> None:
    """Live: in tests/e2e."""
    assert read_counts(in_bulk.out / "words") == in_bulk.words
    assert "by_word: in 16,000, out" in in_bulk.said


def test_flights_on_spark_equal_pandas(in_bulk: InBulk) -> None:
    check_delays(in_bulk.out / "mean_delay", delays_by_pandas(in_bulk.flights))


def test_nexmark_gives_the_same_on_both_engines_and_what_its_queries_say(in_bulk: InBulk) -> None:
    path = in_bulk.site.root / "events.jsonl"
    live = in_bulk.site.start(str(EXAMPLES / "nexmark.py"), folder="live-nexmark", NEXMARK=str(path))
    live.finish()

    wanted = nexmark.expected(nexmark.read_events(path))
    assert all(wanted.values())
    for query, values in wanted.items():
        rows, in_live = (list(read_rows(out / "nexmark" / query)) for out in (in_bulk.out, live.folder / "out"))
        assert nexmark.in_order(rows) == nexmark.in_order(in_live), query
        assert nexmark.in_order(nexmark.seen(query, rows)) == nexmark.in_order(values), query


def test_settings_reach_spark_before_its_jvm_starts_and_stand_in_no_process_list(in_bulk: InBulk) -> None:
    found = in_bulk.found

    assert found["told"].pop(JAVA).endswith(SET[JAVA]), "Spark adds some of its own in front"
    assert found["told"] == {name: value for name, value in SET.items() if name != JAVA} | {"spark.ui.enabled": "false"}
    assert found["hadoop"] == SECRET
    assert found["properties"]["told.by"] == "user"
    assert found["properties"]["user.timezone"] == "UTC", "ours stay beside the user's"
    assert Path(found["properties"]["java.io.tmpdir"]).parent.name.startswith("celeriac-spark-")
    assert 460 << 20 < found["memory"] < 530 << 20
    assert any("java" in line for line in found["lines"])
    assert not any("hunter2" in line for line in found["lines"])
