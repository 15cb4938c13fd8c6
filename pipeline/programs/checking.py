"""What an external operator must satisfy before it may run. Starts nothing; looks at no file but in `find_programs`."""

from __future__ import annotations

import os
import shlex
import shutil
from collections.abc import Iterable
from typing import Final

from pipeline.codec import shown
from pipeline.errors import EnvironmentFault, PipelineError
from pipeline.graph import External, Node

PROTOCOLS: Final = ("json", "lines", "forward")

MOST_SECONDS: Final = 25
"""A batch that hangs, and then its record alone, must stay below `Limits.stuck_seconds`."""

LEAST_BYTES: Final = 1 << 20
"""With less the kernel kills the program while it starts, which nobody would understand."""

_SHOWN: Final = 60


def program_argv(program: object, operator: str) -> tuple[str, ...]:
    """The program and its arguments, from a list of text or from one text, split as a shell would.

    A program that is named by a path is made absolute from the current folder of this moment.
    Raises PipelineError.
    """
    wanted = f"operator {operator!r} needs a program and its arguments, as a list of text or as one text"
    if isinstance(program, str):
        try:
            parts: list[object] = [*shlex.split(program)]
        except ValueError as error:
            raise PipelineError(f"{wanted}; {shown(program, _SHOWN)} cannot be split: {error}") from error
    elif isinstance(program, list | tuple):
        parts = [os.fspath(part) if isinstance(part, os.PathLike) else part for part in program]
    else:
        raise PipelineError(f"{wanted}, not {shown(program, _SHOWN)}")
    argv = tuple(part for part in parts if isinstance(part, str) and _is_argument(part))
    if len(argv) != len(parts) or not argv or not argv[0]:
        raise PipelineError(f"{wanted}, not {shown(program, _SHOWN)}", hint='for example ["grep", "hello"]')
    return (os.path.abspath(argv[0]), *argv[1:]) if "/" in argv[0] else argv  # noqa: PTH100 - Path keeps '..'


def check_program(node: External) -> None:
    """Raises PipelineError for a program, protocol, time, memory or exit code that cannot be."""
    what = f"operator {node.name!r}"
    if not node.argv or not node.argv[0]:
        raise PipelineError(f"{what} names no program")
    if node.protocol not in PROTOCOLS:
        raise PipelineError(
            f"{what}: there is no protocol {shown(node.protocol, _SHOWN)}", hint=f"there are: {', '.join(PROTOCOLS)}"
        )
    seconds = node.timeout_seconds
    if isinstance(seconds, bool) or not isinstance(seconds, int | float) or not 0 < seconds <= MOST_SECONDS:
        raise PipelineError(
            f"{what}: timeout_seconds must be above 0 and at most {MOST_SECONDS}, not {shown(seconds, _SHOWN)}",
            hint="a worker that holds one record for a minute is taken to be stuck, and replaced",
        )
    memory = node.memory_bytes
    if memory is not None and not (type(memory) is int and LEAST_BYTES <= memory < 1 << 63):
        raise PipelineError(
            f"{what}: memory_bytes must be None or at least {LEAST_BYTES} bytes, not {shown(memory, _SHOWN)}"
        )
    _check_exit_codes(node, what)


def _check_exit_codes(node: External, what: str) -> None:
    codes: object = node.exit_codes
    if not isinstance(codes, tuple) or not codes or not all(type(code) is int and 0 <= code <= 255 for code in codes):
        raise PipelineError(f"{what}: exit_codes must be a list of numbers from 0 to 255, not {shown(codes, _SHOWN)}")
    if codes != (0,) and node.protocol != "lines":
        raise PipelineError(
            f"{what}: exit_codes are for protocol='lines' only", hint="the other programs run on until they are ended"
        )


def lines_lose_keys(operator: str) -> PipelineError:
    """The error for a program of plain lines on a keyed stream."""
    return PipelineError(
        f"operator {operator!r} is a program of plain lines, which does not say which record a line comes from, "
        "and its stream is keyed",
        hint='put it in front of key_by, or use protocol="json"',
    )


def find_programs(nodes: Iterable[Node]) -> None:
    """Raises EnvironmentFault, naming operator and program, when one is not on this machine."""
    for node in nodes:
        if isinstance(node, External) and shutil.which(node.argv[0]) is None:
            raise program_missing(node)


def program_missing(node: External) -> EnvironmentFault:
    """The error for a program that this machine does not have."""
    is_path = "/" in node.argv[0]
    return EnvironmentFault(
        f"operator {node.name!r} needs the program {node.argv[0]!r}, which is not here",
        hint="check that the file exists and is executable" if is_path else "install it, or correct PATH",
    )


def _is_argument(text: str) -> bool:
    if "\0" in text:
        return False
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
