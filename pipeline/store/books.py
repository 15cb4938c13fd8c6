"""Reads the books of a job at one instant, and keeps what its leader finds wrong in them."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec

from pipeline.books import FORGOTTEN, REPLAYS, Books, Page, StreamPage
from pipeline.errors import DecodingError, StaleTerm, UnknownJob
from pipeline.facts import Alarm, JobRecord
from pipeline.lifecycle import JobState
from pipeline.messages import Data, decode_header
from pipeline.plan import stream_names
from pipeline.store import keys
from pipeline.store.foreign import HINT as FOREIGN_HINT
from pipeline.store.scripts import Scripts

MOST_ALARMS: Final = 100
"""Kept of one job, the first ones: what follows from a fault tells less than the fault."""

_SENDER: Final = re.compile(rf"\d+(\.\d+)?|{FORGOTTEN}|{REPLAYS}")
_MISSING: Final = b"?"


class BookStore:
    """What a leader and whoever shows a job need of its books."""

    def __init__(self, scripts: Scripts) -> None:
        self._scripts = scripts

    def read(self, record: JobRecord) -> Books:
        """All counts at one instant, in one call. Raises UnknownJob, DecodingError, StoreError."""
        job, places, streams = record.job, record.plan.partitions(), stream_names(record.plan)
        names = [keys.job(job), keys.dead(job), keys.files(job)]
        for at in places:
            names += [keys.inbox(job, *at), keys.meta(job, *at), keys.log(job, *at)]
        for stream in streams:
            names += [keys.out_meta(job, stream), keys.out_log(job, stream)]
        answer = self._scripts.run("books", names, [len(places)])
        if answer[0] == -5:
            raise UnknownJob(f"there is no job {job!r}")
        _, state, dropped, letters, files, partitions, outs = answer
        try:
            staged = _staged(_pairs(files))
            return Books(
                job=job,
                plan=record.plan,
                state=JobState(state.decode()),
                pages=[_page(at, raw, staged) for at, raw in zip(places, partitions, strict=True)],
                streams=[
                    StreamPage(name, int(head), _came(_pairs(log)))
                    for name, (head, log) in zip(streams, outs, strict=True)
                ],
                letters=int(letters),
                dropped=int(dropped),
                read=len(files) + sum(len(meta) + len(log) for meta, log, _ in partitions),
            )
        except (ValueError, KeyError, TypeError, RecursionError, msgspec.MsgspecError) as error:
            raise DecodingError(f"the books of job {job!r} cannot be read: {error}", FOREIGN_HINT) from error

    def raise_alarms(self, job: str, token: str, alarms: Sequence[Alarm]) -> list[Alarm]:
        """Keeps alarms, each once and at most MOST_ALARMS; returns those that are new. Raises StaleTerm, StoreError."""
        args: list[Any] = [token, MOST_ALARMS]
        for alarm in alarms[:MOST_ALARMS]:
            args += [alarm.name, msgspec.json.encode(alarm)]
        answer = self._scripts.run("alarm", [keys.leader(job), keys.books(job)], args)
        if answer[0] == -1:
            raise StaleTerm(f"this leader no longer leads job {job!r}")
        fresh = {name.decode() for name in answer[1]}
        return [alarm for alarm in alarms if alarm.name in fresh]


def read_alarms(raw: Mapping[bytes, bytes]) -> tuple[Alarm, ...]:
    """The alarms that are kept of a job, oldest first. Raises DecodingError."""
    try:
        found = [msgspec.json.decode(text, type=Alarm) for text in raw.values()]
    except msgspec.MsgspecError as error:
        raise DecodingError(f"a kept alarm cannot be read: {error}") from error
    return tuple(sorted(found, key=lambda alarm: (alarm.at_ms, alarm.name)))


def _page(at: tuple[int, int], raw: Sequence[Any], staged: Mapping[str, Mapping[str, int]]) -> Page:
    (pos, rec, head, sub, taken, emitted, left_out, letters, sent), pairs, header = raw
    log = _pairs(pairs)
    entry, end = (pos or b"1-0").decode(), f"{int(head or 0) + 1}-{int(sub or 0)}"
    sunk = {name[2:]: int(number) for name, number in log.items() if name.startswith("n:")}
    for name, records in [(name[2:], int(number)) for name, number in log.items() if name.startswith("r:")]:
        sunk[name] = sunk.get(name, 0) + records
    for name, records in staged.get(f"{at[0]}.{at[1]}", {}).items():
        sunk[name] = sunk.get(name, 0) + records
    return Page(
        stage=at[0],
        partition=at[1],
        head=int(head or 0),
        passed=int(entry.partition("-")[0]) - 1 + min(int(rec or 0), _records_in(header)),
        at_end=entry == end,
        is_torn=header == _MISSING,
        taken=int(taken or 0),
        left_out=int(left_out or 0),
        emitted=int(emitted or 0),
        letters=int(letters or 0),
        sent=msgspec.json.decode(sent, type=dict[str, int]) if sent else {},
        came=_came(log),
        finished={name[2:]: int(number) for name, number in log.items() if re.fullmatch(r"n:\d+", name)},
        sunk=sunk,
    )


def _records_in(header: bytes) -> int:
    """Records of the entry at a position; what its record index counts beyond them are commits of timers."""
    if not header or header == _MISSING:
        return 0
    try:
        message = decode_header(header)
    except DecodingError:
        return 0  # nothing of it was taken
    return message.count if isinstance(message, Data) else 0


def _came(log: Mapping[str, bytes]) -> dict[str, int]:
    return {name: int(number) for name, number in log.items() if _SENDER.fullmatch(name)}


def _staged(files: Mapping[str, bytes]) -> dict[str, dict[str, int]]:
    """`stage.partition` -> sink -> records in staging files that commits name."""
    found: dict[str, dict[str, int]] = {}
    for name, facts in files.items():
        sink, _, place = name.partition(" ")
        of_place = found.setdefault(".".join(place.split(".")[:2]), {})
        of_place[sink] = of_place.get(sink, 0) + int(msgspec.json.decode(facts)["records"])
    return found


def _pairs(raw: Sequence[bytes]) -> dict[str, bytes]:
    return {name.decode(): value for name, value in zip(raw[::2], raw[1::2], strict=True)}
