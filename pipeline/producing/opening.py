"""Finds the job and the source that a producer sends to, and registers its lanes there. Sends no record."""

from __future__ import annotations

import random
from dataclasses import dataclass, field

from pipeline.errors import ProducerError, StoreError
from pipeline.plan import PRODUCER_FORMAT, Plan, SourcePlan
from pipeline.producing.bounds import Bounds
from pipeline.producing.outbox import Outbox
from pipeline.producing.outgoing import Packer
from pipeline.store.connection import connect
from pipeline.store.jobs import JobStore
from pipeline.store.patience import Patience
from pipeline.store.scripts import Scripts
from pipeline.store.senders import Feed, FeedAddress
from pipeline.validation import suggestion


@dataclass(frozen=True, slots=True)
class Destination:
    """Where to send, and under which name. `leaves`: nobody will come back under that name."""

    redis_url: str = field(repr=False)
    job: str
    source: str | None
    name: str
    leaves: bool


@dataclass(frozen=True, slots=True)
class Opened:
    """A destination that takes records."""

    packer: Packer
    outbox: Outbox


def open_destination(to: Destination, bounds: Bounds) -> Opened:
    """Registers every lane, which fences off whoever sent under that name before, and starts the thread that sends.

    Raises UnknownJob, InboxClosed, ProducerError for a source that takes no records, StoreError. Retries nothing.
    """
    scripts = Scripts(connect(to.redis_url))
    try:
        record = JobStore(scripts).read(to.job)
        source = choose_source(record.plan, to.job, to.source)
        # The sending thread has all lanes to look after: a call of the store never waits in its place.
        patience = Patience(outage_seconds=0.0, full_pause_seconds=0.0, rng=random.Random())
        address = FeedAddress(to.redis_url, to.job, source.name, full_timeout_seconds=0.0)
        feed = Feed(scripts, address, record.plan, record.run, patience)
        lanes = [feed.lane(f"{to.name}/{number}", exclusive=True) for number in range(bounds.lanes)]
        if to.leaves:
            feed.visit(lanes)
    except (StoreError, ProducerError):
        scripts.client.close()
        raise
    packer = Packer(record.plan.limits.record_bytes, bool(source.options.get("with_keys", False)))
    return Opened(packer, Outbox(feed, lanes, bounds, leaves=to.leaves))


def choose_source(plan: Plan, job: str, name: str | None) -> SourcePlan:
    """The source of that name, or the only one that takes records. Raises ProducerError."""
    names = [source.name for source in plan.sources if source.format == PRODUCER_FORMAT]
    if not names:
        raise ProducerError(
            f"the job {job!r} has no source that takes records of producers",
            hint="give its pipeline one: flow.source(read.producer())",
        )
    if name is None and len(names) > 1:
        raise ProducerError(
            f"the job {job!r} has several sources that take records: {', '.join(names)}", hint="name one with source="
        )
    chosen = plan.source(names[0] if name is None else name)
    if chosen is None or chosen.name not in names:
        raise ProducerError(
            f"the job {job!r} has no source {name!r} that takes records", hint=suggestion(str(name), names)
        )
    return chosen
