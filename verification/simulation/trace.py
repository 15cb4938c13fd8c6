"""What happened in one run, in order, as text that is the same for the same seed in every process."""

from __future__ import annotations

import hashlib
from typing import Any, Final

from verification.model.keyspace import Refusal
from verification.points import SCRIPTS

_SHOWN: Final = 90


class Trace:
    """Commands as they were applied, and what befell processes."""

    def __init__(self) -> None:
        self._rows: list[tuple[int, str, str, Any]] = []

    def applied(self, now: int, who: str, command: str, reply: Any) -> None:
        self._rows.append((now, who, command, (reply,)))

    def befell(self, now: int, who: str, what: str) -> None:
        self._rows.append((now, who, f"** {what}", None))

    @property
    def faults(self) -> int:
        return sum(row[3] is None for row in self._rows)

    @property
    def commands(self) -> int:
        return len(self._rows) - self.faults

    def lines(self) -> list[str]:
        return [_line(row) for row in self._rows]

    def told(self, last: int) -> list[str]:
        """What befell whom, all of it, and between that the scripts; of the rest the last lines."""
        wanted = [
            row
            for n, row in enumerate(self._rows)
            if row[3] is None or row[2] in SCRIPTS or n >= len(self._rows) - last
        ]
        return [_line(row) for row in wanted]

    def digest(self) -> str:
        return hashlib.sha256("\n".join(self.lines()).encode()).hexdigest()


def _line(row: tuple[int, str, str, Any]) -> str:
    now, who, what, reply = row
    text = f"{now / 1_000_000:12.6f}  {who:<12} {what}"
    return text if reply is None else f"{text} -> {_short(reply[0])}"


def _short(reply: Any) -> str:
    text = str(reply) if isinstance(reply, Refusal) else repr(reply)
    if len(text) <= _SHOWN:
        return text
    return f"{text[:_SHOWN]}… ({len(text)} characters, {hashlib.sha256(text.encode()).hexdigest()[:12]})"
