"""`python -m leader.main`: one leader process, until SIGTERM. Its address and name come from the environment only."""

from __future__ import annotations

import logging
import os
import re
import secrets
import select
import signal
import socket
import sys
import threading
from collections.abc import Mapping
from typing import Any

from celery import signals

from leader.app import make_app
from leader.wiring import make_round
from pipeline.embedded.process import die_with_parent
from pipeline.errors import CeleriacError, EnvironmentFault
from pipeline.redis_addresses import NETWORK_VARIABLE, check_one_server, in_order, parse_networks
from pipeline.store.connection import connect
from pipeline.store.scripts import Scripts

logger = logging.getLogger("leader.main")  # its own name is __main__ when it runs

_ALONE = {"without_gossip": True, "without_mingle": True, "without_heartbeat": True}
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,99}\Z")


def read_environment(environment: Mapping[str, str]) -> tuple[str, str]:
    """(Redis address, leader name). Raises EnvironmentFault, PipelineError."""
    redis_url = environment.get("CELERIAC_REDIS", "")
    if not redis_url:
        raise EnvironmentFault("CELERIAC_REDIS is not set", hint="set it to the address, as redis://host:6379/0")
    check_one_server(redis_url, "a leader leads the jobs of one: start one for each")
    name = environment.get("CELERIAC_LEADER", "") or default_name()
    if not _NAME.match(name):
        raise EnvironmentFault(
            f"CELERIAC_LEADER is no name: {name!r}", hint="use letters, digits, '-', '_' and '.', at most 100"
        )
    return in_order(redis_url, parse_networks(environment.get(NETWORK_VARIABLE, ""))), name


def default_name() -> str:
    """Host, process and a random part: no two leaders ever share it."""
    host = re.sub(r"[^A-Za-z0-9-]", "-", socket.gethostname())[:60].lstrip("-") or "host"
    return f"{host}-{os.getpid()}-{secrets.token_hex(3)}"


class Clock:
    """The embedded beat as a child process: it must not outlive this process, nor this process it."""

    def __init__(self) -> None:
        self._arm = die_with_parent(signal.SIGKILL)
        self._is_ending = threading.Event()
        self._process: Any = None
        self.is_lost = False

    def connect_signals(self) -> None:
        signals.beat_embedded_init.connect(self._tie, weak=False)
        signals.worker_ready.connect(self._watch, weak=False)
        signals.worker_shutting_down.connect(self._end, weak=False)

    def join(self) -> None:
        """Waits until the clock has stopped, so that it rings no more."""
        if self._process is not None:
            self._process.join(2.0)

    def _tie(self, **_: Any) -> None:
        self._arm()

    def _watch(self, sender: Any, **_: Any) -> None:
        self._process = sender.controller.beat
        threading.Thread(target=self._wait, args=(os.pidfd_open(self._process.pid),), daemon=True).start()

    def _wait(self, handle: int) -> None:
        select.select([handle], [], [])
        os.close(handle)
        if not self._is_ending.is_set():
            self.is_lost = True
            logger.error("the leader's clock has died; the leader ends, to be started again")
            os.kill(os.getpid(), signal.SIGTERM)

    def _end(self, **_: Any) -> None:
        self._is_ending.set()


def run(redis_url: str, name: str) -> int:
    """Leads until SIGTERM or SIGINT, then gives all leases back. Returns the exit code: 1 if the clock died."""
    round_ = make_round(Scripts(connect(redis_url)), name)
    app = make_app(redis_url, name, round_)
    clock = Clock()
    clock.connect_signals()
    logger.info("leader starts: leader=%s pid=%d", name, os.getpid())
    try:
        # Not by Celery's command, which imports all of its others, and Flower, before it starts one.
        worker = app.Worker(hostname=f"leader@{name}", pool="solo", concurrency=1, beat=True, quiet=True, **_ALONE)
        worker.start()
    finally:
        clock.join()  # else its last tick might come after the queue was taken away
        round_.resign()
    logger.info("leader has ended: leader=%s", name)
    return 1 if clock.is_lost else worker.exitcode or 0


def configure_logging(**_: Any) -> None:
    """To stderr; of Celery only what matters, not each tick."""
    logging.basicConfig(stream=sys.stderr, level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    for library in ("celery", "kombu", "amqp"):
        logging.getLogger(library).setLevel(logging.WARNING)


def main() -> int:
    configure_logging()
    signals.setup_logging.connect(configure_logging, weak=False)  # a receiver keeps Celery from configuring it
    try:
        return run(*read_environment(os.environ))
    except CeleriacError as error:
        print(f"error: {error}" + (f"\nhint: {error.hint}" if error.hint else ""), file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main())
