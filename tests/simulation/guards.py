"""Takes a guard of the catalogue out of its script, for the model in this process."""

from __future__ import annotations

from functools import cache

import pytest

from pipeline.store import scripts as store_scripts
from tests.guards.catalog import GUARDS, Guard
from verification import points

MORE = (
    Guard(
        "number of a sender that comes back",
        "register",
        "call('HSET', log, id, known[1] or '0',",
        "call('HSET', log, id, '0',",
    ),
    Guard("ids that were seen", "append", "if seen[digest] or (score and", "if false and (score and"),
)
"""Guards that other tests take out in other ways."""


def without(names: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Until the test ends, scripts are made without these guards of the catalogue; a name stands for all it begins."""
    all_ = (*GUARDS, *MORE)
    guards = [guard for guard in all_ if guard.name == names] or [g for g in all_ if g.name.startswith(names)]
    assert guards
    right = store_scripts.source

    def wrong(asked: str, server: str = "") -> str:
        text = right(asked, server)
        for guard in guards:
            if asked == guard.script:
                assert guard.line in text
                text = text.replace(guard.line, guard.instead)
        return text

    for module in ("pipeline.store.scripts", "verification.points", "verification.exhaustive.steps"):
        monkeypatch.setattr(f"{module}.source", wrong)
    # The names of scripts are known by their texts.
    monkeypatch.setattr("verification.simulation.world.script_names", cache(points.script_names.__wrapped__))
