"""What a restored job begins with: facts of a savepoint for the same stages and partitions, or for others. Pure.

With the same stages and partitions everything keeps its place, its number and its counts. With others, records in
flight are dealt out by key or sender, senders keep their numbers, promises are made again behind them, and counts begin
anew; only what an entry stage has taken goes on, since a place in its inbox is the sum of its senders' numbers.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import msgspec

from pipeline.books import FORGOTTEN
from pipeline.codec import decode_batch, encode_batch, key_field, read_key_field
from pipeline.errors import DecodingError, EncodingError
from pipeline.keying import first_table, group_of
from pipeline.messages import Data, EndOfInput, Release, Watermark, decode_header, encode_header
from pipeline.plan import Plan, StagePlan
from pipeline.records import MAX_TIME, MIN_TIME, Batch
from pipeline.savepoints.matching import Matching
from pipeline.sinks.places import FILE_FORMATS
from pipeline.store.holds import Hold

Facts = Mapping[str, Mapping[str, bytes]]
"""Hash, as its key is called without the job -> field -> value."""

Hashes = dict[str, dict[str, Any]]

_KEPT_META: Final = (
    "pos", "rec", "head", "sub", "bytes", "term", "taken", "emitted", "filtered", "duplicate", "late", "dead",
    "skipped", "left_out", "letters", "held", "held_bytes", "watermark", "done", "closed", "sent", "barrier", "arrived",
)  # fmt: skip
"""What belongs to a partition. The rest belongs to its owner, to its tickets, or to one run of the server."""

_KEPT_JOB: Final = ("table", "dropped", "gate")


@dataclass(frozen=True, slots=True)
class EntryRow:
    """An entry that was in flight, as the savepoint has it."""

    stage: str
    partition: int
    id: str
    header: bytes
    payload: bytes


@dataclass(frozen=True, slots=True)
class Placed:
    """An entry of the new job. `id` is empty for one that gets the next of its inbox."""

    stage: int
    partition: int
    header: bytes
    payload: bytes
    count: int
    id: str = ""


@dataclass(slots=True)
class Inbox:
    """Where the next entry of a new inbox goes, as `put` in the prelude of the scripts counts."""

    head: int = 0
    sub: int = 0
    bytes: int = 0

    def add(self, placed: Placed) -> str:
        """The id of the entry."""
        id_ = f"{self.head + 1}-{self.sub}"
        self.head, self.sub = self.head + placed.count, 0 if placed.count else self.sub + 1
        self.bytes += len(placed.payload)
        return id_


@dataclass(slots=True)
class Move(ABC):
    """How one savepoint becomes one new job. `holds`: (stage, field of the key) -> what is held of it."""

    saved: Plan
    new: Plan
    matching: Matching
    facts: Facts
    holds: Mapping[tuple[str, bytes], Hold] = field(default_factory=dict)

    @property
    @abstractmethod
    def counts_first(self) -> bool:
        """Whether `begin` needs to know how many records there are."""

    @abstractmethod
    def entries(self, rows: Iterator[EntryRow]) -> Iterator[Placed]:
        """Entries that go on, those of one key in order; what belongs to stages that are gone is left out."""

    @abstractmethod
    def promises(self) -> Iterator[Placed]:
        """What comes behind all entries."""

    @abstractmethod
    def begin(self, counts: Mapping[tuple[int, int], int]) -> dict[tuple[int, int], Inbox]:
        """The inboxes before their entries, which have so many records."""

    @abstractmethod
    def hashes(self, inboxes: Mapping[tuple[int, int], Inbox], begun: Mapping[tuple[int, int], int]) -> Hashes:
        """Metas, logs, senders and outputs. `begun`: the heads of the inboxes before their entries."""

    @abstractmethod
    def place_of_letter(self, stage: StagePlan, partition: int, payload: bytes) -> int:
        """The partition of a dead letter in its new stage."""

    def job_fields(self) -> dict[str, Any]:
        """What the job itself keeps."""
        job = self.facts.get("job", {})
        kept = {name: job[name] for name in _KEPT_JOB if name in job}
        for name, value in job.items():
            if name.startswith("complete:") and name.removeprefix("complete:") in self.matching.sources:
                kept[name] = value
        return {**kept, "gate": "open", "generation": self.generation}

    @property
    def generation(self) -> int:
        return int(self.facts.get("job", {}).get("generation", b"0")) + 1

    def senders(self) -> dict[str, tuple[int, int]]:
        """`source/split` of external senders of sources that go on -> (id, partition).

        Without those that have no name to come back under: in a new job they are gone.
        """
        found = {}
        prefix = f"n:{self.generation - 1}/"
        visitors = self.visitors()
        for name, value in self.facts.get("senders", {}).items():
            source = name.removeprefix(prefix).partition("/")[0]
            if name.startswith(prefix) and source in self.matching.sources and name[2:] not in visitors:
                number, partition = value.split(b" ")
                found[name.removeprefix(prefix)] = (int(number), int(partition))
        return found

    def visitors(self) -> dict[str, str]:
        """Name of a sender that nobody comes back under -> its id."""
        found = [member.split(" ", 2) for member in self.facts.get("visitors", {})]
        return {name: number for _, number, name in found}

    def sender_hash(self, partition_of: Mapping[str, int]) -> dict[str, Any]:
        kept = self.facts.get("senders", {})
        found: dict[str, Any] = {name: value for name, value in kept.items() if name == "next"}
        for source in self.matching.sources:
            if f"f:{source}" in kept:
                found[f"f:{source}"] = kept[f"f:{source}"]
        for name, (number, _) in self.senders().items():
            found[f"n:{self.generation}/{name}"] = f"{number} {partition_of[name]}"
        return found

    def meta(self, stage: int, partition: int) -> Mapping[str, bytes]:
        return self.facts.get(f"meta:{stage}.{partition}", {})

    def log(self, stage: int, partition: int) -> Mapping[str, bytes]:
        return self.facts.get(f"log:{stage}.{partition}", {})

    def file_sinks(self) -> set[str]:
        return {sink.name for sink in self.new.sinks if sink.format in FILE_FORMATS}


class SameMove(Move):
    """Every entry, number and count stays where it is."""

    @property
    def counts_first(self) -> bool:
        return False

    def entries(self, rows: Iterator[EntryRow]) -> Iterator[Placed]:
        for row in rows:
            stage = self.matching.stages[row.stage]
            yield Placed(stage, row.partition, row.header, row.payload, 0, row.id)

    def promises(self) -> Iterator[Placed]:
        yield from ()

    def begin(self, counts: Mapping[tuple[int, int], int]) -> dict[tuple[int, int], Inbox]:
        return {place: Inbox() for place in self.new.partitions()}

    def hashes(self, inboxes: Mapping[tuple[int, int], Inbox], begun: Mapping[tuple[int, int], int]) -> Hashes:
        found: Hashes = {}
        for at in self.new.partitions():
            meta: dict[str, Any] = {name: value for name, value in self.meta(*at).items() if name in _KEPT_META}
            # Files are published by the job that wrote them: this one begins its own.
            sent = msgspec.json.decode(meta.get("sent", b"{}"), type=dict[str, int])
            gone = sum(sent.pop(sink, 0) for sink in self.file_sinks())
            if gone:
                meta.update(sent=msgspec.json.encode(sent), emitted=int(meta.get("emitted", 0)) - gone)
            found["meta:{}.{}".format(*at)] = meta
            found["log:{}.{}".format(*at)] = self._new_log(self.log(*at), self.new.stage(at[0]))
        found["senders"] = self.sender_hash({name: at[1] for name, at in self.senders().items()})
        for stream in self.matching.streams:
            out = self.facts.get(f"outmeta:{stream}", {})
            head, sub = out.get("head", b"0"), out.get("sub", b"0")
            end = f"{int(head) + 1}-{int(sub)}"
            found[f"outmeta:{stream}"] = {"head": head, "sub": sub, "pos": end, "rec": 0, "bytes": 0}
            found[f"outlog:{stream}"] = dict(self.facts.get(f"outlog:{stream}", {}))
        return found

    def _new_log(self, log: Mapping[str, bytes], stage: StagePlan) -> dict[str, Any]:
        """Older instances of its senders are refused; those that nobody comes back under count as one that is gone."""
        kept: dict[str, Any] = {
            name: int(value) + 1 if name.startswith("e:") else value
            for name, value in log.items()
            if not name.startswith("r:")
        }
        for number in self.visitors().values() if not stage.keyed else ():
            if number in kept:
                kept[FORGOTTEN] = int(kept.get(FORGOTTEN, 0)) + int(kept[number])
                for name in (number, f"e:{number}", f"n:{number}", f"w:{number}", f"p:{number}"):
                    kept.pop(name, None)
        return kept

    def place_of_letter(self, stage: StagePlan, partition: int, payload: bytes) -> int:
        return partition


class OtherMove(Move):
    """Stages or partitions are others: all is dealt out anew."""

    @property
    def counts_first(self) -> bool:
        return True

    def entries(self, rows: Iterator[EntryRow]) -> Iterator[Placed]:
        partition_of = {str(number): at for number, at in self._pinned().items()}
        for row in rows:
            if row.stage not in self.matching.stages:
                continue
            stage = self.new.stage(self.matching.stages[row.stage])
            old = next(each for each in self.saved.stages if each.name == row.stage)
            meta = self.meta(old.index, row.partition)
            passed = int(meta.get("rec", b"0")) if meta.get("pos", b"").decode() == row.id else 0
            message = decode_header(row.header)
            if isinstance(message, Data) and not stage.keyed:
                at = partition_of.get(message.sender, 0)
                yield from self._rest(stage, at, message, row.payload, passed)
            elif isinstance(message, Data):
                yield from self._dealt(stage, row.partition, message, row.payload, passed)
            elif isinstance(message, Release):
                yield self._release(stage, row, message, passed)

    def _rest(self, stage: StagePlan, at: int, message: Data, payload: bytes, passed: int) -> Iterator[Placed]:
        """An entry of an external sender, from the first record that was not passed on."""
        if passed >= message.count:
            return
        skip = tuple(index - passed for index in message.skip if index >= passed)
        count = message.count - passed
        header = Data(message.sender, message.first + passed, count, None, 1, skip)
        if passed:
            payload = encode_batch(decode_batch(payload).slice(passed, message.count))
        yield Placed(stage.index, at, encode_header(header), payload, count)

    def _dealt(self, stage: StagePlan, at: int, message: Data, payload: bytes, passed: int) -> Iterator[Placed]:
        """An entry of a keyed stage, by the partitions of its keys. One that cannot be read goes whole to any."""
        try:
            batch = decode_batch(payload)
            if len(batch) != message.count or batch.keys is None:
                raise DecodingError("it is no batch with keys")
            table = first_table(stage.partitions)
            places: dict[int, list[int]] = {}
            for index in range(passed, message.count):
                if index not in message.skip:
                    places.setdefault(table[group_of(batch.keys[index])], []).append(index)
        except (DecodingError, EncodingError):
            header = Data(message.sender, message.first, message.count, None, 1, message.skip)
            yield Placed(stage.index, at % stage.partitions, encode_header(header), payload, message.count)
            return
        for partition, indices in places.items():
            part = _pick(batch, indices)
            header = Data(message.sender, 0, len(part), None, 1)
            yield Placed(stage.index, partition, encode_header(header), encode_batch(part), len(part))

    def _release(self, stage: StagePlan, row: EntryRow, message: Release, passed: int) -> Placed:
        """A key that goes on; of one that is half through, the rest."""
        at = self.place_of_letter(stage, row.partition, row.payload)
        if passed:
            keys = decode_batch(row.payload).keys
            hold = self.holds.get((row.stage, key_field(keys[0])), Hold()) if keys else Hold()
            message = Release(message.letter, False, hold.records, hold.bytes)
        return Placed(stage.index, at, encode_header(message), row.payload, 0)

    def place_of_letter(self, stage: StagePlan, partition: int, payload: bytes) -> int:
        if not stage.keyed:
            return partition % stage.partitions
        try:
            keys = decode_batch(payload).keys
            return first_table(stage.partitions)[group_of(keys[0])] if keys else partition % stage.partitions
        except (DecodingError, EncodingError):
            return partition % stage.partitions

    def promises(self) -> Iterator[Placed]:
        for stage in self.new.stages:
            if self._reached(stage) == MAX_TIME:
                continue
            news: list[bytes] = []
            if not stage.keyed:
                news += [encode_header(EndOfInput("source"))] if self._is_closed(stage) else []
            for index in stage.upstream:
                upstream = self.new.stage(index)
                time = self._reached(upstream)
                for number in range(upstream.partitions) if time > MIN_TIME else ():
                    sender = f"{index}.{number}"
                    news.append(encode_header(EndOfInput(sender) if time == MAX_TIME else Watermark(sender, time)))
            for partition in range(stage.partitions):
                yield from (Placed(stage.index, partition, header, b"", 0) for header in news)

    def begin(self, counts: Mapping[tuple[int, int], int]) -> dict[tuple[int, int], Inbox]:
        """An inbox of senders has had all their records: what is in flight are the last of them."""
        logs = self._entry_logs()
        found = {}
        for at in self.new.partitions():
            came = sum(int(value) for name, value in logs.get(at, {}).items() if name.isdigit() or name == FORGOTTEN)
            found[at] = Inbox(max(0, came - counts.get(at, 0)))
        return found

    def hashes(self, inboxes: Mapping[tuple[int, int], Inbox], begun: Mapping[tuple[int, int], int]) -> Hashes:
        logs = self._entry_logs()
        found: Hashes = {"senders": self.sender_hash({name: at[1] for name, at in self._new_places().items()})}
        for at in self.new.partitions():
            stage, inbox = self.new.stage(at[0]), inboxes[at]
            log: dict[str, Any] = dict(logs.get(at, {})) if not stage.keyed else {FORGOTTEN: inbox.head}
            meta: dict[str, Any] = {
                "pos": f"{begun[at] + 1}-0",
                "rec": 0,
                "head": inbox.head,
                "sub": inbox.sub,
                "bytes": inbox.bytes,
                "term": 0,
                "taken": begun[at],
            }
            time = self._reached(stage)
            if time > MIN_TIME:
                meta["watermark"] = time
                log.update({f"w:{sender}": time for sender in self._expected(stage)})
            meta.update({"done": 1} if time == MAX_TIME else {})
            meta.update({"closed": 1} if not stage.keyed and self._is_closed(stage) else {})
            found["meta:{}.{}".format(*at)], found["log:{}.{}".format(*at)] = meta, log
        self._add_held(found)
        for stream in self.matching.streams:
            head = int(self.facts.get(f"outmeta:{stream}", {}).get("head", b"0"))
            found[f"outmeta:{stream}"] = {"head": head, "sub": 0, "pos": f"{head + 1}-0", "rec": 0, "bytes": 0}
            found[f"outlog:{stream}"] = {FORGOTTEN: head}
        return found

    def job_fields(self) -> dict[str, Any]:
        return {**super().job_fields(), "dropped": 0, "table": 1}

    def _add_held(self, found: Hashes) -> None:
        for (name, key), hold in self.holds.items():
            if name in self.matching.stages:
                stage = self.new.stage(self.matching.stages[name])
                at = first_table(stage.partitions)[group_of(read_key_field(key))]
                meta = found[f"meta:{stage.index}.{at}"]
                meta["held"] = meta.get("held", 0) + hold.records
                meta["held_bytes"] = meta.get("held_bytes", 0) + hold.bytes

    def _pinned(self) -> dict[int, int]:
        """Id of an external sender -> its new partition."""
        return dict(self._new_places().values())

    def _new_places(self) -> dict[str, tuple[int, int]]:
        """`source/split` -> (id, new partition)."""
        stages = {stage.name: stage for stage in self.new.stages}
        return {
            name: (number, number % stages[name.partition("/")[0]].partitions)
            for name, (number, _) in self.senders().items()
        }

    def _entry_logs(self) -> dict[tuple[int, int], dict[str, Any]]:
        """Logs of the new entry partitions: each sender's fields where it is now, the rest as of one that is gone."""
        found: dict[tuple[int, int], dict[str, Any]] = {}
        old = {stage.name: stage.index for stage in self.saved.stages}
        new = {stage.name: stage.index for stage in self.new.stages}
        for name, (number, at) in self._new_places().items():
            source = name.partition("/")[0]
            before = self.log(old[source], self.senders()[name][1])
            log = found.setdefault((new[source], at), {})
            for field_ in (f"{number}", f"n:{number}", f"p:{number}"):
                if field_ in before:
                    log[field_] = before[field_]
            log[f"e:{number}"] = int(before.get(f"e:{number}", b"0")) + 1
        for source in self.matching.sources:
            stage = self.saved.stage(old[source])
            logs = [self.log(stage.index, number) for number in range(stage.partitions)]
            names = [FORGOTTEN, "replay", *self.visitors().values()]
            gone = sum(int(log.get(name, b"0")) for log in logs for name in names)
            found.setdefault((new[source], 0), {})[FORGOTTEN] = gone
        return found

    def _old(self, stage: StagePlan) -> list[Mapping[str, bytes]]:
        """The old metas of a new stage; none for one that is new."""
        old = next((each for each in self.saved.stages if each.name == stage.name), None)
        return [] if old is None else [self.meta(old.index, number) for number in range(old.partitions)]

    def _reached(self, stage: StagePlan) -> int:
        """The watermark that all its old partitions have handled."""
        return min((int(meta.get("watermark", MIN_TIME)) for meta in self._old(stage)), default=MIN_TIME)

    def _is_closed(self, stage: StagePlan) -> bool:
        return any("closed" in meta for meta in self._old(stage))

    def _expected(self, stage: StagePlan) -> list[str]:
        if not stage.keyed:
            return ["source"]
        return [f"{index}.{number}" for index in stage.upstream for number in range(self.new.stage(index).partitions)]


def move_of(saved: Plan, new: Plan, matching: Matching, facts: Facts, holds: Mapping[tuple[str, bytes], Hold]) -> Move:
    kind = SameMove if matching.is_same else OtherMove
    return kind(saved, new, matching, facts, holds)


def _pick(batch: Batch, indices: list[int]) -> Batch:
    if len(indices) == len(batch):
        return batch
    return Batch(
        [batch.values[i] for i in indices],
        None if batch.keys is None else [batch.keys[i] for i in indices],
        None if batch.times is None else [batch.times[i] for i in indices],
        None if batch.ids is None else [batch.ids[i] for i in indices],
    )
