"""The owner's side of one partition: a slice is a loop of steps, each one commit, until idle, full, or out of time."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from enum import Enum
from functools import partial
from typing import Any, Final

from pipeline.errors import SinkAway
from pipeline.keying import groups_of_partition
from pipeline.messages import Barrier, Table
from pipeline.positions import Position, Reach
from pipeline.records import MAX_TIME, MIN_TIME, Batch, Timer
from pipeline.settings import Limits
from pipeline.sinks.effects import Bound
from pipeline.store.commits import (
    Commit,
    Committer,
    Entries,
    Entry,
    Idle,
    Kept,
    Mode,
    Output,
    Refusal,
    Refused,
    Yielded,
)
from pipeline.store.ownership import Acquired, Assigned, Calm, LoadedState
from stages.cache import StateCache
from stages.context import StageContext
from stages.failures import Failures, TryAgain
from stages.holds import Holds
from stages.inbox import Inbox, Item, LetGo, Mark, Poisoned, Promise, Records
from stages.letters import Letters
from stages.pace import Pace
from stages.staging import StagedSinks
from stages.step import Bounds, Outcome, Stepper
from stages.totals import Totals
from stages.trials import Trials
from stages.turns import Turn

logger = logging.getLogger(__name__)

TIMERS_PER_STEP: Final = 2000
"""How many timers one commit fires: a million open windows are not one commit."""

_FIRST_AWAY_SECONDS: Final = 0.1
_MOST_AWAY_SECONDS: Final = 30.0


_SPARE_BYTES: Final = 1 << 20


def largest_payload(limits: Limits) -> int:
    """No entry of ours has a larger payload: one record's value and key, or many up to the bound of an entry."""
    return 2 * max(limits.record_bytes, limits.entry_bytes) + _SPARE_BYTES


class SliceEnd(Enum):
    """Why a slice ended."""

    IDLE = "idle"
    YIELDED = "yielded"
    FULL = "full"
    FENCED = "fenced"
    STALE = "stale"
    """What the owner knew is out of date: acquire again."""
    STOPPED = "stopped"
    BACKOFF = "backoff"
    """A sink is away, or a record is to be tried again: acquire again after `wait_seconds`."""
    FOREIGN_KEY = "foreign key"
    GATED = "gated"
    """Others have still to give it keys: acquire again when it is rung."""


_ENDS = {
    Refusal.FENCED: SliceEnd.FENCED,
    Refusal.MOVED_ON: SliceEnd.STALE,
    Refusal.OLD_TABLE: SliceEnd.STALE,
    Refusal.STOPPED: SliceEnd.STOPPED,
    Refusal.NEW_SERVER: SliceEnd.STALE,
    Refusal.FOREIGN_KEY: SliceEnd.FOREIGN_KEY,
    Refusal.GATED: SliceEnd.GATED,
}


class PartitionOwner:
    """One owned partition. All of it is used by one thread."""

    def __init__(self, context: StageContext, row: Assigned, acquired: Acquired, clock: Callable[[], float]) -> None:
        limits = context.plan.limits
        self.row = row
        self.cache = StateCache(context.kernel.keyed_operators, limits.cache_bytes)
        self._context = context
        self._clock = clock
        self._committer = Committer(context.ownership.scripts, context.job, row.stage, row.partition, row.token, limits)
        sinks = [sink for sink in context.plan.sinks if sink.name in context.stage.sinks]
        effects = context.links.effects(sinks)
        self._sinks = StagedSinks(context.job, row, sinks, effects, context.staged_files, clock)
        policy = context.stage.on_error
        self._letters = Letters(context.job, row.stage, row.partition, holds_keys=policy.holds_keys)
        self._failures = Failures(policy, self._letters)
        self._holds = Holds(context.ownership, row.stage, row.partition, limits.step_bytes)
        self._totals = Totals()
        self._trials = Trials(context.ownership, row, limits.deaths)
        self._stepper = Stepper(
            context.kernel,
            context.encoder,
            self.cache,
            self._sinks,
            self._load,
            self._letters,
            self._failures,
        )
        self.wait_seconds = 0.0
        self.wait_reason = ""
        self.foreign = ""
        """After FOREIGN_KEY: the key, or the key and a field."""
        self.until: Reach | None = None
        """Slices go so far only, and yield there. None: to the end of the inbox."""
        self._away = 0
        self._expected = context.expected_senders()
        kernel = context.kernel
        has_fixed_cost = bool(effects) or kernel.has_fixed_cost
        self._pace = Pace(limits, has_fixed_cost=has_fixed_cost, has_frames=kernel.needs_session)
        self.reset(acquired)

    def renew(self, context: StageContext) -> None:
        """The plan has changed; `reset` comes next."""
        self._context = context
        self._stepper.renew(context.encoder)
        self._expected = context.expected_senders()

    def reset(self, acquired: Acquired) -> None:
        """Drops all that was known and starts from what Redis holds."""
        self.cache.clear()
        self._sinks.start_over(acquired)
        self._inbox = Inbox(acquired.position, largest_payload(self._context.plan.limits))
        self._watermarks = dict(acquired.watermarks)
        self._watermark = acquired.watermark
        self._table = acquired.table
        self._trials.remember(acquired.deaths)
        self._failures.remember(acquired.attempts, acquired.tried)
        self._holds.reset(acquired.held)
        self._totals.remember(acquired)
        self._turn = Turn(acquired, self.row.partition, self._context.stage)
        self._is_before_failure = False
        self._held: Commit | None = None
        self._offered: list[Entry] = []
        self._bound: Bound | None = None

    def go_over(self, context: StageContext, table: int) -> bool:
        """Between slices: the plan has changed by one step, which concerns others. Keeps all that it knows.

        False when it cannot: it holds a step that goes where nobody may be by now, or has missed a change before.
        """
        if self._held is not None or table != self._table + 1:
            return False
        self.renew(context)
        self._table = table
        return True

    @property
    def position(self) -> Position:
        return self._inbox.position

    @property
    def is_held(self) -> bool:
        """True while a finished step waits for a full inbox."""
        return self._held is not None

    @property
    def table(self) -> int:
        return self._table

    def calm(self) -> Calm | None:
        """How it waits for a ticket; None while it holds a step, or entries that it has read."""
        if self._held is not None or self._inbox:
            return None
        return Calm(self.row.stage, self.row.partition, self.row.token, self.position)

    def offer(self, entries: list[Entry]) -> None:
        """The next entries, read from where it is calm; the next slice begins with them."""
        self._offered = entries

    def tell_publishing(self, publishing: Callable[[], AbstractContextManager[None]]) -> None:
        """`publishing` is entered while a file of its sinks becomes a part."""
        self._sinks.tell_publishing(publishing)

    def number_files(self, number: Callable[[], int]) -> None:
        """Others work under the same token: `number` gives staging files of it numbers that grow for all of them."""
        self._sinks.number_files(number)

    def close(self) -> None:
        self._sinks.close()

    def rotate(self) -> float | None:
        """Between slices: publishes files of its sinks that are full; in how many seconds to ask again, if ever.

        Raises SinkError, StoreError.
        """
        return None if self.is_held else self._sinks.rotate()

    def run_slice(self, deadline: float | None = None) -> SliceEnd:
        """Works until there is nothing to do, or the slice is over: at `deadline`, if one is given, and after a step.

        Raises StoreError (the outcome of the last commit is then unknown), SinkError, DecodingError: `reset` next.
        """
        if deadline is None:
            deadline = self._clock() + self._context.plan.limits.slice_seconds
        offered, self._offered = self._offered, []
        if offered:
            self._inbox.add(offered)
        commit = self._held or self._reading()
        while True:
            if self._held is None and self._inbox:
                if self.until is not None and self.until.is_at(self.position):
                    return SliceEnd.YIELDED
                try:
                    commit = self._next(deadline)
                except SinkAway as away:
                    return self._wait_for(away)
                except TryAgain as failure:
                    return self._try_later(str(failure))
                self._away = 0
            reply = self._committer.send(commit, self._table)
            if isinstance(reply, Refused):
                if reply.why is Refusal.FULL:
                    self._held = commit
                    return SliceEnd.FULL
                self.foreign = reply.detail
                return _ENDS[reply.why]
            self._held = None
            if commit.end != commit.start:
                self._failures.remember(0, ())
                self._holds.applied()
                self._note_commit(commit.end)
            self._inbox.move_to(commit.end)
            if self._turn.is_gated_at(commit.start):
                return SliceEnd.GATED  # it is open by now: the ticket that waits begins with what it was given
            self._turn.move_to(commit.end)
            match reply:
                case Idle():
                    return SliceEnd.IDLE
                case Yielded():
                    return SliceEnd.YIELDED
                case Entries(entries):
                    self._inbox.add(entries)
                case Kept():
                    if not self._inbox:
                        self._inbox.add([])  # there is something to read, and nothing was read

    def _note_commit(self, end: Position) -> None:
        server = self._context.ownership.scripts.server
        self._context.seen.note((self.row.stage, self.row.partition), end, server)

    def _wait_for(self, away: SinkAway) -> SliceEnd:
        """The step is dropped; it is run anew when the sink may be there again."""
        self._away += 1
        pause = min(_MOST_AWAY_SECONDS, _FIRST_AWAY_SECONDS * 2 ** min(self._away - 1, 20))
        self.wait_seconds = max(pause, min(away.wait_seconds, _MOST_AWAY_SECONDS))
        self.wait_reason = str(away)
        logger.warning("waits %.1f s for a sink: %s: %s", self.wait_seconds, self._named(), away)
        return SliceEnd.BACKOFF

    def _try_later(self, error: str) -> SliceEnd:
        """The step is dropped; it is run anew, for one record, after the pause that the policy gives."""
        attempt = self._failures.attempts + 1
        if not self._context.ownership.note_attempt(self.row, self.position, self._failures.tried, attempt, error):
            return SliceEnd.FENCED
        policy = self._failures.policy
        self.wait_seconds = policy.pause_seconds(attempt, self._context.rng)
        self.wait_reason = error
        logger.warning(
            "a record failed at attempt %d of %d and is tried again in %.1f s: %s position=%s: %s",
            attempt,
            policy.attempts,
            self.wait_seconds,
            self._named(),
            self.position,
            error[:200],
        )
        return SliceEnd.BACKOFF

    def _reading(self) -> Commit:
        """A commit of nothing: it reads on, or gives the ticket back. At a gate it asks whether that is open."""
        return self._commit(self.position, "yield" if self._turn.is_gated_at(self.position) else "more")

    def _commit(self, end: Position, mode: Mode, outcome: Outcome | None = None, released_bytes: int = 0) -> Commit:
        outcome = outcome or Outcome()
        return Commit(
            start=self._inbox.position,
            end=end,
            mode=mode,
            read_from=self._inbox.read_from,
            read_records=self._context.plan.limits.step_records,
            released_bytes=released_bytes,
            counts=outcome.counts,
            skipped=outcome.skipped,
            sunk=outcome.sunk,
            writes=outcome.writes,
            outputs=outcome.outputs,
        )

    def _next(self, deadline: float) -> Commit:
        """Runs the next step; its commit is not sent yet."""
        if self._turn.is_gated_at(self.position):
            return self._reading()
        self._bound = self._sinks.begin(self.position)
        is_alone = self._trials.is_on or self._failures.attempts or self._is_before_failure
        limit = 1 if is_alone else self._pace.allowance()
        if self._bound is not None:
            limit = min(limit, max(1, self.position.records_to(self._bound.end)))
        if self.until is not None:
            limit = min(limit, self.until.most_from(self.position))
        item = self._inbox.take(limit)
        fired = 0
        match item:
            case Records():
                commit = self._records(item, limit)
            case Poisoned():
                logger.warning("an entry cannot be read: %s entry=%s: %s", self._named(), self.position, item.why)
                outcome = self._stepper.give_up_payload(item.payload, item.count, str(item.why))
                commit = self._commit(item.end, "keep", outcome, item.released_bytes)
            case Promise():
                commit, fired = self._promise(item)
            case LetGo():
                commit, fired = self._let_go(item, limit)
            case Mark():
                commit = self._commit(item.end, "keep")
                if isinstance(item.header, Barrier):
                    commit.meta["barrier"] = item.header.epoch
                else:
                    commit, fired = self._take_turn(item, item.header)
        self._totals.add(commit)
        self._sinks.seal(commit, fired)
        commit.mode = self._mode(commit, deadline)
        return commit

    def _mode(self, commit: Commit, deadline: float) -> Mode:
        if self._clock() >= deadline:
            return "yield"
        return "more" if commit.end.entry == self._inbox.read_from else "keep"

    def _records(self, item: Records, limit: int) -> Commit:
        started, batch = self._clock(), item.batch
        self._letters.replay_of = item.replay_of
        bounds, held = self._bounds(started), self._holds.keys
        outcome = self._trials.run(
            self.position,
            lambda: self._stepper.run(batch, bounds, lambda: self._batch_again(limit), held),
            lambda error: self._stepper.give_up(batch, error, held),
        )
        done = outcome.counts.taken
        if done < len(batch):
            item = self._records_of(self._inbox.take(item.until(done)))
        if outcome.given_up or outcome.held:
            outcome.writes += self._holds.keep(outcome)
        self._is_before_failure = outcome.is_before_failure
        self._note_pace(done, outcome.counts.emitted, started)
        commit = self._commit(item.end, "keep", outcome, item.released_bytes)
        commit.left_out = item.left_out
        return commit

    def _let_go(self, item: LetGo, limit: int) -> tuple[Commit, int]:
        """Runs a dead letter's record and those held behind it: some in each commit, until none is left or one fails.

        With the number of records that were run.
        """
        at, bound = self.position, self._bound
        self._letters.replay_of = item.header.letter
        page = self._holds.page(item, at, bound.timers if bound else limit, is_exact=bound is not None)
        batch, outcome, started = page.batch(), Outcome(), self._clock()
        if batch.values:
            bounds = self._as_before() if bound else self._bounds(started)
            run = partial(self._stepper.run, batch, bounds, page.batch)
            outcome = run() if bound else self._trials.run(at, run, partial(self._stepper.give_up, batch))
        done = outcome.counts.taken
        self._note_pace(done, outcome.counts.emitted, started)
        self._is_before_failure = outcome.is_before_failure
        if self._holds.pass_page(item, at, page, outcome):
            return self._commit(item.end, "keep", outcome, len(item.payload)), done
        return self._commit(Position(at.entry, at.record + 1), "keep", outcome), done

    def _note_pace(self, done: int, emitted: int, started: float) -> None:
        """Without what the disk took: on a slow one each step would be of one record, and each would wait for it."""
        self._pace.note(done, emitted, max(0.0, self._clock() - started - self._sinks.sync_seconds))

    def _as_before(self) -> Bounds:
        """For what has effects that stand: it has run together before, and none of it has killed its worker."""
        return Bounds(1, lambda: False, is_whole=bool(self._context.kernel.carried))

    def _bounds(self, started: float) -> Bounds:
        """A step is cut short when it takes longer than a slice.

        A call of an operator that the carrier runs costs much the same for one record as for a batch.
        """
        latest = started + self._context.plan.limits.slice_seconds
        if self._context.kernel.carried:
            return Bounds(1, lambda: self._clock() >= latest, is_whole=True)
        outputs = self._context.plan.limits.step_outputs
        return Bounds(self._pace.part(), lambda: self._clock() >= latest, outputs=outputs)

    def _batch_again(self, limit: int) -> Batch:
        return self._records_of(self._inbox.take_again(limit)).batch

    def _records_of(self, item: Item) -> Records:
        assert isinstance(item, Records)  # as it was when it was taken before, at the same position
        return item

    def _promise(self, item: Promise) -> tuple[Commit, int]:
        """Handles a watermark or an end: fires what is due, and passes it on when nothing is left to fire.

        With the number of timers that were fired.
        """
        self._letters.replay_of = ""
        promised = {**self._watermarks, item.sender: max(item.time, self._watermarks.get(item.sender, MIN_TIME))}
        low = min(promised.get(sender, MIN_TIME) for sender in self._expected)
        if low > self._watermark:
            timers = self._due(low)
            if timers:
                outcome = self._fire(timers)
                end = Position(self.position.entry, self.position.record + 1)
                return self._commit(end, "keep", outcome), outcome.fired
        commit = self._commit(item.end, "keep", None, item.released_bytes)
        self._watermarks = promised
        commit.log[f"w:{item.sender}"] = promised[item.sender]
        self._reach(commit, low)
        return commit, 0

    def _take_turn(self, item: Mark, header: Table) -> tuple[Commit, int]:
        """Goes over to another table: fires what is due of the keys that it was given, as for a promise, and passes on.

        One that is removed sends no more; those that got its keys fire their timers. With the number of those fired.
        """
        self._letters.replay_of = ""
        low = min(self._watermarks.get(sender, MIN_TIME) for sender in self._expected)
        low = MAX_TIME if self._turn.is_removed else low
        if low > self._watermark and not self._turn.is_removed:
            timers = self._due(low)
            if timers:
                outcome = self._fire(timers)
                end = Position(self.position.entry, self.position.record + 1)
                return self._commit(end, "keep", outcome), outcome.fired
        commit = self._commit(item.end, "keep")
        commit.meta["arrived"] = header.version
        self._reach(commit, low)
        self.cache.clear()
        return commit, 0

    def _reach(self, commit: Commit, low: int) -> None:
        """With the commit its watermark is `low`, and those behind hear of it."""
        if low <= self._watermark:
            return
        self._watermark = low
        commit.meta["watermark"] = low
        if low == MAX_TIME:
            commit.meta["done"] = 1
        news = Output("E") if low == MAX_TIME else Output("W", 0, low)
        commit.outputs = {target: [news] for target in self._context.encoder.everywhere()}

    def _fire(self, timers: list[Timer]) -> Outcome:
        if self._bound is not None:
            return self._stepper.fire(timers[: self._bound.timers], self._as_before())
        due = timers[:1] if self._trials.is_on else timers
        bounds = self._bounds(self._clock())
        return self._trials.run(
            self.position,
            lambda: self._stepper.fire(due, bounds),
            lambda error: self._stepper.give_up_timer(due[0], error),
        )

    def _due(self, watermark: int) -> list[Timer]:
        stage = self._context.stage
        groups = groups_of_partition(self.row.partition, self._turn.partitions_at(self.position))
        operators = self._context.kernel.keyed_operators
        return self._context.ownership.due_timers(stage.index, operators, groups, watermark, TIMERS_PER_STEP)

    def _load(self, wanted: Iterable[Any]) -> LoadedState:
        context = self._context
        return context.ownership.load_state(context.stage.index, context.kernel.keyed_operators, wanted)

    def _named(self) -> str:
        return f"job={self._context.job} stage={self.row.stage} partition={self.row.partition}"
