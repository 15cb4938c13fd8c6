"""Errors of ours on their way from a task through Spark to the driver, by type, message and hint."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

import msgspec

from pipeline import errors
from pipeline.errors import CeleriacError

_MARK: Final = "celeriac-fault:"
_MARKED: Final = re.compile(re.escape(_MARK) + r'(\{"kind":.*?\}):end')


class TaskFault(Exception):
    """What a task raises in the place of an error of ours: Spark hands on nothing but its text."""


class _Fault(msgspec.Struct, frozen=True):
    kind: str
    message: str
    hint: str


@contextmanager
def told() -> Iterator[None]:
    """Turns errors of ours that leave the body into TaskFault."""
    try:
        yield
    except CeleriacError as error:
        fault = _Fault(type(error).__name__, _clean(str(error)), _clean(error.hint))
        raise TaskFault(f"{_MARK}{msgspec.json.encode(fault).decode()}:end") from error


def translated(error: Exception) -> CeleriacError | None:
    """The error of ours that a task raised, or None when Spark failed by itself."""
    for text in reversed(_MARKED.findall(str(error))):
        try:
            fault = msgspec.json.decode(text, type=_Fault)
        except msgspec.MsgspecError:
            continue
        kind = getattr(errors, fault.kind, None)
        if not isinstance(kind, type) or not issubclass(kind, CeleriacError):
            kind = CeleriacError
        return kind(fault.message, hint=fault.hint)
    return None


def words_of(error: Exception) -> str:
    """The lines of an error of Spark that a person can use: the first, and the innermost cause."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    causes = [line for line in lines if line.startswith("Caused by:")]
    return "; ".join(dict.fromkeys([*lines[:1], *causes[-1:]])) or repr(error)


def _clean(text: str) -> str:
    return text.encode("utf-8", "backslashreplace").decode()
