"""What an owner loads: state of the keys of a batch, timers that are due."""

from __future__ import annotations

from bench import ENTRY, Bench
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pipeline.codec import decode_value, encode_value, state_field, timer_member
from pipeline.keying import GROUPS, group_of, groups_of_partition
from pipeline.records import MAX_TIME, Timer
from pipeline.store import keys
from pipeline.store.commits import Write
from pipeline.store.ownership import LoadedState


def test_state_is_loaded_by_operator_with_absent_keys_as_none(bench: Bench) -> None:
    hand = bench.worker()
    stored = [("count", "a", 1), ("count", ("x", 2), {"n": 2}), ("mean", "a", [3, 4]), ("count", 1, "int")]
    for operator, key, value in stored:
        place = keys.state("j", 0, group_of(key))
        hand.commit(writes=[Write("HSET", place, [state_field(operator, key), encode_value(value)])])

    found = bench.owner().load_state(0, ["count", "mean"], ["a", ("x", 2), 1, "1", b"1"]).rows

    decoded = {
        (operator, key): None if data is None else decode_value(data)
        for operator, rows in found.items()
        for key, data in rows
    }
    assert len(decoded) == 10
    assert {place: value for place, value in decoded.items() if value is not None} == {
        (operator, key): value for operator, key, value in stored
    }


def test_state_of_a_thousand_keys_is_loaded_in_one_call(bench: Bench) -> None:
    hand = bench.worker()
    wanted = [f"key-{number}" for number in range(1_000)]
    hand.commit(writes=[Write("HSET", keys.state("j", 0, group_of(k)), [state_field("op", k), k]) for k in wanted])

    found = bench.owner().load_state(0, ["op"], wanted).rows["op"]

    assert dict(found) == {key: key.encode() for key in wanted}


def test_nothing_is_asked_for_without_operators_or_keys(bench: Bench) -> None:
    assert bench.owner().load_state(0, [], ["a"]) == LoadedState({})
    assert bench.owner().load_state(0, ["op"], []) == LoadedState({"op": []})


def test_loading_tells_which_key_groups_hold_nothing_at_all(bench: Bench) -> None:
    hand = bench.worker()
    hand.commit(writes=[Write("HSET", keys.state("j", 0, group_of("a")), [state_field("op", "other"), b"1"])])

    found = bench.owner().load_state(0, ["op"], ["a", "b"])

    assert found == LoadedState({"op": [("a", None), ("b", None)]}, frozenset({group_of("b")}))


def put_timers(bench: Bench, timers: list[tuple[Timer, int]]) -> None:
    hand = bench.worker(ENTRY)
    hand.commit(
        writes=[
            Write("ZADD", keys.timers("j", 0, timer.operator, group), [timer.due, timer_member(timer)])
            for timer, group in timers
        ]
    )


def test_timers_come_in_due_order_up_to_the_watermark(bench: Bench) -> None:
    timers = [Timer("op", f"k{due}", due) for due in (50, -10, 20, MAX_TIME, 40)]
    put_timers(bench, [(timer, number % 3) for number, timer in enumerate(timers)])

    def due(watermark: int, limit: int = 100) -> list[int]:
        return [timer.due for timer in bench.owner().due_timers(0, ["op"], range(3), watermark, limit)]

    assert due(-11) == []
    assert due(40) == [-10, 20, 40]
    assert due(MAX_TIME) == [-10, 20, 40, 50, MAX_TIME]


def test_no_groups_and_no_operators_have_no_timers(bench: Bench) -> None:
    assert bench.owner().due_timers(0, ["op"], [], 5, 10) == []
    assert bench.owner().due_timers(0, [], [1], 5, 10) == []


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    timers=st.lists(
        st.tuples(st.sampled_from(["a", "b"]), st.integers(0, 2), st.integers(0, 12)), unique=True, max_size=30
    ),
    limit=st.integers(1, 12),
)
def test_firing_bounded_portions_one_after_another_fires_all_timers_in_order(
    bench: Bench, timers: list[tuple[str, int, int]], limit: int
) -> None:
    """A11: a watermark is handled in bounded commits, and no timer overtakes an earlier one."""
    bench.client.flushall()
    bench.jobs.create("j", bench.plan)
    bench.token = bench.leadership.hold("j", 60).token
    put_timers(bench, [(Timer(operator, f"{group}", due), group) for operator, group, due in timers])
    fired: list[Timer] = []

    while portion := bench.owner().due_timers(0, ["a", "b"], range(3), 10, limit):
        fired += portion
        for timer in portion:
            bench.client.zrem(keys.timers("j", 0, timer.operator, int(timer.key)), timer_member(timer))

    order = [(timer.due, timer.operator) for timer in fired]
    assert order == sorted((due, operator) for operator, _, due in timers if due <= 10)


def test_the_groups_of_all_partitions_are_all_groups_once() -> None:
    for partitions in (1, 2, 3, 7, 256):
        groups = [group for number in range(partitions) for group in groups_of_partition(number, partitions)]
        assert groups == list(range(GROUPS))
