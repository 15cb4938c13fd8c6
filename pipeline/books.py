"""The books of a job: counts that must agree at every instant, and what is wrong where they do not. Pure.

Each equation compares two numbers that were counted in different places. `docs/guarantees.md` lists them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from pipeline.facts import Alarm
from pipeline.lifecycle import JobState
from pipeline.plan import STREAM_FORMATS, Plan, StagePlan, stream_name
from pipeline.wording import counted

FORGOTTEN: Final = "gone"
"""Stands in a log for the senders that were forgotten, as if they were one."""

REPLAYS: Final = "replay"
"""Stands in a log for whoever puts dead letters back."""

STREAM_PREFIX: Final = "stream:"
"""What the name of an output stream begins with among the targets of a partition."""

_COMPLETE: Final = frozenset({JobState.PUBLISHING, JobState.FINISHED})


@dataclass(frozen=True, slots=True)
class Page:
    """The counts of one partition.

    passed: records in front of its position. at_end: nothing is behind it. is_torn: the entry there is missing.
    left_out: records passed without being taken, since their id was known. letters: dead letters written.
    sent: target (`stage.partition`, `stream:name`, or a sink) -> records that its owners say to have sent there.
    came: sender -> its last number here, FORGOTTEN and REPLAYS among them. finished: sender -> where it ended.
    sunk: sink -> records of this partition that it has, by what the sinks' own commits say.
    """

    stage: int
    partition: int
    head: int
    passed: int
    at_end: bool
    is_torn: bool
    taken: int
    left_out: int
    emitted: int
    letters: int
    sent: Mapping[str, int]
    came: Mapping[str, int]
    finished: Mapping[str, int]
    sunk: Mapping[str, int]

    @property
    def name(self) -> str:
        return f"{self.stage}.{self.partition}"


@dataclass(frozen=True, slots=True)
class StreamPage:
    """The counts of one output stream. `came`: sender -> its last number."""

    name: str
    head: int
    came: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class Books:
    """All counts of one job at one instant. `letters`: dead letters that are there; `dropped`: that were deleted."""

    job: str
    plan: Plan
    state: JobState
    pages: Sequence[Page]
    streams: Sequence[StreamPage]
    letters: int
    dropped: int
    read: int = field(default=0, compare=False)
    """How many counts were read: what a look costs."""


def findings(books: Books) -> list[Alarm]:
    """What does not agree; empty when the books balance."""
    found = [alarm for page in books.pages for alarm in _of_page(books, page)]
    pages = {page.name: page for page in books.pages}
    streams = {STREAM_PREFIX + stream.name: stream for stream in books.streams}
    for page in books.pages:
        stage = books.plan.stage(page.stage)
        for to in stage.exchanges.values():
            for partition in range(books.plan.stage(to).partitions):
                found += _between(books, page, pages[f"{to}.{partition}"])
        for target in _sinks(books.plan, stage):
            found += _into_sink(books, page, target, streams)
    for stream in books.streams:
        found += _of_stream(stream)
    found += _of_letters(books)
    return found


def balance_line(books: Books) -> str:
    """What the books say when they balance."""
    entries = [page for page in books.pages if not books.plan.stage(page.stage).keyed]
    sunk = sum(
        page.sent.get(target, 0) for page in books.pages for target in _sinks(books.plan, books.plan.stage(page.stage))
    )
    left_out = sum(page.left_out for page in books.pages)
    letters = sum(page.letters for page in books.pages)
    waiting = sum(page.head - page.passed for page in books.pages)
    parts = [f"{sum(page.head for page in entries):,} in", f"{sunk:,} into sinks"]
    parts += [f"{left_out:,} known by their ids"] if left_out else []
    parts += [counted(letters, "dead letter")] if letters else []
    parts += [f"{waiting:,} waiting"] if waiting else []
    return f"the books balance: {', '.join(parts)}"


def _of_page(books: Books, page: Page) -> Iterator[Alarm]:
    """The equations of one partition by itself."""
    if page.is_torn:
        behind = counted(page.head - page.passed, "record")
        yield _alarm(books, page, "entry", f"misses the entry at its position, {behind} before its end")
    yield from _differ(books, page, "inbox", page.head - sum(page.came.values()), "has {} {} than its senders sent")
    if not page.is_torn:
        all_passed = page.taken + page.left_out
        yield from _differ(books, page, "position", all_passed - page.passed, "has taken {} {} than it has passed")
    yield from _differ(books, page, "outputs", page.emitted - sum(page.sent.values()), "has emitted {} {} than it sent")
    if page.passed > page.head:
        beyond = counted(page.passed - page.head, "record")
        yield _alarm(books, page, "beyond", f"stands {beyond} behind the end of its inbox")
    if books.state in _COMPLETE and page.passed < page.head:
        yield _alarm(
            books, page, "rest", f"ended with {counted(page.head - page.passed, 'record')} that it has not taken"
        )
    for sender, number in page.finished.items():
        more = page.came.get(sender, 0) - number
        yield from _differ(
            books, page, f"end of {sender}", more, f"has {{}} {{}} of sender {sender} than that ended with"
        )


def _between(books: Books, sender: Page, target: Page) -> Iterator[Alarm]:
    """What one partition has sent to another has arrived there."""
    more = target.came.get(sender.name, 0) - sender.sent.get(target.name, 0)
    text = f"has {{}} {{}} from {_place(books, sender)} than that sent"
    yield from _differ(books, target, f"from {sender.name}", more, text)


def _into_sink(books: Books, page: Page, target: str, streams: Mapping[str, StreamPage]) -> Iterator[Alarm]:
    """What one partition has given to a sink is in it."""
    stream = streams.get(target)
    has = page.sunk.get(target, 0) if stream is None else stream.came.get(page.name, 0)
    what = f"sink {target!r}" if stream is None else f"output {stream.name!r}"
    more = has - page.sent.get(target, 0)
    if more:
        words = f"{counted(abs(more), 'record')} {'more' if more > 0 else 'fewer'} than that gave it"
        yield _alarm(books, page, f"to {target}", words, f"{what} has of {_place(books, page)} ")


def _of_stream(stream: StreamPage) -> Iterator[Alarm]:
    more = stream.head - sum(stream.came.values())
    if more:
        words = f"{counted(abs(more), 'record')} {'more' if more > 0 else 'fewer'} than its senders sent"
        yield Alarm(f"output {stream.name}", "", -1, f"output {stream.name!r} has {words}")


def _of_letters(books: Books) -> Iterator[Alarm]:
    """Each dead letter that was written is there, was put back, or was dropped."""
    written = sum(page.letters for page in books.pages)
    replayed = sum(page.came.get(REPLAYS, 0) for page in books.pages)
    more = books.letters + replayed + books.dropped - written
    if more:
        words = f"{abs(more):,} {'more' if more > 0 else 'fewer'}"
        yield Alarm("letters", "", -1, f"of the dead letters {words} are there, replayed or dropped than were written")


def _differ(books: Books, page: Page, kind: str, more: int, text: str) -> Iterator[Alarm]:
    """`text` has room for a count of records and for "more" or "fewer"."""
    if more:
        yield _alarm(books, page, kind, text.format(counted(abs(more), "record"), "more" if more > 0 else "fewer"))


def _alarm(books: Books, page: Page, kind: str, text: str, before: str = "") -> Alarm:
    stage = books.plan.stage(page.stage).name
    words = f"{before}{text}" if before else f"{_place(books, page)} {text}"
    return Alarm(f"{page.name} {kind}", stage, page.partition, words)


def _place(books: Books, page: Page) -> str:
    return f"stage {books.plan.stage(page.stage).name!r} partition {page.partition}"


def _sinks(plan: Plan, stage: StagePlan) -> list[str]:
    """The targets of a stage that are sinks, by their names in `Page.sent`."""
    plans = {sink.name: sink for sink in plan.sinks}
    names = [plans[name] for name in stage.sinks if name in plans]
    return list(
        dict.fromkeys(STREAM_PREFIX + stream_name(one) if one.format in STREAM_FORMATS else one.name for one in names)
    )
