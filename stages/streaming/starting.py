"""How agents start the worker that is a streaming query: its program, and its environment. Imports no Spark."""

from __future__ import annotations

from typing import Final

from stages.supervision import PYTHON

STREAM_PROGRAM: Final = (*PYTHON, "stages.streaming.main")

STREAM_WORKER: Final = "spark"
"""What it is called on a node of `celeriac run`."""

ENGINE_VARIABLE: Final = "CELERIAC_ENGINE"
"""For a member: `spark` makes its one worker a streaming query."""

BURSTS_VARIABLE: Final = "CELERIAC_BURSTS"
"""For a member: `1` has it begin the bursts that the autoscaler decides, on the same master."""

MASTER_VARIABLE: Final = "CELERIAC_STREAM_MASTER"
INTERVAL_VARIABLE: Final = "CELERIAC_STREAM_INTERVAL"


def stream_variables(master: str, interval_seconds: float) -> dict[str, str]:
    """master: empty for the cores of this host."""
    return {MASTER_VARIABLE: master, INTERVAL_VARIABLE: str(interval_seconds)}
