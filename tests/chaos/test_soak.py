"""A soak in short: once it is warm, nothing of a job grows."""

from __future__ import annotations

import pytest

from benchmarks.soak import report, soak


@pytest.mark.timeout(300)
def test_nothing_of_a_job_under_load_grows_once_it_is_warm() -> None:
    trends, wrong = soak(60.0, rate=1_000)

    assert wrong == []
    assert [each.name for each in trends if not each.is_bounded] == [], "\n".join(report(trends, wrong))
