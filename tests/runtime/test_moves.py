"""Moves from owners that live, whole: leaders and workers stepped by hand, killed at each point; the oracle watches."""

from __future__ import annotations

import json
import random
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from itertools import takewhile
from typing import Any

import pytest

from leader.round import Round
from leader.wiring import make_round
from pipeline.errors import StoreError
from pipeline.facts import PartitionFacts
from pipeline.settings import Limits
from pipeline.store import keys
from pipeline.store.agents import AgentLink
from pipeline.store.moving import MovingStore
from pipeline.store.ownership import Ownership
from pipeline.store.scripts import Scripts
from tests.runtime.harness import (
    FlakyScripts,
    LocalJob,
    Moment,
    assert_sequence,
    numbered,
    sequence_pipeline,
)
from tests.sampling import calls, some

KEYS = ("a", "b", "c", "d", "e", "f")
PATIENT = Limits(lease_seconds=600.0, collect_seconds=600.0)
"""Nobody is missed, and nobody is hurried: what happens is what the test does."""


class Led:
    """A local job under a real leader. Its workers beat when they are told to."""

    def __init__(self, job: LocalJob) -> None:
        self.job = job
        job.leader.release(job.job, job.token)
        self._scripts = Scripts(job.client)
        self.moving = MovingStore(self._scripts, job.job)
        self.link = AgentLink(self._scripts, job.job)
        self.nodes: dict[str, str] = {}
        self.pools: dict[str, str] = {}
        self._leaders = 0
        self.lead_anew()

    def lead_anew(self) -> None:
        """The leader before is gone, and its lease has passed."""
        self._leaders += 1
        name = f"leader-{self._leaders}"
        self.scripts = FlakyScripts(self.job.client)
        self.round: Round = make_round(self.scripts, name, random.Random(name), lambda: 0.0)
        if self.job.client.exists(keys.leader(self.job.job)):
            self.job.client.hset(keys.leader(self.job.job), "until", 0)

    def join(self, name: str, incarnation: str = "1-a", node: str = "", pool: str = "main") -> None:
        self.job.worker(name, incarnation)
        self.nodes[name], self.pools[name] = node, pool
        self.beat(name)

    def beat(self, *names: str) -> None:
        for name in names or self.job.workers:
            worker = self.job.workers[name]
            report = {**worker.hand.report(self.job.clock()), "node": self.nodes[name], "pool": self.pools[name]}
            mine = worker.ownership  # its heart has a connection of its own
            Ownership(self._scripts, mine.job, mine.worker, mine.incarnation).heartbeat(json.dumps(report))

    def leave(self, name: str) -> None:
        incarnation = self.job.workers[name].ownership.incarnation
        assert self.link.mark_leaving(name, incarnation, is_leaving=True)

    def kill(self, name: str) -> None:
        """It dies, its agent sees it, and the time in which it might come back is over."""
        incarnation = self.job.workers.pop(name).ownership.incarnation
        self.link.report_death(name, incarnation)
        self.job.client.hset(keys.workers(self.job.job), f"a:{name}", 0)

    def lead(self) -> dict[str, int]:
        self.beat()
        return self.round.run_once()

    def turn(self) -> None:
        """A round of the leader, then all workers look and serve."""
        self.lead()
        self.job.look()
        self.job.run_until_idle()

    def turns(self, until: Callable[[], bool], most: int = 60) -> None:
        for _ in range(most):
            if until():
                return
            self.turn()
        raise AssertionError(f"not after {most} rounds: {self.owners()} {self.asked()}")

    def parts(self) -> tuple[PartitionFacts, ...]:
        return self.job.jobs.facts(self.job.job).partitions

    def owners(self) -> dict[str, str]:
        return {part.name: part.owner for part in self.parts()}

    def owned(self, name: str) -> int:
        return sum(part.owner == name for part in self.parts())

    def asked(self) -> list[str]:
        return [part.name for part in self.parts() if part.aim is not None and part.aim.asked_ms]

    def settled(self) -> bool:
        """Nothing is on its way, and the next round changes nothing."""
        return all(part.owner and part.aim is None for part in self.parts())

    def how(self) -> list[str]:
        return [moved.how for moved in self.moving.moves()]

    def finish(self, numbers: int) -> None:
        """Feeds nothing more; runs to the end, and checks that each key's numbers came once and in order."""
        self.job.token = self.job.client.hget(keys.leader(self.job.job), "token").decode()
        self.job.look()
        self.job.run_and_sweep()
        self.job.run_to_the_end()
        assert_sequence(self.job, KEYS if numbers else (), numbers)


@contextmanager
def led(
    redis_url: str, partitions: int = 4, limits: Limits = PATIENT, stages: int = 2, **options: Any
) -> Iterator[Led]:
    with LocalJob(redis_url, sequence_pipeline(stages), partitions=partitions, limits=limits, **options) as job:
        yield Led(job)


def wait_until(predicate: Callable[[], Any], seconds: float = 20.0) -> None:
    deadline = time.monotonic() + seconds
    while not predicate():
        assert time.monotonic() < deadline, "it did not happen in time"
        threading.Event().wait(0.005)


def send(led_: Led, numbers: Iterable[int]) -> None:
    for number in numbers:
        led_.job.send(numbered(KEYS, 1, number))


def test_a_worker_that_joins_is_given_its_share_some_at_a_time(redis_url: str) -> None:
    limits = Limits(lease_seconds=600.0, collect_seconds=600.0, moves_at_once=2)
    with led(redis_url, limits=limits) as site:
        site.join("w0")
        site.turn()
        send(site, range(1, 4))
        site.job.run_until_idle()
        before = {part.name: part.token for part in site.parts()}
        site.join("w1")

        site.lead()
        first = site.asked()
        assert len(first) == 2
        assert site.lead() == {}
        assert {part.name: part.token for part in site.parts()} == before

        send(site, range(4, 6))
        site.turns(lambda: site.settled() and site.owned("w1") == 6)

        after = {part.name: part.token for part in site.parts()}
        assert sum(after[name] == before[name] for name in after) == 6
        assert site.how() == ["collected"] * 6
        assert [moved.why for moved in site.moving.moves()] == ["levelling"] * 6
        send(site, range(6, 8))
        site.finish(7)


def test_never_are_more_moved_at_a_time_than_are_allowed(redis_url: str) -> None:
    limits = Limits(lease_seconds=600.0, collect_seconds=600.0, moves_at_once=1)
    with led(redis_url, limits=limits) as site:
        site.join("w0")
        site.turn()
        site.join("w1")
        seen = []
        for _ in range(12):
            site.lead()
            seen.append(len(site.asked()))
            site.job.look()

        assert max(seen) == 1
        assert site.owned("w1") == 6
        site.finish(0)


def test_a_worker_that_leaves_owns_nothing_soon_and_others_are_undisturbed(redis_url: str) -> None:
    with led(redis_url) as site:
        for name in ("w0", "w1", "w2"):
            site.join(name)
        site.turn()
        send(site, range(1, 3))
        kept = {part.name: part.token for part in site.parts() if part.owner != "w1"}
        site.leave("w1")

        site.turns(lambda: not site.owned("w1") and site.settled())

        assert kept.items() <= {part.name: part.token for part in site.parts()}.items()
        assert set(site.how()) == {"collected"}
        send(site, range(3, 5))
        site.finish(4)


def test_a_worker_that_is_to_stay_after_all_loses_only_what_was_under_way(redis_url: str) -> None:
    with led(redis_url) as site:
        for name in ("w0", "w1"):
            site.join(name)
        site.turn()
        site.leave("w1")
        site.lead()
        incarnation = site.job.workers["w1"].ownership.incarnation
        site.link.mark_leaving("w1", incarnation, is_leaving=False)

        site.turns(site.settled)

        assert site.lead() == {}
        site.finish(0)


def test_a_step_that_waits_for_room_is_dropped_and_run_by_the_new_owner(redis_url: str) -> None:
    limits = Limits(lease_seconds=600.0, collect_seconds=600.0, inbox_records=4)
    with led(redis_url, partitions=1, limits=limits) as site:
        site.join("w0")
        site.lead()
        site.job.look()
        for number in range(1, 4):
            site.job.send(numbered(KEYS[:2], 1, number))
            while site.job.pop_ticket((0, 0)):
                site.job.slice("w0", (0, 0))
        assert site.job.workers["w0"].hand.at[0, 0][2] == "full"
        site.join("w1")
        site.leave("w0")

        site.turns(lambda: not site.owned("w0") and site.settled())

        assert set(site.how()) == {"collected"}
        site.job.token = site.job.client.hget(keys.leader("j"), "token").decode()
        site.job.run_and_sweep()
        site.job.run_to_the_end()
        assert_sequence(site.job, KEYS[:2], 3)


def test_a_worker_that_is_held_up_by_one_step_is_not_hurried(redis_url: str) -> None:
    limits = Limits(lease_seconds=600.0, collect_seconds=0.0)
    with led(redis_url, partitions=1, limits=limits) as site:
        site.join("w0")
        site.turn()
        site.join("w1")
        before = site.owners()
        worker = site.job.workers["w0"]
        site.lead()
        (name,) = site.asked()
        stage, partition = map(int, name.split("."))
        worker.hand.at[stage, partition] = ("1-0/0", site.job.clock() - 30.0, "running")  # it has begun long ago
        again: list[float] = []
        worker.on_pause = again.append
        for _ in range(5):
            site.lead()
            worker.look()
        assert site.owners() == before
        assert again == [0.0] * 5, "it looks again when the step is over"

        worker.hand.at.clear()
        site.turns(lambda: site.owned("w1") == 1)
        assert site.owners()[name] == "w1"
        site.finish(0)


def test_a_worker_that_does_not_answer_loses_the_partition_and_its_commit_is_fenced(redis_url: str) -> None:
    limits = Limits(lease_seconds=600.0, collect_seconds=0.0)
    with led(redis_url, partitions=1, limits=limits) as site:
        site.join("w0")
        site.turn()
        send(site, range(1, 3))
        site.join("w1")
        site.lead()
        (name,) = site.asked()

        wait_until(lambda: site.lead().get("assigned"))

        assert site.owners()[name] == "w1"
        place = tuple(map(int, name.split(".")))
        site.job.workers["w0"].slice(*place)
        site.turn()
        assert site.how() == ["forced"]
        site.finish(2)


@pytest.mark.parametrize("moment", ["before", "after"])
def test_an_answer_whose_call_is_cut_off_is_given_again_or_was_given(redis_url: str, moment: Moment) -> None:
    with led(redis_url, partitions=1) as site:
        site.join("w0")
        site.turn()
        send(site, range(1, 3))
        site.join("w1")
        site.lead()
        site.job.scripts["w0"].break_call(moment)
        with pytest.raises(StoreError):
            site.job.workers["w0"].look()
        assert site.owned("w1") == (moment == "after")

        site.turns(lambda: site.settled() and site.owned("w1") == 1)
        site.turn()

        assert site.how() == ["collected"]
        site.finish(2)


@pytest.mark.parametrize("victim", ["asked", "given", "target asked", "target given"])
def test_whoever_dies_in_a_move_the_partition_has_an_owner_afterwards(redis_url: str, victim: str) -> None:
    """The old owner is killed before or after its answer; the target before that, and before it acquires."""
    with led(
        redis_url, partitions=1, limits=Limits(lease_seconds=600.0, collect_seconds=600.0, moves_at_once=1)
    ) as site:
        for name in ("w0", "w2"):
            site.join(name)
        site.turn()
        send(site, range(1, 3))
        site.job.run_until_idle()
        send(site, range(3, 4))
        site.leave("w0")
        site.join("w1")
        site.lead()
        (name,) = site.asked()
        target = next(part.aim.worker for part in site.parts() if part.aim and part.name == name)
        if victim.endswith("given"):
            site.job.workers["w0"].look()
            assert site.owners()[name] == target

        site.kill(target if victim.startswith("target") else "w0")
        if victim == "target asked":
            site.job.workers["w0"].look()
            assert site.owners()[name] == "w0", "it was given to one that is dead"
        gone = {"w0", target} if victim.startswith("target") else {"w0"}
        site.turns(lambda: site.settled() and not gone & set(site.owners().values()))

        send(site, range(4, 5))
        site.finish(4)


def test_without_anybody_to_go_to_what_was_asked_for_stays(redis_url: str) -> None:
    with led(redis_url, partitions=1) as site:
        site.join("w0")
        site.turn()
        site.join("w1")
        site.lead()
        assert site.asked()
        site.kill("w1")

        assert site.lead()["withdrawn"] == 1

        assert site.owned("w0") == 3
        assert site.lead() == {}
        site.finish(0)


def _story(site: Led, faults: Callable[[int], None]) -> None:
    """w1 joins, w0 leaves, and comes back: `faults` is told the number of each round."""
    site.join("w0")
    site.turn()
    number = 1
    for event in (lambda: site.join("w1"), lambda: site.leave("w0"), lambda: site.join("w2")):
        event()
        for _ in range(6):
            send(site, [number])
            number += 1
            faults(number)
            site.turn()
    site.turns(lambda: site.settled() and not site.owned("w0"))
    site.finish(number - 1)


@pytest.mark.sampled
@pytest.mark.parametrize("moment", ["before", "after"])
def test_a_leader_that_is_killed_at_any_call_is_followed_by_one_that_goes_on(redis_url: str, moment: Moment) -> None:
    limits = Limits(lease_seconds=600.0, collect_seconds=600.0, moves_at_once=2)
    with led(redis_url, partitions=2, limits=limits) as site:
        _story(site, lambda _: None)
        asked = [name for name in site.scripts.calls if name in ("assign", "collect")]
    assert asked.count("collect") >= 6

    for point in takewhile(lambda point: point <= len(asked), calls()):
        _flush(redis_url)
        with led(redis_url, partitions=2, limits=limits) as site:
            assert _killed_at(site, point, moment) == 1


def _killed_at(site: Led, point: int, moment: Moment) -> int:
    """Runs the story; the leader dies at its `point`-th assignment or question. How often that came about."""
    deaths, seen = 0, 0
    right = site.lead

    def lead() -> dict[str, int]:
        nonlocal deaths, seen
        site.beat()
        scripts = site.scripts
        real = scripts.run

        def run(name: str, names: Any, args: Any) -> Any:
            nonlocal deaths, seen
            if name in ("assign", "collect"):
                seen += 1
                if seen == point and not deaths:
                    deaths += 1
                    if moment == "after":
                        real(name, names, args)
                    raise KeyboardInterrupt  # it is gone, with all that it knew
            return real(name, names, args)

        scripts.run = run  # type: ignore[method-assign]
        try:
            return site.round.run_once()
        except KeyboardInterrupt:
            site.lead_anew()
            return right()
        finally:
            scripts.run = real  # type: ignore[method-assign]

    site.lead = lead  # type: ignore[method-assign]
    _story(site, lambda _: None)
    return deaths


def _flush(redis_url: str) -> None:
    import redis

    with redis.Redis.from_url(redis_url) as client:
        client.flushall()


@pytest.mark.sampled
@pytest.mark.parametrize("seed", some(range(12)))
def test_whatever_comes_and_goes_each_record_is_applied_once_and_in_order(redis_url: str, seed: int) -> None:
    rng = random.Random(seed)
    limits = Limits(lease_seconds=600.0, collect_seconds=rng.choice([0.0, 600.0]), moves_at_once=rng.randint(1, 4))
    with led(redis_url, partitions=rng.randint(1, 4), limits=limits, takes_tickets=rng.random() < 0.5) as site:
        site.join("w0")
        site.turn()
        number, lives = 0, 1
        for _ in range(40):
            number += 1
            send(site, [number])
            match rng.randrange(7):
                case 0 if len(site.job.workers) < 4:
                    lives += 1
                    site.join(f"w{rng.randrange(4)}x{lives}")
                case 1 if len(site.job.workers) > 1:
                    site.leave(rng.choice(sorted(site.job.workers)))
                case 2 if len(site.job.workers) > 1:
                    site.kill(rng.choice(sorted(site.job.workers)))
                case 3:
                    site.lead_anew()
                case 4:
                    site.job.scripts[rng.choice(sorted(site.job.workers))].break_call(
                        rng.choice(["before", "after"]), rng.randint(1, 5)
                    )
                case 5:
                    site.lead()
            if rng.random() < 0.7:
                _tolerant_turn(site)
        lives += 1
        site.join(f"last{lives}")
        for _ in range(30):
            _tolerant_turn(site)
        site.turns(site.settled)
        site.finish(number)


def _tolerant_turn(site: Led) -> None:
    """As processes do: a call that is cut off is tried again at the next look."""
    site.lead()
    for name, worker in list(site.job.workers.items()):
        try:
            for place in worker.look():
                site.job.slice(name, place)
        except StoreError:
            continue
    for _ in range(5):
        try:
            site.job.serve()
        except StoreError:
            continue
