"""Takes a guard of the catalogue out of its script, for the model in this process."""

from __future__ import annotations

from functools import cache

import pytest

from pipeline.store import scripts as store_scripts
from tests.guards.catalog import GUARDS
from verification import points


def without(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Until the test ends, scripts are made without this guard."""
    guard = next(guard for guard in GUARDS if guard.name == name)
    right = store_scripts.source

    def wrong(asked: str, server: str = "") -> str:
        text = right(asked, server)
        if asked != guard.script:
            return text
        assert guard.line in text
        return text.replace(guard.line, guard.instead)

    for module in ("pipeline.store.scripts", "verification.points", "verification.exhaustive.steps"):
        monkeypatch.setattr(f"{module}.source", wrong)
    # The names of scripts are known by their texts.
    monkeypatch.setattr("verification.simulation.world.script_names", cache(points.script_names.__wrapped__))
