"""Every text of the program that a message may be made of, with `…` for what is filled in. Looked up by pages."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator
from pathlib import Path

from tests.docs.pages import ROOT

GAP = "…"
_PERCENT = re.compile(r"%[-\d.,]*[sdfrx]")


def templates(packages: Iterable[str] = ("pipeline", "stages", "leader")) -> list[str]:
    """All texts and f-texts in the code."""
    found = []
    for package in packages:
        for path in sorted((ROOT / package).rglob("*.py")):
            found += list(_texts(path))
    return found


def _texts(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text())):
        match node:
            case ast.JoinedStr(values=values):
                yield "".join(str(part.value) if isinstance(part, ast.Constant) else GAP for part in values)
            case ast.Constant(value=str(text)):
                yield _PERCENT.sub(GAP, text)


def is_made_of(message: str, template: str) -> bool:
    """Whether the message, in which `…` stands for anything, may come from the template.

    A message may be a part of what is printed, but must not have words that the template lacks.
    """
    parts = [part.strip() for part in message.split(GAP)]
    at = 0
    for part in parts:
        found = template.find(part, at)
        if found < 0:
            return False
        at = found + len(part)
    return any(len(part) > 3 for part in parts)
