"""Savepoints again and again: when each is due, and what a failure does."""

from __future__ import annotations

import pytest

from pipeline.cli.checkpoints import take_again
from pipeline.errors import SavepointError, StoreUnavailable
from pipeline.lifecycle import JobState


class Story:
    """A job that ends at a time; what is to be raised when the n-th savepoint is taken."""

    def __init__(self, ends_at: float, **fails: Exception) -> None:
        self.now, self.taken, self._ends_at, self._fails = 0.0, [], ends_at, fails
        self.away: Exception | None = None

    def clock(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += max(seconds, 0.001)

    def take(self) -> None:
        self.taken.append(round(self.now, 1))
        self.now += 0.25
        if error := self._fails.get(f"n{len(self.taken)}"):
            raise error

    def state(self) -> JobState:
        if self.away is not None:
            error, self.away = self.away, None
            raise error
        return JobState.FINISHED if self.now >= self._ends_at else JobState.RUNNING

    def run(self) -> list[float]:
        take_again(self.take, self.state, 5.0, self.clock, self.sleep)
        return self.taken


def test_one_is_taken_at_once_and_then_one_every_so_many_seconds_until_the_job_ends() -> None:
    assert Story(18.0).run() == pytest.approx([0.0, 5.2, 10.5, 15.8], abs=0.06)


@pytest.mark.parametrize("error", [SavepointError("full"), StoreUnavailable("away")])
def test_one_that_fails_is_told_and_the_next_one_is_taken(error: Exception, capsys: pytest.CaptureFixture[str]) -> None:
    assert len(Story(13.0, n2=error).run()) == 3
    assert f"no savepoint this time: {error}" in capsys.readouterr().err


def test_the_first_one_must_succeed() -> None:
    with pytest.raises(SavepointError):
        Story(13.0, n1=SavepointError("no such folder")).run()


def test_a_redis_that_is_away_does_not_end_it() -> None:
    story = Story(8.0)
    story.away = StoreUnavailable("away")

    assert len(story.run()) == 2
