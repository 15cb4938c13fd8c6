"""Visits every state that the small model can reach, once, and checks the invariants in each."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Any, Final

import msgspec
from msgspec.structs import replace

from pipeline import Pipeline, read, write
from pipeline.plan import Plan, compile_plan
from pipeline.settings import Limits
from pipeline.store import keys
from pipeline.store.jobs import JobStore
from pipeline.store.scripts import Scripts
from verification.exhaustive.memory import RECORDS, LeaderMemory, Memory, SenderMemory
from verification.exhaustive.steps import OUT, PLACE, STATE, Broken, Step, Steps
from verification.model.connection import client_of
from verification.model.keyspace import Keyspace, Stream
from verification.model.server import Server
from verification.world import JOB

_encode = msgspec.msgpack.Encoder().encode

_META: Final = keys.meta(JOB, *PLACE).encode()
_INBOX: Final = keys.inbox(JOB, *PLACE).encode()
_LOG: Final = keys.log(JOB, *PLACE).encode()


@dataclass(slots=True)
class Found:
    """What a search has seen. interleavings: the different ways from the first state to one where nothing is left.

    broken: the first invariant that did not hold, in words; `way`: the steps that lead there.
    """

    states: int = 0
    steps: int = 0
    ends: int = 0
    interleavings: int = 0
    broken: str = ""
    way: list[str] = field(default_factory=list)


@dataclass(slots=True)
class _Frame:
    mark: bytes
    keyspace: Keyspace
    memory: Memory
    moves: Iterator[tuple[str, Keyspace, Memory]]
    label: str
    ways: int = 0
    moved: bool = False


class Search:
    """Depth first, from a job that was just made. `faults`: how many may befall it on each way.

    is_early: each fault is tried before the step without it. That decides what is found first, and nothing else.
    """

    def __init__(self, faults: int = 1, *, is_early: bool = False) -> None:
        """Raises EnvironmentFault when the extra is missing."""
        self._is_early = is_early
        self._faults = faults
        self.plan = plan()
        self._ways: dict[bytes, int] = {}
        self._found = Found()

    def run(self) -> Found:
        keyspace, memory = start()
        memory = replace(memory, faults=self._faults)
        path: list[_Frame] = []
        try:
            path.append(self._enter(keyspace, memory, "", _mark(keyspace, memory)))
            while path:
                self._advance(path)
        except Broken as broken:
            self._found.broken = str(broken)
            self._found.way = [frame.label for frame in path if frame.label] + ([self._last] if self._last else [])
        self._found.states = len(self._ways)
        return self._found

    def _advance(self, path: list[_Frame]) -> None:
        """One step on from the end of the path, or back when all steps from there are done."""
        frame = path[-1]
        for label, keyspace, memory in frame.moves:
            self._found.steps += 1
            mark = _mark(keyspace, memory)
            if mark == frame.mark:
                continue  # it waits
            frame.moved = True
            known = self._ways.get(mark)
            if known is None:
                path.append(self._enter(keyspace, memory, label, mark))
                return
            frame.ways += known
        if not frame.moved:
            self._found.ends += 1
            frame.ways = 1
            self._last = ""
            if not frame.memory.is_done:
                raise Broken("nothing is left to do, and the job has not come to its end")
        path.pop()
        self._ways[frame.mark] = frame.ways
        if path:
            path[-1].ways += frame.ways
        else:
            self._found.interleavings = frame.ways

    _last = ""

    def _enter(self, keyspace: Keyspace, memory: Memory, label: str, mark: bytes) -> _Frame:
        self._last = label
        check(keyspace, memory)
        self._ways[mark] = 0  # a way that comes back here is none
        return _Frame(mark, keyspace, memory, self._moves(keyspace, memory), label)

    def _moves(self, before: Keyspace, memory: Memory) -> Iterator[tuple[str, Keyspace, Memory]]:
        steps = Steps(self.plan, memory)
        for step in steps.all():
            keyspace = before.copied()
            self._last = f"{step.who} {step.what}"
            after = steps.do(step, keyspace)
            label = self._last
            if not self._is_early:
                yield label, keyspace, after
            if memory.faults:
                # What its script did stays. It may not hear of that, or die with all it knows.
                unheard = _unheard(memory, after, memory.faults - 1)
                yield f"{label}, and its reply is lost", keyspace, unheard
                dead, idle = _dead(step, unheard), _dead(step, replace(memory, faults=memory.faults - 1))
                if dead is not None and idle is not None:
                    yield f"{label}, and dies", keyspace, dead
                    yield f"{step.who} dies", before, idle
            if self._is_early:
                yield label, keyspace, after
        if memory.faults:
            yield (
                "the server is restarted",
                before,
                replace(
                    memory,
                    faults=memory.faults - 1,
                    run=memory.run + 1,
                    owner="",
                    leader=LeaderMemory(is_adopted=False),
                ),
            )


def _unheard(before: Memory, after: Memory, faults: int) -> Memory:
    """What the search knows afterwards, while the processes know what they knew before."""
    return replace(after, sender=before.sender, leader=before.leader, workers=before.workers, faults=faults)


def _dead(step: Step, memory: Memory) -> Memory | None:
    """Without what this process knew. A leader keeps nothing that it could not read again."""
    match step.who:
        case "sender":
            return replace(memory, sender=SenderMemory())
        case "leader":
            return None
    number = int(step.who[1:])
    worker = memory.workers[number]
    return memory.with_worker(number, replace(worker.forgets(), life=worker.life + 1))


def check(keyspace: Keyspace, memory: Memory) -> None:
    """Raises Broken when an invariant does not hold in this state."""
    meta: Any = keyspace.keys[_META]
    log: Any = keyspace.keys.get(_LOG, {})
    entry, record = meta[b"pos"].decode(), int(meta[b"rec"])
    first, _, sub = entry.partition("-")
    committed = int(first) - 1 + record
    if committed != memory.committed:
        raise Broken(
            f"by the position {committed} records are committed, by the commits that were taken {memory.committed}"
        )
    owners = [worker.token for worker in memory.workers if worker.token and worker.token.encode() == meta.get(b"token")]
    if len(owners) > 1:
        raise Broken("two workers own the partition")
    if owners and memory.owner and owners[0] != memory.owner:
        raise Broken(f"{owners[0]} owns the partition, and {memory.owner} was made its owner")
    acked = max((int(value) for name, value in log.items() if name.isdigit()), default=0)
    if memory.sender.taken > acked:
        raise Broken(f"{memory.sender.taken} records were acknowledged, {acked} are known")
    inbox = keyspace.keys.get(_INBOX)
    waiting = _numbers(inbox, (int(first), int(sub)))[record:]
    applied = _numbers(keyspace.keys.get(OUT.inbox.encode()), (0, 0))
    if applied + waiting != list(range(1, acked + 1)):
        raise Broken(f"{acked} records were taken; applied are {applied}, waiting are {waiting}")
    if len(applied) != committed:
        raise Broken(f"{committed} records are committed, and the effects are those of {applied}")
    state: Any = keyspace.keys.get(STATE.encode(), {})
    if int(state.get(b"total", 0)) != sum(applied):
        raise Broken(f"the state is {state[b'total'].decode()} after {applied}")
    if meta.get(b"done") == b"1" and (waiting or acked != RECORDS):
        raise Broken(f"the stage has come to its end, and {waiting} wait")


def _numbers(stream: Any, start: tuple[int, int]) -> list[int]:
    """The records of a stream, from an entry on."""
    if not isinstance(stream, Stream):
        return []
    found: list[int] = []
    for at, fields in zip(stream.ids, stream.fields, strict=True):
        if at >= start and len(fields) > 2:
            found += map(int, fields[3].split())
    return found


def _mark(keyspace: Keyspace, memory: Memory) -> bytes:
    return blake2b(_encode((keyspace.frozen(), memory)), digest_size=16).digest()


def start() -> tuple[Keyspace, Memory]:
    """What there is when the job was just made, its leader leads, its sender is registered, and w0 owns the partition.

    The workers are equal, so nothing is left out.
    """
    server = Server()
    JobStore(Scripts(client_of(server))).create(JOB, plan())
    memory = Memory(faults=0)
    for wanted in ("takes the lease", "registers", "assigns to w0"):
        steps = Steps(plan(), memory)
        memory = steps.do(next(step for step in steps.all() if step.what == wanted), server.keyspace)
    return server.keyspace, memory


def plan() -> Plan:
    """One stage of one partition, and an output."""
    flow = Pipeline("small")
    flow.source(read.producer(), name="in").map(_same, name="same").sink(write.stream("out"), name="out")
    return compile_plan(flow.graph(), 1, Limits())


def _same(value: int) -> int:
    return value
