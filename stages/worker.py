"""One worker of one job: which partitions it owns, and their slices. Runs on the thread of Celery's hub only."""

from __future__ import annotations

import logging
import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from math import inf
from time import monotonic
from typing import TYPE_CHECKING, Any

from pipeline.errors import (
    CeleriacError,
    ForeignData,
    JobStateError,
    RecordFailed,
    SinkAhead,
    SinkError,
    StoreError,
    UnknownJob,
)
from pipeline.graph import Graph
from pipeline.kernel.stage import StageKernel
from pipeline.lifecycle import JobState
from pipeline.losses import LOST
from pipeline.plan import Plan
from pipeline.positions import Position
from pipeline.programs.runners import Programs
from pipeline.sinks.links import SinkLinks
from pipeline.store import keys
from pipeline.store.foreign import foreign_key
from pipeline.store.jobs import JobStore
from pipeline.store.losses import LossStore
from pipeline.store.ownership import Acquired, Assigned, Ownership
from pipeline.tickets import ticket
from stages.busy import Busy
from stages.commits_seen import CommitsSeen
from stages.context import StageContext
from stages.encoding import StepEncoder
from stages.holds import held_groups
from stages.partition import PartitionOwner, SliceEnd

if TYPE_CHECKING:
    from pipeline.spark.transforms import Transforms

logger = logging.getLogger(__name__)

Place = tuple[int, int]

_PLANS = 5
"""How often the plan is read anew while it goes on changing."""

_SESSION_LOOK_SECONDS = 0.2
"""Between two looks whether Spark has started."""

_AT_WORK = ("running", "taken", "publishing")


@dataclass(slots=True)
class Hand:
    """What the worker has in hand, for its heartbeat: place -> (position, since by the clock, why).

    `reasons`: what the places that back off wait for, in words.
    """

    at: dict[Place, tuple[str, float, str]] = field(default_factory=dict)
    reasons: dict[Place, str] = field(default_factory=dict)

    def held_longer(self, now: float, seconds: float) -> str:
        """What user code has held for longer than so many seconds, as text for a log; nothing when there is none."""
        for (stage, partition), (position, since, why) in list(self.at.items()):
            if why == "running" and now - since > seconds:
                return f"stage={stage} partition={partition} position={position} seconds={now - since:.0f}"
        return ""

    def report(self, now: float) -> dict[str, Any]:
        """`slices`: partitions at work, or whose ticket is in hand.

        `hand`: place -> position, age, what it waits for, the reason of a back-off.
        """
        held, reasons = list(self.at.items()), dict(self.reasons)
        return {
            "slices": [f"{s}.{p}" for (s, p), (_, _, why) in held if why in _AT_WORK],
            "hand": {
                f"{s}.{p}": {
                    "position": position,
                    "since_ms": int((now - since) * 1000),
                    "why": why,
                    **({"reason": reasons[s, p]} if (s, p) in reasons else {}),
                }
                for (s, p), (position, since, why) in held
            },
        }


class Worker:
    """Owns what the assignment table says, and nothing else; serves tickets."""

    def __init__(
        self,
        ownership: Ownership,
        plan: Plan,
        graph: Graph,
        clock: Callable[[], float] = monotonic,
        rng: random.Random | None = None,
        transforms: Transforms | None = None,
    ) -> None:
        """The jitter of its pauses comes from `rng`. `transforms` run DataFrame operators, where there are any.

        Raises EnvironmentFault, SinkError when a sink cannot be used from here: an extra, a variable is missing.
        """
        self.ownership = ownership
        self.plan = plan
        self.hand = Hand()
        self.busy = Busy(clock)
        self._clock = clock
        self._jobs = JobStore(ownership.scripts)
        self._programs = Programs(graph.nodes)
        self._transforms = transforms
        runners = {**self._programs.runners, **(transforms.runners if transforms is not None else {})}
        self._links = SinkLinks(graph.nodes)
        self._links.effects(plan.sinks)  # what is missing on this machine is told now, not at the first partition
        self.seen = CommitsSeen(ownership.worker)
        self._contexts = [
            StageContext(
                ownership.job,
                plan,
                stage,
                StageKernel(graph, stage, runners),
                StepEncoder(ownership.job, plan, stage),
                ownership,
                self._links,
                rng or random.Random(),
                self.seen,
            )
            for stage in plan.stages
        ]
        self._table = 1  # that of a job's first plan; any other is read when it is met
        self._owned: dict[Place, PartitionOwner] = {}
        self._stale: set[Place] = set()
        # Places that hold no ticket though there may be work: new ones, and those whose last slice was cut off.
        self._unserved: set[Place] = set()
        # Places that wait for a time, by the clock. Their ring flag stays set: the owner comes back by itself.
        self._paused: dict[Place, float] = {}
        # Places with an open file that becomes a part by itself, and when.
        self._rotations: dict[Place, float] = {}
        # When the last slice there ended, by the clock.
        self._rested: dict[Place, float] = {}
        # Stages that are paused by command. Their places keep their ring flags, and are served when that is over.
        self._still: frozenset[int] = frozenset()
        self.on_pause: Callable[[float], None] = _nobody_waits
        self.code = ""
        """The version of the pipeline that it runs; nothing where nobody says."""
        self.is_outdated = False
        """The job was promoted to another version: it does no work any more, and its agent starts it anew."""
        self.is_replaced = False
        """Another process has come in its place, under its name: it was refused, and ends."""

    @property
    def places(self) -> list[Place]:
        return sorted(self._owned)

    def owner(self, place: Place) -> PartitionOwner | None:
        """The owner object of a place that is owned."""
        return self._owned.get(place)

    def holdings(self) -> dict[Place, tuple[int, int]]:
        """Each owned partition with the keys and the bytes that its cache holds. For any thread."""
        return {place: (owner.cache.keys, owner.cache.size_bytes) for place, owner in list(self._owned.items())}

    def close(self) -> None:
        """Ends the external programs and the sinks' connections. A slice after that starts them anew."""
        self._programs.close()
        self._links.close()

    def look(self) -> list[Place]:
        """Brings what is owned in line with the table; the places that need a slice without a ticket.

        These are new, or their last slice was cut off, or their back-off is over. A partition of which Redis holds
        what we have not written fails the job. Raises StoreError.
        """
        if self.is_outdated:
            return []
        mine, asked = self.ownership.table()
        rows = {(row.stage, row.partition): row for row in mine}
        for place, owner in list(self._owned.items()):
            if rows.get(place) != owner.row:
                self._drop(place)
            elif asked.get(f"{place[0]}.{place[1]}") == owner.row.token and self._gives(place, owner):
                del rows[place]
        self._look_at_pauses()
        for place, row in rows.items():
            if place not in self._owned:
                try:
                    self._acquire(row)
                except ForeignData as error:
                    self._fail(place, error)
        budget = self.plan.limits.cache_bytes // max(1, len(self._owned))
        for owner in self._owned.values():
            owner.cache.budget_bytes = budget
        now = self._clock()
        for place, at in list(self._rotations.items()):
            if at <= now:
                del self._rotations[place]
                self._rotate(place)
        due = self._unserved | {place for place, until in self._paused.items() if until <= now}
        # Those that a rescale removes come first: others wait for what they have still before them.
        return sorted(due, key=lambda place: (place[1] < self.plan.stage(place[0]).serving, place))

    def _gives(self, place: Place, owner: PartitionOwner) -> bool:
        """Whether the partition was given to the worker that the leader means. Not in the middle of a slice there.

        Raises StoreError: the next look tells whose it is.
        """
        if place in self.hand.at and self.hand.at[place][2] in _AT_WORK:
            self.on_pause(0.0)
            return False
        rested_ms = int(1000 * (self._clock() - self._rested[place])) if place in self._rested else 0
        next_ticket = ticket(self.ownership.job, *place, owner.row.term + 1)
        if not self.ownership.give_away(owner.row, next_ticket, rested_ms):
            return False
        logger.info("given away as asked: %s token=%s", self._named(place), owner.row.token)
        self._drop(place)
        return True

    def _look_at_pauses(self) -> None:
        still, table = self.ownership.still_stages()
        if table > self._table:
            self._renew()
        self._still = frozenset(stage.index for stage in self.plan.stages if stage.name in still)
        for place, (_, _, why) in list(self.hand.at.items()):
            if why == "paused" and place[0] not in self._still:
                self.hand.at.pop(place)
                self._unserved.add(place)

    def _stand_still(self, place: Place, owner: PartitionOwner) -> SliceEnd:
        """The ticket is used up: the place is served when its stage goes on."""
        self._unserved.discard(place)
        self._resume(place)
        self.hand.at[place] = (str(owner.position), self._clock(), "paused")
        return SliceEnd.BACKOFF

    def _has_session(self, stage: int) -> bool:
        """Whether what the stage needs of Spark is there; has it started. Raises PipelineError, EnvironmentFault."""
        if self._transforms is None or not self._contexts[stage].kernel.needs_session:
            return True
        return self._transforms.is_ready()

    def _await_session(self, place: Place, owner: PartitionOwner) -> SliceEnd:
        """The ticket is used up: the place is served when Spark has started; no record is in hand till then."""
        assert self._transforms is not None
        self._unserved.discard(place)
        self._pause(place, owner.position, _SESSION_LOOK_SECONDS, self._transforms.waits_for)
        return SliceEnd.BACKOFF

    def pauses(self) -> list[float]:
        """In how many seconds `look` must be called again, for each place that waits for a time."""
        now = self._clock()
        return [max(0.0, until - now) for until in (*self._paused.values(), *self._rotations.values())]

    def work(self, stage: int, partition: int) -> SliceEnd | None:
        """One slice, then slices of other partitions whose tickets wait, until the time of one slice is over.

        A ticket's way through Celery costs more than a small step. The end is that of the first slice.
        Never raises what a ticket cannot handle.
        """
        deadline = self._clock() + self.plan.limits.slice_seconds
        end = self.slice(stage, partition, deadline)
        while self._clock() < deadline and (places := self._take_tickets()):
            for place in places:
                self.slice(*place, deadline)
        return end

    def _take_tickets(self) -> list[Place]:
        """Places whose tickets are in hand now, each with the entries that it is for."""
        calm = [owner.calm() for place, owner in self._owned.items() if place not in self._stale]
        waiting = [each for each in calm if each is not None]
        if not waiting:
            return []
        owner = self._owned[waiting[0].stage, waiting[0].partition]
        limits = self.plan.limits
        try:
            taken = self.ownership.take_tickets(
                owner.table, waiting, limits.step_records, limits.step_bytes // len(waiting)
            )
        except StoreError as error:
            # A ticket that was taken all the same is rung again, by the leader.
            logger.warning("no ticket could be taken: job=%s: %s", self.ownership.job, error)
            return []
        now = self._clock()
        for each, entries in taken:
            place = (each.stage, each.partition)
            self._owned[place].offer(entries)
            self.hand.at[place] = (str(each.position), now, "taken")
        return [(each.stage, each.partition) for each, _ in taken]

    def slice(
        self, stage: int, partition: int, deadline: float | None = None, *, is_again: bool = False
    ) -> SliceEnd | None:
        """One slice of a partition, also the last step over at `deadline`; None when it is not ours.

        Never raises what a ticket cannot handle.

        A store that is away ends the slice; a fault of ours, or of a sink, fails the job with its message.
        """
        place = (stage, partition)
        if self._clock() < self._paused.get(place, -inf):
            return SliceEnd.BACKOFF  # the ticket is used up: the place is served when its time has come
        try:
            if place not in self._owned:
                self.look()
            owner = self._fresh(place)
            if owner is None:
                return None
            if stage in self._still:
                return self._stand_still(place, owner)
            if not self._has_session(stage):
                return self._await_session(place, owner)
            return self._run(place, owner, deadline, is_again)
        except ForeignData as error:
            return self._fail(place, error)
        except StoreError as error:
            return self._cut_off(place, error)
        except RecordFailed as error:
            return self._fail_by(place, error)
        except CeleriacError as error:
            return self._fail(place, error)

    def _fail_by(self, place: Place, error: RecordFailed) -> SliceEnd:
        """Not by a record of which somebody else had the position meanwhile: it may have met what he has written."""
        owner = self._owned.get(place)
        try:
            stand = self.ownership.acquire(owner.row) if owner is not None else None
        except StoreError as away:
            return self._cut_off(place, away)
        if owner is not None and stand is not None and stand.position == owner.position:
            return self._fail(place, error)
        logger.info("a record failed behind its time, and is left to others: %s: %s", self._named(place), error)
        self._stale.add(place)
        self._unserved.add(place)
        return SliceEnd.STALE

    def _run(self, place: Place, owner: PartitionOwner, deadline: float | None, is_again: bool) -> SliceEnd:
        self._unserved.discard(place)
        self._paused.pop(place, None)
        self.hand.at[place] = (str(owner.position), self._clock(), "running")
        is_known = False
        try:
            with self.busy.at(*place):
                end = owner.run_slice(deadline)
            is_known = True
        finally:
            if not is_known:
                self._stale.add(place)
            self.hand.at.pop(place, None)
            self._rested[place] = self._clock()
        if end is not SliceEnd.BACKOFF:
            self._resume(place)
        match end:
            case SliceEnd.FULL:
                self.hand.at[place] = (str(owner.position), self._clock(), "full")
            case SliceEnd.GATED:
                self._stale.add(place)
                self.hand.at[place] = (str(owner.position), self._clock(), "gated")
            case SliceEnd.FENCED:
                logger.warning(
                    "fenced: another worker has taken over; nothing was written, its work is dropped here: %s token=%s",
                    self._named(place),
                    owner.row.token,
                )
                self._drop(place)
            case SliceEnd.STALE:
                logger.info("what was known is out of date and is read anew: %s", self._named(place))
                self._stale.add(place)
                if is_again:  # what is read anew is out of date at once: that is not for this slice to mend
                    self._unserved.add(place)
                    return end
                return self.slice(*place, is_again=True) or end
            case SliceEnd.STOPPED:
                self._drop(place)
            case SliceEnd.BACKOFF:
                self._stale.add(place)
                self._pause(place, owner.position, owner.wait_seconds, owner.wait_reason)
            case SliceEnd.FOREIGN_KEY:
                return self._fail(place, foreign_key(owner.foreign))
            case SliceEnd.IDLE:
                self._rotate(place)
            case SliceEnd.YIELDED:
                pass
        return end

    def _pause(self, place: Place, position: Position, seconds: float, reason: str) -> None:
        now = self._clock()
        self._paused[place] = now + seconds
        self.hand.at[place] = (str(position), now, "backoff")
        self.hand.reasons[place] = reason
        self.on_pause(seconds)

    def _rotate(self, place: Place) -> None:
        """An idle partition publishes its files, too, when their time has come."""
        owner = self._owned.get(place)
        if owner is None or place in self._stale:
            return
        try:
            seconds = owner.rotate()
        except StoreError as error:
            self._cut_off(place, error)
            return
        except CeleriacError as error:
            self._fail(place, error)
            return
        if seconds is not None and place not in self._rotations:
            self._rotations[place] = self._clock() + seconds
            self.on_pause(seconds)

    @contextmanager
    def _publishing(self, place: Place) -> Iterator[None]:
        """Meanwhile the place is at work, and no record is in hand."""
        before = self.hand.at.get(place)
        if before is not None:
            self.hand.at[place] = (*before[:2], "publishing")
        yield
        if before is not None:
            self.hand.at[place] = (before[0], self._clock(), before[2])

    def _resume(self, place: Place) -> None:
        self._paused.pop(place, None)
        self.hand.reasons.pop(place, None)

    def _fresh(self, place: Place) -> PartitionOwner | None:
        """The owner object with true knowledge, or None when the partition is no longer ours."""
        owner = self._owned.get(place)
        if owner is None or place not in self._stale:
            return owner
        acquired = self._asked(owner.row)
        if acquired is None:
            self._drop(place)
            return None
        owner.renew(self._contexts[place[0]])
        owner.reset(acquired)
        self._stale.discard(place)
        return owner

    def _acquire(self, row: Assigned) -> None:
        acquired = self._asked(row)
        if acquired is None:
            return
        place = (row.stage, row.partition)
        owner = self._owned[place] = PartitionOwner(self._contexts[row.stage], row, acquired, self._clock)
        owner.tell_publishing(partial(self._publishing, place))
        self._unserved.add(place)
        logger.info("owns %s token=%s position=%s", self._named(place), row.token, acquired.position)

    def _asked(self, row: Assigned) -> Acquired | None:
        """Where the partition stands. None when it is not ours, or stands behind what this worker has committed there:
        then the job halts. Raises StoreError.
        """
        acquired = self._acquired(row)
        if acquired is None:
            return None
        self.seen.begin(acquired.run)
        lines = self.seen.missing((row.stage, row.partition), acquired.position)
        if lines:
            self.halt(acquired.run, lines)
            return None
        return acquired

    def _acquired(self, row: Assigned) -> Acquired | None:
        """As Redis has it, under the plan as it is by then. Raises ForeignData for a place that no plan has."""
        if (row.stage, row.partition) not in self.plan.partitions():
            self._renew()
        for _ in range(_PLANS):
            if (row.stage, row.partition) not in self.plan.partitions():
                raise foreign_key(f"{keys.assignment(self.ownership.job)} {row.stage}.{row.partition}")
            stage = self.plan.stage(row.stage)
            groups = held_groups(stage, row.partition, stage.serving)
            acquired = self.ownership.acquire(row, groups)
            if acquired is None or acquired.table == self._table:
                break
            self._renew()
            if self.is_outdated:
                return None
        if acquired is not None and acquired.switch and groups:
            groups = sorted({*groups, *held_groups(stage, row.partition, acquired.before)})
            acquired = self.ownership.acquire(row, groups)
        return acquired

    def _renew(self) -> None:
        """Reads the plan anew: another one may have been made of it. Raises StoreError.

        A stage whose partitions are others is served before all else: who gets keys waits for those that give them.
        """
        record = self._jobs.read(self.ownership.job)
        if self.code and record.code not in ("", self.code):
            self._leave_off(record.code)
            return
        self._table = record.table
        if record.plan == self.plan:
            return
        before, self.plan = self.plan, record.plan
        concerned, changed = before.concerned_by(self.plan), before.changed_in(self.plan)
        self._unserved |= {place for place in self._owned if place[0] in changed}
        self.on_pause(0.0)
        self._contexts = [self._context_by(self.plan, old, concerned) for old in self._contexts]
        for place, owner in self._owned.items():
            if place[0] in concerned or not owner.go_over(self._contexts[place[0]], record.table):
                self._stale.add(place)
        serving = ", ".join(f"{stage.name} {stage.serving}" for stage in self.plan.stages)
        logger.info("the partitions are others by now: job=%s table=%d: %s", record.job, record.table, serving)

    def _context_by(self, plan: Plan, old: StageContext, concerned: frozenset[int]) -> StageContext:
        """An encoder knows where keys go: it stays while they go there."""
        index = old.stage.index
        is_same = index not in concerned and concerned.isdisjoint(plan.stage(index).exchanges.values())
        encoder = old.encoder if is_same else StepEncoder(self.ownership.job, plan, plan.stage(index))
        return replace(old, plan=plan, stage=plan.stage(index), encoder=encoder)

    def _leave_off(self, code: str) -> None:
        """Its version does not know the table that commits need by now, and never learns it."""
        logger.warning(
            "the job was promoted to version %s, this is %s: job=%s worker=%s",
            code,
            self.code,
            self.ownership.job,
            self.ownership.worker,
        )
        self.is_outdated = True
        for place in list(self._owned):
            self._drop(place)

    def halt(self, run: str, lines: list[str], ownership: Ownership | None = None) -> None:
        """Says what Redis has lost. Also called by the pulse, with a connection of its own. Raises StoreError."""
        for line in lines:
            logger.error("the job halts, %s: job=%s %s", LOST, self.ownership.job, line)
        LossStore((ownership or self.ownership).scripts, self.ownership.job).report(run, lines)

    def compare(self, ownership: Ownership) -> None:
        """Compares what this worker has committed with where this run of the server began. Raises StoreError."""
        run, server = self.seen.run, ownership.scripts.server
        remembered = self.seen.before(server)
        if remembered:
            stood = LossStore(ownership.scripts, ownership.job).stood(run, sorted(remembered))
            lines = self.seen.compared(server, remembered, stood)
            if lines:
                self.halt(run, lines, ownership)

    def _drop(self, place: Place) -> None:
        owner = self._owned.pop(place, None)
        self._stale.discard(place)
        self._unserved.discard(place)
        self._resume(place)
        self.hand.at.pop(place, None)
        if owner is not None:
            owner.close()

    def _cut_off(self, place: Place, error: StoreError) -> SliceEnd:
        logger.warning("a slice was cut off: %s: %s", self._named(place), error)
        self.hand.at.pop(place, None)
        self._resume(place)
        if place in self._owned:
            self._stale.add(place)
            self._unserved.add(place)
        return SliceEnd.STALE

    def _fail(self, place: Place, error: CeleriacError) -> SliceEnd:
        # What a disk refuses, or another program wrote, is no fault of ours: its place in the code would hide it.
        trace = None if isinstance(error, SinkError | ForeignData) else error
        logger.error("the job fails: %s: %s", self._named(place), error, exc_info=trace)
        hint = f" ({error.hint})" if error.hint else ""
        try:
            if isinstance(error, SinkAhead):
                self.halt(self.seen.run, [str(error)])
                self._drop(place)
                return SliceEnd.STOPPED
            self._jobs.transition(self.ownership.job, JobState.FAILED, f"stage {place[0]}: {error}{hint}")
        except (JobStateError, UnknownJob) as late:
            logger.info("the job has ended already: %s", late)
        except StoreError as late:
            return self._cut_off(place, late)
        self._drop(place)
        return SliceEnd.STOPPED

    def _named(self, place: Place) -> str:
        return f"job={self.ownership.job} stage={place[0]} partition={place[1]} worker={self.ownership.worker}"


def _nobody_waits(seconds: float) -> None:
    """Whoever drives the slices by hand looks again by himself."""
