"""A shadow gets the same input as its job, gives nothing to anybody, is compared, and is promoted or dropped whole."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec
import pytest

from leader.duties.shadows import Shadows
from pipeline import Pipeline, hold_key, read, write
from pipeline.errors import Busy, OperationLost, SavepointError, ShadowLost, SourcePaused, StoreUnavailable
from pipeline.lifecycle import JobState
from pipeline.operations import CLAIM_SECONDS, About, Phase
from pipeline.plan import Plan, compile_plan, echo_name
from pipeline.settings import Limits
from pipeline.shadowing import reading
from pipeline.shadowing.carrying import Candidate, make_shadow
from pipeline.shadowing.course import Course, NotPromoted, Wish
from pipeline.shadowing.holding import plan_of, shadow_differences
from pipeline.store import keys
from pipeline.store.claims import ClaimStore
from pipeline.store.cuts import CutStore
from pipeline.store.letters import LetterStore
from pipeline.store.shadows import ShadowStore
from pipeline.versions import Version
from tests.runtime.harness import FlakyScripts, LocalJob
from tests.runtime.shadows import CODE, Pair, begin, goes_on
from verification.points import SCRIPTS


def summing(step: int = 1, name: str = "total") -> Pipeline:
    """Each record adds `step` to the sum of its key; the new sum goes to `out`, each record itself to `seen`."""

    def add(_key: Any, value: Any, state: int | None) -> tuple[int, int]:
        if value[1] == "fail" and step > 1:
            raise ValueError("the new version does not know it")
        return (state or 0) + step, (state or 0) + step

    flow = Pipeline("sums")
    records = flow.source(read.producer(), name="in")
    records.sink(write.stream("seen"), name="seen")
    records.key_by(lambda pair: pair[0], name="by_key").stateful_map(add, name=name).sink(
        write.stream("out"), name="out"
    )
    return flow


def records(text: str) -> list[list[Any]]:
    return [[letter, number] for number, letter in enumerate(text)]


def everything(job: LocalJob) -> dict[bytes, bytes]:
    client = job.client
    return {name: client.dump(name) for name in client.scan_iter(match=f"{keys.of_job(job.job)}*")}


@pytest.fixture
def job(redis_url: str) -> Iterator[LocalJob]:
    with LocalJob(redis_url, summing()) as made:
        made.assign()
        yield made


@pytest.fixture
def site(job: LocalJob, tmp_path: Path) -> Iterator[Any]:
    """Makes shadows, and takes away what is left of them."""
    pairs: list[Pair] = []

    def make(flow: Pipeline, **more: Any) -> Pair:
        pairs.append(Pair(job, flow, tmp_path, **more))
        pairs[-1].shadow.look()
        return pairs[-1]

    yield make
    for pair in pairs:
        with suppress(OperationLost, AssertionError):
            pair.close()


def test_the_same_version_gives_the_same_results_from_any_cut_on(job: LocalJob, site: Any) -> None:
    job.send(records("abca"), entry_records=1)
    job.run_until_idle()
    job.send(records("aab"), entry_records=2)  # in flight at the cut
    pair = site(summing())
    job.send(records("caab"), entry_records=1)
    pair.work()

    report = pair.one.report()
    assert {name: (tally.equal, tally.compared, tally.waiting) for name, tally in report.sinks.items()} == {
        "out": (7, 7, [0, 0]),
        "seen": (7, 7, [0, 0]),
    }
    assert (report.lag, report.different, report.first) == (0, 0, [])
    assert pair.shadow.state() == job.state()
    assert pair.shadow.findings() == job.findings() == []


def test_results_that_were_read_before_a_reply_was_lost_are_compared(
    job: LocalJob, site: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    pair = site(summing())
    job.send(records("abca"))
    job.run_until_idle()
    pair.one._pour()
    pair.shadow.run_until_idle()
    read_right = reading.read_range
    to_lose = {(each, echo_name(sink)) for each in ("j", pair.one.shadow) for sink in ("out", "seen")}

    def read_range(client: Any, of: str, stream: str, *more: Any) -> Iterator[Any]:
        if (of, stream) in to_lose:
            to_lose.remove((of, stream))
            raise StoreUnavailable("the reply was lost (by the test)")
        yield from read_right(client, of, stream, *more)

    monkeypatch.setattr(reading, "read_range", read_range)
    for _ in range(4):
        with pytest.raises(StoreUnavailable):
            pair.one.step()
    pair.work()

    assert not to_lose
    tallies = {name: (tally.equal, tally.compared, tally.waiting) for name, tally in pair.one.report().sinks.items()}
    assert tallies == {"out": (4, 4, [0, 0]), "seen": (4, 4, [0, 0])}


def test_what_the_shadow_gives_reaches_nobody(job: LocalJob, site: Any) -> None:
    pair = site(summing(step=10))
    job.send(records("ab"))
    pair.work()

    assert job.by_key() == {"a": [1], "b": [1]}
    assert pair.shadow.plan.sinks[0].format == "stream"
    assert not any(name for name in pair.shadow.outputs if not name.startswith("~shadow."))


def test_differences_are_told_with_sink_key_and_both_values(job: LocalJob, site: Any) -> None:
    job.send(records("a"))
    pair = site(summing(step=10))
    job.send(records("ab"))
    pair.work()
    pair.one.comparison.settle()

    report = pair.one.report()
    assert [(each.sink, each.key, each.live, each.shadow) for each in sorted(report.first, key=repr)] == [
        ("out", "a", "1", "10"),
        ("out", "a", "2", "20"),
        ("out", "b", "1", "10"),
    ]
    assert report.sinks["seen"].equal == 3
    assert (report.keys, report.keys_alike) == (2, 0)


def test_what_only_the_new_version_gives_up_is_told(job: LocalJob, site: Any) -> None:
    pair = site(summing(step=10))
    job.send([["a", "fail"]])
    pair.work()

    report = pair.one.report()
    assert report.letters == (0, 1)
    assert report.letter_lines == ["operator total: ValueError: the new version does not know it"]


def test_a_dropped_shadow_leaves_nothing(job: LocalJob, site: Any) -> None:
    job.send(records("ab"))
    job.run_until_idle()
    before = {name for name in job.client.scan_iter() if b"operation" not in name}
    pair = site(summing(step=10))
    job.send(records("ab"))
    pair.work()
    pair.close()

    assert {name for name in job.client.scan_iter() if b"operation" not in name} == before
    job.run_until_idle()
    job.send(records("a"))
    job.run_until_idle()
    assert job.by_key() == {"a": [1, 2, 3], "b": [1, 2]}
    assert not job.jobs.read("j").plan.has_echoes
    assert [past.outcome for past in job.jobs.read("j").operations] == ["dropped"]


def test_a_promoted_shadow_goes_on_with_its_own_state_under_the_job(job: LocalJob, site: Any) -> None:
    job.send(records("aab"))
    job.run_until_idle()
    pair = site(summing(step=10))
    job.send(records("abc"))
    pair.promote()
    pair.close("promoted")

    new = goes_on(job, summing(step=10))
    new.send(records("abcd"))
    new.run_until_idle()

    # 2 at the cut, one record of the shadow: 12; its outputs until here were held back.
    assert new.by_key() == {"a": [1, 2, 3, 22], "b": [1, 2, 21], "c": [1, 20], "d": [10]}
    assert new.findings() == []
    record = new.jobs.read("j")
    assert (record.code, record.shadow, record.plan.has_echoes) == (CODE, "", False)
    assert [past.outcome for past in record.operations] == ["promoted"]
    assert record.paused == {}


def test_an_operator_of_another_name_begins_anew_and_the_old_one_is_gone(job: LocalJob, site: Any) -> None:
    job.send(records("aa"))
    job.run_until_idle()
    with pytest.raises(SavepointError, match="operator 'total' and its state"):
        site(summing(name="sum"))
    token = job.jobs.read("j").shadow.partition(" ")[0]
    assert ShadowStore(job._scripts, "j").take_away(token, is_own=True, outcome="given up")
    pair = site(summing(name="sum"), options={"allow_dropped": True})
    assert pair.one.lines == ("dropped: operator 'total' and its state", "new: operator 'sum' begins without state")
    job.send(records("a"))
    pair.promote()
    pair.close("promoted")

    new = goes_on(job, summing(name="sum"))
    new.send(records("a"))
    new.run_until_idle()
    assert new.by_key() == {"a": [1, 2, 3, 2]}
    assert new.state() == {("sum", "a"): 2}


def test_keys_that_are_held_go_on_when_their_letter_is_replayed_under_the_new_version(
    redis_url: str, tmp_path: Path
) -> None:
    def flow(step: int) -> Pipeline:
        made = Pipeline("held")
        keyed = made.source(read.producer(), name="in").key_by(lambda v: v[0], name="by", on_error=hold_key())
        keyed.map(lambda v: v[step], name="pick").sink(write.stream("out"), name="out")
        return made

    with LocalJob(redis_url, flow(1)) as job:
        job.assign()
        job.send([["a"], ["a", 1, 2], ["b", 1, 2]])
        job.run_until_idle()
        pair = Pair(job, flow(2), tmp_path)
        pair.shadow.look()
        job.send([["a", 3, 4], ["c", 5]])
        pair.promote()
        pair.close("promoted")
        new = goes_on(job, flow(2))
        letters = LetterStore(new._scripts, new.jobs.read("j"))
        first, second = letters.read()
        assert (first.behind, second.behind, new.findings()) == (2, 0, [])
        letters.edit(first, ["a", 7, 8])
        letters.replay(letters.get(first.id))
        new.run_until_idle()

        assert new.by_key() == {"a": [8, 2, 4], "b": [1], "c": [5]}
        assert new.findings() == []


def test_a_worker_of_the_version_before_does_nothing_more(job: LocalJob, site: Any) -> None:
    job.worker().code = "c0de00000001"
    job.send(records("a"))
    pair = site(summing(step=10))
    pair.promote()
    job.assign()  # a leader that does not know yet
    job.send(records("a"))
    job.run_and_sweep()

    assert job.worker().is_outdated
    assert job.by_key() == {"a": [1]}
    pair.close("promoted")
    new = goes_on(job, summing(step=10))
    new.run_and_sweep()
    assert new.by_key() == {"a": [1, 20]}


def test_a_shadow_is_not_promoted_before_both_have_processed_the_same(job: LocalJob, site: Any) -> None:
    pair = site(summing(step=10))
    job.send(records("ab"))
    before = everything(job)

    assert not pair.one.try_to_promote("/new.py")
    job.run_until_idle()
    assert not pair.one.try_to_promote("/new.py")
    pair.one.step()
    assert not pair.one.try_to_promote("/new.py")
    pair.shadow.run_until_idle()
    assert pair.one.try_to_promote("/new.py")
    assert before != everything(job)


def test_input_that_only_one_of_both_has_keeps_it_from_being_promoted_before_both_have_it(
    job: LocalJob, site: Any
) -> None:
    pair = site(summing(step=10))
    job.send(records("ab"))
    job.run_until_idle()
    place = next(at for at in job.places if at[0] == 0 and job.facts(at).head)
    tee = keys.tee("j", *place)
    kept = job.client.xrange(tee)
    job.client.delete(tee)
    assert not pair.one.try_to_promote("/new.py")
    for id_, fields in kept:
        job.client.xadd(tee, fields, id_)
    pair.work()
    job.client.xadd(tee, {"h": "["})
    assert not pair.one.try_to_promote("/new.py")
    job.client.delete(tee)
    assert pair.one.try_to_promote("/new.py")


def test_promoting_again_after_a_lost_answer_changes_nothing(job: LocalJob, site: Any) -> None:
    pair = site(summing(step=10))
    job.send(records("ab"))
    pair.promote()
    before = everything(job)

    assert pair.one.try_to_promote("/new.py")
    assert everything(job) == before


def test_dead_letters_are_those_of_the_version_that_goes_on(job: LocalJob, site: Any) -> None:
    pair = site(summing(step=10))
    job.send([["a", "fail"], ["a", 1]])
    pair.promote()
    pair.close("promoted")

    new = goes_on(job, summing(step=10))
    assert [letter.operator for letter in new.letters()] == ["total"]
    assert new.state() == {("total", "a"): 10}
    assert new.findings() == []


def test_a_shadow_that_is_too_slow_is_given_up_and_stops_nobody(job: LocalJob, site: Any) -> None:
    pair = site(summing(), room_bytes=1_000)
    for _ in range(50):
        job.send(records("abc"))
        job.run_until_idle()

    with pytest.raises(ShadowLost, match="MiB of input wait for it"):
        pair.one.check()
    assert len(job.read("seen")) == 150
    assert job.client.hget(keys.job("j"), "tee") is None


def test_results_that_were_trimmed_unread_end_it(job: LocalJob, tmp_path: Path) -> None:
    pair = Pair(job, summing(), tmp_path)
    job.client.delete(keys.out("j", "~shadow.out"))
    job.send(records("aaa"))
    job.run_until_idle()
    job.client.xtrim(keys.out("j", "~shadow.out"), maxlen=0)
    job.client.hset(keys.out_meta("j", "~shadow.out"), "pos", "4-0")

    with pytest.raises(ShadowLost, match="came faster"):
        pair.one.step()
    pair.close()


def test_a_shadow_of_another_shape_is_refused() -> None:
    old = plan_of(summing().graph(), plan_of(summing().graph(), _plan()))
    flow = Pipeline("sums")
    flow.source(read.producer(), name="in").key_by(lambda pair: pair[0], name="other").stateful_map(
        lambda _key, _value, _state: (0, 0), name="total"
    ).sink(write.stream("out2"), name="out")

    lines = shadow_differences(old, plan_of(flow.graph(), old))

    assert lines == [
        "sink 'seen' is gone",
        "sink 'out' is another one",
        "stage 'by_key' is gone",
        "stage 'other' is new",
        "stage 'in' is another one",
    ]
    assert shadow_differences(old, plan_of(summing(5, "sum").graph(), old)) == []


def _plan() -> Plan:
    return compile_plan(summing().graph(), 2, Limits())


def test_nothing_else_begins_beside_a_shadow_and_its_letters_stay(job: LocalJob, site: Any) -> None:
    job.send([["a"]])  # no second value: a dead letter of both versions
    job.run_until_idle()
    pair = site(summing())
    letters = LetterStore(job._scripts, job.jobs.read("j"))
    (letter,) = letters.read()

    with pytest.raises(Busy, match="shadow of version"):
        begin(job)
    with pytest.raises(Busy, match="shadow of version"):
        job.begin_rescale(1, 3)
    with pytest.raises(Busy, match="a shadow runs beside it"):
        letters.replay(letter)
    with pytest.raises(Busy, match="a shadow runs beside it"):
        letters.drop([letter.id])
    pair.close()
    assert letters.drop([letter.id]) == 1


def silence(job: LocalJob) -> None:
    """The command was not heard for as long as its claim lasts."""
    until = int(job.client.hget(keys.operation("j"), "until"))
    job.client.hset(keys.operation("j"), "until", until - int(CLAIM_SECONDS * 1000) - 1)


@pytest.mark.parametrize("is_held", [False, True])
def test_what_a_killed_command_has_left_is_taken_away(job: LocalJob, site: Any, is_held: bool) -> None:
    pair = site(summing(step=10))
    job.send(records("ab"))
    if is_held:
        pair.one.hold(job.jobs.read("j"))
    assert not pair.store.take_away(pair.claim.token, is_own=False, outcome="given up")
    silence(job)
    with pytest.raises(Busy):
        begin(job)

    assert pair.store.take_away(pair.claim.token, is_own=False, outcome="given up")
    assert not pair.store.take_away(pair.claim.token, is_own=False, outcome="given up")

    record = job.jobs.read("j")
    assert (record.paused, record.shadow, [past.outcome for past in record.operations]) == ({}, "", ["given up"])
    assert job.jobs.list_ids() == ["j"]
    with pytest.raises((OperationLost, ShadowLost)):
        pair.one.step()
    job.send(records("a"))
    job.run_until_idle()
    assert job.by_key() == {"a": [1, 2], "b": [1]}


def test_what_was_promoted_stays_so_when_its_command_is_killed_right_then(job: LocalJob, site: Any) -> None:
    pair = site(summing(step=10))
    job.send(records("ab"))
    pair.promote()
    silence(job)

    assert pair.store.take_away(pair.claim.token, is_own=False, outcome="given up")

    assert [past.outcome for past in job.jobs.read("j").operations] == ["promoted"]
    new = goes_on(job, summing(step=10))
    new.send(records("a"))
    new.run_until_idle()
    assert new.by_key() == {"a": [1, 20], "b": [1]}


@pytest.mark.parametrize("end", ["promoted", "let go", "taken away"])
def test_a_source_that_is_paused_while_a_promotion_holds_it_back_stays_paused(
    job: LocalJob, site: Any, end: str
) -> None:
    pair = site(summing(step=10))
    record = job.jobs.read("j")
    pair.one.hold(record)

    assert job.jobs.pause(record, "in", is_paused=True)
    pair.work()
    match end:
        case "promoted":
            assert pair.one.try_to_promote("/new.py")
        case "let go":
            pair.one.let_go(record)
        case _:
            pair.close()

    assert set(job.jobs.read("j").paused) == {"in"}
    with pytest.raises(SourcePaused):
        job.send(records("a"))


def a_course(pair: Pair) -> Course:
    now = iter(range(10_000))
    return Course(pair.one, "/new.py", clock=lambda: float(next(now)), sleep=lambda _: pair.work())


def want(pair: Pair, **what: Any) -> None:
    assert pair.store.want(msgspec.json.encode(Wish(**what)).decode())


def test_the_course_of_a_shadow_ends_when_it_is_dropped_by_another_command(site: Any) -> None:
    pair = site(summing())
    want(pair, verb="drop")

    assert a_course(pair).run() == "dropped"


def test_the_course_of_a_shadow_ends_when_it_is_promoted_by_another_command(job: LocalJob, site: Any) -> None:
    pair = site(summing())
    job.send(records("abc"))
    want(pair, verb="promote")

    assert a_course(pair).run() == "promoted"
    assert job.jobs.state(pair.one.shadow) is JobState.CANCELLED


def test_a_promotion_of_which_only_the_answer_was_lost_is_one(job: LocalJob, site: Any) -> None:
    scripts = FlakyScripts(job.client)
    pair = site(summing(), scripts=scripts)
    job.send(records("abc"))
    pair.work()
    want(pair, verb="promote")
    scripts.spared = SCRIPTS - {"promote"}
    scripts.break_call("after")
    now = iter(range(10_000))

    assert Course(pair.one, "/new.py", clock=lambda: float(next(now)), sleep=lambda _: None).run() == "promoted"
    assert "promote" in scripts.calls
    assert job.jobs.read("j").code == CODE


def test_differences_keep_it_from_being_promoted_unless_they_are_meant(job: LocalJob, site: Any) -> None:
    pair = site(summing(step=10))
    job.send(records("abc"))
    course = a_course(pair)

    with pytest.raises(NotPromoted, match="otherwise than the job's: 3 results"):
        course._promote(Wish("promote"))
    assert job.jobs.read("j").paused == {}
    course._promote(Wish("promote", accepts=True))
    assert job.jobs.read("j").code == CODE


def test_a_promotion_that_takes_too_long_lets_the_input_flow_again(job: LocalJob, site: Any) -> None:
    pair = site(summing())
    job.send(records("abc"))
    now = iter(range(10_000))
    course = Course(pair.one, "/new.py", clock=lambda: float(next(now)), sleep=lambda _: None)

    with pytest.raises(NotPromoted, match="not all was processed after 20 s"):
        course._promote(Wish("promote", wait_seconds=20))
    assert job.jobs.read("j").paused == {}
    job.send(records("abc"))


def test_the_end_of_the_job_ends_its_shadow(job: LocalJob, site: Any) -> None:
    pair = site(summing())
    job.jobs.transition("j", JobState.CANCELLED, "by hand")

    with pytest.raises(ShadowLost, match="job 'j' is cancelled"):
        pair.one.check()


def test_what_is_no_token_of_the_shadow_changes_nothing(job: LocalJob, site: Any) -> None:
    pair = site(summing())
    before = everything(job)

    assert not pair.store.take_away("other", is_own=True, outcome="x")
    with pytest.raises(ShadowLost):
        pair.store.pour("other", pair.one.shadow, pair.one.plan, 0, 0)
    with pytest.raises(ShadowLost):
        pair.store.report("other", b"{}")
    assert everything(job) == before


def test_the_end_of_the_input_reaches_the_shadow(job: LocalJob, site: Any) -> None:
    pair = site(summing())
    job.send(records("abca"))
    job.end_input()
    pair.work()

    pair.shadow.assert_done()
    job.assert_done()
    assert (pair.one.report().sinks["out"].equal, pair.one.report().different) == (4, 0)


def test_a_stage_with_another_number_of_partitions_has_a_shadow(redis_url: str, tmp_path: Path) -> None:
    with LocalJob(redis_url, summing()) as job:
        job.assign()
        job.rescale(1, 3)
        job.rescale(1, 1)
        job.send(records("aabc"))
        pair = Pair(job, summing(step=10), tmp_path)
        pair.shadow.look()
        job.send(records("abca"))
        pair.promote()
        pair.close("promoted")
        new = goes_on(job, summing(step=10))
        new.send(records("abc"))
        new.run_until_idle()

        assert new.newest() == {"a": 50, "b": 30, "c": 30}
        assert new.findings() == []


def test_the_leader_takes_away_what_a_command_has_left(job: LocalJob, site: Any) -> None:
    pair, duty = site(summing()), Shadows(job._scripts)
    assert duty.run_once(job.jobs.facts("j"), job.token) == {}
    silence(job)

    assert duty.run_once(job.jobs.facts("j"), job.token) == {"shadows_taken_away": 1}
    assert duty.run_once(job.jobs.facts("j"), job.token) == {}
    assert job.jobs.list_ids() == ["j"]
    assert pair.store.read() is None


def test_a_command_that_was_killed_while_it_made_the_shadow_leaves_nothing(job: LocalJob, tmp_path: Path) -> None:
    job.send(records("ab"))
    job.run_until_idle()
    for calls in itertools.count():
        before = set(job.client.scan_iter())
        scripts = FlakyScripts(job.client)
        claim = ClaimStore(job._scripts).undertake("j", About("shadow", by="me", code=CODE), Phase.COPYING)
        candidate = Candidate(summing().graph(), Version("shadow", CODE, "", "new.py", "me"), 1 << 20)
        scripts.break_call("after", calls + 1)
        with suppress(StoreUnavailable):
            make_shadow(scripts, claim, candidate, tmp_path)
        is_over = bool(scripts.faults)
        silence(job)
        store = ShadowStore(job._scripts, "j")
        store.take_away(claim.token, is_own=False, outcome="given up")
        assert job.jobs.list_ids() == ["j"]
        if job.client.exists(keys.savepoint("j")):  # the leader lets that go when its lease is over
            job.client.hset(keys.savepoint("j"), "until", 0)
            assert CutStore(job._scripts, "j", job.jobs.read("j").plan).tidy()
        assert {name for name in job.client.scan_iter() if b"operation" not in name} <= before
        job.run_until_idle()
        if is_over:
            return


def test_whoever_takes_a_shadow_away_may_be_killed_at_each_call(job: LocalJob, site: Any) -> None:
    names = set(job.client.scan_iter())
    for calls in itertools.count(1):
        pair = site(summing())
        scripts = FlakyScripts(job.client)
        scripts.break_call("after", calls)
        silence(job)
        with suppress(StoreUnavailable):
            ShadowStore(scripts, "j").take_away(pair.claim.token, is_own=False, outcome="given up")
        pair.store.take_away(pair.claim.token, is_own=False, outcome="given up")

        assert {name for name in job.client.scan_iter() if b"shadow" in name or b"operation" in name} <= names
        assert job.jobs.list_ids() == ["j"]
        job.run_until_idle()
        if scripts.faults:
            return
