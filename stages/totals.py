"""What one owned partition has counted beside the sums that its commits keep: totals, which each commit states anew.

A total is written with the step that changes it, so a commit that is sent twice counts once.
"""

from __future__ import annotations

import msgspec

from pipeline.store.commits import Commit
from pipeline.store.ownership import Acquired


class Totals:
    """The totals of one partition, ahead of Redis by the step in hand. `remember` drops what was not committed."""

    def __init__(self) -> None:
        self._skipped = 0
        self._left_out = 0
        self._letters = 0
        self._sent: dict[str, int] = {}

    def remember(self, acquired: Acquired) -> None:
        """Goes on from what Redis holds."""
        self._skipped, self._left_out, self._letters = acquired.skipped, acquired.left_out, acquired.letters
        self._sent = dict(acquired.sent)

    def add(self, commit: Commit) -> None:
        """Counts what the commit holds, and puts the totals that it changes into it."""
        if commit.skipped:
            self._skipped += commit.skipped
            commit.meta["skipped"] = self._skipped
        if commit.left_out:
            self._left_out += commit.left_out
            commit.meta["left_out"] = self._left_out
        letters = sum(write.command == "XADD" for write in commit.writes)
        if letters:
            self._letters += letters
            commit.meta["letters"] = self._letters
        given = {
            target.name: sum(out.count for out in outputs)
            for target, outputs in commit.outputs.items()
            if target.is_counted
        }
        given.update(commit.sunk)
        if any(given.values()):
            for target, count in given.items():
                if count:
                    self._sent[target] = self._sent.get(target, 0) + count
            commit.meta["sent"] = msgspec.json.encode(self._sent)
