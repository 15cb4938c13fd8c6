"""The steps of the small model: each runs one production script, and says what its process remembers then."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

from msgspec.structs import replace

from pipeline.errors import StaleTerm, StoreError
from pipeline.plan import Plan
from pipeline.positions import Position, entry_after
from pipeline.store import keys
from pipeline.store.commits import Commit, Committer, Counts, Entries, Idle, Kept, Output, Refused, Reply, Target, Write
from pipeline.store.leadership import Leadership
from pipeline.store.ownership import Assigned, Ownership
from pipeline.store.scripts import Scripts, source
from verification.exhaustive.memory import RECORDS, Held, LeaderMemory, Memory, SenderMemory, WorkerMemory
from verification.model.keyspace import Keyspace, Refusal
from verification.model.lua import engine
from verification.model.server import encoded, run_id
from verification.world import JOB

STATE: Final = keys.state(JOB, 0, 0)
OUT: Final = Target.stream(JOB, "out")
PLACE: Final = (0, 0)
_SENDER: Final = "0/in/sender"
_BATCHES: Final = {0: (1, 2), 2: (3,)}
_READ_RECORDS: Final = 8

_Act = Callable[[], Memory]
Hear = Callable[[str, list[Any], Any], None]
"""Is told of each script: its name, what EVAL takes behind the text, and its answer."""


class Broken(Exception):
    """An invariant does not hold; the text says which."""


@dataclass(frozen=True, slots=True)
class Step:
    """`who` does `what`."""

    who: str
    what: str
    act: _Act


class DirectScripts(Scripts):
    """Runs the production scripts on one keyspace, with no connection between."""

    def __init__(self, keyspace: Keyspace, run: int, hear: Hear | None = None) -> None:
        self.keyspace = keyspace
        self.server = run_id(run)
        self._hear = hear

    def run(self, name: str, keys: Sequence[str], args: Sequence[Any]) -> list[Any]:
        values = [encoded(part) for part in args]
        try:
            answer: list[Any] = engine().run(
                self.keyspace, source(name, self.server), [key.encode() for key in keys], values
            )
        except Refusal as refusal:
            raise StoreError(str(refusal)) from None
        if self._hear is not None:
            self._hear(name, [len(keys), *keys, *values], answer)
        return answer


class Steps:
    """What may happen next in one state. `plan`: one stage of one partition."""

    _keyspace: Keyspace
    _scripts: DirectScripts

    def __init__(self, plan: Plan, memory: Memory, hear: Hear | None = None) -> None:
        self._plan = plan
        self._memory = memory
        self._hear = hear

    def do(self, step: Step, keyspace: Keyspace) -> Memory:
        """Takes one of the steps on this keyspace, and returns what all remember then. Raises Broken."""
        self._keyspace = keyspace
        self._scripts = DirectScripts(keyspace, self._memory.run, self._hear)
        return step.act()

    def all(self) -> Iterator[Step]:
        """Steps without a fault."""
        yield from self._of_sender()
        yield from self._of_leader()
        for number in range(len(self._memory.workers)):
            yield from self._of_worker(number)

    # the sender

    def _of_sender(self) -> Iterator[Step]:
        sender = self._memory.sender
        if not sender.id:
            yield Step("sender", "registers", self._register)
        elif sender.taken < RECORDS:
            yield Step("sender", "appends", self._append)

    def _register(self) -> Memory:
        names = [keys.senders(JOB), keys.job(JOB), keys.log(JOB, *PLACE)]
        answer = self._scripts.run("register", names, [_SENDER, "1"])
        return replace(self._memory, sender=SenderMemory(answer[1], answer[2], answer[4]))

    def _append(self) -> Memory:
        sender, limits = self._memory.sender, self._plan.limits
        values = _BATCHES.get(sender.taken, (sender.taken + 1,))
        names = [keys.inbox(JOB, *PLACE), keys.meta(JOB, *PLACE), keys.log(JOB, *PLACE), keys.job(JOB)]
        payload = _payload(values)
        sent = [sender.id, sender.epoch, values[0], len(values), payload, ""]
        code, last = self._scripts.run("append", names, [*sent, limits.inbox_records, limits.inbox_bytes, ""])
        if code in (1, 2, 3):
            return replace(self._memory, sender=replace(sender, taken=last))
        if code != -4:
            raise Broken(f"the only sender was refused: {code}")
        return self._memory  # until the leader has adopted the server

    # the leader

    def _of_leader(self) -> Iterator[Step]:
        memory = self._memory
        leader = memory.leader
        if not leader.token:
            yield Step("leader", "takes the lease", self._lead)
        elif not leader.is_adopted:
            yield Step("leader", "adopts the server", self._adopt)
        else:
            yield from self._assignments()
            if memory.sender.taken == RECORDS:
                yield Step("leader", "ends the input", self._close)

    def _assignments(self) -> Iterator[Step]:
        memory = self._memory
        if memory.is_done:
            return
        number, life = memory.owned_by
        is_free = number < 0 or memory.workers[number].life != life
        if not is_free and not memory.suspicions:
            return
        for other in range(len(memory.workers)):
            if other != number or is_free:
                yield Step("leader", f"assigns to w{other}", partial(self._assign, other, is_free))

    def _leadership(self) -> Leadership:
        return Leadership(self._scripts, "leader", "nonce")

    def _lead(self) -> Memory:
        lease = self._leadership().hold(JOB, 1.0)
        if not lease.token:
            raise Broken("the only leader gets no lease")
        return replace(self._memory, leader=replace(self._memory.leader, token=lease.token))

    def _adopt(self) -> Memory:
        self._leadership().adopt_server(JOB, self._memory.leader.token, self._plan)
        leader = replace(self._memory.leader, is_adopted=True)
        meta: Any = self._keyspace.keys[keys.meta(JOB, *PLACE).encode()]
        term = int(meta[b"term"])
        return replace(self._memory, leader=leader, owner="", owned_by=(-1, 0), term=term)

    def _assign(self, number: int, is_free: bool) -> Memory:
        memory = self._memory
        worker = (f"w{number}", str(memory.workers[number].life))
        term = memory.term + 1
        try:
            is_given = self._leadership().assign(JOB, memory.leader.token, PLACE, worker, term, "n", b"t", False)
        except StaleTerm:
            return replace(memory, leader=LeaderMemory(is_adopted=False))
        if not is_given:
            raise Broken(f"the only leader cannot give term {term}")
        left = memory.suspicions - (not is_free)
        owned = (number, memory.workers[number].life)
        return replace(memory, term=term, owner=f"{term}:n", owned_by=owned, suspicions=left)

    def _close(self) -> Memory:
        try:
            self._leadership().close_source(JOB, self._memory.leader.token, self._plan, "in")
        except StaleTerm:
            return replace(self._memory, leader=LeaderMemory(is_adopted=False))
        return self._memory

    # a worker

    def _of_worker(self, number: int) -> Iterator[Step]:
        worker, who = self._memory.workers[number], f"w{number}"
        match worker.phase:
            case "look":
                yield Step(who, "looks at the table", lambda: self._look(number))
            case "acquire":
                yield Step(who, "acquires", lambda: self._acquire(number))
            case "load":
                yield Step(who, "loads its state", lambda: self._load(number))
            case "read":
                yield Step(who, "reads", lambda: self._commit(number, 0))
            case "work":
                left = len(worker.held[0].values) - worker.record
                yield Step(who, "commits one", lambda: self._commit(number, 1))
                whole = max(1, left + sum(len(held.values) for held in worker.held[1:]))
                if whole > 1:
                    yield Step(who, f"commits {whole}", lambda: self._commit(number, whole))

    def _ownership(self, number: int) -> Ownership:
        return Ownership(self._scripts, JOB, f"w{number}", str(self._memory.workers[number].life))

    def _row(self, number: int, token: str) -> Assigned:
        return Assigned(*PLACE, f"w{number}", str(self._memory.workers[number].life), token)

    def _look(self, number: int) -> Memory:
        worker = self._memory.workers[number]
        table: Any = self._keyspace.keys.get(keys.assignment(JOB).encode()) or {}
        name, life, token = table.get(b"0.0", b"||").decode().split("|")
        if (name, life) != (f"w{number}", str(worker.life)):
            return self._memory
        return self._memory.with_worker(number, WorkerMemory(worker.life, "acquire", token))

    def _acquire(self, number: int) -> Memory:
        worker = self._memory.workers[number]
        found = self._ownership(number).acquire(self._row(number, worker.token))
        if found is None:
            return self._memory.with_worker(number, worker.forgets())
        at = found.position
        phase = "done" if found.done else "load"
        new = replace(worker, phase=phase, entry=at.entry, record=at.record, table=found.table)
        return self._memory.with_worker(number, new)

    def _load(self, number: int) -> Memory:
        worker = self._memory.workers[number]
        total = self._scripts.run("load", [STATE], [1, "total"])[0][1]
        return self._memory.with_worker(number, replace(worker, phase="read", total=int(total or 0)))

    def _commit(self, number: int, most: int) -> Memory:
        """Commits the next `most` records, or the end of the input, or nothing, and reads on when none are in hand."""
        worker = self._memory.workers[number]
        values, end, held, is_end = _taken(worker, most)
        behind = entry_after(held[-1].id, len(held[-1].values)) if held else end.entry
        commit = Commit(worker.position, end, "keep" if held else "more", behind, _READ_RECORDS)
        if values:
            total = worker.total + sum(values)
            commit.counts = Counts(taken=len(values), emitted=len(values))
            commit.writes.append(Write("HSET", STATE, ["total", total]))
            commit.outputs[OUT] = [Output("D", len(values), None, _payload(values))]
            worker = replace(worker, total=total)
        if is_end:
            commit.meta["done"] = "1"
            commit.outputs[OUT] = [Output("E")]
        committer = Committer(self._scripts, JOB, *PLACE, worker.token, self._plan.limits)
        reply = committer.send(commit, worker.table)
        if not isinstance(reply, Refused):
            self._check(worker, values, commit.start)
        return self._after(number, worker, reply, values, end, held, is_end)

    def _check(self, worker: WorkerMemory, values: tuple[int, ...], start: Position) -> None:
        memory = self._memory
        if worker.token != memory.owner:
            raise Broken(f"a commit of {worker.token} was taken, and {memory.owner or 'nobody'} owns the partition")
        if values and values[0] != memory.committed + 1:
            raise Broken(f"record {values[0]} was committed at {start}, behind record {memory.committed}")

    def _after(
        self,
        number: int,
        worker: WorkerMemory,
        reply: Reply,
        values: tuple[int, ...],
        end: Position,
        held: tuple[Held, ...],
        is_end: bool,
    ) -> Memory:
        match reply:
            case Refused():
                return self._memory.with_worker(number, worker.forgets())
            case Entries(entries):
                held = tuple(Held(each.id, _values(each.payload)) for each in entries)
            case Idle() | Kept():
                pass
            case other:
                raise Broken(f"a commit was answered with {other}")
        phase = "done" if is_end else "work" if held else "read"
        new = replace(worker, phase=phase, entry=end.entry, record=end.record, held=held)
        committed, is_done = self._memory.committed + len(values), self._memory.is_done or is_end
        return self._memory.with_worker(number, new, committed=committed, is_done=is_done)


def _taken(worker: WorkerMemory, most: int) -> tuple[tuple[int, ...], Position, tuple[Held, ...], bool]:
    """The values of the next `most` records, where that ends, what is in hand then, and whether the input ends."""
    values: list[int] = []
    at, held = worker.position, list(worker.held)
    while most and held:
        entry = held[0]
        if not entry.values:
            if values:
                break
            return (), Position(entry_after(entry.id, 0)), tuple(held[1:]), True
        part = entry.values[at.record : at.record + most - len(values)]
        values += part
        if at.record + len(part) == len(entry.values):
            at = Position(entry_after(entry.id, len(entry.values)))
            held.pop(0)
        else:
            at = Position(entry.id, at.record + len(part))
        if len(values) == most:
            break
    return tuple(values), at, tuple(held), False


def _payload(values: Sequence[int]) -> bytes:
    return " ".join(map(str, values)).encode()


def _values(payload: bytes) -> tuple[int, ...]:
    return tuple(map(int, payload.split()))
