"""The small model with a fault, through every state that it can reach: a minute's search."""

from __future__ import annotations

import pytest

from verification.exhaustive.search import Search


@pytest.mark.timeout(400)
def test_with_one_fault_anywhere_every_interleaving_keeps_its_promises() -> None:
    found = Search(faults=1).run()

    assert found.broken == "", "\n".join(found.way)
    assert found.states > 10_000
