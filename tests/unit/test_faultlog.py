"""What fails at each look is logged when that says something new, and once a minute."""

from __future__ import annotations

import logging

import pytest

from pipeline.errors import ForeignData, StoreRestarted, StoreUnavailable
from pipeline.faultlog import AGAIN_SECONDS, FaultLog


class Log:
    def __init__(self, caplog: pytest.LogCaptureFixture) -> None:
        caplog.set_level(logging.INFO)
        self._caplog = caplog
        self.now = 0.0
        self.faults = FaultLog(logging.getLogger("watch"), "job=j cannot be looked at", lambda: self.now)

    def said(self) -> list[tuple[str, str]]:
        """What is new, with its level."""
        found = [(record.levelname, record.getMessage()) for record in self._caplog.records]
        self._caplog.clear()
        return found


@pytest.fixture
def log(caplog: pytest.LogCaptureFixture) -> Log:
    return Log(caplog)


def test_what_does_not_fail_is_not_spoken_of(log: Log) -> None:
    log.faults.over()

    assert log.said() == []


def test_an_outage_is_one_fault_however_it_shows_and_its_end_is_said(log: Log) -> None:
    log.faults.met(StoreUnavailable("Redis cannot be reached: closed"))
    log.now += 2.0
    log.faults.met(StoreUnavailable("Redis cannot be reached: refused"))
    log.faults.met(StoreRestarted("Redis was restarted"))
    log.now += 1.5
    log.faults.over()
    log.faults.over()

    assert log.said() == [
        ("WARNING", "job=j cannot be looked at: Redis cannot be reached: closed"),
        ("WARNING", "over after 3.5 s: job=j cannot be looked at"),
    ]


def test_a_long_one_is_said_again_each_minute_with_its_length(log: Log) -> None:
    for _ in range(4 * int(AGAIN_SECONDS) + 2):
        log.faults.met(StoreUnavailable("away"))
        log.now += 0.5

    assert [text for _, text in log.said()] == [
        "job=j cannot be looked at: away",
        "job=j cannot be looked at, for 60 s by now: away",
        "job=j cannot be looked at, for 120 s by now: away",
    ]


def test_another_fault_is_said_at_once_with_its_hint(log: Log) -> None:
    log.faults.met(StoreUnavailable("away"))
    log.faults.met(ForeignData("the hash holds 1", hint="remove it"))
    log.faults.met(ForeignData("the hash holds 1", hint="remove it"))
    log.faults.met(ForeignData("the hash holds 2", hint="remove it"))

    assert [text for _, text in log.said()] == [
        "job=j cannot be looked at: away",
        "job=j cannot be looked at: the hash holds 1 (remove it)",
        "job=j cannot be looked at: the hash holds 2 (remove it)",
    ]


def test_a_fault_that_comes_back_is_a_new_one(log: Log) -> None:
    log.faults.met(StoreUnavailable("away"))
    log.faults.over()
    log.said()
    log.now += 10.0
    log.faults.met(StoreUnavailable("away"))
    log.now += 1.0
    log.faults.over()

    assert [text for _, text in log.said()] == [
        "job=j cannot be looked at: away",
        "over after 1.0 s: job=j cannot be looked at",
    ]
