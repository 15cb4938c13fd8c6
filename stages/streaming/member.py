"""The streaming query as a worker of its job: what it owns, what it has in hand, what it gives away. Works on nothing.

The leader sees one worker as any other. Its partitions are those that the assignment table names; its slices run in
tasks of Spark, of which this hears when a batch begins and when it has ended.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable, Mapping
from time import monotonic
from typing import Any, Final

from pipeline.losses import LOST
from pipeline.positions import Position
from pipeline.spark.streaming.slices import Place, Served, Slice
from pipeline.store.backlogs import read_backlogs
from pipeline.store.losses import LossStore
from pipeline.store.ownership import Assigned, Ownership
from pipeline.tickets import ticket
from stages.busy import Shares
from stages.commits_seen import CommitsSeen
from stages.partition import SliceEnd

logger = logging.getLogger(__name__)

IDLE_PAUSE_SECONDS: Final = 0.2
"""A slice that could do nothing, and for no reason that is told elsewhere, is tried again after this."""

IN_BATCH: Final = "committing"
"""Why a partition is in hand while its batch runs: it ends by itself. A task may wait for a core before it begins, so
only its own process can say that a record holds it up (see task.py)."""

_GOES_ON: Final = frozenset({SliceEnd.IDLE.value, SliceEnd.YIELDED.value})
_RUNG: Final = frozenset({SliceEnd.FULL.value, SliceEnd.GATED.value})


class _Hand:
    """One partition in hand: where it stands, since when, and why."""

    def __init__(self, position: str, since: float, why: str, until: float = 0.0, reason: str = "") -> None:
        self.position, self.since, self.why, self.until, self.reason = position, since, why, until, reason


class StreamMember:
    """What the driver knows. `look` belongs to one thread, `begin` and `end` to Spark's, `report` to the heartbeat."""

    def __init__(self, ownership: Ownership, told: Mapping[str, Any], clock: Callable[[], float] = monotonic) -> None:
        """`told`: what each heartbeat says besides."""
        self.ownership = ownership
        self.seen = CommitsSeen(ownership.worker)
        self.on_batch_end: Callable[[], None] = _nobody
        self._told = dict(told)
        self._clock = clock
        # Guards all below: three threads meet here.
        self._lock = threading.Lock()
        self._rows: dict[Place, Assigned] = {}
        self._hands: dict[Place, _Hand] = {}
        self._running: dict[Place, Slice] = {}
        self._rested: dict[Place, float] = {}
        self._worked: dict[Place, float] = {}
        self._began = 0.0
        self._shares = Shares()

    @property
    def places(self) -> list[Place]:
        with self._lock:
            return sorted(self._rows)

    def begin(self, slices: list[Slice]) -> None:
        now = self._clock()
        with self._lock:
            self._running = {each.place: each for each in slices}
            self._began = now
            for each in slices:
                self._hands[each.place] = _Hand(str(each.reach.start), now, IN_BATCH)

    def end(self, served: list[Served]) -> None:
        """Returns when the leader, and whoever plans the next batch, can hear of it."""
        now = self._clock()
        with self._lock:
            share = (now - self._began) / max(1, len(self._running))
            for place in self._running:
                self._hands.pop(place, None)
                self._rested[place] = now
                self._worked[place] = self._worked.get(place, 0.0) + share
            self._running = {}
            for each in served:
                row = self._rows.get((each.stage, each.partition))
                if row is not None and row.token == each.token:
                    self._note(each, now)
        for each in served:
            if each.run and each.server:
                self.seen.begin(each.run)
                self.seen.note((each.stage, each.partition), Position.parse(each.position), each.server)
        self.on_batch_end()

    def _note(self, served: Served, now: float) -> None:
        place = (served.stage, served.partition)
        if served.end in _GOES_ON:
            return
        if served.end in _RUNG:
            self._hands[place] = _Hand(served.position, now, served.end)
            return
        pause = served.wait_seconds or IDLE_PAUSE_SECONDS
        self._hands[place] = _Hand(served.position, now, "backoff", now + pause, served.reason)

    def look(self) -> None:
        """Follows the assignment table; gives away what is asked for, unless a task works on it. Raises StoreError."""
        mine, asked = self.ownership.table()
        rows = {(row.stage, row.partition): row for row in mine}
        now = self._clock()
        with self._lock:
            fresh = [row for place, row in rows.items() if self._rows.get(place) != row]
            gone = self._rows.keys() - rows.keys()
            self._rows = rows
            for place in gone:
                self._hands.pop(place, None)
            self._end_pauses(now)
        for row in fresh:
            logger.info("owns %s token=%s", self._named(row), row.token)
        wanted = [row for row in mine if asked.get(f"{row.stage}.{row.partition}") == row.token]
        for row in self._free(wanted):
            self._give(row, now)

    def _free(self, rows: list[Assigned]) -> list[Assigned]:
        """Those that no task has in hand: a batch lasts until the slowest of its slices, and others end before."""
        if not rows:
            return []
        self._note_commits(self.ownership)
        with self._lock:
            return [row for row in rows if self._is_free((row.stage, row.partition))]

    def _is_free(self, place: Place) -> bool:
        part, hand = self._running.get(place), self._hands.get(place)
        return part is None or (hand is not None and part.reach.is_at(Position.parse(hand.position)))

    def _end_pauses(self, now: float) -> None:
        for place, hand in list(self._hands.items()):
            if hand.why == "backoff" and hand.until <= now:
                del self._hands[place]

    def _give(self, row: Assigned, now: float) -> None:
        """A batch that was planned just before is refused its commits there: nothing of it is lost or doubled."""
        place = (row.stage, row.partition)
        with self._lock:
            hand = self._hands.get(place) if place in self._running else None
            since = hand.since if hand is not None else self._rested.get(place, now)
        rested_ms = int(1000 * max(0.0, now - since))
        if self.ownership.give_away(row, ticket(self.ownership.job, *place, row.term + 1), rested_ms):
            logger.info("given away as asked: %s token=%s", self._named(row), row.token)
            with self._lock:
                self._rows.pop(place, None)
                self._hands.pop(place, None)

    def pause_seconds(self, most: float) -> float:
        """So long until the next `look` has something to do by itself."""
        now = self._clock()
        with self._lock:
            untils = [hand.until - now for hand in self._hands.values() if hand.why == "backoff"]
        return max(0.0, min([most, *untils]))

    def report(self, ownership: Ownership) -> dict[str, Any]:
        """For a heartbeat on that connection. Raises StoreError."""
        now = self._note_commits(ownership)
        with self._lock:
            return {**self._told, **self._work(now), **self._in_hand(now)}

    def _note_commits(self, ownership: Ownership) -> float:
        """How far tasks are, which is seen by their commits; the time of that."""
        with self._lock:
            running = sorted(self._running)
        _, backlogs = read_backlogs(ownership.scripts, ownership.job, running)
        now = self._clock()
        with self._lock:
            for place in running:
                hand, backlog = self._hands.get(place), backlogs.get(place)
                if hand and backlog and hand.why == IN_BATCH and hand.position != str(backlog.position):
                    hand.position, hand.since = str(backlog.position), now
        return now

    def _work(self, now: float) -> dict[str, Any]:
        began = (now - self._began) / max(1, len(self._running))
        sums = {
            place: self._worked.get(place, 0.0) + (began if place in self._running else 0.0)
            for place in {*self._worked, *self._running}
        }
        self._shares.note(now, sums)
        stages: dict[str, float] = {}
        for (stage, _), seconds in sums.items():
            stages[str(stage)] = round(stages.get(str(stage), 0.0) + seconds, 4)
        parts = {f"{s}.{p}": [0, 0, self._shares.of((s, p))] for s, p in self._rows}
        return {"busy": stages, "share": self._shares.total(), "parts": parts}

    def _in_hand(self, now: float) -> dict[str, Any]:
        """Without a hand of its own a partition is in no batch, and comes into the next one when it has work."""
        return {
            "slices": [f"{s}.{p}" for s, p in sorted(self._rows) if self._comes_by_itself((s, p))],
            "hand": {
                f"{s}.{p}": {
                    "position": hand.position,
                    "since_ms": int((now - hand.since) * 1000),
                    "why": hand.why,
                    **({"reason": hand.reason} if hand.reason else {}),
                }
                for (s, p), hand in self._hands.items()
            },
        }

    def _comes_by_itself(self, place: Place) -> bool:
        hand = self._hands.get(place)
        return hand is None or hand.why == IN_BATCH

    def compare(self, ownership: Ownership) -> None:
        """Compares what its tasks have committed with where this run of the server began. Raises StoreError."""
        run, server = self.seen.run, ownership.scripts.server
        remembered = self.seen.before(server)
        if remembered:
            stood = LossStore(ownership.scripts, ownership.job).stood(run, sorted(remembered))
            self._halt(run, self.seen.compared(server, remembered, stood), ownership)

    def _halt(self, run: str, lines: Iterable[str], ownership: Ownership) -> None:
        told = list(lines)
        for line in told:
            logger.error("the job halts, %s: job=%s %s", LOST, ownership.job, line)
        if told:
            LossStore(ownership.scripts, ownership.job).report(run, told)

    def _named(self, row: Assigned) -> str:
        return f"job={self.ownership.job} stage={row.stage} partition={row.partition} worker={self.ownership.worker}"


def _nobody() -> None:
    """Whoever looks again by himself need not hear of it."""
