"""Spoils a process on purpose. Python imports this at its start, when this folder is on PYTHONPATH."""

from __future__ import annotations

import os
import sys

import freezing
import wrong_clock


def role() -> str:
    """w0, w1, leader, source or node; nothing for any other process."""
    if "CELERIAC_LEADER" in os.environ:
        return "leader"
    if "CELERIAC_SOURCE" in os.environ:
        return "source"
    return os.environ.get("CELERIAC_WORKER") or ("node" if "stages.node" in sys.orig_argv else "")


wrong_clock.install(role(), os.environ.get("CELERIAC_TEST_CLOCKS", ""))
freezing.install(role(), os.environ.get("CELERIAC_TEST_FREEZE", ""))
