"""Clocks of processes that are a minute wrong, each in another way, or jump: nothing is different."""

from __future__ import annotations

import re
from datetime import datetime

import pytest

from tests.e2e.chaos import SPOILED, Run, Sequence, Site

LOGS = ("w0", "w1", "leader", "node", "source0")


@pytest.mark.parametrize(
    "clocks",
    ["w0=60,w1=-60,leader=60,node=-60,source=-60", "w0=jumps:60,w1=-60,leader=jumps:60,node=jumps:60,source=jumps:60"],
    ids=["skewed", "jumping"],
)
def test_clocks_that_are_a_minute_wrong_change_nothing_and_nobody_is_taken_for_dead(site: Site, clocks: str) -> None:
    sequence = Sequence(count=5_000)
    site.write(sequence.text)
    run = site.start("flow.py", "--workers", "2", PYTHONPATH=SPOILED, CELERIAC_TEST_CLOCKS=clocks)

    run.finish()

    assert [name for name in LOGS if not is_wrong(run, name)] == []
    sequence.check(run.folder / "out")
    assert "the books balance: " in run.said()
    assert run.log("leader").count("leading: job=") == 1
    for sign in ("is gone", "was replaced", "is stuck", "lease lost"):
        assert sign not in run.log("leader")
    assert re.findall("died role|killed|silent for|cut off", run.log("node")) == []
    site.assert_clean("flow.py", "out")


def is_wrong(run: Run, name: str) -> bool:
    """Whether a process has logged a line whose time is far from that at which its file was written last."""
    written = (run.logs / f"{name}.log").stat().st_mtime
    times = re.findall(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d", run.log(name))
    return any(abs(datetime.fromisoformat(each).timestamp() - written) > 30 for each in times)
