"""Processor time by who used it: the JVM, Python (this process and Spark's workers), Redis. Linux only."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

_TICKS = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True, slots=True)
class CpuSeconds:
    jvm: float
    python: float
    redis: float

    def __sub__(self, other: CpuSeconds) -> CpuSeconds:
        return CpuSeconds(self.jvm - other.jvm, self.python - other.python, self.redis - other.redis)

    @property
    def total(self) -> float:
        return self.jvm + self.python + self.redis

    def for_each(self, records: int) -> str:
        """Microseconds for each record."""
        jvm, python, redis, total = (
            seconds / records * 1e6 for seconds in (self.jvm, self.python, self.redis, self.total)
        )
        return f"{total:.2f} us CPU (JVM {jvm:.2f}, Python {python:.2f}, Redis {redis:.2f})"


def cpu_seconds(jvm: int, redis: int) -> CpuSeconds:
    """So far. Spark's Python workers are what descends from the JVM; those that have ended count while a parent lives."""
    workers = sum(_used(pid) for pid in _descendants(jvm))
    return CpuSeconds(_used(jvm, with_ended=False), workers + _used(os.getpid(), with_ended=False), _used(redis))


def _descendants(parent: int) -> Iterator[int]:
    for thread in Path(f"/proc/{parent}/task").iterdir():
        for child in (thread / "children").read_text().split():
            yield int(child)
            yield from _descendants(int(child))


def _used(pid: int, *, with_ended: bool = True) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return sum(map(int, fields[11 : 15 if with_ended else 13])) / _TICKS
