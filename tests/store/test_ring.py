"""Tickets and the ring flag: never more than one ticket, never a forgotten partition."""

from __future__ import annotations

from bench import ENTRY, KEYED, Bench, Hand, a_batch, a_job_id
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pipeline.codec import encode_batch
from pipeline.positions import Position
from pipeline.store import keys
from pipeline.store.commits import Idle, Kept, Output, Refusal, Refused, Target, Yielded
from pipeline.tickets import ticket


def test_the_ticket_that_is_rung_is_the_one_the_assignment_named(bench: Bench) -> None:
    bench.assign()

    assert bench.client.lrange(keys.queue("j", *ENTRY), 0, -1) == [ticket("j", *ENTRY, 1)]


def test_an_idle_inbox_clears_the_flag_and_the_next_append_rings(bench: Bench) -> None:
    """A8."""
    hand = bench.worker()
    assert (bench.ring(), bench.tickets()) == ("1", 0)

    assert hand.commit(mode="more") == Idle()
    assert (bench.ring(), bench.tickets()) == ("", 0)

    bench.lane().append(1, a_batch("a"))
    assert (bench.ring(), bench.tickets()) == ("1", 1)


def test_an_append_during_a_slice_does_not_ring(bench: Bench) -> None:
    """A8: otherwise each slice would add a ticket."""
    hand = bench.worker()
    lane = bench.lane()

    for number in range(1, 6):
        lane.append(number, a_batch(number))
        hand.work("keep")

    assert (bench.ring(), bench.tickets()) == ("1", 0)


def test_a_slice_that_ends_with_work_left_pushes_its_ticket_and_keeps_the_flag(bench: Bench) -> None:
    """A8."""
    hand = bench.worker()
    bench.lane().append(1, a_batch("a", "b"))

    assert hand.commit(Position("1-0", 1), "yield") == Yielded()

    assert (bench.ring(), bench.tickets()) == ("1", 1)


def test_a_ticket_that_yields_goes_behind_those_that_wait(bench: Bench) -> None:
    hand = bench.worker()
    bench.lane().append(1, a_batch("a"))
    queue = keys.queue("j", *ENTRY)
    bench.client.lpush(queue, "another")

    hand.commit(mode="yield")

    assert bench.client.rpop(queue) == b"another"


def test_a_commit_rings_those_it_sends_to(bench: Bench) -> None:
    taker = bench.worker(KEYED, worker="v")
    taker.commit(mode="more")
    giver = bench.worker()
    output = Output("D", 1, None, encode_batch(a_batch("A")))

    for _ in range(3):
        giver.commit(outputs={Target.partition("j", *KEYED): [output]})

    assert (bench.ring(KEYED), bench.tickets(KEYED)) == ("1", 1)


def test_an_owner_that_acquires_is_at_work_and_is_not_rung(bench: Bench) -> None:
    """A8: also when the flag was clear."""
    row = bench.assign()
    Hand(bench, row).commit(mode="more")

    bench.acquire(row)
    bench.lane().append(1, a_batch("a"))

    assert (bench.ring(), bench.tickets()) == ("1", 0)


def test_a_late_old_owner_cannot_clear_the_flag_of_the_new_one(bench: Bench) -> None:
    """A8."""
    old = bench.worker()
    old.work()
    bench.assign(nonce="y")

    reply = old.commit(mode="more")

    assert isinstance(reply, Refused)
    assert reply.why is Refusal.FENCED
    assert (bench.ring(), bench.tickets()) == ("1", 1)


def test_a_new_owner_rings_anew_and_old_tickets_are_gone(bench: Bench) -> None:
    """A8."""
    bench.assign()
    bench.assign(nonce="y")

    assert bench.client.lrange(keys.queue("j", *ENTRY), 0, -1) == [ticket("j", *ENTRY, 2)]


def test_a_new_owner_works_once_without_a_ticket(bench: Bench) -> None:
    """A8: its ticket may have been eaten by the old owner."""
    row = bench.assign()
    bench.pop_ticket()

    assert bench.acquire(row) is not None

    assert (bench.ring(), bench.tickets()) == ("1", 0)


def test_only_an_empty_inbox_clears_the_flag_not_a_reader_who_is_ahead(bench: Bench) -> None:
    """A8: entries in hand are work, though none is left to read."""
    hand = bench.worker()
    bench.lane().append(1, a_batch("a", "b"))

    assert hand.commit(Position("1-0", 1), "more", read_from="3-0") == Kept()

    assert bench.ring() == "1"


def test_the_sweep_rings_for_a_lost_ticket(bench: Bench) -> None:
    bench.assign()
    bench.lane().append(1, a_batch("a"))
    assert not bench.leadership.sweep("j", bench.token, ENTRY, False)

    bench.pop_ticket()

    assert not bench.leadership.sweep("j", bench.token, ENTRY, True)
    assert bench.leadership.sweep("j", bench.token, ENTRY, False)
    assert not bench.leadership.sweep("j", bench.token, ENTRY, False)
    assert (bench.ring(), bench.tickets()) == ("1", 1)


def test_the_sweep_rings_for_a_stale_flag_and_for_none(bench: Bench) -> None:
    bench.worker()
    bench.lane().append(1, a_batch("a"))
    for flag in ("1", "w", ""):
        bench.client.delete(keys.queue("j", *ENTRY))
        if flag:
            bench.client.hset(keys.meta("j", *ENTRY), "ring", flag)
        else:
            bench.client.hdel(keys.meta("j", *ENTRY), "ring")

        assert bench.leadership.sweep("j", bench.token, ENTRY, False), flag
        assert bench.tickets() == 1


def test_the_sweep_rings_for_control_that_waits_alone(bench: Bench) -> None:
    hand = bench.worker()
    hand.commit(mode="more")
    bench.leadership.close_source("j", bench.token, bench.plan, "lines")
    bench.pop_ticket()

    assert bench.leadership.sweep("j", bench.token, ENTRY, False)


def test_the_sweep_leaves_an_empty_or_unowned_partition_alone(bench: Bench) -> None:
    bench.lane().append(1, a_batch("a"))
    assert not bench.leadership.sweep("j", bench.token, ENTRY, False)

    hand = bench.worker()
    hand.work("more")

    assert not bench.leadership.sweep("j", bench.token, ENTRY, False)
    assert bench.tickets() == 0


class Reference:
    """The protocol in ten lines: `ticket` in the queue, `slice` of the current owner, `flag`; `backlog` in entries."""

    def __init__(self) -> None:
        self.ticket, self.slice, self.backlog = True, False, 0

    def flag(self) -> bool:
        return self.ticket or self.slice

    def append(self) -> None:
        self.backlog += 1
        self.ticket = self.ticket or not self.slice

    def assign(self) -> None:
        self.ticket, self.slice = True, False

    def leave(self, is_idle: bool) -> None:
        self.ticket, self.slice = not is_idle, False


ACTIONS = st.lists(
    st.sampled_from(["append", "deliver", "commit", "more", "yield", "assign", "acquire", "old", "late"]), max_size=40
)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(actions=ACTIONS)
def test_there_is_never_more_than_one_ticket_and_never_work_without_one(redis_url: str, actions: list[str]) -> None:
    """A8, over random interleavings of senders, slices, new owners and late old ones."""
    bench, model = Bench(redis_url, a_job_id()), Reference()
    lane, sent, nonce = bench.lane(), 0, 0
    hand: Hand | None = None
    old = bench.worker(nonce="first")
    row = bench.assign(nonce="0")

    for action in actions:
        match action:
            case "append":
                sent += 1
                lane.append(sent, a_batch(sent))
                model.append()
            case "assign":
                nonce += 1
                old, hand = hand or old, None
                row = bench.assign(nonce=str(nonce))
                model.assign()
            case "acquire" if hand is None:
                hand = Hand(bench, row)
                model.ticket, model.slice = False, True
            case "deliver" if hand is not None and bench.pop_ticket():
                model.ticket, model.slice = False, True
            case "commit" if hand is not None and model.slice and model.backlog:
                hand.work("keep")
                model.backlog = 0
            case "more" if hand is not None and model.slice:
                reply = hand.commit(mode="more")
                assert isinstance(reply, Idle) == (model.backlog == 0)
                if isinstance(reply, Idle):
                    model.leave(True)
            case "yield" if hand is not None and model.slice:
                assert hand.commit(mode="yield") == Yielded()
                model.leave(False)
            case "old" | "late":
                reply = old.commit(mode="more" if action == "old" else "yield")
                assert reply == Refused(Refusal.FENCED)
        assert bench.tickets() == int(model.ticket)
        assert bool(bench.ring()) == model.flag()
        assert model.flag() or model.backlog == 0
    bench.close()
