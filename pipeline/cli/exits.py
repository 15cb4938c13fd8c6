"""The exit codes of the command `celeriac`, and the page of its help that lists them. Maps no error."""

from __future__ import annotations

from enum import IntEnum
from typing import Final

from pipeline.errors import CeleriacError


class Exit(IntEnum):
    """What a shell sees."""

    FINISHED = 0
    FAILED = 1
    """The job failed: a sink, the input while it was read, too many dead letters, processes that keep dying."""
    USAGE = 2
    """The command, the pipeline, or the job that it names is wrong. Nothing was started."""
    ENVIRONMENT = 3
    """Redis, Java, an extra, an external program or the input is missing."""
    DEAD_LETTERS = 4
    """Finished and published, without the records that were given up as dead letters."""
    UNBALANCED = 5
    """Finished and published, but records were lost or doubled: the counts of its parts do not agree."""
    INTERRUPTED = 130
    """Drained or cancelled."""
    CLOSED_OUTPUT = 141
    """Whoever read the output went away, as `head` does; the same number as for SIGPIPE."""


class JobFailed(CeleriacError):
    """Raised when a job of this command ended in the state failed."""


HELP: Final = """\b
Exit codes:
  0    finished
  1    the job failed; with `produce`, a line cannot be sent, or the job stays full;
       with `tail`, its reader was removed; with `drain`, it is not drained in time
  2    wrong usage, a wrong pipeline, or no such job
  3    something is missing: Redis, Java, an extra, a program, the input
  4    finished, but some records were given up as dead letters
  5    finished, but the books do not balance: records were lost or doubled
  130  interrupted: drained or cancelled
  141  the reader of the output went away

\b
With `run`, records of console sinks go to standard output, all else to standard error.
The first Ctrl-C drains: no new input, results are published. The second one cancels.
"""
