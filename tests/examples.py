"""How many examples a property is tried with."""

from __future__ import annotations

from typing import Final

from hypothesis import settings

OF_EACH_CASE: Final = settings(max_examples=settings().max_examples // 3)
"""For a property that is parametrized with a dozen cases or more: together they try it some hundred times."""
