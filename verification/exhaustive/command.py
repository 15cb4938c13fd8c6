"""`celeriac verify --exhaustive`: runs the search and says what it has seen."""

from __future__ import annotations

import json
import logging
import sys
import time
from dataclasses import asdict

from pipeline.errors import CeleriacError
from verification.exhaustive.search import Search

PASSED, FAILED, NOT_STARTED, INTERRUPTED = 0, 1, 3, 130


def searched(*, as_json: bool) -> int:
    """The exit code."""
    logging.disable(logging.CRITICAL)
    started = time.monotonic()
    try:
        found = Search().run()
    except KeyboardInterrupt:
        return INTERRUPTED
    except CeleriacError as error:
        print(f"error: {error}" + (f"\nhint: {error.hint}" if error.hint else ""), file=sys.stderr)
        return NOT_STARTED
    if as_json:
        print(json.dumps(asdict(found), indent=2))
        return FAILED if found.broken else PASSED
    if found.broken:
        print("\n".join(f"  {step}" for step in found.way))
        print(f"BROKEN  {found.broken}")
        return FAILED
    print(
        f"{found.states:,} states, {found.steps:,} steps between them, {found.interleavings:,} interleavings, in "
        f"{time.monotonic() - started:.0f} s: every invariant holds in each state, and every way ends drained"
    )
    return PASSED
