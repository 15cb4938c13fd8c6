"""`client.results`: what an application reads of a job, through ends, faults, forks and silence."""

from __future__ import annotations

import gc
import os
import signal
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from pipeline import Pipeline, read, write
from pipeline.client import Client, Result
from pipeline.embedded.redis import EmbeddedRedis
from pipeline.errors import DecodingError, ReadingError, StaleReader, UnknownJob, UnsuitableServer
from pipeline.lifecycle import JobState
from pipeline.reading.results import Results
from pipeline.settings import Limits
from pipeline.store import keys
from pipeline.store.outputs import remove_reader
from pipeline.store.patience import Patience
from pipeline.store.scripts import Scripts
from tests.runtime.harness import FlakyScripts, LocalJob, Moment


def a_job(redis_url: str, *, limits: Limits | None = None, partitions: int = 1, job: str = "j") -> LocalJob:
    """Source of [key, value] -> keyed -> stream `out`, which nobody reads yet; beside it a file sink."""
    flow = Pipeline("pairs")
    pairs = flow.source(read.iterable([0]), name="in")
    keyed = pairs.key_by(lambda pair: pair[0], name="by").map(lambda pair: pair[1], name="value")
    keyed.sink(write.stream("out"), name="answers")
    made = LocalJob(redis_url, flow, limits=limits, partitions=partitions, job=job)
    made._readers.clear()
    remove_reader(Scripts(made.client), job, "out", "test", made.limits)
    made.assign()
    return made


@pytest.fixture
def job(redis_url: str) -> Iterator[LocalJob]:
    with a_job(redis_url) as made:
        yield made


@pytest.fixture
def client(redis_url: str) -> Iterator[Client]:
    with Client(redis_url) as made:
        yield made


def send(job: LocalJob, *values: Any, key: str = "k", entry_records: int = 0) -> None:
    job.send([[key, value] for value in values], entry_records=entry_records)
    job.run_until_idle()


def end(job: LocalJob) -> None:
    job.end_input()
    job.run_until_idle()
    job.jobs.transition(job.job, JobState.PUBLISHING)
    job.jobs.transition(job.job, JobState.FINISHED)


def readers(client: Client) -> list[str]:
    return [reader.name for output in client.outputs("j") for reader in output.readers]


def test_all_results_come_with_keys_and_positions_and_end_with_the_job(job: LocalJob, client: Client) -> None:
    send(job, "a", "b")
    send(job, {"n": 1}, key="other")
    end(job)

    results = client.results("j")
    found = list(results)

    assert found == [Result("k", "a", 1), Result("k", "b", 2), Result("other", {"n": 1}, 3)]
    assert results.state is JobState.FINISHED
    assert list(client.results("j", "answers")) == found


def test_an_ended_job_can_be_read_again_and_again(job: LocalJob, client: Client) -> None:
    send(job, *range(100))
    end(job)

    for _ in range(3):
        assert [value for _, value, _ in client.results("j")] == list(range(100))
    assert readers(client) == []


def test_results_are_waited_for_while_the_job_works(job: LocalJob, client: Client) -> None:
    found: list[Any] = []
    results = client.results("j")
    thread = threading.Thread(target=lambda: found.extend(value for _, value, _ in results))
    thread.start()
    for number in range(5):
        send(job, number)
    end(job)
    thread.join(20)

    assert found == list(range(5))


@pytest.mark.parametrize("state", [JobState.FAILED, JobState.CANCELLED])
def test_results_end_with_a_job_that_did_not_finish(job: LocalJob, client: Client, state: JobState) -> None:
    send(job, 1)
    job.jobs.transition("j", state, "the test")
    results = client.results("j")

    assert [value for _, value, _ in results] == [1]
    assert results.state is state


def test_an_iteration_that_does_not_wait_pauses_and_goes_on(job: LocalJob, client: Client) -> None:
    send(job, 1, 2)
    results = client.results("j", wait_seconds=0)

    assert [value for _, value, _ in results] == [1, 2]
    assert (list(results), results.state) == ([], None)
    send(job, 3)
    assert list(results) == [Result("k", 3, 3)]


def test_a_named_reader_goes_on_behind_its_last_commit(job: LocalJob, client: Client) -> None:
    send(job, *range(1, 11))
    results = client.results("j", reader="r", wait_seconds=0)
    for result in results:
        if result.position == 4:
            results.commit()
        if result.position == 7:
            break

    again = client.results("j", reader="r", wait_seconds=0)

    assert not again.is_new
    assert [position for _, _, position in again] == [5, 6, 7, 8, 9, 10]
    again.commit()
    assert list(client.results("j", reader="r", wait_seconds=0)) == []
    assert job.client.xlen(keys.out("j", "out")) == 0


def test_what_was_fetched_and_not_handed_out_is_not_committed(job: LocalJob, client: Client) -> None:
    for number in range(1, 6):
        send(job, number)
    results = client.results("j", reader="r", wait_seconds=0)

    results.commit()
    assert client.results("j", reader="r", wait_seconds=0).next_position == 1
    assert next(results).position == 1
    results.commit()

    assert client.results("j", reader="r", wait_seconds=0).next_position == 2


def test_several_results_come_at_once_and_not_more_than_asked_for(job: LocalJob, client: Client) -> None:
    send(job, *range(1, 8))
    results = client.results("j", reader="r", wait_seconds=0)

    assert [one.position for one in results.take(3)] == [1, 2, 3]
    results.commit()
    assert [one.position for one in client.results("j", reader="r", wait_seconds=0).take(2)] == [4, 5]
    assert [one.position for one in results.take()] == [4, 5, 6, 7]
    assert results.take() == []


@pytest.mark.parametrize("start", ["begin", "end", 3, 4])
def test_a_start_is_a_place_or_a_position(job: LocalJob, client: Client, start: Any) -> None:
    send(job, 1, 2, 3)

    found = [value for _, value, _ in client.results("j", start=start, wait_seconds=0)]

    assert found == {"begin": [1, 2, 3], "end": [], 3: [3], 4: []}[start]


def test_two_readers_of_one_name_are_noticed_and_nothing_is_lost(job: LocalJob, client: Client) -> None:
    send(job, 1, 2)
    one = client.results("j", reader="r", wait_seconds=0)
    two = client.results("j", reader="r", wait_seconds=0)
    assert list(one) == list(two)
    one.commit()

    with pytest.raises(StaleReader, match="moved by another process"):
        two.commit()


# What is asked for wrongly


def test_wrong_names_are_answered_with_what_there_is(redis_url: str, client: Client) -> None:
    flow = Pipeline("several")
    numbers = flow.source(read.iterable([0]), name="in")
    numbers.sink(write.stream("one"), name="first")
    numbers.sink(write.stream("two"), name="second")
    numbers.sink(write.text("/tmp/somewhere"), name="files")
    with LocalJob(redis_url, flow):
        with pytest.raises(ReadingError, match="has several outputs to read: one, two"):
            client.results("j")
        with pytest.raises(ReadingError, match="has no sink 'ones'") as wrong:
            client.results("j", "ones")
        with pytest.raises(ReadingError, match="'files' writes text to /tmp/somewhere, which is not read here"):
            client.results("j", "files")
        assert wrong.value.hint == "did you mean 'one'?"
        assert list(client.results("j", "second", wait_seconds=0)) == []
    with pytest.raises(UnknownJob, match="there is no job 'nobody'"):
        client.results("nobody")


def test_a_job_without_outputs_says_where_its_files_are(redis_url: str, client: Client) -> None:
    flow = Pipeline("files")
    flow.source(read.iterable([0]), name="in").sink(write.jsonl("/tmp/answers"), name="table")
    with LocalJob(redis_url, flow), pytest.raises(ReadingError, match="'table' writes jsonl to /tmp/answers"):
        client.results("j")


@pytest.mark.parametrize(
    "wrong",
    [
        {"reader": "_x"},
        {"reader": ""},
        {"reader": "console"},
        {"start": 0},
        {"start": "middle"},
        {"start": True},
        {"wait_seconds": -1},
        {"expire_seconds": float("nan")},
    ],
)
@pytest.mark.usefixtures("job")
def test_an_argument_that_cannot_be_is_refused(client: Client, wrong: dict[str, Any]) -> None:
    with pytest.raises(ReadingError, match="cannot be"):
        client.results("j", **wrong)

    assert readers(client) == []


def test_a_client_needs_an_address_and_never_shows_its_password(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CELERIAC_REDIS", raising=False)
    with pytest.raises(ReadingError, match="needs the address"):
        Client()
    with pytest.raises(UnsuitableServer):
        Client("nonsense")
    assert "secret" not in repr(Client("redis://me:secret@host/0"))


# Readers without a name


def test_a_reader_without_a_name_goes_when_its_results_are_dropped_or_closed(job: LocalJob, client: Client) -> None:
    send(job, 1)
    dropped = client.results("j")
    next(dropped)
    closed = client.results("j")
    assert len(readers(client)) == 2

    del dropped
    gc.collect()
    assert len(readers(client)) == 1
    closed.close()

    assert readers(client) == []
    with pytest.raises(ReadingError, match="are closed"):
        next(closed)
    with pytest.raises(ReadingError, match="are closed"):
        closed.commit()


@pytest.mark.usefixtures("job")
def test_a_reader_without_a_name_expires_and_a_named_one_does_not(client: Client) -> None:
    one, two = client.results("j"), client.results("j", reader="r")

    found = {reader.is_temporary: reader.expire_seconds for out in client.outputs("j") for reader in out.readers}

    assert found == {True: 60.0, False: None}
    assert one.next_position == two.next_position == 1


class Hands:
    """A clock that is moved by hand."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def with_clock(results: Results, clock: Callable[[], float]) -> Results:
    results._patience = Patience(clock=clock)
    results._note_heard()
    return results


def heard(job: LocalJob) -> int:
    found = job.client.hgetall(keys.out_meta("j", "out"))
    return max(int(value) for name, value in found.items() if name.startswith(b"h:"))


def test_an_application_that_takes_long_for_each_result_stays_known(job: LocalJob, client: Client) -> None:
    send(job, *range(10))
    clock = Hands()
    results = with_clock(client.results("j", wait_seconds=0), clock)
    next(results)
    job.client.hset(keys.out_meta("j", "out"), f"h:{results._name}", 1)

    clock.now = 21.0  # a third of a minute and more
    next(results)

    assert heard(job) > 1


def test_a_reader_that_was_taken_for_dead_goes_on_where_nothing_is_lost(job: LocalJob, client: Client) -> None:
    send(job, *range(1, 6))
    results = client.results("j", wait_seconds=0)
    assert [next(results).position, next(results).position] == [1, 2]
    client.remove_reader("j", "out", results._name)
    send(job, 6)

    assert [position for _, _, position in results] == [3, 4, 5, 6]
    assert len(readers(client)) == 1


def test_a_reader_that_was_taken_for_dead_is_told_of_what_it_missed(redis_url: str, client: Client) -> None:
    with a_job(redis_url, limits=Limits(inbox_records=10)) as job:
        send(job, 1)
        results = client.results("j", wait_seconds=0)
        next(results)
        client.remove_reader("j", "out", results._name)
        for number in range(2, 40):
            send(job, number)

        with pytest.raises(StaleReader, match="silent for too long, and missed results: the result 2"):
            next(results)


def test_a_job_is_held_up_by_a_named_reader_until_it_is_removed(redis_url: str, client: Client) -> None:
    with a_job(redis_url, limits=Limits(inbox_records=10)) as job:
        client.results("j", reader="slow")
        for number in range(30):
            job.send([["k", number]])
            job.run_until_idle()
            if client.outputs("j")[0].waiting:
                break

        assert client.outputs("j")[0].slowest.name == "slow"
        with pytest.raises(ReadingError, match="has no reader 'slo'") as wrong:
            client.remove_reader("j", "answers", "slo")
        assert wrong.value.hint == "did you mean 'slow'?"
        client.remove_reader("j", "answers", "slow")
        job.run_until_idle()

        assert (client.outputs("j")[0].waiting, readers(client)) == (0, [])
        job.end_input()
        job.run_until_idle()
        assert all(facts.done for facts in job.jobs.facts("j").partitions)


# Faults


@pytest.mark.parametrize("moment", ["before", "after"])
@pytest.mark.parametrize("call", range(1, 8))
def test_a_call_that_is_lost_costs_no_result(job: LocalJob, client: Client, call: int, moment: Moment) -> None:
    for number in range(1, 6):
        send(job, number, number, entry_records=1)
    results = client.results("j", reader="r", wait_seconds=0)
    flaky = FlakyScripts(job.client)
    results._reader._scripts = flaky
    flaky.break_call(moment, ahead=call)
    found = []

    for result in results:
        found.append(result.position)
        if result.position % 2 == 0:
            results.commit()

    assert found == list(range(1, 11))
    assert client.results("j", reader="r", wait_seconds=0).next_position == 11


def test_an_outage_of_redis_is_waited_for() -> None:
    with EmbeddedRedis.start() as server, a_job(server.url) as job, Client(server.url) as client:
        send(job, 1)
        results = client.results("j", reader="r")
        assert next(results).value == 1
        os.kill(server.pid, signal.SIGKILL)
        found: list[Any] = []
        thread = threading.Thread(target=lambda: found.append(next(results).value))
        thread.start()
        server.restart()
        job.adopt()
        job.assign()
        send(job, 2)
        thread.join(30)

    assert found == [2]


def test_results_do_not_cross_a_fork(job: LocalJob, client: Client) -> None:
    send(job, 1, 2)
    results = client.results("j", wait_seconds=0)
    next(results)
    read_end, write_end = os.pipe()
    child = os.fork()
    if not child:
        try:
            message = "nothing"
            try:
                list(results)
                results.take()
            except ReadingError as error:
                message = str(error)
            own = [value for _, value, _ in client.results("j", wait_seconds=0)]
            results.close()
            os.write(write_end, f"{message}|{own}".encode())
        finally:
            os._exit(0)
    os.close(write_end)
    with os.fdopen(read_end) as pipe:
        said = pipe.read()
    os.waitpid(child, 0)

    assert said == "results are read in another process than the one that asked for them|[1, 2]"
    assert results._name in readers(client)
    assert [value for _, value, _ in results] == [2]


def test_a_job_that_is_removed_while_it_is_read_is_named(job: LocalJob, client: Client) -> None:
    send(job, 1)
    results = client.results("j", reader="r", wait_seconds=0)
    next(results)
    job.jobs.erase("j")

    with pytest.raises(UnknownJob):
        list(results)
    assert list(job.client.scan_iter(f"{keys.of_job('j')}*")) == []


def test_memory_stays_bounded_however_much_there_is_to_read(job: LocalJob, client: Client) -> None:
    for number in range(40):
        send(job, *[f"{number}" + "x" * 1000] * 1000)
    results = client.results("j", wait_seconds=0)

    most = 0
    for _ in results:
        most = max(most, sum(len(stretch.payload) for stretch in results._queue))

    assert 0 < most < 3 * (4 << 20)


def test_an_entry_that_cannot_be_read_is_never_passed_over(job: LocalJob, client: Client) -> None:
    send(job, 1, 2, 3, entry_records=1)
    out = keys.out("j", "out")
    (first, *_), (second, fields), *rest = job.client.xrange(out)
    job.client.delete(out)
    job.client.xadd(out, {"h": fields[b"h"], "d": b"\x09garbage"}, id=second)
    for id_, whole in rest:
        job.client.xadd(out, whole, id=id_)
    results = client.results("j", reader="r", start=2, wait_seconds=0)

    for _ in range(3):
        with pytest.raises(DecodingError, match="unknown version or codec"):
            next(results)
        results.commit()

    assert client.results("j", reader="r").next_position == 2
    assert first == b"1-0"
