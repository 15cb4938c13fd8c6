"""Bursts whose processes are killed in the middle: partitions go back to workers, and every record counts once."""

from __future__ import annotations

import pytest

from tests.e2e.bursting import SECONDS, Story
from tests.e2e.chaos import Site, wait_until

pytestmark = pytest.mark.timeout(1_200)


def test_when_its_command_is_killed_partitions_go_back_and_another_burst_may_begin(site: Site, redis_url: str) -> None:
    with Story(site, redis_url) as story:
        burst = story.burst()
        story.wait_for_spark()

        burst.kill()

        story.wait_until_back(SECONDS)
        taken = [story.part(number).taken for number in (0, 1)]
        wait_until(lambda: all(story.part(n).taken > taken[n] for n in (0, 1)), "workers go on with them", SECONDS)
        wait_until(lambda: not [one for one in site.processes() if "java" in one.name()], "Spark has ended", SECONDS)
        operation = story.operation
        assert operation is not None
        wait_until(lambda: operation.is_abandoned(story.facts().now_ms), "its claim runs out", SECONDS)
        again = story.burst()
        wait_until(lambda: (now := story.operation) is not None and now.id != operation.id, "another one begins")
        story.interrupt(again)
        assert "interrupted: partitions go back to workers where they are" in story.end(again, 130) + story.said()
        outcomes = [past.outcome for past in story.facts().record.operations]
        assert outcomes == ["given up: its command is gone", "interrupted"]
        story.finish()


def test_when_the_leader_is_killed_the_next_one_goes_on_with_it(site: Site, redis_url: str) -> None:
    with Story(site, redis_url) as story:
        burst = story.burst()
        story.wait_for_spark()
        term = story.facts().leader_term

        story.run.kill("leader")
        story.go()

        story.end(burst, 0)
        assert story.facts().leader_term > term
        assert [past.outcome for past in story.facts().record.operations] == ["done"]
        assert [story.part(number).owner for number in (0, 1)] == ["w0", "w0"]
        story.finish()


def test_when_spark_is_killed_workers_take_over_until_it_is_back(site: Site, redis_url: str) -> None:
    with Story(site, redis_url) as story:
        burst = story.burst()
        story.wait_for_spark()

        story.driver().kill()

        story.wait_until_back(SECONDS)
        story.wait_for_spark()
        story.go()
        story.end(burst, 0)
        story.finish()
        site.assert_clean("flow.py", "out", "go", "more")


def test_a_ctrl_c_in_the_middle_gives_back_what_is_not_done(site: Site, redis_url: str) -> None:
    with Story(site, redis_url) as story:
        burst = story.burst()
        story.wait_for_spark()
        operation = story.operation
        assert operation is not None

        story.interrupt(burst)

        out = story.end(burst, 130)
        assert "interrupted: partitions go back to workers where they are" in story.said()
        assert [story.part(number).owner for number in (0, 1)] == ["w0", "w0"]
        rows = [line.split() for line in out.splitlines() if line.startswith("2.")]
        assert all(row[3] != row[4] for row in rows), out
        assert [past.outcome for past in story.facts().record.operations] == ["interrupted"]
        story.finish()
        site.assert_clean("flow.py", "out", "go", "more")
