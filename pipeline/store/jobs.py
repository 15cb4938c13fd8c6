"""Jobs: creating, reading, changing state, removing; and the facts that leader and command look at."""

from __future__ import annotations

import re
import secrets
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, Literal

import msgspec

from pipeline.errors import DecodingError, JobStateError, StaleTerm, UnknownJob
from pipeline.facts import Aim, JobFacts, JobRecord, PartitionFacts, StateChange, WorkerFacts
from pipeline.lifecycle import BEFORE, ENDED, JobState
from pipeline.losses import HINT, LOST
from pipeline.plan import Plan, readable_names
from pipeline.positions import Position
from pipeline.scaling.settings import Scaling
from pipeline.store import keys
from pipeline.store.books import read_alarms
from pipeline.store.connection import translated
from pipeline.store.foreign import HINT as FOREIGN_HINT
from pipeline.store.foreign import entry_id, integer, ours, text_of
from pipeline.store.letters import DeadLetter, read_letter
from pipeline.store.losses import LossStore
from pipeline.store.moving import read_aims
from pipeline.store.operations import read_operation, read_past
from pipeline.store.outputs import output_facts
from pipeline.store.scaling import scaled_pools
from pipeline.store.scripts import Scripts

JOB_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,99}\Z")

NO_JOB: Final = (
    "celeriac list shows the jobs; one that was there before was removed, or this Redis was emptied or came back"
    " without its data"
)

_TAKEOVERS: Final = 10

_BEFORE_PARTITIONS: Final = 12
"""Answers about the whole job, in front of those about its partitions."""

_META = (
    "owner", "token", "term", "pos", "rec", "head", "sub", "bytes", "ring", "closed", "done",
    "taken", "emitted", "filtered", "duplicate", "late", "dead", "skipped", "held", "held_bytes",
    "switch",
)  # fmt: skip
_TEXTS = ("owner", "token", "pos", "ring", "switch")


class JobStore:
    """All that is done to whole jobs."""

    def __init__(self, scripts: Scripts) -> None:
        self._scripts = scripts
        self._client = scripts.client

    def ping(self) -> None:
        """Raises StoreUnavailable, UnsuitableServer."""
        with translated():
            self._client.ping()

    def run_id(self) -> str:
        """Changes with each start of the server."""
        with translated():
            return str(self._client.info("server")["run_id"])

    def memory(self) -> tuple[int, int]:
        """(used, maxmemory) in bytes; maxmemory is 0 where there is no bound."""
        with translated():
            info = self._client.info("memory")
        return int(info["used_memory"]), int(info.get("maxmemory", 0))

    def now_ms(self) -> int:
        """The clock of the server."""
        with translated():
            seconds, micros = self._client.time()
        return int(seconds) * 1000 + int(micros) // 1000

    def create(self, job: str, plan: Plan, restoring: str = "") -> None:
        """Registers the job in state running; what an interrupted removal of that id has left is deleted first.

        One that is `restoring` (`nonce name`) does not run until `pipeline.store.restores` says that it is whole.

        Raises JobStateError if the id is taken or no id.
        """
        if not JOB_ID.match(job):
            raise JobStateError(f"not a job id: {job!r}", hint="use letters, digits, '-', '_' and '.', at most 100")
        names = [keys.job(job), keys.jobs(), keys.control(job), keys.removing(job)]
        names += [keys.meta(job, stage, partition) for stage, partition in plan.partitions()]
        args = [job, plan.encode(), self.run_id(), restoring]
        answer = self._scripts.run("create", names, args)
        for _ in range(_TAKEOVERS):
            if answer[0] != 2:
                break
            self.finish_removal(job)  # may be taken over in turn, by another process that wants the same id
            answer = self._scripts.run("create", names, args)
        if answer[0] == 2:
            raise JobStateError(f"job {job!r} is being removed by another process", hint="try again in a moment")
        if answer[0] != 1:
            raise JobStateError(
                f"job {job!r} exists already; it is {_words(answer[1])}",
                hint=f"take another id, or, if it is not needed any more, `celeriac remove {job}`",
            )

    def claim(self, job: str, before: str, nonce: str = "") -> str:
        """Takes the job for a run that is about to start workers, or for who publishes; the claim by which it holds it.

        Nothing when the job's claim is not `before` any more: another one has taken it. With a `nonce`, of which no
        other caller knows, it may be called again when no answer has come. Raises UnknownJob.
        """
        return self._claim(job, before, nonce or secrets.token_hex(8))

    def hold_claim(self, job: str, claim: str) -> str:
        """Says so again. It may be called again with the same claim when no answer has come. Raises as `claim`."""
        return self._claim(job, claim, claim.partition(" ")[2])

    def _claim(self, job: str, before: str, nonce: str) -> str:
        answer = self._scripts.run("claim", [keys.job(job)], [before, nonce])
        if answer[0] == -5:
            raise UnknownJob(f"there is no job {job!r}", hint="celeriac list shows the jobs")
        return answer[1].decode() if answer[0] == 1 else ""

    def list_ids(self) -> list[str]:
        """Ids of all jobs, oldest first."""
        with translated():
            raw = self._client.zrange(keys.jobs(), 0, -1)
        # What is no id is none of ours: there is no way to it either.
        return [job for job in (member.decode("utf-8", "replace") for member in raw) if JOB_ID.match(job)]

    def read(self, job: str) -> JobRecord:
        """Raises UnknownJob, DecodingError."""
        with translated():
            raw = self._client.hgetall(keys.job(job))
        return _record(job, raw)

    def state(self, job: str) -> JobState:
        """Raises UnknownJob."""
        with translated():
            state = self._client.hget(keys.job(job), "state")
        if state is None:
            raise UnknownJob(f"there is no job {job!r}", hint=NO_JOB)
        with ours(keys.job(job)):
            return JobState(state.decode())

    def transition(self, job: str, to: JobState, reason: str = "", leader_token: str = "") -> None:
        """Raises JobStateError if `to` may not follow the job's state, StaleTerm, UnknownJob."""
        names = [keys.job(job), keys.control(job), keys.leader(job)]
        answer = self._scripts.run("transition", names, [to.value, reason, leader_token, *BEFORE[to]])
        match answer[0]:
            case -5:
                raise UnknownJob(f"there is no job {job!r}", hint=NO_JOB)
            case -1:
                raise StaleTerm(f"this leader no longer leads job {job!r}")
            case -2:
                raise JobStateError(f"job {job!r} has halted: {LOST}", hint=HINT)
            case -8:
                raise JobStateError(
                    f"job {job!r} is being restored from a savepoint, or that was interrupted",
                    hint=f"`celeriac remove {job}` deletes what an interrupted one has left; then restore it anew",
                )
            case 0:
                raise JobStateError(f"job {job!r} is {_words(answer[1])}; it cannot become {to.value}")

    def pause(self, record: JobRecord, source: str, *, is_paused: bool, holder: str = "") -> bool:
        """Holds back new records of a source, or lets them in again; False when it was so before.

        A `holder`, by a token of its own, holds back only what is not paused, and lets only that go on: what is paused
        anew meanwhile, without one, stays so. Both may be repeated. Raises JobStateError when the job takes no input
        any more, UnknownJob, StoreError.
        """
        stage = record.plan.entry_stage(source)
        names = [keys.job(record.job)]
        names += [keys.meta(record.job, stage.index, number) for number in range(stage.partitions)]
        answer = self._scripts.run("pause", names, [source, "1" if is_paused else "", holder])
        match answer[0]:
            case -5:
                raise UnknownJob(f"there is no job {record.job!r}", hint=NO_JOB)
            case -3:
                raise JobStateError(f"job {record.job!r} is {_words(answer[1])}: it takes no input any more")
        return bool(answer[0])

    def pause_stage(self, record: JobRecord, stage: str, *, is_paused: bool) -> bool:
        """Has the workers leave a stage alone, or go on with it; False when it was so before.

        Raises JobStateError when the job does not work, UnknownJob, StoreError.
        """
        names = [keys.job(record.job), keys.control(record.job)]
        answer = self._scripts.run("still", names, [stage, "1" if is_paused else ""])
        match answer[0]:
            case -5:
                raise UnknownJob(f"there is no job {record.job!r}", hint=NO_JOB)
            case -3:
                raise JobStateError(f"job {record.job!r} is {_words(answer[1])}: none of its stages works")
        return bool(answer[0])

    def losses(self, job: str) -> LossStore:
        """For those who remember more of the job than Redis."""
        return LossStore(self._scripts, job)

    def facts(self, job: str) -> JobFacts:
        """Everything at about one moment, in two round trips. Raises UnknownJob, DecodingError, StoreError."""
        record = self.read(job)
        places = record.plan.partitions()
        with translated():
            pipe = self._client.pipeline(transaction=False)
            pipe.time()
            pipe.hmget(keys.job(job), "now", "ahead")
            pipe.hgetall(keys.workers(job))
            pipe.hgetall(keys.assignment(job))
            pipe.hgetall(keys.senders(job))
            pipe.hmget(keys.leader(job), "name", "term")
            pipe.xlen(keys.dead(job))
            pipe.memory_usage(keys.dead(job), samples=5)
            pipe.hgetall(keys.books(job))
            pipe.hgetall(keys.operation(job))
            pipe.hgetall(keys.moving(job))
            pipe.hkeys(keys.drained(job))
            for stage, partition in places:
                pipe.hmget(keys.meta(job, stage, partition), _META)
                pipe.llen(keys.queue(job, stage, partition))
            streams = readable_names(record.plan)
            for stream in streams:
                pipe.hgetall(keys.out_meta(job, stream))
                pipe.hlen(keys.out_waiting(job, stream))
            answers = pipe.execute()
        (seconds, micros), clock, workers, assigned, senders, leader, dead, dead_bytes, alarms = answers[:9]
        raw_operation, moving, drained = answers[9:_BEFORE_PARTITIONS]
        server_ms = seconds * 1000 + micros // 1000
        with ours(keys.job(job)):
            now_ms = max(server_ms + int(clock[1] or 0), int(clock[0] or 0))
        at = _BEFORE_PARTITIONS + 2 * len(places)
        outputs = []
        for i, stream in enumerate(streams):
            with ours(keys.out_meta(job, stream)):
                outputs.append(output_facts(stream, answers[at + 2 * i], answers[at + 1 + 2 * i], server_ms))
        found = answers[_BEFORE_PARTITIONS:at]
        aims = read_aims(job, moving)
        partitions = tuple(
            _partition(job, place, found[2 * i], found[2 * i + 1], assigned, aims) for i, place in enumerate(places)
        )
        with ours(keys.senders(job)):
            texts = text_of({name: value for name, value in senders.items() if name.startswith(b"f:")})
            finished = {name[2:]: integer(texts, name) for name in texts}
        with ours(keys.leader(job)):
            name, leader_term = (leader[0] or b"").decode(), int(leader[1] or 0)
        with ours(keys.workers(job)):
            held = _workers(workers, now_ms, record.code)
        with ours(keys.books(job)):
            kept = read_alarms(alarms)
        with ours(keys.operation(job)):
            operation = read_operation(raw_operation)
        return JobFacts(
            record,
            now_ms,
            partitions,
            held,
            name,
            int(dead),
            finished,
            tuple(outputs),
            int(dead_bytes or 0),
            kept,
            leader_term=leader_term,
            operation=operation,
            drained=frozenset(node.decode("utf-8", "backslashreplace") for node in drained),
        )

    def dead_letters(self, job: str, count: int = 100) -> list[DeadLetter]:
        """The oldest `count` dead letters."""
        with translated():
            raw = self._client.xrange(keys.dead(job), count=count)
        return [read_letter(id_.decode(), fields) for id_, fields in raw]

    def staged_files(self, job: str) -> dict[str, list[bytes]]:
        """Sink name -> the facts of its staging files, by stage, partition and term."""
        with translated():
            raw = self._client.hgetall(keys.files(job))
        found: dict[str, list[tuple[list[int], bytes]]] = {}
        with ours(keys.files(job)):
            for field, facts in raw.items():
                sink, place = field.decode().split(" ")
                found.setdefault(sink, []).append(([int(part) for part in place.split(".")], facts))
        return {sink: [facts for _, facts in sorted(rows)] for sink, rows in found.items()}

    def log_totals(self, record: JobRecord) -> dict[str, int]:
        """`n:sink` and `p:sink` of all partitions' logs, added up."""
        with translated():
            pipe = self._client.pipeline(transaction=False)
            for stage, partition in record.plan.partitions():
                pipe.hgetall(keys.log(record.job, stage, partition))
            logs = pipe.execute()
        found: dict[str, int] = {}
        for place, log in zip(record.plan.partitions(), logs, strict=True):
            with ours(keys.log(record.job, *place)):
                texts = text_of({name: value for name, value in log.items() if name.startswith((b"n:", b"r:"))})
                for name in texts:
                    found[name] = found.get(name, 0) + integer(texts, name)
        return found

    def remove(self, job: str) -> int:
        """Deletes every key of an ended job, kombu's included; returns how many. Raises JobStateError if it works."""
        self.state(job)
        number, removed = self._begin_removal(job, "", *(state.value for state in JobState if state not in ENDED))
        if number < 0:
            raise JobStateError(f"job {job!r} is {_words(removed)}", hint=f"celeriac cancel {job} first")
        return self._erase_all(job, number, removed)

    def erase(self, job: str) -> int:
        """Deletes every key of the job whatever its state, kombu's included; returns how many.

        The job's hash and its lease go first and together, so every late writer is refused. Whoever calls this while
        another process is at it, or after it was killed, takes over; the other one then stops.
        """
        return self._erase_all(job, *self._begin_removal(job, ""))

    def _begin_removal(self, job: str, takes_over: Literal["", "1"], *kept: str) -> tuple[int, Any]:
        leader = keys.own_leader_name(job)
        # A leader that was killed has not taken itself out; one that lives comes back by itself.
        names = [keys.job(job), keys.leader(job), keys.removing(job), keys.leader_queue(leader), keys.leaders()]
        answer = self._scripts.run("remove", names, [leader, takes_over, *kept])
        return answer[0], answer[1] if len(answer) > 1 else 0

    def _erase_all(self, job: str, number: int, removed: int) -> int:
        with translated():
            for pattern in self._patterns(job):
                for page in self._pages(pattern):
                    left = [key for key in page if key != keys.removing(job).encode()]
                    removed += max(0, self._erase(job, number, left)) if left else 0
            for page in self._pages(f"{keys.PREFIX}_kombu.binding*.*"):
                for table in page:
                    members = [each for each in self._client.smembers(table) if f"{{{job}}}".encode() in each]
                    if members:
                        self._erase(job, number, [table], members)
        self._scripts.run("removed", [keys.removing(job), keys.jobs()], [number, job])
        return int(removed)

    def finish_removal(self, job: str) -> bool:
        """Finishes a removal that was interrupted; False when there is none."""
        number, removed = self._begin_removal(job, "1")
        if number:
            self._erase_all(job, number, removed)
        return bool(number)

    def _erase(self, job: str, number: int, names: list[bytes], members: Sequence[bytes] = ()) -> int:
        answer = self._scripts.run("erase", [keys.removing(job), *map(bytes.decode, names)], [number, *members])
        return int(answer[0])

    def _patterns(self, job: str) -> list[str]:
        """What the names of a job's keys match. kombu's own tables are shared: with the last job they go as well."""
        patterns = [f"{keys.of_job(job)}*", f"{keys.PREFIX}_kombu.*{{{job}}}*"]
        others = set(self.list_ids()) - {job}
        return patterns if others else [*patterns, f"{keys.PREFIX}_kombu.*"]

    def _pages(self, pattern: str) -> Iterator[list[Any]]:
        cursor = 0
        while True:
            cursor, page = self._client.scan(cursor, match=pattern, count=1000)
            if page:
                yield page
            if not cursor:
                return


def _record(job: str, raw: dict[bytes, bytes]) -> JobRecord:
    if not raw:
        raise UnknownJob(f"there is no job {job!r}", hint=NO_JOB)
    plan = Plan.decode(raw.get(b"plan", b""))
    try:
        text = text_of({name: value for name, value in raw.items() if name != b"plan"})
        return JobRecord(
            job=job,
            plan=plan,
            state=JobState(text["state"]),
            reason=text["reason"],
            made_at_ms=integer(text, "made_at"),
            changed_at_ms=integer(text, "changed_at"),
            generation=integer(text, "generation"),
            table=integer(text, "table"),
            run_id=text["run_id"],
            gate=text["gate"],
            completed_sources=frozenset(k.removeprefix("complete:") for k in text if k.startswith("complete:")),
            claim=text.get("claim", ""),
            waits={k.removeprefix("waits:"): why for k, why in sorted(text.items()) if k.startswith("waits:")},
            losses=tuple(_lines(text, "lost")),
            accepted=tuple(_lines(text, "accepted")),
            history=tuple(_change(line) for line in _lines(text, "history")),
            paused={
                k.removeprefix("paused:"): int(at.partition(" ")[0])
                for k, at in sorted(text.items())
                if k.startswith("paused:")
            },
            scaling=msgspec.json.decode(text["scaling"], type=Scaling) if "scaling" in text else None,
            workers_wanted=int(text.get("workers_wanted", 0)),
            scaled_at_ms=int(text.get("scaled_at", 0)),
            pools=scaled_pools(text),
            saving=int(text.get("saving", 0)),
            restoring=text.get("restoring", "").partition(" ")[2],
            operations=tuple(read_past(line) for line in _lines(text, "operations")),
            is_submitted="submitted" in text,
            shadow=text.get("shadow", ""),
            code=text.get("code", ""),
            held_back=text.get("held_back", ""),
            still={k.removeprefix("still:"): int(at) for k, at in sorted(text.items()) if k.startswith("still:")},
        )
    except (KeyError, ValueError, msgspec.MsgspecError) as error:
        why = f"there is no field {error}" if isinstance(error, KeyError) else str(error)
        raise DecodingError(f"{keys.job(job)}, the record of the job, cannot be read: {why}", FOREIGN_HINT) from error


def _lines(text: Mapping[str, str], name: str) -> list[str]:
    """As scripts have written them: whatever else ends a line in Python may stand in an error of a user's code."""
    return [line for line in text.get(name, "").split("\n") if line]


def _change(line: str) -> StateChange:
    at, state, reason = line.split(" ", 2)
    return StateChange(int(at), JobState(state), reason)


def _partition(
    job: str,
    place: tuple[int, int],
    raw: list[bytes | None],
    queued: int,
    assigned: dict[bytes, bytes],
    aims: dict[str, Aim],
) -> PartitionFacts:
    with ours(keys.meta(job, *place)):
        meta = {name: value.decode() if value else "" for name, value in zip(_META, raw, strict=True)}
        counted = {name: value for name, value in meta.items() if value}
        number = {name: integer(counted, name, 0) for name in meta if name not in _TEXTS}
        position = Position(entry_id(meta["pos"] or "1-0"), number["rec"])
    with ours(keys.assignment(job)):
        owner, incarnation, _token = assigned.get(f"{place[0]}.{place[1]}".encode(), b"||").decode().split("|")
    aim = aims.get(f"{place[0]}.{place[1]}")
    return PartitionFacts(
        aim=aim if aim is not None and aim.token == meta["token"] else None,
        stage=place[0],
        partition=place[1],
        owner=owner,
        incarnation=incarnation,
        token=meta["token"],
        term=number["term"],
        position=position,
        at_end=position.entry == f"{number['head'] + 1}-{number['sub']}",
        backlog=max(0, number["head"] + 1 - position.order[0] - number["rec"]),
        backlog_bytes=number["bytes"],
        ring=meta["ring"],
        queued=int(queued),
        head=number["head"],
        closed=bool(number["closed"]),
        done=bool(number["done"]),
        is_switching=bool(meta["switch"]),
        **{name: number[name] for name in _META[_META.index("taken") : -1]},
    )


def _workers(raw: dict[bytes, bytes], now_ms: int, code: str) -> tuple[WorkerFacts, ...]:
    """One that runs another version than the job was promoted to is about to leave."""
    text = text_of(raw)
    found = []
    for field, incarnation in sorted(text.items()):
        if field.startswith("i:"):
            name = field[2:]
            age = max(0, now_ms - integer(text, "a:" + name, 0)) / 1000
            dead = text.get("d:" + name) == incarnation
            report = msgspec.json.decode(text.get("r:" + name, "{}"), type=dict[str, Any])
            leaving = text.get("l:" + name) == incarnation or code not in ("", report.get("code", code))
            found.append(WorkerFacts(name, incarnation, age, dead, report, leaving))
    return tuple(found)


def _words(state: bytes) -> str:
    """What a job's state says, for a message: it may be none of ours."""
    return state.decode("utf-8", "backslashreplace")[:100]
