"""The pages of the documentation, cut into their fenced blocks. Runs nothing.

A comment in the line in front of a fence is the block's mark. The marks that a story knows are in `story.py`;
`<!-- not run: why -->` is for blocks that cannot be run here.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[2]
DOCS: Final = ROOT / "docs"
PAGES: Final = (ROOT / "README.md", *sorted(DOCS.glob("*.md")))

_FENCE = re.compile(r"(?:^<!-- (?P<mark>[^\n]*?) -->\n)?^```(?P<language>\w*)\n(?P<text>.*?)^```$", re.M | re.S)
_STEP = re.compile(_FENCE.pattern + r"|^<!-- (?P<alone>ctrl-c: \d+) -->$", re.M | re.S)


@dataclass(frozen=True, slots=True)
class Block:
    """One fenced block. A comment that is a step of a story by itself has a mark only."""

    page: str
    line: int
    mark: str
    language: str
    text: str

    @property
    def place(self) -> str:
        return f"{self.page}:{self.line}"


def blocks_of(page: Path) -> list[Block]:
    """The blocks of a page in their order."""
    text = page.read_text()
    found = []
    for match in _STEP.finditer(text):
        line = text.count("\n", 0, match.start()) + 1
        mark = match["alone"] or match["mark"] or ""
        found.append(Block(page.name, line, mark, match["language"] or "", match["text"] or ""))
    return found


def blocks(language: str) -> list[Block]:
    """All blocks of all pages in one language."""
    return [block for page in PAGES for block in blocks_of(page) if block.language == language]
