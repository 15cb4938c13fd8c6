"""The page about the data source does what it says."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.docs.pages import DOCS, blocks_of
from tests.runtime.harness import LocalJob

pytestmark = pytest.mark.timeout(300)


def test_the_page_about_the_data_source_runs_from_top_to_bottom(spark: Any, redis_url: str, tmp_path: Path) -> None:
    namespace: dict[str, Any] = {"spark": spark}
    job: LocalJob | None = None
    page = [block for block in blocks_of(DOCS / "spark-data-source.md") if block.language == "python"]
    for block in page:
        text = block.text.replace("redis://host:6379/0", redis_url)
        text = text.replace('"path", "archive"', f'"path", "{tmp_path}/archive"')
        text = text.replace('"archive-checkpoint"', f'"{tmp_path}/checkpoint"')
        exec(compile(text, block.place, "exec"), namespace)
        if "Pipeline(" in text:
            job = LocalJob(redis_url, namespace["flow"], job="shop")
            job.assign()
            job._readers.clear()
            job.send([{"user": user, "paid": 1.0} for user in ("ada", "bob", "ada")])
            job.run_until_idle()
    assert job is not None

    with job:
        job.run_until_idle()
        assert {row.key: row.orders for row in namespace["newest"].collect()} == {"ada": "3", "bob": "2"}
        assert [row.value for row in namespace["named"].orderBy("position").collect()][:3] == [1, 1, 2]
        assert spark.read.parquet(f"{tmp_path}/archive").count() == 3
        assert sorted(row.result for row in namespace["state"].collect()) == ["2", "3"]
