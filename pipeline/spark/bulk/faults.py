"""Errors of ours on their way from a task through Spark to the driver, by type, message and hint."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

import msgspec

from pipeline import errors
from pipeline.errors import CeleriacError, EnvironmentFault

_MARK: Final = "celeriac-fault:"
_MARKED: Final = re.compile(re.escape(_MARK) + r'(\{"kind":.*?\}):end')
_TRACEBACK: Final = "Traceback (most recent call last):"
_RAISED: Final = re.compile(r"^([ \t]*).*" + re.escape(_TRACEBACK) + r"\n(?:\1[ \t].*\n|\n)*\1(\S.*)", re.MULTILINE)
_CALLING: Final = "An error occurred while calling"
"""The first line of py4j, which says nothing."""
_NOT_INSTALLED: Final = "ModuleNotFoundError: No module named 'pipeline'"


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
    """The error of ours that a task raised, or for a task that could not load us; None when Spark failed by itself."""
    for text in reversed(_MARKED.findall(str(error))):
        try:
            fault = msgspec.json.decode(text, type=_Fault)
        except msgspec.MsgspecError:
            continue
        kind = getattr(errors, fault.kind, None)
        if not isinstance(kind, type) or not issubclass(kind, CeleriacError):
            kind = CeleriacError
        return kind(fault.message, hint=fault.hint)
    if _raised_in_python(error) == [_NOT_INSTALLED]:
        return EnvironmentFault(
            "the Python processes of Spark have no celeriac",
            hint="install it where they run, or set PYSPARK_PYTHON to the Python that has it, before Spark or its"
            " Connect server starts",
        )
    return None


def words_of(error: Exception) -> str:
    """The lines of an error of Spark that a person can use: the first, what Python raised, and the innermost cause."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip() and not line.startswith(_CALLING)]
    causes = [line for line in lines if line.startswith("Caused by:") and not line.endswith(":")]
    first = [line.removesuffix(_TRACEBACK).strip(": ") for line in lines[:1]]
    return "; ".join(dict.fromkeys([*first, *_raised_in_python(error), *causes[-1:]])) or repr(error)


def _raised_in_python(error: Exception) -> list[str]:
    """The line of the exception below the last traceback, if there is one."""
    return [line.strip() for _, line in _RAISED.findall(str(error))[-1:]]


def _clean(text: str) -> str:
    return text.encode("utf-8", "backslashreplace").decode()
