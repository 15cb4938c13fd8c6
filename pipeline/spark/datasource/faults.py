"""Our errors on their way through Spark, which hands on only their text: with the hint, and found again behind it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from pipeline import errors
from pipeline.errors import CeleriacError

_OURS: Final = re.compile(r"pipeline\.errors\.(\w+): (.*)")
_HINT: Final = re.compile(r"^hint: (.*)$", re.MULTILINE)


@contextmanager
def told() -> Iterator[None]:
    """Errors of ours that pass have their hint below them, where Spark shows what Python has printed."""
    try:
        yield
    except CeleriacError as error:
        note = f"hint: {error.hint}"
        if error.hint and note not in getattr(error, "__notes__", ()):
            error.add_note(note)
        raise


def error_behind(error: BaseException) -> CeleriacError | None:
    """The error of ours that an exception of Spark was made of, by its type and with its hint; None if it was not."""
    text = str(error)
    found = _OURS.findall(text)
    if not found:
        return None
    name, message = found[-1]
    kind = getattr(errors, name, None)
    if not isinstance(kind, type) or not issubclass(kind, CeleriacError):
        return None
    hints = _HINT.findall(text)
    return kind(message.strip(), hint=hints[-1].strip() if hints else "")
