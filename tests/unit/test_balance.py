"""Evening out the load of workers: which partition goes where, and that a load that stays comes to rest."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from leader.duties.balance import BUSY, GAIN, RESTED, WARM_UP_MS
from leader.duties.moves import How, Move, Why, decide
from leader.duties.outlook import Outlook
from pipeline.facts import JobFacts, PartitionFacts, WorkerFacts
from tests.unit.test_moves_decided import RUN, a_job, a_part

Demands = dict[str, tuple[str, float]]
"""Partition number -> its worker, and the share of a worker that it needs."""


def workers_of(demands: Demands, names: list[str]) -> list[WorkerFacts]:
    """As they report: who needs more than there is works all the time, and each partition gets its part of that."""
    found = []
    for name in names:
        mine = {number: need for number, (owner, need) in demands.items() if owner == name}
        total = sum(mine.values())
        parts = {f"0.{number}": [10, 100, min(1.0, need / max(1.0, total))] for number, need in mine.items()}
        report: dict[str, Any] = {"share": min(1.0, total), "parts": parts, "node": "here"}
        found.append(WorkerFacts(name, "1", 0.1, False, report))
    return found


@cache
def part_of(number: str, owner: str) -> PartitionFacts:
    return replace(a_part(int(number), owner), token=f"{owner}:{number}")


def job_of(demands: Demands, names: list[str], now_ms: int = 1_000_000) -> JobFacts:
    parts = [part_of(number, owner) for number, (owner, _) in demands.items()]
    return a_job(parts, workers_of(demands, names), now_ms=now_ms)


def moves_of(demands: Demands, names: list[str], rounds: int = 45) -> list[Move]:
    """What one leader does in so many rounds, five seconds apart; what it asks for is done at once."""
    outlook, done, now_ms = Outlook(), [], 1_000_000
    demands = dict(demands)
    for _ in range(rounds):
        now_ms += 5_000
        facts = job_of(demands, names, now_ms)
        outlook = outlook.after(facts)
        for move in decide(facts, RUN, outlook):
            assert (move.how, move.why) == (How.ASK, Why.BALANCED)
            done.append(move)
            number = str(move.place[1])
            demands[number] = (move.worker, demands[number][1])
    return done


def test_the_partition_that_evens_two_workers_best_moves_when_it_has_been_uneven_for_a_while() -> None:
    demands = {"0": ("w1", 0.5), "1": ("w1", 0.3), "2": ("w1", 0.15), "3": ("w2", 0.1)}
    facts = job_of(demands, ["w1", "w2"])
    outlook = Outlook().after(facts)
    assert decide(facts, RUN, outlook) == []

    later = replace(facts, now_ms=facts.now_ms + WARM_UP_MS)

    (move,) = decide(later, RUN, outlook.after(later))
    assert (move.place, move.worker, move.why, move.how) == ((0, 0), "w2", Why.BALANCED, How.ASK)


def test_a_load_that_was_even_in_between_begins_anew() -> None:
    uneven = job_of({"0": ("w1", 0.5), "1": ("w1", 0.45), "2": ("w2", 0.1)}, ["w1", "w2"])
    even = job_of({"0": ("w1", 0.3), "1": ("w1", 0.3), "2": ("w2", 0.1)}, ["w1", "w2"])
    outlook = Outlook().after(uneven).after(replace(even, now_ms=uneven.now_ms + 5_000))

    later = replace(uneven, now_ms=uneven.now_ms + WARM_UP_MS)

    assert decide(later, RUN, outlook.after(later)) == []


def test_one_partition_that_is_hot_by_itself_stays() -> None:
    assert moves_of({"0": ("w1", 0.95), "1": ("w2", 0.1)}, ["w1", "w2"]) == []


def test_a_band_is_left_alone() -> None:
    assert moves_of({"0": ("w1", 0.5), "1": ("w1", 0.34), "2": ("w2", 0.1)}, ["w1", "w2"]) == []
    assert moves_of({"0": ("w1", 0.5), "1": ("w1", 0.4), "2": ("w2", RESTED)}, ["w1", "w2"]) == []


def test_nothing_is_evened_out_while_something_is_on_its_way() -> None:
    facts = job_of({"0": ("w1", 0.5), "1": ("w1", 0.45), "2": ("w2", 0.1)}, ["w1", "w2", "w3"])
    outlook = Outlook().after(facts)
    later = replace(facts, now_ms=facts.now_ms + WARM_UP_MS)

    assert {move.why for move in decide(later, RUN, outlook.after(later))} == {Why.LEVELLED}


def test_a_report_that_makes_no_sense_moves_nothing() -> None:
    facts = job_of({"0": ("w1", 0.5), "1": ("w1", 0.45), "2": ("w2", 0.1)}, ["w1", "w2"])
    strange = [
        {"share": "much"},
        {"share": 1.0, "parts": ["0.0"]},
        {"share": 1.0, "parts": {"0.0": [1, 2, float("nan")]}},
    ]
    for report in strange:
        spoiled = replace(facts, workers=(replace(facts.workers[0], report=report), facts.workers[1]))
        outlook = Outlook().after(spoiled)
        later = replace(spoiled, now_ms=facts.now_ms + WARM_UP_MS)
        assert decide(later, RUN, outlook.after(later)) == []


LOADS = st.lists(st.tuples(st.integers(0, 3), st.floats(0.0, 1.3)), min_size=4, max_size=16)


@given(LOADS)
def test_a_fixed_load_settles_within_few_moves_and_no_partition_moves_back(loads: list[tuple[int, float]]) -> None:
    names = [f"w{number}" for number in range(4)]
    demands: Demands = {str(n): (f"w{worker}", need) for n, (worker, need) in enumerate(loads)}
    demands |= {str(100 + n): (name, 0.0) for n, name in enumerate(names)}  # nobody owns nothing: that is levelling

    moves = moves_of(demands, names)

    assert len(moves) <= len(loads)
    seen = {(move.place, demands[str(move.place[1])][0]) for move in moves}
    for move in moves:
        assert (move.place, move.worker) not in seen, "it came back"
        seen.add((move.place, move.worker))
    again = moves_of(demands, names, rounds=15)
    assert moves[: len(again)] == again  # the same facts lead to the same moves


@given(LOADS)
def test_each_move_makes_the_busier_of_the_two_less_busy(loads: list[tuple[int, float]]) -> None:
    names = [f"w{number}" for number in range(4)]
    demands: Demands = {str(n): (f"w{worker}", need) for n, (worker, need) in enumerate(loads)}
    demands |= {str(100 + n): (name, 0.0) for n, name in enumerate(names)}

    for move in moves_of(demands, names):
        number = str(move.place[1])
        before, need = demands[number]
        total = {name: sum(n for owner, n in demands.values() if owner == name) for name in names}
        assert total[before] > BUSY
        assert total[move.worker] < RESTED
        assert max(total[before] - need, total[move.worker] + need) < total[before]
        assert need >= GAIN
        demands[number] = (move.worker, need)
