"""External senders: registering, appending by number, finishing. What `pipeline.sources` feeds a job through."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import msgspec

from pipeline.errors import (
    InboxClosed,
    InboxFull,
    JobRestored,
    SourcePaused,
    StoreError,
    StoreFull,
    UnknownSender,
)
from pipeline.lifecycle import JobState
from pipeline.plan import Plan
from pipeline.records import Batch
from pipeline.store import ids as own_ids
from pipeline.store import keys
from pipeline.store.connection import connect, translated
from pipeline.store.durability import Durability, read_durability
from pipeline.store.foreign import ours
from pipeline.store.jobs import JobStore
from pipeline.store.losses import LossStore, unknown_job
from pipeline.store.patience import Patience
from pipeline.store.payloads import encode_faulty, encoded_position, no_place
from pipeline.store.scripts import Scripts
from pipeline.store.standing import Sender, Standing, restored, tail_lost
from pipeline.wording import counted

logger = logging.getLogger(__name__)

WAIT_CHARACTERS: Final = 500


@dataclass(frozen=True, slots=True)
class FeedAddress:
    """All that a process needs to feed one source of a job; may travel to Spark executors."""

    redis_url: str
    job: str
    source: str
    full_timeout_seconds: float | None = None

    def open(self, patience: Patience | None = None) -> Feed:
        """Raises UnknownJob, StoreError."""
        scripts = Scripts(connect(self.redis_url))
        scripts.meet()
        record = JobStore(scripts).read(self.job)
        return Feed(scripts, self, record.plan, record.run, patience)

    def __repr__(self) -> str:
        return f"FeedAddress(job={self.job!r}, source={self.source!r})"


class Feed:
    """Feeds one source of a job. `run`: the job's made_at.generation, as `JobRecord.run`."""

    def __init__(
        self, scripts: Scripts, address: FeedAddress, plan: Plan, run: str, patience: Patience | None = None
    ) -> None:
        self._scripts = scripts
        self._opened_on = scripts.server
        self._patience = patience or Patience()
        self._address = address
        self._plan = plan
        self._run = run
        self._generation = run.partition(".")[2]
        self._stage = plan.entry_stage(address.source)

    def lane(self, split: str, *, exclusive: bool = False) -> Lane:
        """Registers a sender, or finds it again. With `exclusive` an older instance of it is fenced off.

        Splits are not exclusive: two attempts send the same records under the same numbers, which is harmless.
        Raises UnknownJob, InboxClosed (a new sender after the end of the source), StoreError.
        """
        job, stage = self._address.job, self._stage
        name = f"{self._generation}/{self._address.source}/{split}"
        names = [keys.senders(job), keys.job(job)]
        names += [keys.log(job, stage.index, number) for number in range(stage.partitions)]

        def register() -> list[Any]:
            answer = self._patience.through_outages(
                lambda: self._scripts.run("register", names, [name, "1" if exclusive else "0"])
            )
            match answer[0]:
                case -5:
                    raise unknown_job(job)
                case -3:
                    raise _closed(job)
                case -6:
                    raise JobRestored(restored(job, "another number"), hint="open it anew")
            return answer[1:]

        return Lane(self._scripts, self._address, self._plan, name, register, self._patience)

    def visit(self, lanes: Sequence[Lane]) -> None:
        """Says that these lanes, which will not come back under their names, are still there.

        The leader forgets such a lane when it has left without a word. Raises UnknownJob, StoreError.
        """
        job = self._address.job
        names = [keys.visitors(job), keys.job(job)]
        visitors = [lane.visitor for lane in lanes]
        answer = self._patience.through_outages(lambda: self._scripts.run("visit", names, visitors))
        if answer[0] == -5:
            raise unknown_job(job)

    def tell_wait(self, text: str) -> None:
        """Has the job's status say what this source waits for; with no text it waits no more.

        Raises UnknownJob, StoreError.
        """
        job = self._address.job
        answer = self._patience.through_outages(
            lambda: self._scripts.run("waits", [keys.job(job)], [self._address.source, text[:WAIT_CHARACTERS]])
        )
        if answer[0] == -5:
            raise unknown_job(job)

    def takes_input(self) -> bool:
        """Whether new records may be appended now. Raises UnknownJob, StoreUnavailable, StoreError."""
        jobs = JobStore(self._scripts)
        (state,) = self._patience.through_outages(lambda: [jobs.state(self._address.job)])
        return state is JobState.RUNNING

    def splits(self, beginning: str = "") -> list[str]:
        """The splits of all senders that this source has; those that begin so, without signs of a pattern.

        Raises StoreUnavailable, StoreError.
        """
        prefix = f"n:{self._generation}/{self._address.source}/"

        def found() -> list[Any]:
            with translated():
                match = f"{prefix}{beginning}*"
                pages = self._scripts.client.hscan_iter(keys.senders(self._address.job), match, count=1000)
                return [field.decode("utf-8", "replace").removeprefix(prefix) for field, _ in pages]

        return sorted(set(self._patience.through_outages(found)))

    def position(self, split: str) -> Any:
        """Where a split that was read before is read on; None: at its beginning. Raises as `lane` does."""
        return self.lane(split).position

    def durability(self) -> Durability:
        """How safe a record is that was taken just now. Raises StoreUnavailable, StoreError."""
        return read_durability(self._scripts.client)

    def close(self) -> None:
        """Closes the connections of this feed and its lanes."""
        self._scripts.client.close()

    def complete(self, splits: int) -> None:
        """Says that all splits of the source are finished; the job then ends its input.

        Raises StoreError if another number of splits has finished, TailLost or JobRestored if that is since Redis came
        back with less than it had acknowledged, UnknownJob.
        """
        job, source = self._address.job, self._address.source
        answer = self._patience.through_outages(
            lambda: self._scripts.run("complete", [keys.job(job), keys.senders(job)], [source, splits])
        )
        if answer[0] == -5:
            raise unknown_job(job)
        if answer[0] == -6:
            raise self._other_count(splits, answer[1])

    def _other_count(self, splits: int, finished: int) -> StoreError:
        """Why another number of splits has finished: the ends of some are lost, if Redis was restarted meanwhile."""
        source, job = self._address.source, self._address.job
        record = self._patience.through_outages(lambda: [JobStore(self._scripts).read(job)])[0]
        if record.made_at_ms != int(self._run.partition(".")[0]):
            return unknown_job(job)
        if record.run != self._run:
            return JobRestored(restored(job, record.generation), hint="open it anew")
        if finished > splits or self._scripts.server == self._opened_on:
            return StoreError(f"source {source!r} has {finished} finished splits, not {splits}")
        line = f"source {source!r}: {counted(splits, 'split')} had ended, of which Redis has {finished:,}"
        return tail_lost(LossStore(self._scripts, job), self._run, line, self._patience)


class Lane:
    """One registered sender. Its numbers start at 1 and have no gaps; `taken` is the highest that the job has."""

    def __init__(
        self,
        scripts: Scripts,
        address: FeedAddress,
        plan: Plan,
        name: str,
        register: Callable[[], list[Any]],
        patience: Patience,
    ) -> None:
        """Registers. Raises what `register` does."""
        self._scripts = scripts
        self._patience = patience
        self._address = address
        self._limits = plan.limits
        self._memory = own_ids.Memory.of(plan.source(address.source))
        self._plan = plan
        self.name = name
        self._register = register
        self._enter(register())

    def _enter(self, registration: list[Any]) -> None:
        """Begins from what the job has said of this sender."""
        self._server = self._scripts.server
        job, source = self._address.job, self._address.source
        stage = self._plan.entry_stage(source).index
        with ours(f"{keys.senders(job)}, or the log of its partition,"):
            self._id, self._epoch, partition, self.taken, self.finished, stored, run = registration
            number, _, position = stored.partition(b" ")
            self.position = msgspec.json.decode(position) if position else None
            self.position_at = int(number or 0)
            of_run = run.decode()
        """Where to read on behind the record `position_at`: what an append stored with it. None: at the beginning."""
        self._log = keys.log(job, stage, partition)
        self._keys = [
            keys.inbox(job, stage, partition),
            keys.meta(job, stage, partition),
            self._log,
            keys.job(job),
        ]
        self.visitor = f"{stage}.{partition} {self._id} {self.name}"
        """What it is among the visitors, if it is one."""
        sender = Sender(job, of_run, source, self.name, self._id, self._epoch, self._log)
        self._standing = Standing(self._scripts, sender, self._patience)

    def append(
        self,
        first: int,
        batch: Batch,
        place: Callable[[int], str] = no_place,
        ids: Sequence[str | None] | None = None,
        position: Callable[[int], Any] | None = None,
    ) -> None:
        """Appends the records numbered first .. first + len(batch) - 1; what the job has already is cut off.

        A record that cannot be encoded, or is larger than the job's limit, becomes a fault: it keeps its number and
        ends as a dead letter, which says by `place(index)` where the record is from. Blocks while the inbox is full.
        `ids` are the records' own, of the outside world: one that the source has seen before is taken and dropped.
        `position(index)` is where to read on behind the record at that index, a JSON value of 4 KiB at most.
        It is stored in the write that takes the record, so whoever registers this sender anew goes on exactly there.
        Returns when Redis has taken the records.
        Raises EncodingError for a position that cannot be stored, InboxFull or SourcePaused (after
        `full_timeout_seconds`), InboxClosed, StaleSender, UnknownSender, UnknownJob; TailLost when the job has less
        than it had acknowledged, and JobRestored when it goes on without that under another generation.
        """
        if first > self.taken + 1:
            raise StoreError(f"sender {self.name!r}: number {first} would leave a gap behind {self.taken}")
        start = max(0, self.taken + 1 - first)
        while start < len(batch):
            stop = min(len(batch), start + max(1, self._limits.inbox_records // 8))
            stop, payload = self._piece(batch, start, stop, place)
            known = position(stop - 1) if position is not None else None
            self._send(first + start, stop - start, payload, ids[start:stop] if ids is not None else (), known)
            start = self.taken + 1 - first

    def _piece(self, batch: Batch, start: int, stop: int, place: Callable[[int], str]) -> tuple[int, bytes]:
        """Where the records from `start` end that fit into one entry, and their payload."""
        while True:
            payload = encode_faulty(
                batch.slice(start, stop), self._limits.record_bytes, lambda index: place(start + index)
            )
            if len(payload) <= self._limits.entry_bytes or stop - start <= 1:
                return stop, payload
            stop = start + (stop - start) // 2

    def _send(self, first: int, count: int, payload: bytes, ids: Sequence[str | None], position: Any) -> None:
        id_keys, id_args = own_ids.arguments(self._address.job, self._address.source, ids, self._memory)
        rest = [
            first,
            count,
            payload,
            "",
            self._limits.inbox_records,
            self._limits.inbox_bytes,
            encoded_position(position),
            *id_args,
        ]
        full_since: float | None = None
        while True:
            code, last = self._answer(id_keys, rest)
            if code in (-4, -7):
                full_since = full_since if full_since is not None else self._patience.clock()
                self._wait_while_full(full_since, is_paused=code == -7)
                continue
            self.taken = max(self.taken, last)
            if position is not None and last == first + count - 1:
                self.position, self.position_at = position, last
            if code in (1, 2, 3):
                return
            raise self._refusal(code, last)

    def _answer(self, id_keys: list[str], rest: list[Any]) -> tuple[int, int]:
        """The script's answer; a Redis without memory counts as a full inbox."""
        try:
            code, last = self._run("append", lambda: ([*self._keys, *id_keys], [self._id, self._epoch, *rest]))
        except StoreFull:
            return -4, self.taken
        return code, last

    def _wait_while_full(self, since: float, *, is_paused: bool) -> None:
        limit = self._address.full_timeout_seconds
        if limit is not None and self._patience.clock() - since > limit:
            if is_paused:
                job, source = self._address.job, self._address.source
                hint = f"`celeriac unpause {job} {source}` lets it go on"
                raise SourcePaused(f"the source {source!r} of job {job!r} is paused", hint)
            raise InboxFull(
                f"the inbox of sender {self.name!r} stayed full for {limit} s",
                hint="the job is slower than its input: add workers, or wait longer",
            )
        self._patience.pause_while_full()

    def finish(self, count: int) -> None:
        """Says that the split has exactly `count` records. Idempotent. Raises StoreError if it has not."""
        job = self._address.job
        answer = self._run(
            "finish",
            lambda: ([self._log, keys.senders(job), keys.job(job)], [self._id, count, self._address.source]),
        )
        if answer[0] != 1:
            raise self._refusal(answer[0], answer[1] if len(answer) > 1 else 0)

    def leave(self) -> bool:
        """Makes the job forget this sender, so that it leaves nothing behind. False when it was not known any more.

        Only for a sender of a name that is never used again: whatever it sends later is refused. Raises UnknownJob.
        """
        job = self._address.job
        answer = self._run(
            "leave",
            lambda: (
                [self._log, keys.senders(job), keys.job(job), keys.visitors(job)],
                [self.name, self._id, self._epoch, self.visitor],
            ),
        )
        if answer[0] == -5:
            raise unknown_job(job)
        return bool(answer[0])

    def _run(self, script: str, make: Callable[[], tuple[list[str], list[Any]]]) -> list[Any]:
        """`make` gives KEYS and ARGV of what this sender is registered as at the moment of the call."""

        def call() -> list[Any]:
            # Also when the call before has met the other server: nothing is sent until it is known what that one has.
            if self._scripts.server != self._server:
                self._compare()
            return self._scripts.run(script, *make())

        return self._patience.through_outages(call)

    def survived(self) -> int:
        """How many records that were acknowledged the job has, whatever its generation. Raises StoreError."""
        return self._standing.survived(self.taken)

    def _compare(self) -> None:
        """Another run of the server answers. Raises TailLost, JobRestored unless it has all that was acknowledged."""
        server = self._scripts.server
        if not self._standing.compare(self.taken):
            self._enter(self._register())  # that it had registered is lost, and nothing else
        self._server = server

    def _refusal(self, code: int, last: int) -> StoreError:
        job = self._address.job
        match code:
            case -1:
                return UnknownSender(
                    f"sender {self.name!r} is not registered with job {job!r}", hint="register it anew"
                )
            case -2:
                return self._standing.refusal(self.taken, None)
            case -3:
                return _closed(job)
            case -5:
                return unknown_job(job)
            case _:
                return self._standing.refusal(self.taken, last)


def _closed(job: str) -> InboxClosed:
    return InboxClosed(f"the job {job!r} takes no new input: it is draining or suspended, or has ended")
