"""Which name a member takes: that of a process that is dead is waited for, that of one that lives is left alone."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from pipeline.errors import JobStateError
from pipeline.facts import JobFacts, WorkerFacts
from stages.member import MemberSettings
from stages.naming import free_number
from tests.unit.test_progress import some_facts

TOLD = {"CELERIAC_REDIS": "redis://h", "CELERIAC_JOB": "j", "CELERIAC_PIPELINE": "flow.py"}
STEP_MS = 200


class Scene:
    """Time goes on with each wait. `live`: workers that are heard of all the time; `heard_ms`: the last of others."""

    def __init__(self, *live: str, **heard_ms: int) -> None:
        self.live, self.heard_ms, self.now_ms = live, heard_ms, 100_000
        self.goodbyes: set[str] = set()

    def look(self) -> JobFacts:
        heard = {**dict.fromkeys(self.live, self.now_ms), **self.heard_ms}
        workers = tuple(
            WorkerFacts(name, "1-a", (self.now_ms - at) / 1000, False, {"stopping": name in self.goodbyes})
            for name, at in heard.items()
        )
        return replace(some_facts(self.now_ms), workers=workers)

    def wait(self, _seconds: float) -> bool:
        self.now_ms += STEP_MS
        return False

    def clock(self) -> float:
        return self.now_ms / 1000

    def number(self, *, is_fixed: bool = False, wait: Callable[[float], bool] | None = None) -> int:
        def names(number: int) -> list[str]:
            return ["w" if number == 1 else f"w-{number}"]

        return free_number(self.look, names, wait or self.wait, is_fixed=is_fixed, clock=self.clock)[0]


def test_a_name_that_nobody_has_is_taken_at_once() -> None:
    scene = Scene("other", "w-2")

    assert (scene.number(), scene.now_ms) == (1, 100_000)


def test_one_that_lives_keeps_its_name_and_the_next_free_number_is_taken() -> None:
    assert Scene("w", "w-2", "w-4").number() == 3


def test_the_name_of_one_that_was_killed_just_now_is_free_when_its_lease_is_over() -> None:
    scene = Scene(w=99_900)

    assert (scene.number(), scene.now_ms) == (1, 102_000)
    assert Scene(w=99_900).number(is_fixed=True) == 1


def test_one_that_has_said_goodbye_leaves_its_name_at_once() -> None:
    scene = Scene("w")
    scene.goodbyes.add("w")

    assert (scene.number(is_fixed=True), scene.now_ms) == (1, 100_000)


def test_a_name_that_was_given_is_refused_while_another_process_works_under_it() -> None:
    with pytest.raises(JobStateError, match="has a worker 'w' already, which is at work") as caught:
        Scene("w").number(is_fixed=True)

    assert "CELERIAC_WORKER" in caught.value.hint


def test_who_is_asked_to_stop_waits_no_longer() -> None:
    assert Scene("w").number(is_fixed=True, wait=lambda _: True) == 1


@pytest.mark.parametrize(
    ("more", "is_fixed", "workers", "node"),
    [
        ({"CELERIAC_WORKER": "a"}, True, ["a-2"], "a-2"),
        ({"CELERIAC_WORKER": "a", "CELERIAC_NODE": "n"}, True, ["a-2"], "n"),
        ({"CELERIAC_NODE": "n"}, False, None, "n"),
        ({"CELERIAC_NODE": "n", "CELERIAC_PROCESSES": "2"}, True, ["n-2.w0", "n-2.w1"], "n-2"),
        ({"CELERIAC_PROCESSES": "1"}, False, None, None),
        ({}, False, None, None),
    ],
)
def test_names_of_the_host_are_numbered_and_given_ones_are_not(
    more: dict[str, str], is_fixed: bool, workers: list[str] | None, node: str | None
) -> None:
    settings = MemberSettings.from_environment({**TOLD, **more})
    second = settings.numbered(2)

    assert settings.is_fixed is is_fixed
    assert settings.numbered(1) is settings
    assert not set(second.workers) & set(settings.workers)
    assert workers is None or second.workers == workers
    assert second.node == node if node else second.node == f"{settings.node}-2"
