"""The standard streams of the command: always there, and an error output that costs no job when it is full."""

from __future__ import annotations

import io
import os
import sys
from typing import Any


def prepare_streams() -> None:
    """To be called before anything is opened, by a program whose process is ours, which may be executed anew.

    A stream that was closed when the program began leads nowhere: else what is opened next, as a connection to Redis,
    would get its number, and what children say would go there. Messages that the error output does not take are lost,
    and nothing else: a full disk under `2> run.log` must not end a job. That nobody reads it is told as ever, by
    BrokenPipeError.
    """
    streams = (sys.stdin, sys.stdout, sys.stderr)
    if None in streams:
        nowhere = os.open(os.devnull, os.O_RDWR)
        for number, stream in enumerate(streams):
            if stream is None:
                os.dup2(nowhere, number)
                os.set_inheritable(number, True)  # which `dup2` leaves as it was where both are one
        os.execv(sys.executable, sys.orig_argv)  # libraries remember that there was none
    raw = _Patient(sys.stderr.fileno(), "w", closefd=False)
    sys.stderr = io.TextIOWrapper(
        io.BufferedWriter(raw), sys.stderr.encoding, errors="backslashreplace", line_buffering=True
    )


class _Patient(io.FileIO):
    def write(self, data: Any) -> int:
        try:
            return super().write(data)
        except BrokenPipeError:
            raise
        except OSError:
            return len(data)
