"""Messages count things in one way."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

from pipeline.wording import counted

ROOT = Path(__file__).parents[2]

NOUNS = re.compile(
    " (attempt|batch|column|dead letter|entry|file|job|key|letter|line|move|node|operator|output|partition"
    "|process|reader|record|result|row|sink|source|split|stage|worker)(e?s|ies)\\b"
)

SUSPECT = re.compile("}[\"'\\s f]*" + NOUNS.pattern.lstrip())


def test_one_is_singular_and_all_else_plural() -> None:
    assert [counted(number, "record") for number in (0, 1, 2, 12_345)] == [
        "0 records",
        "1 record",
        "2 records",
        "12,345 records",
    ]


def plain_counts(path: Path) -> Iterator[str]:
    """Parts of messages that put a number before a plural, whatever the number is."""
    source = path.read_text()
    if not SUSPECT.search(source):  # most files, which need not be parsed
        return
    for node in ast.walk(ast.parse(source)):
        for value, text in zip(node.values, node.values[1:], strict=False) if isinstance(node, ast.JoinedStr) else ():
            if not isinstance(value, ast.FormattedValue) or not isinstance(text, ast.Constant):
                continue
            is_constant = isinstance(value.value, ast.Name) and value.value.id.isupper()
            if NOUNS.match(str(text.value)) and not is_constant:
                yield f"{path.relative_to(ROOT)}: {ast.unparse(node)}"


def test_no_message_says_1_records() -> None:
    packages = ("pipeline", "stages", "leader")
    found = [each for package in packages for path in (ROOT / package).rglob("*.py") for each in plain_counts(path)]

    assert found == ["pipeline/sources/growing.py: f'{suffix} files are not followed, for example {path}'"]
