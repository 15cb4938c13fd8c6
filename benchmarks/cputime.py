"""Processor time by who used it: the JVM, Python (this process and Spark's workers), Redis. Linux only."""

from __future__ import annotations

import os
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
    """So far. Spark's Python workers descend from the JVM."""
    processes = {number: found for path in Path("/proc").glob("[0-9]*") if (found := _read(number := int(path.name)))}
    workers, parents = list[int](), {jvm}
    while parents:
        parents = {pid for pid, process in processes.items() if process.parent in parents}
        workers += parents
    ended = processes[jvm].with_ended - processes[jvm].own
    python = processes[os.getpid()].own + ended + sum(processes[pid].with_ended for pid in workers)
    return CpuSeconds(processes[jvm].own, python, processes[redis].own)


@dataclass(frozen=True, slots=True)
class _Process:
    """with_ended: with that of children that have ended."""

    parent: int
    own: float
    with_ended: float


def _read(pid: int) -> _Process | None:
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return None  # it has just ended
    return _Process(int(fields[1]), sum(map(int, fields[11:13])) / _TICKS, sum(map(int, fields[11:15])) / _TICKS)
