"""Follows a source that goes on: each split is a sender, and Redis keeps its position with what was appended.

So it may be killed at any moment, and its successor goes on exactly there. What is away is waited for.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from pipeline.errors import CeleriacError, InboxClosed, SourceAway, StoreError
from pipeline.graph import SourceSpec
from pipeline.plan import is_endless
from pipeline.sources.endless import After, Reader, Source, Split
from pipeline.sources.feed import SourceSummary
from pipeline.sources.opening import open_source
from pipeline.store.patience import Patience
from pipeline.store.senders import Feed, FeedAddress, Lane
from pipeline.wording import counted

MOST_OPEN: Final = 64
"""Splits that are read at the same time, each with a lane and perhaps an open file."""

STATE_SECONDS: Final = 2.0
"""How often the job is asked whether it takes input: a source in which nothing happens appends nothing."""

FORGET_LOOK_SECONDS: Final = 60.0

_PAUSE_SECONDS: Final = 0.5
_MOST_PAUSE_SECONDS: Final = 10.0
_TELL_SECONDS: Final = 60.0
_NAP_SECONDS: Final = 1.0

_log = logging.getLogger(__name__)


@dataclass(slots=True)
class Strand:
    """One split that is being read. `failures`: attempts in a row that found it away."""

    split: Split
    lane: Lane | None = None
    reader: Reader | None = None
    due_at: float = 0.0
    failures: int = 0

    def close(self) -> None:
        if self.reader is not None:
            self.reader.close()
        self.reader = None


@dataclass(slots=True)
class Troubles:
    """Logs what is away: at first, again after a while, and when it is over; and has `tell` say it as it is now.

    known: what -> (why, when it was logged last).
    """

    tell: Callable[[str], None]
    known: dict[str, tuple[str, float]] = field(default_factory=dict)

    def begin(self, what: str, error: CeleriacError, now: float) -> None:
        why = f"{error} ({error.hint})" if error.hint else str(error)
        before, logged_at = self.known.get(what, ("", -_TELL_SECONDS))
        if now - logged_at >= _TELL_SECONDS:
            logged_at = now
            _log.warning("waiting for %s: %s", what, why)
        self.known[what] = (why, logged_at)
        if why != before:
            self.tell(why)

    def end(self, what: str) -> None:
        if self.known.pop(what, None) is not None:
            _log.info("%s is there again", what)
            self.tell(next((why for why, _ in self.known.values()), ""))


class Following:
    """One loop over the splits of one source, in one thread; ends when the job takes no more input."""

    def __init__(self, source: Source, feed: Feed, *, endless: bool = True, patience: Patience | None = None) -> None:
        """`endless`: False for a source that is complete when each of its splits has ended.

        Of `patience` only its clock, its sleep and its chance are used.
        """
        self._source = source
        self._feed = feed
        self._endless = endless
        self._time = patience or Patience()
        self._strands: dict[str, Strand] = {}
        self._troubles = Troubles(feed.tell_wait)
        self._is_new = True
        self._ended: set[str] = set()
        self._records = 0
        self._look_at = self._state_at = self._forget_at = 0.0
        self._look_failures = 0

    def run(self) -> SourceSummary:
        """Reads until the source is complete. Raises InboxClosed when the job drains or has ended.

        Raises StaleSender when another process follows the source, InputError and PipelineError when it can never be
        read, and what the store raises.
        """
        try:
            while not self._is_complete():
                if not self.round():
                    self._pause()
            self._feed.complete(len(self._ended))
            return SourceSummary(len(self._ended), self._records)
        finally:
            self.close()

    def close(self) -> None:
        """Lets go of what is open. Never raises."""
        for strand in self._strands.values():
            strand.close()
        self._source.close()

    def round(self) -> bool:
        """Looks for splits, and reads a portion of each that is due; False when there was nothing to read."""
        now = self._time.clock()
        if self._is_new:
            self._is_new = False
            self._feed.tell_wait("")  # what a feeder that was killed has said
        if now >= self._state_at:
            self._state_at = now + STATE_SECONDS
            if not self._feed.takes_input():
                raise InboxClosed("the job takes no new input: it is draining or suspended, or has ended")
        if now >= self._look_at:
            self._look(now)
        if now >= self._forget_at:
            self._forget_at = now + FORGET_LOOK_SECONDS
            for name in self._source.forgettable():
                self._feed.lane(name, exclusive=True).leave()
        due = [strand for strand in self._strands.values() if strand.due_at <= now]
        return sum(self._serve(strand) for strand in due) > 0

    def _look(self, now: float) -> None:
        try:
            splits = self._source.look(MOST_OPEN - len(self._strands))
        except SourceAway as error:
            self._troubles.begin("the source", error, now)
            self._look_failures += 1
            self._look_at = now + self._backoff(self._look_failures)
            return
        self._troubles.end("the source")
        self._look_failures = 0
        self._look_at = now + self._poll()
        for split in splits:
            if split.name not in self._ended:
                # One that is away may come back as another split of the same name.
                self._strands.setdefault(split.name, Strand(split)).split = split

    def _serve(self, strand: Strand) -> int:
        """Reads and appends one portion; returns its number of records."""
        lane = strand.lane
        if lane is None:
            lane = strand.lane = self._feed.lane(strand.split.name, exclusive=True)
            if lane.finished >= 0:
                return self._end(strand, lane)
            if lane.position_at != lane.taken:
                raise StoreError(
                    f"sender {lane.name!r} has {counted(lane.taken, 'record')},"
                    f" but a position for {lane.position_at:,} of them"
                )
        try:
            if strand.reader is None:
                strand.reader = strand.split.open(lane.position)
            portion = strand.reader.read()
        except SourceAway as error:
            self._put_off(strand, error)
            return 0
        self._troubles.end(strand.split.name)
        strand.failures = 0
        if len(portion.batch):
            place = portion.place
            lane.append(lane.taken + 1, portion.batch, lambda index: f"{place(index)}: ", position=portion.position)
            self._records += len(portion.batch)
        match portion.after:
            case After.MORE:
                strand.due_at = 0.0
                return max(1, len(portion.batch))
            case After.WAITING:
                strand.due_at = self._time.clock() + self._poll()
            case After.RESTING:
                strand.close()
                del self._strands[strand.split.name]
                self._look_at = 0.0  # another split may be waiting for room
            case After.ENDED:
                self._end(strand, lane)
        return len(portion.batch)

    def _end(self, strand: Strand, lane: Lane) -> int:
        strand.close()
        lane.finish(lane.taken)
        self._ended.add(strand.split.name)
        del self._strands[strand.split.name]
        return 0

    def _put_off(self, strand: Strand, error: SourceAway) -> None:
        strand.close()
        strand.failures += 1
        now = self._time.clock()
        strand.due_at = now + self._backoff(strand.failures)
        self._troubles.begin(strand.split.name, error, now)

    def _is_complete(self) -> bool:
        return not self._endless and bool(self._ended) and not self._strands

    def _poll(self) -> float:
        """Seconds, with jitter: several sources must not ask in step."""
        return self._source.poll_seconds * self._time.rng.uniform(0.75, 1.25)

    def _backoff(self, failures: int) -> float:
        most = min(_MOST_PAUSE_SECONDS, _PAUSE_SECONDS * 2.0 ** min(failures - 1, 10))
        return most * self._time.rng.uniform(0.5, 1.0)

    def _pause(self) -> None:
        """Until something is due, and not for long: the job may end meanwhile."""
        next_at = min([self._look_at, *(strand.due_at for strand in self._strands.values())])
        self._time.sleep(min(_NAP_SECONDS, max(0.001, next_at - self._time.clock())))


def follow_source(spec: SourceSpec, address: FeedAddress, patience: Patience | None = None) -> SourceSummary:
    """Feeds the source from where its positions in the job say, until it is complete or the job takes no more input.

    Raises as `Following.run` does, and EnvironmentFault for what must be installed or set first.
    """
    feed = address.open(patience)
    source = open_source(spec, feed)
    return Following(source, feed, endless=is_endless(spec.format, spec.options), patience=patience).run()
