"""Operations that their command carries out: one at a time with all others, taken over when the command is gone."""

from __future__ import annotations

from typing import Final

import pytest
from bench import Bench

from pipeline.errors import Busy, ForeignData, JobStateError, OperationLost, UnknownJob
from pipeline.lifecycle import JobState
from pipeline.operations import About, Claim, Operation, Phase
from pipeline.store import keys
from pipeline.store.claims import ClaimStore
from pipeline.store.cuts import CutStore
from pipeline.store.operations import OperationStore
from pipeline.store.versions import VersionStore
from pipeline.versions import Version, Wanted

UPGRADE: Final = About("upgrade", by="me@here", code="c2", file="b.py")
VERSION: Final = Version("upgraded", "c2", "f", "b.py", "me@here")


def undertake(bench: Bench) -> Claim:
    return ClaimStore(bench.scripts).undertake("j", UPGRADE, Phase.ROLLING)


def begin_rescale(bench: Bench) -> str:
    record = bench.jobs.read("j")
    return OperationStore(bench.scripts).begin(record, record.plan.stage(1), 3, "me")


def shown(bench: Bench) -> Operation:
    found = bench.jobs.facts("j").operation
    assert found is not None
    return found


def outcomes(bench: Bench) -> list[tuple[str, str]]:
    return [(past.about.change, past.outcome) for past in bench.jobs.read("j").operations]


def silence(bench: Bench) -> None:
    """The command has said nothing for longer than its claim lasts."""
    bench.client.hset(keys.operation("j"), "until", "1")


def test_an_upgrade_is_shown_with_its_progress_and_its_end(bench: Bench) -> None:
    store = ClaimStore(bench.scripts)
    claim = undertake(bench)
    begun = shown(bench)
    assert (begun.about, begun.phase, begun.done, begun.total) == (UPGRADE, Phase.ROLLING, 0, 0)
    assert not begun.is_abandoned(bench.jobs.facts("j").now_ms)

    store.renew(claim, Phase.ROLLING, 1, 3)
    going = shown(bench)
    assert (going.phase, going.done, going.total) == (Phase.ROLLING, 1, 3)
    assert (going.id, going.begun_at_ms, going.since_ms) == (begun.id, begun.begun_at_ms, begun.since_ms)
    assert going.until_ms >= begun.until_ms

    store.renew(claim, Phase.FINISHING, 3, 3)
    assert shown(bench).phase is Phase.FINISHING
    store.end(claim, "done")
    assert bench.jobs.facts("j").operation is None
    assert outcomes(bench) == [("upgrade to version c2 of b.py", "done")]


def test_nothing_else_begins_while_an_upgrade_is_under_way(bench: Bench) -> None:
    undertake(bench)

    with pytest.raises(Busy, match="'j' is busy: upgrade to version c2, since 0 s, phase rolling") as refused:
        begin_rescale(bench)
    assert "if its command is gone, it holds the job for 15 s at most" in refused.value.hint
    with pytest.raises(Busy, match="upgrade to version c2"):
        undertake(bench)
    with pytest.raises(Busy, match="upgrade to version c2"):
        CutStore(bench.scripts, "j", bench.plan).cut("s")
    with pytest.raises(Busy, match="upgrade to version c2"):
        CutStore(bench.scripts, "j", bench.plan).cut("s", JobState.SUSPENDED)
    with pytest.raises(JobStateError, match="too late: the upgrade to version c2 is rolling"):
        OperationStore(bench.scripts).call_off("j")
    assert outcomes(bench) == []


def test_an_upgrade_does_not_begin_while_something_else_is_under_way(bench: Bench) -> None:
    begin_rescale(bench)
    with pytest.raises(Busy, match="busy: rescale of words, since 0 s, phase waiting"):
        undertake(bench)
    OperationStore(bench.scripts).call_off("j")

    store = CutStore(bench.scripts, "j", bench.plan)
    cut = store.cut("s")
    with pytest.raises(Busy, match="the savepoint s is being written"):
        undertake(bench)
    store.let_go(cut)
    undertake(bench)


@pytest.mark.parametrize("kind", ["upgrade", "rescale", "savepoint"])
def test_what_a_killed_command_has_left_gives_way_and_its_late_writes_are_refused(bench: Bench, kind: str) -> None:
    versions, claims = VersionStore(bench.scripts), ClaimStore(bench.scripts)
    old = undertake(bench)
    silence(bench)
    assert shown(bench).is_abandoned(bench.jobs.facts("j").now_ms)

    match kind:
        case "upgrade":
            assert undertake(bench) != old
        case "rescale":
            begin_rescale(bench)
        case _:
            CutStore(bench.scripts, "j", bench.plan).cut("s")

    assert outcomes(bench) == [("upgrade to version c2 of b.py", "given up: its command is gone")]
    with pytest.raises(OperationLost, match="its command was not heard for 15 s"):
        claims.renew(old, Phase.ROLLING, 1, 2)
    with pytest.raises(OperationLost):
        claims.end(old, "done")
    with pytest.raises(OperationLost):
        versions.want("j", "w0", Wanted("c2"), claim=old)
    with pytest.raises(OperationLost):
        versions.want("j", "*", Wanted("c2"), claim=old)
    with pytest.raises(OperationLost):
        versions.add("j", VERSION, claim=old)
    assert (versions.rollout("j"), versions.versions("j")) == ({}, [])
    assert outcomes(bench) == [("upgrade to version c2 of b.py", "given up: its command is gone")]


def test_a_command_that_was_silent_goes_on_when_nobody_has_come(bench: Bench) -> None:
    claim, versions = undertake(bench), VersionStore(bench.scripts)
    silence(bench)

    versions.want("j", "w0", Wanted("c2"), claim=claim)
    ClaimStore(bench.scripts).renew(claim, Phase.ROLLING, 1, 2)

    assert not shown(bench).is_abandoned(bench.jobs.facts("j").now_ms)
    with pytest.raises(Busy):
        begin_rescale(bench)


def test_the_holder_of_the_claim_says_what_workers_are_to_run(bench: Bench) -> None:
    claim, versions = undertake(bench), VersionStore(bench.scripts)
    versions.add("j", VERSION, claim=claim)
    versions.want("j", "w0", Wanted("c2"), claim=claim)

    assert versions.rollout("j") == {"w0": Wanted("c2")}
    assert [each.code for each in versions.versions("j")] == ["c2"]


def test_a_cancelled_job_is_upgraded_and_a_finished_one_is_not(bench: Bench) -> None:
    bench.jobs.transition("j", JobState.CANCELLED)
    ClaimStore(bench.scripts).end(undertake(bench), "done")

    bench.client.hset(keys.job("j"), "state", "finished")
    with pytest.raises(JobStateError, match="'j' is finished"):
        undertake(bench)
    bench.client.hset(keys.job("j"), mapping={"state": "cancelled", "restoring": "n s"})
    with pytest.raises(JobStateError, match="being restored"):
        undertake(bench)
    with pytest.raises(UnknownJob):
        ClaimStore(bench.scripts).undertake("k", UPGRADE, Phase.ROLLING)


def test_what_is_no_key_of_ours_changes_nothing(bench: Bench) -> None:
    claims, key = ClaimStore(bench.scripts), keys.operation("j")
    bench.client.set(key, "mine")
    for call in (lambda: undertake(bench), lambda: claims.renew(Claim("j", "x"), Phase.ROLLING, 0, 0)):
        with pytest.raises(ForeignData):
            call()
    assert bench.client.get(key) == b"mine"
    bench.client.delete(key)

    claim = undertake(bench)
    bench.client.hset(key, "begun_at", "yesterday")
    for call in (lambda: undertake(bench), lambda: begin_rescale(bench), lambda: claims.end(claim, "done")):
        with pytest.raises(ForeignData, match="begun_at"):
            call()
    bench.client.delete(key)
