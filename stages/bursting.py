"""Begins the bursts that the autoscaler decides, on a node that offers that: runs `celeriac burst` as a child.

Several nodes may offer it. Each tries, and the job's operation lets one of them have it.
"""

from __future__ import annotations

import logging
import os
import subprocess
import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from signal import SIGTERM
from typing import Final

from pipeline.bursts import due_burst
from pipeline.embedded.process import die_with_parent, end_process
from pipeline.scaling.decision import Decision
from pipeline.store.jobs import JobStore
from pipeline.store.scaling import ScalingStore
from pipeline.store.scripts import Scripts
from stages.looking import look_again
from stages.supervision import PYTHON, open_log

LOOK_SECONDS: Final = 1.0

STOP_SECONDS: Final = 15.0
"""Between SIGTERM and SIGKILL of the command, which ends a node and Spark."""

_LAST_DECISIONS: Final = 10
_BY: Final = "the autoscaler"

_log = logging.getLogger(__name__)


@dataclass(slots=True)
class Bursting:
    """Follows the decisions. `environment` is laid over that of this process and holds the address and the job's file.

    Runs in a thread of its own, to whose life the command is tied. master: of Spark; empty for this host.
    log: as that of a `ChildSpec`.
    """

    scripts: Scripts
    job: str
    environment: Mapping[str, str] = field(repr=False)
    master: str
    log: Path | None
    program: tuple[str, ...] = (*PYTHON, "pipeline.cli.main")
    _child: subprocess.Popen[bytes] | None = None
    _tried_ms: int = 0
    """The decision that was tried last, by its time: one that failed is not tried again."""

    def run(self, stop: threading.Event) -> None:
        """Looks again and again until `stop`, or until the job is gone; then it ends the command."""
        try:
            look_again(self.run_once, stop, LOOK_SECONDS, _log, "the wanted bursts")
        finally:
            self.close()

    def run_once(self) -> None:
        """One look. Raises StoreError, UnknownJob."""
        if self._child is not None:
            code = self._child.poll()
            if code is None:
                return
            _log.info("a burst has ended: job=%s code=%d", self.job, code)
            self._child = None
        decisions = ScalingStore(self.scripts).decisions(self.job, _LAST_DECISIONS)
        wish = due_burst(JobStore(self.scripts).facts(self.job), decisions)
        if wish is not None and wish.at_ms > self._tried_ms:
            self._tried_ms = wish.at_ms
            self._begin(wish)

    def _begin(self, wish: Decision) -> None:
        argv = [*self.program, *arguments(self.job, self.environment["CELERIAC_PIPELINE"], wish, self.master)]
        _log.info("a burst begins: job=%s pool=%s why=%s", self.job, wish.pool, wish.why)
        try:
            with open_log(self.log) as log:
                self._child = subprocess.Popen(
                    argv,
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    env={**os.environ, **self.environment},
                    start_new_session=True,
                    preexec_fn=die_with_parent(SIGTERM),
                )
        except OSError as error:
            _log.error("a burst cannot begin: job=%s: %s", self.job, error)

    def close(self) -> None:
        """Ends the command, if it runs: what it has not done goes back to workers."""
        child, self._child = self._child, None
        if child is not None:
            end_process(child, STOP_SECONDS)


def arguments(job: str, target: str, wish: Decision, master: str) -> list[str]:
    """The command line of `celeriac burst` for what was decided."""
    assert wish.burst is not None
    numbers = ",".join(map(str, wish.burst.partitions))
    found = ["burst", job, target, "--stage", wish.burst.stage, "--partitions", numbers, "--behind", "1"]
    return [*found, "--asked-by", _BY, *(["--master", master] if master else [])]
