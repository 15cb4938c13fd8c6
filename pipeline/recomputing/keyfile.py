"""Keys as people write them into a file: one a line."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

from pipeline.errors import EncodingError, PipelineError, ReadingError
from pipeline.keying import canonical_bytes
from pipeline.reading.keytext import parse_key

MOST_KEYS: Final = 50_000
"""Their state is swapped by one script, for which all else waits."""


def read_keys(path: Path) -> frozenset[Any]:
    """The keys of a file, as `celeriac state get` takes them: JSON if it is that, else text. Empty lines are left out.

    Raises PipelineError for a file that cannot be read, or holds no key, or what can be none, or too many.
    """
    found = set()
    try:
        # Some editors mark UTF-8 at its beginning; and a key may hold what ends a line elsewhere.
        with path.open(encoding="utf-8-sig", newline="\n") as file:
            for number, line in enumerate(file, 1):
                if line.strip():
                    found.add(_key(line.strip(), f"--keys {path}, line {number}"))
                    check_count(len(found))
    except (OSError, UnicodeDecodeError) as error:
        raise PipelineError(f"--keys {path} cannot be read: {error}") from error
    if not found:
        raise PipelineError(f"--keys {path}: there is no key in it", hint="write one key a line")
    return frozenset(found)


def _key(text: str, place: str) -> Any:
    try:
        key = parse_key(text)
        canonical_bytes(key)
    except (ReadingError, EncodingError) as error:
        raise PipelineError(f"{place}: {error}", hint=error.hint) from error
    return key


def check_count(keys: int) -> None:
    """Raises PipelineError for more than can be swapped at once."""
    if keys > MOST_KEYS:
        raise PipelineError(
            f"more than {MOST_KEYS:,} keys, which is the most that is swapped at once",
            hint="take them in several parts; for all of a job, begin a new one: celeriac backfill FILE.py",
        )
