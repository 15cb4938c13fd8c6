"""Console sinks: reads their output streams and turns records into lines. At least once: advanced after printing."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from pipeline.errors import StaleReader
from pipeline.facts import JobRecord
from pipeline.plan import SinkPlan
from pipeline.sinks.lines import console_lines
from pipeline.store.outputs import OutputReader
from pipeline.store.scripts import Scripts
from pipeline.wording import counted

READER: Final = "console"


class Console:
    """All console sinks of one job. Registered when made, so that nothing is trimmed before it is printed."""

    def __init__(
        self, scripts: Scripts, record: JobRecord, show: Callable[[list[str]], None], warn: Callable[[str], None]
    ) -> None:
        """Raises UnknownJob, StoreError."""
        self._scripts = scripts
        self._record = record
        self._show = show
        self._warn = warn
        self._sinks = [sink for sink in record.plan.sinks if sink.format == "console"]
        self._readers = {sink.name: self._open(sink) for sink in self._sinks}

    @property
    def has_sinks(self) -> bool:
        """Without one nothing is ever asked of Redis here."""
        return bool(self._readers)

    def print_new(self) -> int:
        """Prints what has come since the last call, one read a sink; returns how many records. Raises StoreError."""
        return sum(self._print(sink) for sink in self._sinks)

    def _print(self, sink: SinkPlan) -> int:
        try:
            reader = self._readers[sink.name]
            lines = [line for batch in reader.read() for line in console_lines(sink, batch)]
            if lines:
                self._show(lines)
            reader.advance()  # also without lines: an earlier one may have been lost on its way
        except StaleReader as error:
            self._come_back(sink, error)
            return self._print(sink)
        return len(lines)

    def _open(self, sink: SinkPlan) -> OutputReader:
        return OutputReader(self._scripts, self._record.job, sink.name, READER, self._record.plan.limits)

    def _come_back(self, sink: SinkPlan, stale: StaleReader) -> None:
        """Somebody has removed the reader, since it held the job up: that is no reason for the job to fail."""
        before, reader = self._readers[sink.name], self._open(sink)
        if not reader.is_new:
            raise stale
        missed = reader.next_number - before.next_number
        if missed > 0:
            self._warn(f"of {sink.name}, {counted(missed, 'record')} cannot be shown: its reader was removed meanwhile")
        self._readers[sink.name] = reader

    def print_all(self) -> int:
        """Prints until nothing is left; returns how many records."""
        total = 0
        while count := self.print_new():
            total += count
        return total
