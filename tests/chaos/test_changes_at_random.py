"""All that may change while a job runs, at random and with kills meanwhile, while the sequence oracle watches.

CELERIAC_CHANGES_SECONDS: how long, 40 by default.
"""

from __future__ import annotations

import os
import random
import subprocess
import sys
from collections.abc import Callable, Sequence
from time import monotonic

import pytest

from pipeline.operations import Phase
from tests.e2e.chaos import Run, Site, a_chance, wait_until
from tests.e2e.flows import PACED, check_paced

KEYS = 40
SECONDS = float(os.environ.get("CELERIAC_CHANGES_SECONDS") or 40)


class Changes:
    """One job, and what is done to it. Each change ends before the next begins; kills come at any moment of one."""

    def __init__(self, site: Site, run: Run, chance: random.Random) -> None:
        self._site, self._run, self._chance = site, run, chance
        self._address, self._job = run.address, run.link[1]
        self._partitions = {"hop": 4, "by_key": 4}
        self._node: subprocess.Popen[bytes] | None = None
        self.versions = ["flow.py"]
        self.done: list[str] = []

    def one(self) -> None:
        acts: list[Callable[[], None]] = [
            self.rescale,
            self.rescale,
            self.move,
            self.savepoint,
            self.pause,
            self.pause_stage,
            self.promote,
            self.upgrade,
        ]
        act = self._chance.choice(acts)
        print(act.__name__)
        act()
        self.done.append(act.__name__)

    def rescale(self) -> None:
        stage = self._chance.choice(list(self._partitions))
        number = self._chance.choice([n for n in (1, 2, 3, 4, 6, 8, 16) if n != self._partitions[stage]])
        self._command("rescale", self._job, stage, "--partitions", str(number), "--now")
        self._partitions[stage] = number

    def savepoint(self) -> None:
        self._command("savepoint", "create", self._job, "--to", str(self._site.root / "savepoints"), "--keep", "2")

    def pause(self) -> None:
        self._command("pause", self._job)
        self._command("unpause", self._job)

    def pause_stage(self) -> None:
        stage = self._chance.choice(list(self._partitions))
        self._command("pause", self._job, "--stage", stage)
        self._command("unpause", self._job, "--stage", stage)

    def _next_version(self) -> str:
        """A file that does the same."""
        name = f"version_{len(self.versions)}.py"
        self.versions.append(name)
        (self._run.folder / name).write_text(f"{PACED.format(keys=KEYS)}\n# {name}\n")
        return name

    def upgrade(self) -> None:
        """Workers change one after the other. It halts when one of the new version dies, so none is killed."""
        self._command("upgrade", self._job, self._next_version(), victims=("leader",))

    def promote(self) -> None:
        """A version that does the same runs beside the job as its shadow, and takes it over."""
        name = self._next_version()
        shadow = self._run.beside("shadow.log", "shadow", self._job, name)
        try:
            wait_until(lambda: self._is_compared(shadow), "the shadow is compared", 60.0)
            self._command("promote", self._job)
            assert shadow.wait(60) == 0
        finally:
            shadow.kill()
            shadow.wait()

    def _is_compared(self, shadow: subprocess.Popen[bytes]) -> bool:
        assert shadow.poll() is None, (self._site.kept_logs / "shadow.log").read_text()
        operation = self._run.facts().operation
        return operation is not None and operation.phase is Phase.COMPARING

    def move(self) -> None:
        """A node joins, or the one that has joined is drained and ended."""
        if self._node is None:
            newest = self.versions[-1]
            self._node = self._run.beside("node.log", "worker", self._job, newest, "--workers", "1", "--node", "far")
            wait_until(self._has_joined, "the node has partitions", 60.0)
        else:
            # The last node that has live workers is not drained, and the one at home may have lost both just now.
            wait_until(self._is_home_whole, "both workers at home are there", 60.0)
            self._command("node", "drain", self._job, "far", "--stop")
            self._node.wait(30)
            self._node = None
            self._command("node", "undrain", self._job, "far")

    def _is_home_whole(self) -> bool:
        self._run.assert_running()
        workers = self._run.facts().workers
        return {"w0", "w1"} <= {each.name for each in workers if not each.is_reported_dead and each.age_seconds < 1.0}

    def _has_joined(self) -> bool:
        self._run.assert_running()
        return any(name.startswith("far.") for name in self._run.owners())

    def end(self) -> None:
        """A node of its own ends with its job; its process is collected."""
        if self._node is not None:
            assert self._node.wait(30) == 0

    def clear(self) -> None:
        if self._node is not None:
            self._node.kill()
            self._node.wait()

    def _command(self, *arguments: str, victims: Sequence[str] = ("w0", "w1", "leader")) -> None:
        """To its end; meanwhile, half of the times, a process of the job is killed."""
        process = subprocess.Popen(
            [*CELERIAC, *arguments, "--redis", self._address],
            cwd=self._run.folder,
            env=self._site.environment(),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        with process:
            try:
                if self._chance.random() < 0.5:
                    taken = self._run.taken()
                    self._run.wait_for_taken(taken + self._chance.randrange(1, 2_000))
                    self._run.kill(self._chance.choice(victims))
                said, _ = process.communicate(timeout=90)
            finally:
                process.kill()
        self._run.assert_running()
        assert process.returncode == 0, (arguments, said)


CELERIAC = (sys.executable, "-m", "pipeline.cli.main")


@pytest.mark.timeout(max(300, 4 * SECONDS))
def test_whatever_changes_at_random_among_kills_every_key_is_in_order_and_once(site: Site) -> None:
    chance = a_chance()
    site.write(PACED.format(keys=KEYS))
    run = site.start("flow.py", "--workers", "2", "--partitions", "4")
    run.wait_for_taken(2_000)

    changes, until = Changes(site, run, chance), monotonic() + SECONDS
    try:
        while monotonic() < until:
            changes.one()
        taken = run.taken()
        run.wait_for_taken(taken + 3 * KEYS)
        (run.folder / "enough").touch()
        run.finish()
        changes.end()
    finally:
        changes.clear()

    assert "the books balance: " in run.said()
    last = check_paced(run.folder / "out", KEYS)
    assert 3 * KEYS * last >= taken
    site.assert_clean(*changes.versions, "enough", "out")
