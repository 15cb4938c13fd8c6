"""The state of some keys of a running job: where the job stands, holding its input back, the swap."""

from __future__ import annotations

import secrets
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any, Final, Literal

import msgspec

from pipeline.books import FORGOTTEN
from pipeline.codec import encode_value, key_field, read_timer_member, state_field, timer_member
from pipeline.errors import Busy, JobStateError, StoreRestarted
from pipeline.facts import JobRecord
from pipeline.keying import first_table, group_of
from pipeline.operations import Claim
from pipeline.plan import StagePlan
from pipeline.records import Timer
from pipeline.store import keys
from pipeline.store.claims import claim_lost
from pipeline.store.connection import translated
from pipeline.store.foreign import entry_id, integer, ours
from pipeline.store.jobs import JobStore
from pipeline.store.losses import unknown_job
from pipeline.store.scripts import Scripts
from pipeline.tickets import ticket
from pipeline.wording import counted

MOST_VALUES: Final = 600_000
MOST_BYTES: Final = 64 << 20
"""Of one swap: Redis does nothing else meanwhile. It takes a million arguments."""

_KEYS_AT_ONCE: Final = 1_000
_META: Final = ("head", "sub", "pos", "rec", "token", "term", "done", "switch")

Place = tuple[int, int]
Swap = Literal["swapped", "not yet"]


@dataclass(frozen=True, slots=True)
class Sent:
    """What a source's split has given: so many records, and where it is read on behind them, where it says so."""

    records: int
    position: Any = None


@dataclass(frozen=True, slots=True)
class Stand:
    """Where a stage and those in front of it stood. ends: place -> the end of its inbox. senders: source -> split ->
    what it had given then, or a moment later. forgotten: source -> records of splits that the job knows no more.

    is_quiet: all of it was processed. is_over: the stage gets no more, and has fired its timers.
    """

    ends: Mapping[Place, str]
    owners: Mapping[Place, tuple[str, int]]
    senders: Mapping[str, Mapping[str, Sent]]
    forgotten: Mapping[str, int]
    is_quiet: bool
    is_over: bool


@dataclass(frozen=True, slots=True)
class NewState:
    """What is to hold of these keys in a stage, and nothing else of them. operators: those of the stage.

    values: (operator, key) -> state.
    """

    stage: StagePlan
    operators: tuple[str, ...]
    keys: frozenset[Any]
    values: Mapping[tuple[str, Any], Any]
    timers: Sequence[Timer]


class SwapStore:
    """What a backfill of some keys does to one job. `stages`: those that it is about, the one of the keys first."""

    def __init__(self, scripts: Scripts, record: JobRecord, stages: Sequence[StagePlan]) -> None:
        self._scripts = scripts
        self._client = scripts.client
        self._job = record.job
        self._record = record
        self._stages = tuple(stages)

    @property
    def sources(self) -> list[str]:
        """Those whose records reach the stage."""
        return [stage.name for stage in self._stages if not stage.upstream]

    def stand(self) -> Stand:
        """Where all of it stands now. Raises ForeignData, StoreError."""
        entries = [place for stage in self._stages if not stage.upstream for place in _places(stage)]
        with translated():
            # Metas first: where the swap finds these ends again, nothing has come behind them, so the logs are of then.
            pipe = self._client.pipeline(transaction=False)
            self._ask_metas(pipe)
            for place in entries:
                pipe.hgetall(keys.log(self._job, *place))
            pipe.hgetall(keys.senders(self._job))
            *found, senders = pipe.execute()
        metas = self._metas(found)
        logs = dict(zip(entries, found[len(metas) :], strict=True))
        ends = {place: _end(meta) for place, meta in metas.items()}
        given, forgotten = self._given(senders, logs)
        return Stand(
            ends=ends,
            owners={place: (meta["token"], int(meta["term"])) for place, meta in metas.items()},
            senders=given,
            forgotten=forgotten,
            is_quiet=_is_quiet(metas),
            is_over=self._is_over(metas),
        )

    def is_in_flight(self) -> bool:
        """Whether there is something to wait for: as a `stand` says that is neither quiet nor over. Of a job with many
        senders this costs much less. Raises ForeignData, StoreError.
        """
        with translated():
            pipe = self._client.pipeline(transaction=False)
            self._ask_metas(pipe)
            metas = self._metas(pipe.execute())
        return not (_is_quiet(metas) or self._is_over(metas))

    @property
    def _places(self) -> list[Place]:
        return [(stage.index, number) for stage in self._stages for number in range(stage.serving)]

    def _ask_metas(self, pipe: Any) -> None:
        for place in self._places:
            pipe.hmget(keys.meta(self._job, *place), _META)

    def _metas(self, found: Sequence[Any]) -> dict[Place, dict[str, str]]:
        return {place: self._meta(place, raw) for place, raw in zip(self._places, found, strict=False)}

    def _is_over(self, metas: Mapping[Place, Mapping[str, str]]) -> bool:
        return any(meta["done"] for place, meta in metas.items() if place[0] == self._stages[0].index)

    def _meta(self, place: Place, raw: Sequence[bytes | None]) -> dict[str, str]:
        with ours(keys.meta(self._job, *place)):
            text = {name: value.decode() for name, value in zip(_META, raw, strict=True) if value is not None}
            numbers = {name: str(integer(text, name, 0)) for name in ("head", "sub", "rec", "term")}
            return {**dict.fromkeys(_META, ""), **text, **numbers, "pos": entry_id(text.get("pos", "1-0"))}

    def _given(
        self, senders: Mapping[bytes, bytes], logs: Mapping[Place, Mapping[bytes, bytes]]
    ) -> tuple[dict[str, dict[str, Sent]], dict[str, int]]:
        stages = {stage.name: stage for stage in self._stages if not stage.upstream}
        prefix = f"n:{self._record.generation}/"
        given: dict[str, dict[str, Sent]] = {name: {} for name in stages}
        with ours(keys.senders(self._job)):
            for name, value in senders.items():
                source, _, split = name.decode("utf-8", "replace").removeprefix(prefix).partition("/")
                if name.startswith(prefix.encode()) and source in stages:
                    number, partition = map(int, value.split(b" "))
                    log = logs.get((stages[source].index, partition), {})
                    given[source][split] = self._sent(log, number)
        with ours(keys.log(self._job, 0, 0)):
            forgotten = {
                name: sum(int(logs[place].get(FORGOTTEN.encode(), 0)) for place in _places(stage))
                for name, stage in stages.items()
            }
        return given, {name: count for name, count in forgotten.items() if count}

    @staticmethod
    def _sent(log: Mapping[bytes, bytes], number: int) -> Sent:
        records = int(log.get(b"%d" % number, b"0"))
        at, _, position = log.get(b"p:%d" % number, b"0 ").partition(b" ")
        return Sent(records, msgspec.json.decode(position) if position and int(at) == records else None)

    def hold_back(self, claim: Claim) -> None:
        """The sources give nothing new from here on. Raises OperationLost, JobStateError, UnknownJob, StoreError."""
        names, of = self._entry_metas(self.sources)
        args = [claim.token, len(self.sources), *self.sources, *of]
        answer = self._scripts.run("holdback", [keys.job(self._job), keys.operation(self._job), *names], args)
        match answer[0]:
            case -1:
                raise claim_lost(self._job)
            case -3:
                raise JobStateError(f"job {self._job!r} is {answer[1].decode()}: it takes no input any more")
            case -5:
                raise unknown_job(self._job)

    def let_go(self, claim: Claim) -> None:
        """What is held back under this claim goes on; what another command holds back does not. Raises StoreError."""
        held_back = JobStore(self._scripts).read(self._job).held_back
        if held_back.partition("\n")[0] == claim.token:
            let_go(self._scripts, self._record, held_back, is_own=True)

    def held_keys(self, stage: StagePlan, wanted: Sequence[Any]) -> list[Any]:
        """Those of the keys that a dead letter holds. Raises StoreError."""
        found: list[Any] = []
        for part in _pages(wanted):
            with translated():
                pipe = self._client.pipeline(transaction=False)
                for key in part:
                    pipe.hexists(keys.held(self._job, stage.index, group_of(key)), key_field(key))
                answers = pipe.execute()
            found += [key for key, is_held in zip(part, answers, strict=True) if is_held]
        return found

    def swap(self, claim: Claim, stand: Stand, new: NewState) -> Swap:
        """Where all stands as it stood then, this is the state of the keys from here on; or nothing is changed.

        Raises OperationLost, JobStateError (also where it is too much for one script), Busy, EncodingError, UnknownJob,
        StoreRestarted, StoreFull, StoreError.
        """
        job, index = self._job, new.stage.index
        table = first_table(new.stage.serving)
        groups = sorted({group_of(key) for key in new.keys})
        places = sorted({(index, table[group]) for group in groups})
        names = [keys.job(job), keys.operation(job), keys.assignment(job), keys.control(job), keys.moving(job)]
        names += [keys.meta(job, *place) for place in stand.ends]
        own = sum(place[0] == index for place in stand.ends)
        args: list[Any] = [claim.token, self._record.table, len(stand.ends), own, len(places), *stand.ends.values()]
        for place in places:
            token, term = stand.owners[place]
            names += [keys.meta(job, *place), keys.queue(job, *place)]
            args += [f"{place[0]}.{place[1]}", token, secrets.token_hex(8), ticket(job, *place, term + 1)]
        for key, kind, gone, come in [*self._state(new), *self._timers(new, groups)]:
            names.append(key)
            args += [kind, len(gone), *gone, len(come) // 2, *come]
        size = sum(len(each) for each in args if isinstance(each, bytes))
        if len(args) > MOST_VALUES or size > MOST_BYTES:
            raise JobStateError(
                f"the state of {counted(len(new.keys), 'key')} is more than is swapped at once: {size >> 20:,} MiB",
                hint="nothing is changed; take the keys in several parts",
            )
        answer = self._scripts.run("swap", names, args)
        match answer[0]:
            case -1:
                raise claim_lost(job)
            case -3:
                raise JobStateError(f"job {job!r} is {answer[1].decode()}: only that of a running job is swapped")
            case -4 | -8:
                raise Busy(f"job {job!r} was changed just now", hint="try again")
            case -5:
                raise unknown_job(job)
            case -6:
                raise StoreRestarted(
                    f"Redis was restarted just now, and the leader of job {job!r} has not seen it yet",
                    hint="nothing is changed; give the command again when the job goes on",
                )
            case -7:
                raise over(job, new.stage)
        return "swapped" if answer[0] == 1 else "not yet"

    def _state(self, new: NewState) -> Iterator[tuple[str, str, list[Any], list[Any]]]:
        """For each key group: its hash, what goes and what comes."""
        gone: dict[int, list[Any]] = {}
        come: dict[int, list[Any]] = {}
        for key in new.keys:
            group = group_of(key)
            for operator in new.operators:
                field = state_field(operator, key)
                if (operator, key) in new.values:
                    come.setdefault(group, []).extend((field, encode_value(new.values[operator, key])))
                else:
                    gone.setdefault(group, []).append(field)
        for group in sorted({*gone, *come}):
            name = keys.state(self._job, new.stage.index, group)
            yield name, "h", gone.get(group, []), come.get(group, [])

    def _timers(self, new: NewState, groups: Sequence[int]) -> Iterator[tuple[str, str, list[Any], list[Any]]]:
        """The same for the timers of each operator and key group. Those that there are, are found by a scan."""
        come: dict[str, list[Any]] = {}
        for timer in new.timers:
            name = keys.timers(self._job, new.stage.index, timer.operator, group_of(timer.key))
            come.setdefault(name, []).extend((timer.due, timer_member(timer)))
        index = new.stage.index
        names = [keys.timers(self._job, index, operator, group) for operator in new.operators for group in groups]
        with translated():
            pipe = self._client.pipeline(transaction=False)
            for name in names:
                pipe.exists(name)
            there = pipe.execute()
        for name in (name for name, is_there in zip(names, there, strict=True) if is_there or name in come):
            with translated():
                members = {member for member, _ in self._client.zscan_iter(name, count=1000)}
            pairs = come.get(name, [])
            stays = set(pairs[1::2])
            with ours(name):
                gone = [each for each in members - stays if read_timer_member(each).key in new.keys]
            yield name, "z", gone, pairs

    def _entry_metas(self, sources: Sequence[str]) -> tuple[list[str], list[int]]:
        return entry_metas(self._record, sources)


def entry_metas(record: JobRecord, sources: Sequence[str]) -> tuple[list[str], list[int]]:
    """The metas of the entry partitions of sources, and for each the number of its source, from 1 on."""
    names, of = [], []
    for number, source in enumerate(sources, 1):
        for place in _places(record.plan.entry_stage(source)):
            names.append(keys.meta(record.job, *place))
            of.append(number)
    return names, of


def let_go(scripts: Scripts, record: JobRecord, held_back: str, *, is_own: bool) -> bool:
    """Sources that are held back, as the job's record has it, go on. False when others are, or, unless it is that
    command which asks, while it is at work. Raises StoreError.
    """
    known = {stage.name for stage in record.plan.stages if not stage.upstream}
    sources = [source for source in held_back.splitlines()[1:] if source in known]
    names, _ = entry_metas(record, sources)
    args = [held_back, "own" if is_own else "gone", *sources]
    answer = scripts.run("goon", [keys.job(record.job), keys.operation(record.job), *names], args)
    return bool(answer[0] == 1)


def over(job: str, stage: StagePlan) -> JobStateError:
    """For a stage whose end has come: its timers have fired, and it keeps no state that anybody waits for."""
    return JobStateError(f"the input of stage {stage.name} of job {job!r} has ended: nothing comes behind it any more")


def _end(meta: Mapping[str, str]) -> str:
    """Where the next entry of an inbox will stand."""
    return f"{int(meta['head']) + 1}-{meta['sub']}"


def _is_quiet(metas: Mapping[Place, Mapping[str, str]]) -> bool:
    return all(meta["pos"] == _end(meta) and meta["rec"] == "0" and not meta["switch"] for meta in metas.values())


def _places(stage: StagePlan) -> list[Place]:
    return [(stage.index, number) for number in range(stage.partitions)]


def _pages(wanted: Sequence[Any]) -> Iterator[list[Any]]:
    rest = iter(wanted)
    while page := list(islice(rest, _KEYS_AT_ONCE)):
        yield page
