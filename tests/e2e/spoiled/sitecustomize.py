"""Spoils a process on purpose. Python imports this at its start, when this folder is on PYTHONPATH."""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Mapping

import freezing
import wrong_clock


def role() -> str:
    """w0, w1, leader, source or node; nothing for any other process."""
    if "CELERIAC_LEADER" in os.environ:
        return "leader"
    if "CELERIAC_SOURCE" in os.environ:
        return "source"
    return os.environ.get("CELERIAC_WORKER") or ("node" if "stages.node" in sys.orig_argv else "")


def spoil() -> None:
    wrong_clock.install(role(), os.environ.get("CELERIAC_TEST_CLOCKS", ""))
    freezing.install(role(), os.environ.get("CELERIAC_TEST_FREEZE", ""))


def spoil_children() -> None:
    """Those of a node are forked: they learn their role later than Python starts."""
    from stages import nursery

    begin = nursery.begin_program

    def begin_spoiled(module: str, title: str, environment: Mapping[str, str], log: int) -> None:
        begin(module, title, environment, log)
        spoil()

    nursery.begin_program = begin_spoiled


def execute_node() -> None:
    """One that was forked from the command would not come by here."""
    from pipeline.embedded import forks

    forks.allow_forks = lambda: None


def main() -> None:
    spoil()
    if "CELERIAC_TEST_CLOCKS" in os.environ or "CELERIAC_TEST_FREEZE" in os.environ:
        if role() == "node":
            spoil_children()
        else:
            execute_node()


try:
    main()
except BaseException:
    traceback.print_exc()
    os._exit(70)  # Python would print it, and go on unspoiled
