"""A whole job in one process, stepped by hand: no Celery, no threads, no sleeps. Also the sequence oracle.

Workers are driven by tickets as Celery would do it: a partition runs when its queue holds a ticket, and once
after it was acquired. So a lost wake-up shows as a job that stands still.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Literal, Self

from pipeline import Pipeline, read, tickets, write
from pipeline.api import KeyedStream, Stream
from pipeline.books import findings
from pipeline.codec import decode_batch, decode_value, split_state_field
from pipeline.errors import StoreUnavailable
from pipeline.facts import PartitionFacts
from pipeline.keying import GROUPS
from pipeline.plan import STREAM_FORMATS, compile_plan, stream_name
from pipeline.pools import POOL
from pipeline.records import Batch
from pipeline.savepoints.reading import Savepoint
from pipeline.savepoints.restoring import restore_job
from pipeline.settings import Limits
from pipeline.store import keys
from pipeline.store.books import BookStore
from pipeline.store.connection import connect
from pipeline.store.jobs import JobStore
from pipeline.store.leadership import Leadership
from pipeline.store.letters import DeadLetter
from pipeline.store.operations import OperationStore, Switch
from pipeline.store.outputs import OutputReader
from pipeline.store.ownership import Ownership
from pipeline.store.scripts import Scripts, source
from pipeline.store.senders import Feed, FeedAddress, Lane
from stages.partition import SliceEnd
from stages.worker import Place, Worker

Moment = Literal["before", "after"]
"""When a call of the store is broken off: before it was sent, or after it was applied."""


class FlakyScripts(Scripts):
    """Real scripts of which chosen calls lose their request or their reply. `calls` are the names so far."""

    def __init__(self, client: Any) -> None:
        super().__init__(client)
        self.calls: list[str] = []
        self.faults: dict[int, Moment] = {}
        self.spared: frozenset[str] = frozenset()
        """Names of scripts that no fault meets: it waits for the next call."""

    def break_call(self, moment: Moment, ahead: int = 1) -> None:
        """The `ahead`-th call from now on fails."""
        self.faults[len(self.calls) + ahead] = moment

    def run(self, name: str, keys: Sequence[str], args: Sequence[Any]) -> list[Any]:
        self.calls.append(name)
        fault = self.faults.pop(len(self.calls), None)
        if fault and name in self.spared:
            self.break_call(fault)
            fault = None
        if fault == "before":
            raise StoreUnavailable("the request was lost (by the test)")
        answer = super().run(name, keys, args)
        if fault == "after":
            raise StoreUnavailable("the reply was lost (by the test)")
        return answer


def stopped_clock() -> float:
    """A clock by which no slice is ever over, so that steps grow in the same way in every run."""
    return 0.0


def insist(call: Callable[[], Any]) -> Any:
    """The answer of a call that may meet a connection that is closed first, and then the restart of Redis."""
    for _ in range(10):
        try:
            return call()
        except StoreUnavailable:
            continue
    return call()


class HandClock:
    """Goes on only when it is told to: a back-off is over when the test says so, at the next `look`."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


class SteppingClock:
    """Goes on by `seconds` at each look."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self.now = 0.0

    def __call__(self) -> float:
        self.now += self.seconds
        return self.now


class LocalJob:
    """A job with its leader, workers, senders and readers. Closed by `with`.

    `outputs` holds, for each stream sink by its stream's name, the (key, value) read so far.
    """

    def __init__(
        self,
        redis_url: str,
        pipeline: Pipeline,
        *,
        partitions: int = 2,
        limits: Limits | None = None,
        job: str = "j",
        clock: Callable[[], float] = stopped_clock,
        takes_tickets: bool = False,
        savepoint: Savepoint | None = None,
        exists: bool = False,
        transforms: Any = None,
        **restoring: bool,
    ) -> None:
        """With `takes_tickets` a slice also takes the tickets of its worker's other partitions, as in a real worker.

        Of a `savepoint` the job is restored, as `restore_job` is told. One that `exists` is left as it is.
        `transforms` run the DataFrame operators of all its workers.
        """
        self.url, self.job, self.clock, self.takes_tickets = redis_url, job, clock, takes_tickets
        self.limits, self.transforms = limits or Limits(), transforms
        self.graph = pipeline.graph()
        self.plan = compile_plan(self.graph, partitions, self.limits)
        self.client = connect(redis_url)
        scripts = Scripts(self.client)
        self._scripts = scripts
        self.jobs = JobStore(scripts)
        if exists:
            self.plan = self.jobs.read(job).plan
        elif savepoint is None:
            self.jobs.create(job, self.plan)
        else:
            self.restored = restore_job(scripts, savepoint, job, self.plan, **restoring)
        self.run_of_job = self.jobs.read(job).run
        self.leader = Leadership(scripts, "leader-1", "n1")
        self.token = self.leader.hold(job, 600).token
        self.is_tampered = False
        """Set by a test that spoils its books: whatever else befalls a job, they balance at its end."""
        self.workers: dict[str, Worker] = {}
        self.scripts: dict[str, FlakyScripts] = {}
        self.ends: list[tuple[str, Place, SliceEnd | None]] = []
        self._lanes: dict[tuple[str, str], Lane] = {}
        streams = {stream_name(sink) for sink in self.plan.sinks if sink.format in STREAM_FORMATS}
        self._readers = {name: OutputReader(scripts, job, name, "test", self.limits) for name in sorted(streams)}
        self.outputs: dict[str, list[tuple[Any, Any]]] = {name: [] for name in streams}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, error: type[BaseException] | None = None, *_: object) -> None:
        for worker in self.workers.values():
            worker.close()
        if error is None and not self.is_tampered and self.job in self.jobs.list_ids():
            self.assert_balanced()
        self.client.close()

    @property
    def places(self) -> list[Place]:
        return self.plan.partitions()

    # workers

    def worker(self, name: str = "w0", incarnation: str = "1-a") -> Worker:
        """The worker of that name; it is made, and owns nothing yet, unless there is one."""
        if name not in self.workers:
            self.scripts[name] = FlakyScripts(self.client)
            ownership = Ownership(self.scripts[name], self.job, name, incarnation)
            self.workers[name] = Worker(ownership, self.plan, self.graph, self.clock, transforms=self.transforms)
        return self.workers[name]

    def assign(
        self,
        name: str = "w0",
        places: Iterable[Place] | None = None,
        *,
        is_unclean: bool = False,
        is_told: bool = True,
    ) -> None:
        """Gives these partitions (all, by default) to the worker. Unless `is_told`, no worker looks yet."""
        worker = self.worker(name)
        for place in self.places if places is None else places:
            term = int(self.client.hget(keys.meta(self.job, *place), "term")) + 1
            ticket = tickets.ticket(self.job, *place, term)
            to = (name, worker.ownership.incarnation)
            assert self.leader.assign(self.job, self.token, place, to, term, f"n{term}", ticket, is_unclean)
        if is_told:
            self.look()

    def adopt(self) -> None:
        """As the leader does when Redis was restarted: every ownership ends. `assign` comes next."""
        for scripts in (self._scripts, *self.scripts.values()):
            insist(scripts.meet)
        self.token = insist(lambda: self.leader.hold(self.job, 600)).token
        insist(lambda: self.leader.adopt_server(self.job, self.token, self.plan))

    def look(self) -> None:
        """Every worker follows the assignment table, and works once on what is new, as `Owning` does."""
        for name, worker in list(self.workers.items()):
            for place in worker.look():
                self.slice(name, place)

    def pauses(self, name: str = "w0") -> list[float]:
        """In how many seconds partitions of the worker come back by themselves."""
        return self.workers[name].pauses()

    def restart(self, name: str) -> None:
        """The worker dies; its successor has another incarnation, empty memory and the same partitions."""
        old = self.workers.pop(name).ownership
        places = [(row.stage, row.partition) for row in old.assigned()]
        number = int(old.incarnation.partition("-")[0])
        self.worker(name, f"{number + 1}-a")
        self.assign(name, places, is_unclean=True)

    def slice(self, name: str, place: Place) -> SliceEnd | None:
        if self.takes_tickets:
            return self.workers[name].work(*place)
        end = self.workers[name].slice(*place)
        self.ends.append((name, place, end))
        return end

    # input

    def feed(self, name: str = "") -> Feed:
        """Feeds the source of that name, by default the first. A full inbox is an error at once."""
        name = name or next(stage.name for stage in self.plan.stages if not stage.upstream)
        return Feed(self._scripts, FeedAddress(self.url, self.job, name, 0.0), self.plan, self.run_of_job)

    def lane(self, split: str = "a", feeds: str = "") -> Lane:
        at = (feeds, split)
        if at not in self._lanes:
            self._lanes[at] = self.feed(feeds).lane(split)
        return self._lanes[at]

    def send(self, values: Iterable[Any], split: str = "a", feeds: str = "", entry_records: int = 0) -> None:
        """Appends the values to the source that the split `feeds`, in entries of so many records (one, for 0)."""
        lane, rest = self.lane(split, feeds), list(values)
        size = entry_records or max(1, len(rest))
        for start in range(0, len(rest), size):
            lane.append(lane.taken + 1, Batch(rest[start : start + size]))

    def append_entry(self, place: Place, header: bytes, payload: bytes | None = None, count: int = 0) -> None:
        """Appends an entry of any kind, a broken one too, as scripts do: with their own `put`; and rings.

        In the books its records are those of a sender that was forgotten.
        """
        prelude = source("due").partition("-- The first due timers")[0]
        body = "put(KEYS[1], KEYS[2], ARGV[1], ARGV[3] == '1' and ARGV[2] or nil, tonumber(ARGV[4])) ring(KEYS[2])"
        body += " if ARGV[4] ~= '0' then call('HINCRBY', KEYS[3], 'gone', ARGV[4]) end"
        names = [keys.inbox(self.job, *place), keys.meta(self.job, *place), keys.log(self.job, *place)]
        self.client.eval(prelude + body, 3, *names, header, payload or b"", "0" if payload is None else "1", count)

    def end_input(self) -> None:
        """Ends every source, as the leader does when all splits are finished."""
        for stage in self.plan.stages:
            if not stage.upstream:
                self.leader.close_source(self.job, self.token, self.plan, stage.name)

    # another number of partitions

    @property
    def operations(self) -> OperationStore:
        return OperationStore(self._scripts)

    def begin_rescale(self, stage: int, partitions: int) -> str:
        """As `celeriac rescale` does; its id."""
        record = self.jobs.read(self.job)
        return self.operations.begin(record, record.plan.stage(stage), partitions, "test")

    def switch(self) -> Switch:
        """As the leader does once the backlog is short. New partitions have no owner yet."""
        facts = self.jobs.facts(self.job)
        assert facts.operation is not None
        outcome, _ = self.operations.switch(
            self.job, self.token, facts.record.plan, facts.record.table, facts.operation
        )
        self.plan = self.jobs.read(self.job).plan
        return outcome

    def homeless(self) -> list[Place]:
        """Partitions that the leader would give an owner."""
        parts = self.jobs.facts(self.job).partitions
        return [(part.stage, part.partition) for part in parts if not part.owner and not part.is_through]

    def settle(self) -> bool:
        """As the leader does: whether all partitions are through, so that the operation has ended."""
        facts = self.jobs.facts(self.job)
        assert facts.operation is not None
        return self.operations.settle(self.job, self.token, facts.record.plan, facts.operation) is not None

    def rescale(self, stage: int, partitions: int, worker: str = "w0") -> None:
        """All of it, while nothing is sent; what is in the inboxes is processed meanwhile."""
        self.begin_rescale(stage, partitions)
        assert self.switch() == "switched"
        self.assign(worker, self.homeless())
        self.run_until_idle()
        assert self.settle()

    # running

    def owner_of(self, place: Place) -> str | None:
        """The worker that believes to own the place; of several the one that was made last."""
        return next((name for name in reversed(self.workers) if place in self.workers[name].places), None)

    def pop_ticket(self, place: Place) -> bool:
        return self.client.rpop(keys.queue(self.job, *place)) is not None

    def serve(self) -> int:
        """One round: each partition that has a ticket gets a slice. The number of slices."""
        slices = 0
        for place in self.places:
            name = self.owner_of(place)
            if name is not None and self.pop_ticket(place):
                self.slice(name, place)
                slices += 1
        self.drain_outputs()
        return slices

    def run_until_idle(self, rounds: int = 20_000) -> None:
        """Serves until no ticket is left. Fails after so many rounds."""
        for _ in range(rounds):
            if not self.serve():
                return
        raise AssertionError(f"the job still works after {rounds} rounds; the last ends: {self.ends[-20:]}")

    def run_through_pauses(self) -> None:
        """Serves, sweeps, and lets each back-off come to its end, until nothing is left to do."""
        for _ in range(1_000):
            self.run_and_sweep()
            if not self.serve_waiting():
                return
        raise AssertionError(f"partitions back off for ever; the last ends: {self.ends[-20:]}")

    def serve_waiting(self) -> int:
        """Lets the time of all partitions that back off come. The number of slices."""
        slices = 0
        for name, worker in list(self.workers.items()):
            if worker.pauses():
                worker._paused = dict.fromkeys(worker._paused, 0.0)
                for place in worker.look():
                    self.slice(name, place)
                    slices += 1
        self.drain_outputs()
        return slices

    def sweep(self) -> int:
        """The leader's sweep: rings partitions whose ticket was lost. The number of those rung."""
        return sum(
            self.leader.sweep(self.job, self.token, place, is_at_work=self._backs_off(place)) for place in self.places
        )

    def _backs_off(self, place: Place) -> bool:
        held = [worker.hand.at.get(place) for worker in self.workers.values() if place in worker.places]
        return any(hand is not None and hand[2] == "backoff" for hand in held)

    def run_and_sweep(self) -> None:
        """Serves and sweeps until there is nothing left to do, as after a fault."""
        for _ in range(10_000):
            self.look()
            self.run_until_idle()
            if not self.sweep():
                return
        raise AssertionError("the sweep rings for ever")

    def run_to_the_end(self) -> None:
        """Ends the input, and runs until every partition is done."""
        self.end_input()
        self.run_until_idle()
        self.assert_done()

    # looking

    def drain_outputs(self) -> None:
        for name, reader in self._readers.items():
            for batch in reader.read(1000):
                self.outputs[name].extend(zip(batch.keys or [None] * len(batch), batch.values, strict=True))
            reader.advance()

    def read(self, stream: str = "out") -> list[tuple[Any, Any]]:
        """All (key, value) of the stream so far."""
        self.drain_outputs()
        return self.outputs[stream]

    def values(self, stream: str = "out") -> list[Any]:
        return [value for _, value in self.read(stream)]

    def by_key(self, stream: str = "out") -> dict[Any, list[Any]]:
        """key -> its values in order."""
        found: dict[Any, list[Any]] = defaultdict(list)
        for key, value in self.read(stream):
            found[key].append(value)
        return dict(found)

    def newest(self, stream: str = "out") -> dict[Any, Any]:
        """key -> its last value."""
        return dict(self.read(stream))

    def state(self, stage: int = 1) -> dict[tuple[str, Any], Any]:
        """(operator, key) -> state, as it is stored."""
        pipe = self.client.pipeline(transaction=False)
        for group in range(GROUPS):
            pipe.hgetall(keys.state(self.job, stage, group))
        return {
            split_state_field(field): decode_value(data) for fields in pipe.execute() for field, data in fields.items()
        }

    def meta(self, place: Place) -> dict[str, str]:
        return {k.decode(): v.decode() for k, v in self.client.hgetall(keys.meta(self.job, *place)).items()}

    def facts(self, place: Place) -> PartitionFacts:
        return next(p for p in self.jobs.facts(self.job).partitions if (p.stage, p.partition) == place)

    def letters(self) -> list[DeadLetter]:
        return self.jobs.dead_letters(self.job, 100_000)

    def dead_values(self) -> list[Any]:
        """The values of all dead letters, in order."""
        return [value for letter in self.letters() for value in decode_batch(letter.payload).values]

    def assert_drained(self) -> None:
        """Every inbox is empty, nothing is in hand, and no ticket or ring flag is left."""
        for facts in self.jobs.facts(self.job).partitions:
            assert facts.at_end, f"{facts.name} stands at {facts.position} with {facts.backlog} records"
            assert (facts.backlog, facts.backlog_bytes) == (0, 0), facts
            assert (facts.ring, facts.queued) == ("", 0), facts

    def assert_done(self) -> None:
        """Drained, and every partition has passed the end of its input."""
        self.assert_drained()
        assert all(facts.done for facts in self.jobs.facts(self.job).partitions)
        self.assert_balanced()

    def findings(self) -> list[str]:
        """What is wrong in the books, as its leader would tell it."""
        books = insist(lambda: BookStore(self._scripts).read(self.jobs.read(self.job)))
        return [alarm.text for alarm in findings(books)]

    def assert_balanced(self) -> None:
        """What a stage says to have emitted has arrived; what arrived was taken; nothing else came about."""
        assert self.findings() == []


# The sequence oracle.


def in_sequence(key: Any, number: int, last: int | None) -> tuple[int, int]:
    """For stateful_map: lets 1, 2, 3, ... of each key pass, and refuses every gap, repeat and disorder."""
    if number != (last or 0) + 1:
        raise AssertionError(f"key {key!r}: {number} came after {last or 0}")
    return number, number


def numbered(keys: Sequence[Any], count: int, first: int = 1) -> list[list[Any]]:
    """[key, number] for the numbers first .. first + count - 1 of every key, keys in turn."""
    return [[key, number] for number in range(first, first + count) for key in keys]


def oracle_of(stream: Stream, name: str = "oracle", pool: str = POOL) -> KeyedStream:
    """Keys a stream of [key, number], and checks that the numbers of each key are 1, 2, 3, ..."""
    return (
        stream.key_by(lambda pair: pair[0], name=f"{name}_key", pool=pool)
        .map(lambda pair: pair[1], name=f"{name}_number")
        .stateful_map(in_sequence, name=name)
    )


def sequence_pipeline(stages: int = 1, between: Callable[[Stream], Stream] | None = None) -> Pipeline:
    """Source `in` of [key, number] -> `stages` - 1 keyed stages that hand all on -> the oracle -> stream `out`.

    The stages before the oracle keep the order of each key: they have the same key.
    """
    flow = Pipeline("sequence")
    stream: Stream = flow.source(read.iterable([0]), name="in")
    if between is not None:
        stream = between(stream)
    for number in range(1, stages):
        stream = stream.key_by(lambda pair: pair[0], name=f"hop_{number}")
    oracle_of(stream).sink(write.stream("out"), name="out")
    return flow


def assert_sequence(job: LocalJob, keys_: Iterable[Any], count: int, stream: str = "out") -> None:
    """Every key's numbers came out as 1 .. count, in order, and nothing was given up."""
    assert job.letters() == []
    assert job.by_key(stream) == {key: list(range(1, count + 1)) for key in keys_}
