"""Sinks that deliver at least once: keys are the same on every retry, nothing is missing, a bad record costs itself."""

from __future__ import annotations

import json
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer

from pipeline import Pipeline, read, write
from pipeline.errors import EnvironmentFault
from pipeline.graph import SinkSpec
from pipeline.lifecycle import JobState
from tests.runtime.harness import HandClock, LocalJob, Moment, numbered
from tests.runtime.tables import KEYS, look_again
from tests.sampling import calls


class Receiver(ThreadingHTTPServer):
    """A web server that keeps what it takes, and answers as `judge` says."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.taken: list[tuple[str, Any]] = []
        self.headers: list[dict[str, str]] = []
        self.judge: Callable[[Any], int] = lambda _: 200
        self.retry_after = ""

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}/records"


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def do_POST(self) -> None:
        server = self.server
        assert isinstance(server, Receiver)
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        code = server.judge(body)
        if code == 200:
            server.taken.append((self.headers["Idempotency-Key"], body))
            server.headers.append(dict(self.headers))
        self.send_response(code)
        if server.retry_after:
            self.send_header("Retry-After", server.retry_after)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    with Receiver() as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield server
        server.shutdown()
        thread.join()


def to(spec: SinkSpec) -> Pipeline:
    """[key, number] -> (key, number) of the sink `away`."""
    flow = Pipeline("deliveries")
    keyed = flow.source(read.iterable([0]), name="in").key_by(lambda pair: pair[0], name="by")
    keyed.map(lambda pair: pair[1], name="number").sink(spec, name="place")
    return flow


def feed(job: LocalJob) -> None:
    for number in range(3):
        job.send(numbered(KEYS, 4, first=4 * number + 1))
        job.run_and_sweep()


EXPECTED = sorted((key, number) for key, number in numbered(KEYS, 12))


@pytest.mark.sampled
@pytest.mark.parametrize("moment", ["before", "after"])
@pytest.mark.parametrize("is_restarted", [False, True])
def test_every_record_comes_and_comes_again_only_under_the_same_key(
    redis_url: str, moment: Moment, is_restarted: bool
) -> None:
    for at in calls():
        got: list[dict[str, Any]] = []
        with LocalJob(redis_url, to(write.call(got.extend, batch=3)), partitions=1, job=f"j{at}") as job:
            job.worker()
            job.scripts["w0"].break_call(moment, at)
            look_again(job)
            job.assign(is_told=False)
            feed(job)
            total = len(job.scripts["w0"].calls)
            if is_restarted:
                job.restart("w0")
            job.end_input()
            job.run_and_sweep()

            by_key = {one["idempotency_key"]: (one["key"], one["value"]) for one in got}
            assert sorted(by_key.values()) == EXPECTED
            assert len({(one["idempotency_key"], one["key"], one["value"]) for one in got}) == len(EXPECTED)
            assert job.letters() == []
            job.client.flushdb()
        if at > total:
            break
    assert at > 12


def test_a_key_is_never_given_to_another_record(redis_url: str) -> None:
    got: list[dict[str, Any]] = []
    bad: list[int] = []

    def flaky(value: int) -> int:
        if value in bad:
            raise ValueError("this time it fails")
        return value

    flow = Pipeline("flaky")
    flow.source(read.iterable([0]), name="in").map(flaky, name="flaky").sink(write.call(got.extend), name="place")
    with LocalJob(redis_url, flow, partitions=1) as job:
        job.assign()
        job.run_until_idle()
        job.send(range(4))
        # The records are delivered, and the commit that counts them is lost with the worker.
        job.scripts["w0"].break_call("before", 2)
        job.run_until_idle()
        assert [one["value"] for one in got] == [0]
        bad.append(0)
        job.restart("w0")
        job.run_and_sweep()

        assert job.dead_values() == [0]
    keys = {one["value"]: one["idempotency_key"] for one in got}
    assert sorted(keys) == [0, 1, 2, 3]
    assert len(set(keys.values())) == 4


def test_a_worker_that_dies_before_its_commit_delivers_again_under_the_same_keys(redis_url: str) -> None:
    got: list[dict[str, Any]] = []
    with LocalJob(redis_url, to(write.call(got.extend)), partitions=1) as job:
        job.assign()
        feed(job)
        job.send(numbered(KEYS, 4, first=13))
        while job.pop_ticket((0, 0)):
            job.slice("w0", (0, 0))
        job.scripts["w0"].break_call("before", 2)
        job.run_until_idle()
        job.restart("w0")
        job.run_and_sweep()

    counts = Counter(one["idempotency_key"] for one in got)
    assert max(counts.values()) == 2
    assert len(counts) == 16 * len(KEYS)
    assert all(key.startswith("j.") and "/place/1.0/" in key for key in counts)


def test_what_a_function_cannot_reach_is_waited_for_and_not_delivered_twice(redis_url: str) -> None:
    got: list[Any] = []
    away = [True]

    def deliver(records: list[dict[str, Any]]) -> None:
        if away[0] and len(got) >= 4:
            raise ConnectionError("no way")
        got.extend(record["value"] for record in records)

    clock = HandClock()
    with LocalJob(redis_url, to(write.call(deliver, batch=1)), partitions=1, clock=clock) as job:
        job.assign()
        job.send([["a", number] for number in range(20)])
        job.run_until_idle()
        reason = job.workers["w0"].hand.report(0.0)["hand"]["1.0"]["reason"]
        assert reason == "the function of the sink 'place' cannot reach its place: ConnectionError: no way"

        away[0] = False
        clock.now += 60.0
        job.look()
        job.run_to_the_end()

        assert got == list(range(20))


def test_a_record_that_a_function_refuses_is_a_dead_letter_with_its_traceback(redis_url: str) -> None:
    got: list[Any] = []

    def deliver(records: list[dict[str, Any]]) -> None:
        for record in records:
            if record["value"] % 5 == 0:
                raise ValueError(f"not {record['value']}")
        got.extend(record["value"] for record in records)

    with LocalJob(redis_url, to(write.call(deliver)), partitions=1) as job:
        job.assign()
        job.send([["a", number] for number in range(12)])
        job.run_to_the_end()

        assert got == [number for number in range(12) if number % 5]
        assert [value for _, value in job.dead_values()] == [0, 5, 10]
        letter = job.letters()[1]
        assert (letter.operator, letter.error) == ("place", "ValueError: not 5")
        assert "in deliver" in letter.traceback


def test_a_web_server_gets_each_record_as_json_with_key_and_headers(
    redis_url: str, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("API_TOKEN", "Bearer s3cret-word")
    spec = write.http(receiver.url, headers={"Authorization": "env:API_TOKEN"})
    with LocalJob(redis_url, to(spec), partitions=1) as job:
        job.assign()
        feed(job)
        job.run_to_the_end()
        assert b"s3cret" not in job.client.dump("celeriac:{j}:job")

    assert sorted((body["key"], body["value"]) for _, body in receiver.taken) == EXPECTED
    assert len({key for key, _ in receiver.taken}) == len(EXPECTED)
    assert {each["Authorization"] for each in receiver.headers} == {"Bearer s3cret-word"}
    assert {each["Content-Type"] for each in receiver.headers} == {"application/json"}
    assert "s3cret" not in repr(spec)


def test_a_batch_is_one_request_with_a_key_for_each_record(redis_url: str, receiver: Receiver) -> None:
    with LocalJob(redis_url, to(write.http(receiver.url, batch=5)), partitions=1) as job:
        job.assign()
        feed(job)
        job.run_to_the_end()

    assert max(len(body) for _, body in receiver.taken) == 5
    items = [item for _, body in receiver.taken for item in body]
    assert sorted((item["record"]["key"], item["record"]["value"]) for item in items) == EXPECTED
    assert len({item["idempotency_key"] for item in items}) == len(EXPECTED)


@pytest.mark.parametrize("code", [500, 503, 429, 408])
def test_a_server_that_is_busy_is_waited_for(redis_url: str, receiver: Receiver, code: int) -> None:
    clock = HandClock()
    receiver.judge, receiver.retry_after = lambda _: code, "7"
    with LocalJob(redis_url, to(write.http(receiver.url)), partitions=1, clock=clock) as job:
        job.assign()
        feed(job)
        assert job.pauses() == [7.0]

        receiver.judge = lambda _: 200
        clock.now += 7.0
        job.look()
        job.run_to_the_end()

        assert job.letters() == []
    assert sorted((body["key"], body["value"]) for _, body in receiver.taken) == EXPECTED


@pytest.mark.parametrize("batch", [1, 4])
def test_a_record_that_a_server_refuses_is_a_dead_letter(redis_url: str, receiver: Receiver, batch: int) -> None:
    receiver.judge = lambda body: 422 if '"value": 5' in json.dumps(body) else 200
    with LocalJob(redis_url, to(write.http(receiver.url, batch=batch)), partitions=1) as job:
        job.assign()
        feed(job)
        job.run_to_the_end()

        assert [value for _, value in job.dead_values()] == [5, 5, 5]
        assert all("answers 422 Unprocessable" in letter.error for letter in job.letters())
    items = [item["record"] for _, body in receiver.taken for item in body] if batch > 1 else []
    got = items or [body for _, body in receiver.taken]
    assert sorted((item["key"], item["value"]) for item in got) == [row for row in EXPECTED if row[1] != 5]


def test_a_server_that_is_not_there_is_waited_for_and_one_that_redirects_fails_the_job(
    redis_url: str, receiver: Receiver
) -> None:
    clock = HandClock()
    with LocalJob(redis_url, to(write.http("http://127.0.0.1:9/x")), partitions=1, clock=clock) as job:
        job.assign()
        feed(job)
        assert "does not answer: ConnectError" in job.workers["w0"].hand.report(0.0)["hand"]["1.0"]["reason"]
        job.client.flushdb()
    receiver.judge = lambda _: 301
    with LocalJob(redis_url, to(write.http(receiver.url)), partitions=1) as job:
        job.assign()
        job.send(numbered(KEYS, 1))
        job.run_until_idle()

        record = job.jobs.read(job.job)
        assert record.state is JobState.FAILED
        assert "answers 301" in record.reason


def test_a_variable_that_is_not_set_is_told_by_name(redis_url: str) -> None:
    spec = write.http("https://example.org", headers={"Authorization": "env:NO_SUCH_TOKEN"})
    with LocalJob(redis_url, to(spec)) as job, pytest.raises(EnvironmentFault, match="NO_SUCH_TOKEN, which is not set"):
        job.assign()


def test_a_slow_place_is_left_in_time_and_gone_on_with(redis_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pipeline.sinks.numbered.STEP_SECONDS", -1.0)
    got: list[Any] = []
    clock = HandClock()
    with LocalJob(redis_url, to(write.call(got.extend, batch=1)), partitions=1, clock=clock) as job:
        job.assign()
        job.send([["a", 1]])
        job.run_until_idle()

        assert "is slow: 0 of 1 record" in job.workers["w0"].hand.report(0.0)["hand"]["1.0"]["reason"]
        assert job.pauses() == [0.1]


# Kafka, by the cluster that librdkafka mocks.


@pytest.fixture
def kafka_servers() -> Iterator[str]:
    cluster = Producer({"bootstrap.servers": "unused", "test.mock.num.brokers": 1, "log_level": 0})
    brokers = cluster.list_topics(timeout=10).brokers.values()
    yield ",".join(f"{broker.host}:{broker.port}" for broker in brokers)
    cluster.flush(1)


def read_topic(servers: str, topic: str, count: int) -> list[tuple[Any, Any, str]]:
    """(key, value, idempotency key) of the first `count` messages."""
    consumer = Consumer(
        {"bootstrap.servers": servers, "group.id": "test", "auto.offset.reset": "earliest", "log_level": 0}
    )
    consumer.subscribe([topic])
    found = []
    for _ in range(600):
        message = consumer.poll(0.1)
        if message is not None and not message.error():
            key, value = message.key(), message.value()
            found.append((key and key.decode(), json.loads(value), dict(message.headers())["idempotency-key"].decode()))
        if len(found) >= count:
            break
    consumer.close()
    return found


def test_records_come_to_a_kafka_topic_in_order_of_each_key(redis_url: str, kafka_servers: str) -> None:
    with LocalJob(redis_url, to(write.kafka(kafka_servers, "rows")), partitions=1) as job:
        job.assign()
        feed(job)
        job.run_to_the_end()
        assert job.letters() == []

    found = read_topic(kafka_servers, "rows", len(EXPECTED))
    assert {key: [value for other, value, _ in found if other == key] for key in KEYS} == {
        key: list(range(1, 13)) for key in KEYS
    }
    assert len({idempotency_key for _, _, idempotency_key in found}) == len(EXPECTED)


def test_a_record_too_large_for_kafka_is_a_dead_letter(redis_url: str, kafka_servers: str) -> None:
    spec = write.kafka(kafka_servers, "rows", options={"message.max.bytes": "2000"})
    with LocalJob(redis_url, to(spec), partitions=1) as job:
        job.assign()
        job.send([["a", "small"], ["a", "x" * 3000], ["a", "small too"]])
        job.run_to_the_end()

        assert [value for _, value in job.dead_values()] == ["x" * 3000]
    assert [value for _, value, _ in read_topic(kafka_servers, "rows", 2)] == ["small", "small too"]


def test_kafka_that_is_not_there_is_waited_for(redis_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pipeline.sinks.kafka_sink.DELIVERY_MS", 300)
    with LocalJob(redis_url, to(write.kafka("127.0.0.1:9", "rows")), partitions=1, clock=HandClock()) as job:
        job.assign()
        job.send([["a", 1]])
        job.run_until_idle()

        reason = job.workers["w0"].hand.report(0.0)["hand"]["1.0"]["reason"]
        assert reason.startswith("Kafka, topic 'rows': _MSG_TIMED_OUT")
