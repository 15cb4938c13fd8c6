"""What a person sees of a run: notes and progress on standard error, records on standard output. Decides nothing."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from types import TracebackType
from typing import Final

import click
from rich.console import Console
from rich.live import Live

from pipeline.cli.progress import StageRow, duration, plain_line, progress_table
from pipeline.errors import SinkError

PLAIN_SECONDS: Final = 2.0
"""Between two reports of progress where there is no terminal."""


class Screen:
    """A live table on a terminal, plain lines elsewhere, no progress when quiet. Warnings and errors always show."""

    def __init__(self, is_quiet: bool) -> None:
        self._is_quiet = is_quiet
        self._started = time.monotonic()
        self._reported_at = self._started
        self._reported: tuple[StageRow, ...] = ()
        self._console = Console(stderr=True, highlight=False)
        self._live: Live | None = None

    def __enter__(self) -> Screen:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.end_progress()

    def note(self, text: str) -> None:
        """What the user may want to know; not shown when quiet."""
        if not self._is_quiet:
            self.warn(text)

    def warn(self, text: str) -> None:
        """What the user must know."""
        if self._live is not None:
            self._console.print(text, markup=False, soft_wrap=True)
        else:
            click.echo(text, err=True)

    def records(self, lines: Sequence[str]) -> None:
        """None are nothing, not an empty line.

        Raises BrokenPipeError when nobody reads standard output any more, SinkError when it cannot be written.
        """
        if not lines:
            return
        # While a table is alive on the same terminal, rich has replaced sys.stdout and keeps the two apart.
        try:
            print("\n".join(lines), flush=True)
        except BrokenPipeError:
            raise
        except OSError as error:
            raise SinkError(
                f"standard output cannot be written: {error.strerror}", hint="free some space, or write to a file sink"
            ) from error

    def progress(self, title: str, rows: tuple[StageRow, ...], *, is_last: bool = False) -> None:
        if self._is_quiet:
            return
        elapsed = duration(time.monotonic() - self._started)
        if self._console.is_terminal and not self._console.is_dumb_terminal:
            self._show_live(f"{title}  {elapsed}", rows)
        else:
            self._show_plain(elapsed, rows, is_last)

    def end_progress(self) -> None:
        """Leaves the last table standing; what follows comes below it."""
        if self._live is not None:
            live, self._live = self._live, None
            live.stop()

    def _show_live(self, title: str, rows: tuple[StageRow, ...]) -> None:
        table = progress_table(title, rows, self._console.width)
        if self._live is None:
            self._live = Live(
                table,
                console=self._console,
                auto_refresh=False,
                redirect_stdout=sys.stdout.isatty(),
                redirect_stderr=False,
            )
            self._live.start()
        self._live.update(table, refresh=True)

    def _show_plain(self, elapsed: str, rows: tuple[StageRow, ...], is_last: bool) -> None:
        now = time.monotonic()
        if not is_last and (now - self._reported_at < PLAIN_SECONDS or rows == self._reported):
            return
        self._reported_at, self._reported = now, rows
        for row in rows:
            click.echo(f"[{elapsed}] {plain_line(row)}", err=True)
