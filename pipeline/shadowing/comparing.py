"""Compares what a job and its shadow give their sinks, key by key, while either may be ahead. Pure.

Of each sink, partition and key the results come in an order. Across keys they do not, and where records of several
senders meet in a stage their order is that of their arrival, which is not the same twice.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any, Final

import msgspec

from pipeline.codec import decode_value, encode_value, key_field, read_key_field, shown
from pipeline.reading.keytext import key_text
from pipeline.records import Batch

GRACE: Final = 1_000
"""Where both sides have results of a key, one that the other has passed by so many of its partition comes no more.

Where only one side has some, a worker that died, or a backlog that is worked off, may hold the key's others back for as
long as seconds: they are waited for while there is room.
"""

SHOWN: Final = 20
"""So many differences are kept to be shown, the first ones."""

_SEARCHED: Final = 64
"""How far results of one key are looked for behind others: so far they may have changed their order."""

_CHARACTERS: Final = 200
_LANES: Final = 100_000
_OVERHEAD_BYTES: Final = 200


class Side(IntEnum):
    LIVE = 0
    SHADOW = 1


class Difference(msgspec.Struct, frozen=True):
    """One result that is not the same, as text; None on the side that has none in its place."""

    sink: str
    key: str | None
    live: str | None
    shadow: str | None


class SinkTally(msgspec.Struct):
    """Results of one sink. equal: of both, in order; moved: of both, in another order; different: of one, or not equal.

    waiting: results of the job, and of the shadow, that the other has not given yet.
    """

    equal: int = 0
    moved: int = 0
    different: int = 0
    waiting: list[int] = msgspec.field(default_factory=lambda: [0, 0])

    @property
    def compared(self) -> int:
        return self.equal + self.moved + self.different


@dataclass(slots=True, eq=False)
class _Result:
    lane: _Lane
    number: int
    data: bytes

    @property
    def size(self) -> int:
        return len(self.data) + _OVERHEAD_BYTES


@dataclass(slots=True, eq=False)
class _Lane:
    """The results of one key in one partition that wait for their counterparts.

    matched: the numbers of the last ones that had one. last: the newest results while it is there.
    """

    sink: str
    name: bytes | None
    queues: tuple[deque[_Result], deque[_Result]] = field(default_factory=lambda: (deque(), deque()))
    matched: list[int] = field(default_factory=lambda: [0, 0])
    last: list[bytes | None] = field(default_factory=lambda: [None, None])


@dataclass(slots=True)
class _Sender:
    """One partition in front of a sink: what it gave on both sides, how far each of them was matched, what waits."""

    counts: list[int] = field(default_factory=lambda: [0, 0])
    matched: list[int] = field(default_factory=lambda: [0, 0])
    waiting: tuple[OrderedDict[int, _Result], OrderedDict[int, _Result]] = field(
        default_factory=lambda: (OrderedDict(), OrderedDict())
    )


class Comparison:
    """What was compared so far. `held_bytes` estimates the memory of what waits: whoever adds must look at it.

    patience_bytes: when more than this waits, what has no counterpart yet counts as having none.
    """

    def __init__(self, patience_bytes: int) -> None:
        self._patience_bytes = patience_bytes
        self.tallies: dict[str, SinkTally] = {}
        self.first: list[Difference] = []
        self.held_bytes = 0
        self._senders: dict[tuple[str, int], _Sender] = {}
        self._lanes: dict[tuple[str, int, bytes | None], _Lane] = {}
        self._last: dict[tuple[str, bytes | None], list[bytes | None]] = {}

    @property
    def compared(self) -> int:
        return sum(tally.compared for tally in self.tallies.values())

    @property
    def different(self) -> int:
        return sum(tally.different for tally in self.tallies.values())

    @property
    def waiting(self) -> int:
        return sum(sum(tally.waiting) for tally in self.tallies.values())

    @property
    def keys(self) -> tuple[int, int]:
        """Keys with differences, and those of them whose last results are the same."""
        return len(self._last), sum(live is not None and live == shadow for live, shadow in self._last.values())

    def add(self, side: Side, sink: str, partition: int, batch: Batch) -> None:
        """Results of one partition for a sink, next after those that were added before."""
        tally = self.tallies.setdefault(sink, SinkTally())
        sender = self._senders.setdefault((sink, partition), _Sender())
        for index, value in enumerate(batch.values):
            name = None if batch.keys is None else key_field(batch.keys[index])
            data = encode_value(value)
            if (sink, name) in self._last:
                self._last[sink, name][side] = data
            lane = self._lanes.get((sink, partition, name))
            if lane is None:
                lane = self._lanes[sink, partition, name] = _Lane(sink, name)
            lane.last[side] = data
            sender.counts[side] += 1
            result = _Result(lane, sender.counts[side], data)
            if not self._match(side, result, sender, tally):
                lane.queues[side].append(result)
                sender.waiting[side][result.number] = result
                tally.waiting[side] += 1
                self.held_bytes += result.size
                self._give_up_pairs(lane, sender, tally)
            elif not any(lane.queues):
                del self._lanes[sink, partition, name]
        self._give_up(sender, tally)

    def settle(self) -> None:
        """Both sides have given all that they give for the same input: what waits has no counterpart."""
        for (sink, _), sender in self._senders.items():
            self._give_up(sender, self.tallies[sink], is_over=True)
        self._lanes.clear()

    def _match(self, side: Side, result: _Result, sender: _Sender, tally: SinkTally) -> bool:
        lane, other = result.lane, 1 - side
        for at, found in enumerate(lane.queues[other]):
            if at >= _SEARCHED:
                return False
            if found.data != result.data:
                continue
            del lane.queues[other][at]
            self._take_out(other, found, sender, tally)
            is_in_order = found.number > lane.matched[other] and result.number > lane.matched[side]
            tally.equal += is_in_order
            tally.moved += not is_in_order
            for place, one in ((other, found), (side, result)):
                lane.matched[place] = max(lane.matched[place], one.number)
                sender.matched[place] = max(sender.matched[place], one.number)
            return True
        return False

    def _take_out(self, side: int, result: _Result, sender: _Sender, tally: SinkTally) -> None:
        del sender.waiting[side][result.number]
        tally.waiting[side] -= 1
        self.held_bytes -= result.size

    def _give_up_pairs(self, lane: _Lane, sender: _Sender, tally: SinkTally) -> None:
        """What both sides have of a key, and is not equal, at the front of both."""
        while all(lane.queues):
            fronts = {side: lane.queues[side][0] for side in Side}
            side = next((side for side in Side if self._is_passed(side, fronts[side], sender)), None)
            if side is None:
                return
            self._differs(side, fronts[side], sender, tally)

    def _is_passed(self, side: int, result: _Result, sender: _Sender) -> bool:
        return result.number + GRACE < max(sender.matched[side], sender.counts[1 - side])

    def _give_up(self, sender: _Sender, tally: SinkTally, *, is_over: bool = False) -> None:
        """The oldest of those that wait, as long as nobody has to wait for them."""
        for side in Side:
            waiting = sender.waiting[side]
            while waiting:
                oldest = next(iter(waiting.values()))
                if not is_over and not self._is_given_up(side, oldest, sender):
                    break
                self._differs(side, oldest, sender, tally)

    def _is_given_up(self, side: int, result: _Result, sender: _Sender) -> bool:
        has_room = self.held_bytes <= self._patience_bytes and not result.lane.queues[1 - side]
        return not has_room and self._is_passed(side, result, sender)

    def _differs(self, side: int, result: _Result, sender: _Sender, tally: SinkTally) -> None:
        """It stands against the first result that waits on the other side, or against none."""
        lane = result.lane
        lane.queues[side].remove(result)
        pair: list[bytes | None] = [None, None]
        pair[side] = result.data
        self._take_out(side, result, sender, tally)
        if lane.queues[1 - side]:
            other = lane.queues[1 - side].popleft()
            pair[1 - side] = other.data
            self._take_out(1 - side, other, sender, tally)
        tally.different += 1
        if len(self._last) < _LANES:
            self._last.setdefault((lane.sink, lane.name), list(lane.last))
        if len(self.first) < SHOWN:
            key = None if lane.name is None else key_text(read_key_field(lane.name))
            self.first.append(Difference(lane.sink, key, *(_text(data) for data in pair)))


def difference_lines(first: list[Difference]) -> Iterator[str]:
    """Some differences, for people."""
    for each in first:
        key = "" if each.key is None else f" key {each.key}:"
        yield f"sink {each.sink}:{key} {each.live or 'nothing'} -> {each.shadow or 'nothing'}"


def _text(data: bytes | None) -> str | None:
    value: Any = None if data is None else decode_value(data)
    return None if data is None else shown(value, _CHARACTERS)
