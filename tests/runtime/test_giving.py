"""A node that is asked to end gives its partitions away, but waits no longer than that may help."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from pipeline.store.agents import AgentLink
from pipeline.store.scripts import Scripts
from stages.agent import Agent
from stages.giving import GIVE_SECONDS, GivingAway
from stages.supervision import WORKER, ChildSpec
from tests.runtime.harness import SteppingClock
from tests.runtime.test_moves import Led, led


@pytest.fixture
def site(redis_url: str) -> Iterator[Led]:
    with led(redis_url, partitions=2) as site:
        site.join("stays", node="here")
        yield site


def a_giving(site: Led, clock: SteppingClock, worker: str = "goes") -> GivingAway:
    """That of an agent which keeps this worker."""
    link = AgentLink(Scripts(site.job.client), site.job.job)
    agent = Agent([ChildSpec(worker, ("true",), {}, WORKER, True, Path("/dev/null"))], link)
    return GivingAway(agent, link, site.job.jobs, site.job.job, clock)


def test_what_nobody_has_taken_in_time_is_named_and_left(site: Led, caplog: pytest.LogCaptureFixture) -> None:
    site.join("goes", node="there")
    site.turn()
    owned = sorted(part.name for part in site.parts() if part.owner == "goes")
    clock = SteppingClock(GIVE_SECONDS / 3)

    with caplog.at_level(logging.INFO):
        a_giving(site, clock).run(threading.Event())  # no leader acts meanwhile

    assert owned
    assert f"job=j: not given away: partitions {', '.join(owned)}; others take over" in caplog.text


def test_who_owns_nothing_or_is_the_last_one_does_not_wait(site: Led, caplog: pytest.LogCaptureFixture) -> None:
    site.turn()

    a_giving(site, SteppingClock(0.0)).run(threading.Event())
    assert caplog.text == ""
    a_giving(site, SteppingClock(0.0), "stays").run(threading.Event())

    assert "nobody else is there to take partitions 0.0, 0.1" in caplog.text


def test_a_store_that_is_away_is_waited_for_no_longer_than_all_the_rest(
    site: Led, caplog: pytest.LogCaptureFixture
) -> None:
    giving = a_giving(site, SteppingClock(GIVE_SECONDS / 2))
    giving.job = "gone"

    giving.run(threading.Event())

    assert "nothing can be given away now" in caplog.text
