"""The matrix of docs/guarantees.md: `python -m tests.docs.matrix FILE` makes it of what `verify --json` has printed."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from tests.docs.pages import DOCS
from verification.points import Variant

PAGE: Final = DOCS / "guarantees.md"

_MATRIX = re.compile(r"(<!-- matrix -->\n).*?(<!-- end of matrix -->)", re.S)
_PAIR: Final = "pair of crashes"
_COLUMNS: Final = (
    "scenario",
    "points",
    "deaths",
    "lost requests and replies",
    "pairs of crashes",
    "failures in scripts",
    "equal",
)
_DEATHS: Final = (Variant.BEFORE, Variant.APPLIED, Variant.AFTER)
_LOSSES: Final = (Variant.LOST_REQUEST, Variant.LOST_REPLY)
_SCRIPTS: Final = ("error inside a script", "foreign key in a script")


def scenarios(page: str) -> list[str]:
    """Those that the page has, in its order."""
    found = _MATRIX.search(page)
    assert found, "docs/guarantees.md has no matrix"
    return [line.split("|")[1].strip() for line in found[0].splitlines() if line.startswith("| ")][1:-1]


def table(rows: Sequence[Mapping[str, Any]]) -> str:
    lines = [_line(_COLUMNS), "|" + "---|" * len(_COLUMNS), *(_row(row["scenario"], [row]) for row in rows)]
    return "\n".join([*lines, _row("**all**", rows)])


def _row(name: str, rows: Sequence[Mapping[str, Any]]) -> str:
    def number(*kinds: str) -> str:
        count = sum(row["runs"].get(kind, 0) for row in rows for kind in kinds)
        return f"{count:,}" if count else ""

    failed, all_ = sum(row["failed"] for row in rows), sum(sum(row["runs"].values()) for row in rows)
    counts = [number(*_DEATHS), number(*_LOSSES), number(_PAIR), number(*_SCRIPTS)]
    points = f"{sum(row['points'] for row in rows):,}"
    return _line([name, points, *counts, "all" if not failed else f"{all_ - failed:,} of {all_:,}"])


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def main(path: str) -> None:
    rows = json.loads(Path(path).read_text())
    page, count = _MATRIX.subn(lambda found: f"{found[1]}{table(rows)}\n{found[2]}", PAGE.read_text())
    assert count == 1, "docs/guarantees.md has no matrix"
    PAGE.write_text(page)


if __name__ == "__main__":
    main(sys.argv[1])
