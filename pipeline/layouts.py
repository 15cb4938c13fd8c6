"""Two layouts of one keyed stage: which partition has to give key groups to which when their number changes. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from pipeline.keying import first_table


@dataclass(frozen=True, slots=True)
class Layout:
    """The change from `before` partitions to `after`.

    tells: giver -> those that get key groups of it. givers: receiver -> how many others give some to it. A partition
    is never among its own.
    """

    before: int
    after: int
    tells: dict[int, tuple[int, ...]]
    givers: dict[int, int]

    @property
    def places(self) -> range:
        """All partitions that are there before or afterwards."""
        return range(max(self.before, self.after))

    @property
    def fresh(self) -> range:
        """Those that come into being, or back."""
        return range(self.before, max(self.before, self.after))

    @property
    def removed(self) -> range:
        """Those that end."""
        return range(self.after, max(self.before, self.after))


def layout(before: int, after: int) -> Layout:
    """What changes between two numbers of partitions."""
    pairs = {(one, other) for one, other in zip(first_table(before), first_table(after), strict=True) if one != other}
    tells: dict[int, tuple[int, ...]] = {}
    givers: dict[int, int] = {}
    for giver, receiver in sorted(pairs):
        tells[giver] = (*tells.get(giver, ()), receiver)
        givers[receiver] = givers.get(receiver, 0) + 1
    return Layout(before, after, tells, givers)
