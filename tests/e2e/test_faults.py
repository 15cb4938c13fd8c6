"""Processes of a run are killed and frozen at random moments: the result is equal, in order, and nothing is left."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.chaos import Sequence, Site, a_chance, moments


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    site = Site(tmp_path)
    yield site
    site.close()


def test_kills_of_workers_leader_and_feeder_at_random_moments_change_nothing(site: Site) -> None:
    chance, sequence = a_chance(), Sequence(count=8_000)
    site.write(sequence.text)
    run = site.start("flow.py", "--workers", "2")

    for moment in moments(chance, sequence.taken, 6):
        run.wait_for_taken(moment)
        run.kill(chance.choice(["w0", "w1", "leader", "source"]))
    run.finish()

    sequence.check(run.folder / "out")
    site.assert_clean("flow.py", "out")
