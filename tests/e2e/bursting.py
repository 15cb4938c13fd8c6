"""A run that is far behind in its last stage, and `celeriac burst` beside it as a process. Its pace is in our hands."""

from __future__ import annotations

import signal
import subprocess
import sys
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import psutil

from pipeline.facts import JobFacts, PartitionFacts
from pipeline.operations import Operation
from pipeline.settings import Limits
from tests import jvm
from tests.e2e.chaos import Run, Sequence, Site, create_job, title_of, wait_until

SECONDS: Final = 300.0
"""For what Spark must start for, on a machine that has other work."""

FIRST: Final = 200


class Held(Sequence):
    """The last stage is slow until there is a file `go`; behind number `FIRST` of each key all waits for `more`."""

    @property
    def text(self) -> str:
        text = super().text.replace(
            "def worked(pair):\n",
            "def worked(pair):\n    if not Path('go').exists():\n        time.sleep(0.03)\n",
        )
        loop = "    for number in range(1, COUNT + 1):\n"
        wait = f"        while number > {FIRST} and not Path('more').exists():\n            time.sleep(0.05)\n"
        return text.replace(loop, loop + wait)


@dataclass
class Story:
    """One run, whose last stage has a backlog when this is made, and its bursts."""

    site: Site
    redis_url: str
    workers: tuple[str, ...] = ("--workers", "1")
    sequence: Held = field(default_factory=lambda: Held(keys=40, count=2 * FIRST))
    bursts: list[subprocess.Popen[str]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.site.write(self.sequence.text)
        # However busy the machine is: a partition that is taken by force is one that was not given away when asked for.
        create_job(self.site, self.redis_url, "j", Limits(collect_seconds=SECONDS), partitions=4)
        arguments = ("--redis", self.redis_url, "--job-id", "j", *self.workers)
        self.run: Run = self.site.start("flow.py", *arguments, **jvm.FAST)
        through = 2 * self.sequence.keys * FIRST

        def is_filled() -> bool:
            self.run.assert_running()
            return sum(part.taken for part in self.facts().partitions if part.stage < 2) >= through

        wait_until(is_filled, "all is before the last stage", 60.0)

    @property
    def folder(self) -> Path:
        return self.site.root / "work"

    def facts(self) -> JobFacts:
        return self.run.facts()

    def part(self, number: int) -> PartitionFacts:
        return next(each for each in self.facts().partitions if (each.stage, each.partition) == (2, number))

    @property
    def operation(self) -> Operation | None:
        return self.facts().operation

    def burst(self, *arguments: str) -> subprocess.Popen[str]:
        """`celeriac burst` of partitions 0 and 1 of the last stage."""
        named = ("--stage", "by_key", "--partitions", "0,1", "--behind", "1", "--master", "local[2,4]", *arguments)
        with open(self.site.kept_logs / "burst.err", "a", encoding="utf-8") as errors:
            process = subprocess.Popen(
                [sys.executable, "-m", "pipeline.cli.main", "burst", "j", "flow.py", *named],
                cwd=self.folder,
                env=self.site.environment(CELERIAC_REDIS=self.redis_url, **jvm.FAST),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                start_new_session=True,
            )
        self.bursts.append(process)
        return process

    def said(self) -> str:
        return (self.site.kept_logs / "burst.err").read_text()

    def wait_for_spark(self) -> None:
        """Until both partitions are Spark's, and it has done some of each."""

        def is_at_work() -> bool:
            self.run.assert_running()
            assert self.bursts[-1].poll() is None, self.said()
            parts = [self.part(number) for number in (0, 1)]
            return all(part.owner.endswith(".spark") for part in parts)

        wait_until(is_at_work, "Spark has both partitions", SECONDS)
        taken = [self.part(number).taken for number in (0, 1)]
        wait_until(lambda: all(self.part(n).taken > taken[n] for n in (0, 1)), "it works on them", SECONDS)

    def go(self) -> None:
        (self.folder / "go").touch()

    def driver(self) -> psutil.Process:
        """The process that is the burst's worker."""
        found: list[psutil.Process] = []

        def is_there() -> bool:
            found[:] = [one for one in self.site.processes() if _is_driver(one)]
            return bool(found)

        wait_until(is_there, "there is a driver")
        return found[0]

    def wait_until_back(self, seconds: float = 60.0) -> None:
        wait_until(
            lambda: all(self.part(number).owner == "w0" for number in (0, 1)), "the worker has them back", seconds
        )

    def finish(self) -> None:
        """Lets all flow, and looks at the result: it is that of a run that nobody has disturbed."""
        self.go()
        (self.folder / "more").touch()
        self.run.finish(seconds=SECONDS)
        self.sequence.check(self.folder / "out")

    def end(self, process: subprocess.Popen[str], code: int) -> str:
        """What the command has printed when it has ended, which it must with that code."""
        out, _ = process.communicate(timeout=SECONDS)
        assert process.returncode == code, out + self.said()
        return out

    def interrupt(self, process: subprocess.Popen[str]) -> None:
        process.send_signal(signal.SIGINT)

    def close(self) -> None:
        for process in self.bursts:
            if process.poll() is None:
                process.kill()
            process.wait(30)
            if process.stdout is not None:
                process.stdout.close()

    def __enter__(self) -> Story:
        return self

    def __exit__(self, *_: Any) -> None:
        self.close()


def _is_driver(process: psutil.Process) -> bool:
    title = title_of(process)
    with suppress(psutil.Error):
        return title.startswith("celeriac: ") and ".spark" in title
    return False
