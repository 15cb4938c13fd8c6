"""Whole jobs: creating, reading, removing without a trace, two jobs side by side."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any

import pytest
from bench import ENTRY, KEYED, Bench, a_batch, a_job_id, a_plan

from pipeline.codec import decode_batch, encode_batch
from pipeline.errors import DecodingError, JobStateError, StoreFull, StoreUnavailable, UnknownJob, UnsuitableServer
from pipeline.lifecycle import JobState
from pipeline.positions import START, Position
from pipeline.store import keys
from pipeline.store.commits import Output, Refusal, Refused, Target, Write
from pipeline.store.connection import connect
from pipeline.store.jobs import JobStore
from pipeline.store.losses import LossStore
from pipeline.store.permissions import RULE, check_permissions
from pipeline.store.scripts import Scripts
from tests.runtime.harness import FlakyScripts, Moment


def test_a_job_is_read_back_as_it_was_created(bench: Bench) -> None:
    record = bench.jobs.read("j")

    assert record.plan == bench.plan
    assert (record.state, record.reason, record.gate) == (JobState.RUNNING, "", "open")
    assert (record.generation, record.table) == (0, 1)
    assert record.run_id == bench.jobs.run_id()
    assert record.made_at_ms == record.changed_at_ms > 1_600_000_000_000
    facts = bench.facts(KEYED)
    assert (facts.position, facts.term, facts.backlog, facts.at_end) == (START, 0, 0, True)


def test_a_job_id_is_taken_once_and_the_job_stays_as_it_is(bench: Bench) -> None:
    bench.lane().append(1, a_batch("a"))
    before = bench.snapshot()

    with pytest.raises(JobStateError, match="it is running"):
        bench.jobs.create("j", a_plan(5))

    assert bench.snapshot() == before


@pytest.mark.parametrize("job", ["", "-a", "a b", "a{b}", "a/b", "a*", "a\n", "ü", "x" * 101])
def test_a_bad_job_id_is_refused_with_a_hint(bench: Bench, job: str) -> None:
    with pytest.raises(JobStateError) as caught:
        bench.jobs.create(job, bench.plan)

    assert caught.value.hint


def test_jobs_are_listed_oldest_first(make: Callable[..., Bench]) -> None:
    for job in ("b", "a", "c"):
        made = make(job)
        made.client.zadd(keys.jobs(), {job: {"b": 1, "a": 2, "c": 3}[job]})

    assert made.jobs.list_ids() == ["b", "a", "c"]


def test_an_unknown_job_is_a_typed_error_everywhere(bench: Bench) -> None:
    for call in (bench.jobs.read, bench.jobs.state, bench.jobs.facts, bench.jobs.remove):
        with pytest.raises(UnknownJob, match="nobody"):
            call("nobody")
    with pytest.raises(UnknownJob):
        bench.jobs.transition("nobody", JobState.FAILED)


def test_a_record_that_is_damaged_is_a_decoding_error(bench: Bench) -> None:
    bench.client.hset(keys.job("j"), "state", "sideways")
    with pytest.raises(DecodingError):
        bench.jobs.read("j")

    bench.client.hdel(keys.job("j"), "plan")
    with pytest.raises(DecodingError):
        bench.jobs.read("j")


def used(bench: Bench) -> None:
    """Makes every kind of key that a job can have."""
    bench.lane().append(1, a_batch(*range(5)))
    hand = bench.worker(ENTRY)
    bench.owner().heartbeat("{}")
    bench.reader()
    hand.commit(
        Position("1-0", 2),
        "yield",
        writes=[
            Write("HSET", keys.state(bench.job, 0, 1), ["k", "v"]),
            Write("ZADD", keys.timers(bench.job, 0, "op", 1), [5, "t"]),
            Write("HSET", keys.files(bench.job), ["out 0.0.1", "{}"]),
            Write("XADD", keys.dead(bench.job), ["stage", "0"]),
        ],
        outputs={
            Target.partition(bench.job, *KEYED): [Output("D", 1, None, encode_batch(a_batch(1)))],
            Target.stream(bench.job, "out"): [Output("D", 1, None, encode_batch(a_batch(1)))],
        },
    )
    bench.client.hset(keys.waiting(bench.job, *KEYED), "x", "1")
    bench.client.hset(keys.out_waiting(bench.job, "out"), "x", "1")
    queue = keys.queue_name(bench.job, *ENTRY)
    bench.client.sadd(f"{keys.PREFIX}_kombu.binding.{queue}", f"{queue}\x06\x16\x06\x16{queue}")
    bench.client.lpush(keys.PREFIX + keys.worker_queue_name(bench.job, "w"), "x")
    bench.client.sadd(f"{keys.PREFIX}_kombu.binding.celery.pidbox", f"\x06\x16\x06\x16w@{queue}.pidbox", "other")


def test_no_key_of_a_removed_job_is_left(bench: Bench) -> None:
    used(bench)
    assert len(bench.snapshot()) >= 20
    bench.jobs.transition("j", JobState.CANCELLED)

    removed = bench.jobs.remove("j")

    assert removed >= 20
    assert bench.snapshot() == {}
    assert bench.jobs.list_ids() == []


def test_kombus_tables_lose_only_the_rows_of_a_removed_job_while_others_exist(make: Callable[..., Bench]) -> None:
    going, _ = make("j"), make("jj")
    used(going)

    going.jobs.erase("j")

    left = going.snapshot()
    assert [key for key in left if b"{j}" in key] == []
    assert going.client.smembers(f"{keys.PREFIX}_kombu.binding.celery.pidbox") == {b"other"}


def test_another_job_is_untouched_by_a_removal(make: Callable[..., Bench]) -> None:
    going, staying = make("j"), make("jj")
    used(going)
    used(staying)
    before = {key: value for key, value in staying.snapshot().items() if b"{jj}" in key}

    going.jobs.erase("j")

    assert {key: value for key, value in staying.snapshot().items() if b"{" in key} == before
    assert staying.jobs.list_ids() == ["jj"]


@pytest.mark.parametrize("state", [JobState.RUNNING, JobState.DRAINING, JobState.PUBLISHING])
def test_a_job_that_works_is_not_removed(bench: Bench, state: JobState) -> None:
    bench.client.hset(keys.job("j"), "state", state.value)

    with pytest.raises(JobStateError, match=state.value) as caught:
        bench.jobs.remove("j")

    assert "cancel" in caught.value.hint
    assert bench.jobs.state("j") is state


def test_whoever_is_late_after_a_removal_creates_nothing(bench: Bench) -> None:
    hand = bench.worker()
    reader = bench.reader()
    bench.jobs.erase("j")

    assert hand.commit(Position("2-0"), "yield") == Refused(Refusal.STOPPED)
    assert bench.acquire(hand.row) is None
    assert not bench.owner().declare_trial(hand.row, START)
    bench.leadership.release("j", bench.token)
    with pytest.raises(UnknownJob):
        bench.reader("new")
    with pytest.raises(UnknownJob):
        reader.read()

    assert bench.snapshot() == {}


def test_a_job_may_be_created_again_after_its_removal(bench: Bench) -> None:
    used(bench)
    bench.jobs.erase("j")

    bench.jobs.create("j", bench.plan)
    lane = bench.lane()
    lane.append(1, a_batch("new"))

    assert bench.values() == ["new"]
    assert lane.taken == 1
    assert bench.facts().term == 0


def test_two_jobs_of_one_pipeline_keep_their_data_apart(make: Callable[..., Bench]) -> None:
    one, two = make("a"), make("a.0")
    one.lane().append(1, a_batch("one"))
    two.lane().append(1, a_batch("two"))
    hand = one.worker()
    two.worker()

    hand.work("more")

    assert (one.values(), two.values()) == ([], ["two"])
    assert one.facts().taken == 1
    assert two.facts().taken == 0


def test_dead_letters_are_read_oldest_first_with_their_record(bench: Bench) -> None:
    hand = bench.worker()
    for number in range(3):
        fields = ["stage", 0, "partition", 0, "operator", "op", "error", f"e{number}", "traceback", "tb"]
        payload = encode_batch(a_batch({"n": number}))
        hand.commit(writes=[Write("XADD", keys.dead("j"), [*fields, "payload", payload])])

    letters = bench.jobs.dead_letters("j", 2)

    assert [letter.error for letter in letters] == ["e0", "e1"]
    assert decode_batch(letters[1].payload).values == [{"n": 1}]
    assert (letters[0].stage, letters[0].partition, letters[0].operator) == (0, 0, "op")
    assert bench.jobs.facts("j").dead_letters == 3


def test_what_another_program_put_among_the_dead_letters_is_shown_as_that(bench: Bench) -> None:
    bench.client.xadd(keys.dead("j"), {"stage": "x"})

    (letter,) = bench.jobs.dead_letters("j")

    assert (letter.kind, letter.stage) == ("foreign", -1)
    assert "the field 'stage' is 'x', which is no number" in letter.error


def test_staged_files_come_by_stage_partition_and_term(bench: Bench) -> None:
    hand = bench.worker()
    for place in ("1.10.1", "1.2.10", "1.2.9", "0.3.1"):
        hand.commit(writes=[Write("HSET", keys.files("j"), [f"out {place}", place])])

    assert bench.jobs.staged_files("j") == {"out": [b"0.3.1", b"1.2.9", b"1.2.10", b"1.10.1"]}


def test_memory_is_read(bench: Bench, full_memory: Callable[[], None]) -> None:
    used_bytes, limit = bench.jobs.memory()
    assert used_bytes > 0
    assert limit == 0

    full_memory()

    assert bench.jobs.memory()[1] == 1


def test_without_memory_no_job_is_created(bench: Bench, full_memory: Callable[[], None]) -> None:
    """A6."""
    full_memory()
    before = bench.snapshot()

    with pytest.raises(StoreFull):
        bench.jobs.create("new", bench.plan)

    assert bench.snapshot() == before


def test_several_may_ask_what_they_may_do_at_the_same_time(redis_url: str) -> None:
    def ask(_: int) -> None:
        client = connect(redis_url)
        for _ in range(30):
            check_permissions(client)

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(ask, range(4)))

    assert connect(redis_url).keys("*") == []


def test_a_user_that_may_not_run_scripts_is_told_at_the_start(bench: Bench) -> None:
    """A7: an ACL that forbids a command must not show in the middle of a script."""
    check_permissions(bench.client)
    bench.client.execute_command("ACL", "SETUSER", "weak", "on", ">secret", "~*", "+@read", "+ping", "+info")
    with connect(bench.url.replace("unix://", "unix://weak:secret@")) as weak:
        with pytest.raises(UnsuitableServer, match="may not run our scripts") as caught:
            check_permissions(weak)
        assert "ACL SETUSER" in caught.value.hint

        with pytest.raises(UnsuitableServer):
            JobStore(Scripts(weak)).create("new", bench.plan)
    bench.client.execute_command("ACL", "DELUSER", "weak")


# Removals that are interrupted, or meet each other.


class Interrupting(Scripts):
    """Calls `act` once, before the call of that number."""

    def __init__(self, client: Any, at: int, act: Callable[[], None]) -> None:
        super().__init__(client)
        self.at, self.act, self.calls = at, act, 0

    def run(self, name: str, keys: Sequence[str], args: Sequence[Any]) -> list[Any]:
        self.calls += 1
        if self.calls == self.at:
            self.act()
        return super().run(name, keys, args)


@pytest.mark.parametrize("moment", ["before", "after"])
@pytest.mark.parametrize("finisher", ["create", "remove", "nobody else"])
def test_a_removal_that_was_killed_at_any_call_leaves_nothing_in_the_end(
    make: Callable[..., Bench], moment: Moment, finisher: str
) -> None:
    for at in range(1, 100):
        bench = make(a_job_id())
        used(bench)
        scripts = FlakyScripts(bench.client)
        scripts.break_call(moment, at)
        with suppress(StoreUnavailable):
            JobStore(scripts).erase(bench.job)
        was_killed = not scripts.faults
        if finisher == "create":
            with suppress(JobStateError):  # killed before anything was done
                bench.jobs.create(bench.job, bench.plan)
        if finisher == "remove":
            bench.jobs.finish_removal(bench.job)
        if finisher == "create" and bench.client.exists(keys.job(bench.job)) and at > 1:
            fresh = {keys.job(bench.job), keys.control(bench.job), *(keys.meta(bench.job, *p) for p in (ENTRY, KEYED))}
            assert {key.decode() for key in bench.client.keys(f"{keys.of_job(bench.job)}*")} == fresh
        bench.jobs.erase(bench.job)
        assert bench.snapshot() == {}
        if not was_killed:
            break
    assert at > 3


@pytest.mark.parametrize("at", range(2, 6))
def test_a_removal_that_was_overtaken_does_not_touch_the_new_job(bench: Bench, at: int) -> None:
    used(bench)

    def overtake() -> None:
        bench.jobs.create("j", bench.plan)
        bench.lane().append(1, a_batch("new"))

    JobStore(Interrupting(bench.client, at, overtake)).erase("j")

    assert bench.values() == ["new"]
    assert bench.jobs.list_ids() == ["j"]
    assert bench.lane().taken == 1


def test_a_job_that_is_being_removed_is_nobodys(bench: Bench) -> None:
    scripts = FlakyScripts(bench.client)
    scripts.break_call("before", 2)
    with pytest.raises(StoreUnavailable):
        JobStore(scripts).erase("j")

    assert bench.jobs.list_ids() == ["j"]
    with pytest.raises(UnknownJob):
        bench.jobs.read("j")
    assert bench.jobs.finish_removal("j")
    assert not bench.jobs.finish_removal("j")
    assert bench.jobs.list_ids() == []


def left_behind(bench: Bench) -> None:
    """A removal of the job was killed in the middle."""
    used(bench)
    scripts = FlakyScripts(bench.client)
    scripts.break_call("before", 2)
    with suppress(StoreUnavailable):
        JobStore(scripts).erase("j")


@pytest.mark.parametrize("at", range(1, 8))
@pytest.mark.parametrize("late", ["create", "finish"])
def test_a_new_job_is_not_taken_for_what_a_removal_has_left(bench: Bench, at: int, late: str) -> None:
    left_behind(bench)

    def overtake() -> None:
        bench.jobs.create("j", bench.plan)
        bench.lane().append(1, a_batch("new"))

    scripts = Interrupting(bench.client, at, overtake)
    store = JobStore(scripts)
    if late == "create":
        with pytest.raises(JobStateError, match="exists already; it is running"):
            store.create("j", bench.plan)
    else:
        store.finish_removal("j")
        if scripts.calls < at:
            overtake()

    assert bench.values() == ["new"]
    assert bench.jobs.list_ids() == ["j"]


def test_of_two_that_want_the_id_of_an_interrupted_removal_one_gets_it(bench: Bench) -> None:
    left_behind(bench)

    def take_over() -> None:
        scripts = FlakyScripts(bench.client)
        scripts.break_call("before", 2)
        with suppress(StoreUnavailable):
            JobStore(scripts).finish_removal("j")

    class Rival(Interrupting):
        def run(self, name: str, keys: Sequence[str], args: Sequence[Any]) -> list[Any]:
            if name == "removed":
                take_over()
            return super().run(name, keys, args)

    with pytest.raises(JobStateError, match="being removed by another process") as caught:
        JobStore(Rival(bench.client, 0, take_over)).create("j", bench.plan)
    assert caught.value.hint

    bench.jobs.create("j", bench.plan)
    assert bench.jobs.list_ids() == ["j"]


def test_a_job_that_runs_on_meanwhile_is_not_removed(bench: Bench) -> None:
    bench.jobs.transition("j", JobState.FAILED)

    def run_on() -> None:
        bench.jobs.transition("j", JobState.RUNNING)

    with pytest.raises(JobStateError, match="running"):
        JobStore(Interrupting(bench.client, 1, run_on)).remove("j")

    assert bench.jobs.state("j") is JobState.RUNNING


def test_a_change_of_state_is_never_from_before_the_last_one(bench: Bench) -> None:
    """Whoever has seen a later instant would take the change for lost, when a clock was set back."""
    later = bench.jobs.read("j").changed_at_ms + 60_000
    bench.client.hset(keys.job("j"), "now", later)

    bench.jobs.transition("j", JobState.DRAINING)
    assert bench.jobs.read("j").changed_at_ms == later

    losses = LossStore(Scripts(bench.client), "j")
    losses.report(bench.jobs.read("j").run, ["something is missing"])
    assert bench.jobs.read("j").state is JobState.FAILED
    assert bench.jobs.read("j").changed_at_ms >= later

    losses.accept(bench.jobs.read("j"))
    assert bench.jobs.read("j").changed_at_ms >= later


def test_a_claim_is_held_also_when_the_answer_to_that_was_lost_and_no_more_when_another_has_it(bench: Bench) -> None:
    claim = bench.jobs.claim("j", "")
    unheard = bench.jobs.hold_claim("j", claim)

    held = bench.jobs.hold_claim("j", claim)

    assert held.partition(" ")[2] == unheard.partition(" ")[2] == claim.partition(" ")[2]
    assert bench.jobs.claim("j", claim + "0") == ""
    other = bench.jobs.claim("j", held)
    assert other
    assert bench.jobs.hold_claim("j", held) == ""


@pytest.mark.parametrize(
    ("rules", "missing"),
    [
        (("~celeriac:*", "&*", "+@all", "-xadd"), "XADD"),
        (("~celeriac:*", "&*", "+@all", "-hset", "-zadd"), "HSET, ZADD"),
        (("~celeriac:*", "&*", "+@all", "-eval"), "EVAL"),
        (("~celeriac:*", "&*", "+@all", "-evalsha"), "EVALSHA"),
        (("~celeriac:*", "&*", "+@all", "-brpop"), "BRPOP"),
        (("~celeriac:*", "&*", "+@all", "-info"), "INFO"),
        (("~other:*", "&*", "+@all"), "the keys that begin with celeriac:"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_an_acl_that_is_too_narrow_is_told_with_the_commands_that_it_lacks(
    bench: Bench, rules: tuple[str, ...], missing: str
) -> None:
    bench.client.execute_command("ACL", "SETUSER", "weak", "reset", "on", ">secret", *rules)
    try:
        url = bench.url.replace("unix://", "unix://weak:secret@")
        with connect(url) as weak, pytest.raises(UnsuitableServer) as caught:
            check_permissions(weak)
    finally:
        bench.client.execute_command("ACL", "DELUSER", "weak")

    assert missing in str(caught.value)
    assert "ACL SETUSER" in caught.value.hint


def test_the_rule_of_the_hint_is_enough(bench: Bench) -> None:
    rule = RULE.split(" … ")[1].split()
    bench.client.execute_command("ACL", "SETUSER", "narrow", "reset", "on", ">secret", *rule)
    with connect(bench.url.replace("unix://", "unix://narrow:secret@")) as narrow:
        check_permissions(narrow)
    bench.client.execute_command("ACL", "DELUSER", "narrow")
