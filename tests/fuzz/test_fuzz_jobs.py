"""A whole job whose keys another program writes to: dead letters or a halt with a reason, and nobody crashes."""

from __future__ import annotations

import random
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from leader.wiring import make_round
from pipeline import Pipeline, read, write
from pipeline.aggregates import count
from pipeline.codec import encode_batch
from pipeline.errors import CeleriacError, DecodingError, ForeignData, StoreError
from pipeline.flower.watch import Watch
from pipeline.lifecycle import JobState
from pipeline.messages import Data, encode_header
from pipeline.records import Batch
from pipeline.store import keys
from pipeline.store.agents import AgentLink
from pipeline.store.books import BookStore
from pipeline.store.connection import connect
from pipeline.store.jobs import JobStore
from pipeline.store.letters import LetterStore
from pipeline.store.scripts import Scripts
from stages.member import JobWatch
from tests.fuzz.hostile import bent, fields, payloads, tried
from tests.runtime.harness import LocalJob, in_sequence, numbered

KEYS = ("a", "b", "c", "d")


def flow() -> Pipeline:
    made = Pipeline("fuzzed")
    keyed = made.source(read.producer(), name="in").key_by(lambda pair: pair[0], name="by")
    checked = keyed.map(lambda pair: pair[1], name="number").stateful_map(in_sequence, name="oracle")
    checked.sink(write.stream("out"), name="out")
    checked.aggregate(count(), name="n").sink(write.stream("counts"), name="counts")
    return made


def a_job(url: str) -> LocalJob:
    client = connect(url)
    client.flushall()
    client.close()
    return LocalJob(url, flow(), partitions=2)


# Entries.


def replace_entry(job: LocalJob, key: str, at: int, header: bytes, payload: bytes) -> None:
    """The entry at an index of a stream holds something else from now on; the others are as they were."""
    entries = job.client.xrange(key)
    job.client.delete(key)
    for number, (id_, content) in enumerate(entries):
        own = {b"h": header, b"d": payload} if number == at else content
        job.client.xadd(key, own, id=id_)


REAL_HEADERS = st.sampled_from([encode_header(Data("1", 1, 4, None, 1)), encode_header(Data("1", 5, 4, 7, 1, (0,)))])


@given(data=st.data())
@tried(15, cost=200)
def test_an_entry_that_was_bent_costs_no_other_record(redis_url: str, data: st.DataObject) -> None:
    with a_job(redis_url) as job:
        job.is_tampered = True
        job.send(numbered(KEYS, 5), entry_records=4)
        inbox = next(key for key in (keys.inbox("j", 0, 0), keys.inbox("j", 0, 1)) if job.client.xlen(key))
        entries = job.client.xrange(inbox)
        at = data.draw(st.integers(0, len(entries) - 1), label="entry")
        content = entries[at][1]
        header = data.draw(st.just(content[b"h"]) | bent(st.just(content[b"h"])), label="header")
        payload = data.draw(payloads() | bent(st.just(content[b"d"])), label="payload")
        replace_entry(job, inbox, at, header, payload)

        job.assign()
        job.run_until_idle()

        record = job.jobs.read("j")
        if record.state is JobState.FAILED:
            assert record.reason.startswith("stage ")
            assert 20 < len(record.reason) < 1500
            return
        before = {key: list(range(1, at + 1)) for key in KEYS}
        assert {key: values[:at] for key, values in job.by_key().items() if key in KEYS}.items() >= {
            key: values for key, values in before.items() if values
        }.items()
        assert job.facts((0, 0)).taken + job.facts((0, 1)).taken == 20


def test_a_payload_that_cannot_be_read_costs_no_record_behind_it(redis_url: str) -> None:
    with a_job(redis_url) as job:
        job.is_tampered = True
        job.send(numbered(KEYS, 1))
        job.send([["x", 1]])
        job.send(numbered(KEYS, 2)[4:])
        inbox = next(key for key in (keys.inbox("j", 0, 0), keys.inbox("j", 0, 1)) if job.client.xlen(key))
        replace_entry(
            job, inbox, 1, job.client.xrange(inbox)[1][1][b"h"], b"\x01\x01\x95\x91\x01\x91\x91\x01\xc0\xc0\x80"
        )

        job.assign()
        job.run_until_idle()

        assert job.by_key() == {key: [1, 2] for key in KEYS}
        assert [letter.kind for letter in job.letters()] == ["entry"]


@pytest.mark.parametrize("is_taken_out", [False, True], ids=["there", "deleted since"])
def test_an_entry_that_another_program_put_into_an_inbox_refuses_whole_commits(
    redis_url: str, is_taken_out: bool
) -> None:
    with a_job(redis_url) as job:
        job.is_tampered = True
        job.assign()
        job.send(numbered(KEYS, 1))
        job.run_until_idle()
        for number in (0, 1):
            id_ = job.client.xadd(keys.inbox("j", 1, number), {"hello": "world"})
            if is_taken_out:
                job.client.xdel(keys.inbox("j", 1, number), id_)
        job.send(numbered(KEYS, 2)[4:])
        before = {place: job.meta(place) for place in job.places if place[0] == 1}
        job.run_until_idle()

        record = job.jobs.read("j")
        assert record.state is JobState.FAILED
        assert f"a key of ours holds something else: {keys.inbox('j', 1, 0)[:-1]}" in record.reason
        assert "another database" in record.reason
        assert {place: job.meta(place)["head"] for place in before} == {p: m["head"] for p, m in before.items()}
        assert sum(job.facts(place).taken for place in job.places if place[0] == 0) == 4
        assert job.by_key() == {key: [1] for key in KEYS}


def test_a_header_that_counts_records_that_there_are_not_halts_the_job_at_its_place(redis_url: str) -> None:
    with a_job(redis_url) as job:
        job.is_tampered = True
        job.send(numbered(KEYS, 1))
        inbox = next(key for key in (keys.inbox("j", 0, 0), keys.inbox("j", 0, 1)) if job.client.xlen(key))
        header = encode_header(Data("1", 1, 1 << 40, None, 1))
        replace_entry(job, inbox, 0, header, encode_batch(Batch(["a"])))

        job.assign()
        job.run_until_idle()

        assert inbox in job.jobs.read("j").reason
        assert job.facts((0, int(inbox[-1]))).position.order == (1, 0, 0)


# Fields.


def all_hashes(job: LocalJob) -> list[tuple[str, bytes]]:
    """(key, field) of every hash of the job, in one order."""
    names = sorted(key for key in job.client.scan_iter("celeriac:{j}:*") if job.client.type(key) == b"hash")
    return [(key.decode(), field) for key in names for field in sorted(job.client.hkeys(key))]


def look_everywhere(job: LocalJob) -> list[str]:
    """Whoever reads the job reads it: what they say. Raises whatever is no typed error."""
    said = []
    scripts = Scripts(job.client)
    jobs = JobStore(scripts)
    readers: list[Any] = [
        lambda: jobs.facts("j"),
        lambda: jobs.state("j"),
        lambda: jobs.staged_files("j"),
        lambda: jobs.log_totals(jobs.read("j")),
        lambda: BookStore(scripts).read(jobs.read("j")),
        lambda: list(LetterStore(scripts, jobs.read("j")).read()),
        lambda: AgentLink(scripts, "j").incarnations(),
        lambda: AgentLink(scripts, "j").heard_from("w0"),
        lambda: job.workers["w0"].ownership.heartbeat("{}"),
        lambda: job.feed().lane("a"),
        lambda: job.losses_of(),
    ]
    for each in readers:
        try:
            each()
        except CeleriacError as error:
            said.append(f"{error} {error.hint}")
    JobWatch(jobs, "j").works()
    watch = Watch(jobs)
    assert watch.job("j").status in (200, 404, 500)
    assert watch.jobs().status == 200
    assert make_round(scripts, "L2", random.Random(1), lambda: 0.0).run_once() is not None
    return said


class FuzzedJob(LocalJob):
    def losses_of(self) -> Any:
        """Where partitions stood, as a worker asks after a restart."""
        return self.jobs.losses("j").stood(self.run_of_job, self.places)


@given(data=st.data())
@tried(25, cost=100)
def test_a_field_that_another_program_has_changed_crashes_nobody_and_put_back_all_goes_on(
    redis_url: str, data: st.DataObject
) -> None:
    with connect(redis_url) as admin:
        admin.flushall()
    with FuzzedJob(redis_url, flow(), partitions=1) as job:
        job.assign()
        job.send(numbered(KEYS, 2), entry_records=3)
        job.run_until_idle()
        job.workers["w0"].ownership.heartbeat('{"hand":{}}')
        job.send(numbered(KEYS, 3)[8:], entry_records=3)
        at = data.draw(st.sampled_from(range(len(all_hashes(job)))), label="field")
        key, field = all_hashes(job)[at]
        before = {name: job.client.dump(name) for name in job.client.scan_iter("celeriac:*")}
        value = data.draw(fields() | bent(st.just(job.client.hget(key, field) or b"")), label=f"{key} {field!r}")

        job.client.hset(key, field, value)
        job.workers["w0"]._stale.update(job.places)
        look_everywhere(job)
        serve_and_look(job)

        job.client.flushall()
        for name, content in before.items():
            job.client.restore(name, 0, content)
        successor(job)
        job.run_and_sweep()
        assert job.by_key() == {key: [1, 2, 3] for key in KEYS}


def serve_and_look(job: LocalJob) -> None:
    """Workers work as processes do: only errors of the store leave a look, and none a slice."""
    for place in job.places:
        job.slice("w0", place)
    with suppress(StoreError):  # the process tells it, and looks again
        for place in job.workers["w0"].look():
            job.slice("w0", place)


def successor(job: LocalJob) -> None:
    """Another worker, who remembers nothing of what is undone."""
    job.worker("w1")
    job.token = job.leader.hold("j", 600).token
    job.assign("w1")


def test_a_position_in_another_form_is_refused_and_never_tried_for_ever(redis_url: str) -> None:
    with a_job(redis_url) as job:
        job.is_tampered = True
        job.assign()
        job.send(numbered(KEYS, 1))
        job.client.hset(keys.meta("j", 0, 0), "rec", "00")
        job.client.hset(keys.meta("j", 0, 1), "rec", "00")
        job.run_until_idle()

        assert "the field 'rec' is '00', which is no number" in job.jobs.read("j").reason


NAMED = {
    "a count of a partition": (keys.meta("j", 1, 0), "head", "abc"),
    "a position": (keys.meta("j", 1, 0), "pos", "here"),
    "a row of the assignment": (keys.assignment("j"), "1.0", "w0"),
    "a heartbeat": (keys.workers("j"), "a:w0", "now"),
    "a report": (keys.workers("j"), "r:w0", "[1"),
    "finished splits": (keys.senders("j"), "f:in", "some"),
    "an output's bytes": (keys.out_meta("j", "out"), "head", "x"),
    "the table": (keys.job("j"), "table", "one"),
}


@pytest.mark.parametrize("kind", NAMED)
def test_what_another_program_has_changed_is_named_with_key_field_and_what_to_do(redis_url: str, kind: str) -> None:
    key, field, value = NAMED[kind]
    with a_job(redis_url) as job:
        job.is_tampered = True
        job.assign()
        job.send(numbered(KEYS, 1))
        job.run_until_idle()
        job.workers["w0"].ownership.heartbeat("{}")
        job.client.hset(key, field, value)

        with pytest.raises((ForeignData, DecodingError)) as caught:
            job.jobs.facts("j")

        assert key in str(caught.value)
        assert "another database" in caught.value.hint
        job.client.flushall()


def test_a_job_that_cannot_be_read_does_not_keep_the_leader_from_the_others(redis_url: str) -> None:
    with a_job(redis_url) as job, FuzzedJob(redis_url, flow(), job="other", partitions=1) as other:
        job.is_tampered = True
        job.client.hset(keys.workers("j"), "i:w0", "1-a")
        job.client.hset(keys.workers("j"), "r:w0", "no json")
        job.client.zadd(keys.jobs(), {b"\xff\xfe no id": 1})
        job.client.zadd(keys.leaders(), {b"\xff": 1})
        other.worker("v0").ownership.heartbeat("{}")
        other.leader.release("other", other.token)
        job.leader.release("j", job.token)

        assert make_round(Scripts(job.client), "L2", random.Random(1), lambda: 0.0).run_once()["assigned"] == 2
        assert job.jobs.list_ids() == ["j", "other"]
        job.client.zrem(keys.jobs(), b"\xff\xfe no id")
        job.client.zrem(keys.leaders(), b"\xff")
        job.client.delete(keys.workers("j"))
