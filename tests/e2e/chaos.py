"""Runs `celeriac run` as a user does and breaks it on purpose: finds its processes, signals them at chosen progress.

Nothing here looks into the program: a story sees processes, files, and what Redis says of the job.
"""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import chdir, contextmanager, suppress
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any, Final
from uuid import uuid4

import psutil

from pipeline.errors import StoreError
from pipeline.facts import JobFacts
from pipeline.loader import load_graph
from pipeline.plan import compile_plan
from pipeline.settings import Limits
from pipeline.store.connection import connect
from pipeline.store.jobs import JobStore
from pipeline.store.scripts import Scripts
from tests import jvm

ROOT: Final = Path(__file__).parents[2]
SPOILED: Final = f"{Path(__file__).parent / 'spoiled'}{os.pathsep}{ROOT}"
"""A PYTHONPATH by which processes are spoiled: see `spoiled/sitecustomize.py`."""

MARK: Final = "CELERIAC_TEST_MARK"
FOREIGN: Final = ("CELERIAC_REDIS", "PYTHONHASHSEED", "XDG_CONFIG_HOME")
"""Variables of the shell that would decide how a story goes."""

SEED_VARIABLE: Final = "CELERIAC_TEST_SEED"

RUN_SECONDS: Final = 90.0
"""No run of these tests may take longer, whatever befalls it."""

_POLL_SECONDS: Final = 0.01
_LONGEST_POLL_SECONDS: Final = 0.25

SEQUENCE: Final = '''"""The sequence oracle: every key must come as 1, 2, 3, ..., complete, once and in order."""

import os
import time
from itertools import pairwise
from pathlib import Path

from pipeline import Pipeline, read, write

KEYS, COUNT, WORK, SLOW = {keys}, {count}, {work}, {slow}


def numbered():
    for number in range(1, COUNT + 1):
        for key in range(KEYS):
            yield [f"k{{key}}", number]


def worked(pair):
    for _ in range(WORK):
        pass
    if pair == ["k0", SLOW]:
        Path("hand").write_text(str(os.getpid()))
        until = time.process_time() + 0.5  # of a processor: while the process is frozen it stands still
        while time.process_time() < until:
            pass
    return pair[1]


def in_sequence(key, number, last):
    if number != (last or 0) + 1:
        raise ValueError(f"{{key}}: {{number}} came after {{last}}")
    return number, number


flow = Pipeline("sequence")
(
    flow.source(read.iterable(numbered), name="numbers")
    .key_by(lambda pair: pair[0], name="hop")
    .key_by(lambda pair: pair[0], name="by_key")
    .map(worked, name="number")
    .stateful_map(in_sequence, name="oracle")
    .sink(write.jsonl("out"), name="result")
)
'''


def wait_until(predicate: Callable[[], bool], what: str, seconds: float = 30.0) -> None:
    """Raises AssertionError, which says what did not come true, after so many seconds."""
    deadline = time.monotonic() + seconds
    while True:
        began = time.monotonic()
        if predicate():
            return
        now = time.monotonic()
        assert now < deadline, f"after {seconds:.0f} s still not true: {what}"
        # Who asks takes no more than a fifth of a core from those of whom it asks.
        threading.Event().wait(min(_LONGEST_POLL_SECONDS, max(_POLL_SECONDS, 4 * (now - began))))


def a_chance() -> random.Random:
    """The dice of one story. Its seed is printed, and taken from CELERIAC_TEST_SEED to repeat a story."""
    seed = int(os.environ.get(SEED_VARIABLE) or random.SystemRandom().randrange(10**9))
    print(f"{SEED_VARIABLE}={seed}")
    return random.Random(seed)


@dataclass(frozen=True)
class Sequence:
    """One oracle pipeline and its right result.

    work: turns of an empty loop that the last stage makes for each record.
    slow: the number of the first key that takes half a second; who has it in hand says so in the file `hand`.
    """

    keys: int = 50
    count: int = 6_000
    work: int = 0
    slow: int = 0

    @property
    def text(self) -> str:
        return SEQUENCE.format(**vars(self))

    @property
    def taken(self) -> int:
        """Records that all stages take together."""
        return 3 * self.keys * self.count

    def check(self, folder: Path) -> None:
        """Every key's numbers lie in the published files as 1 .. count, in this order, and nothing else does."""
        last: dict[str, int] = {}
        for row in read_rows(folder):
            key, number = row["key"], row["value"]
            assert number == last.get(key, 0) + 1, f"{key}: {number} is written after {last.get(key, 0)}"
            last[key] = number
        assert last == {f"k{key}": self.count for key in range(self.keys)}


def read_rows(folder: Path) -> Iterator[Any]:
    """The rows of a published JSON Lines folder, file by file in the order of their names."""
    for path in sorted(folder.glob("part-*")):
        with open(path, "rb") as file:
            yield from map(json.loads, file)


@dataclass
class Site:
    """Folders of its own for one story, so that whatever is left behind is seen; and all that was started in it."""

    root: Path
    mark: str = field(default_factory=lambda: uuid4().hex)
    runs: list[Run] = field(default_factory=list)

    def __post_init__(self) -> None:
        for folder in (self.temporary, self.home, self.kept_logs):
            folder.mkdir()

    @property
    def temporary(self) -> Path:
        return self.root / "tmp"

    @property
    def home(self) -> Path:
        return self.root / "home"

    @property
    def kept_logs(self) -> Path:
        return self.root / "logs"

    def environment(self, **more: str) -> dict[str, str]:
        """What processes of this story run with. Hash seeds are random unless the story sets one."""
        places = {
            "TMPDIR": self.temporary,
            "HOME": self.home,
            "XDG_CACHE_HOME": self.root / "cache",
            "PYTHONPATH": ROOT,
            "JAVA_TOOL_OPTIONS": f'{jvm.options()} -Djava.io.tmpdir="{self.temporary}"',
        }
        own = {MARK: self.mark, **{name: str(place) for name, place in places.items()}}
        return {**{name: value for name, value in os.environ.items() if name not in FOREIGN}, **own, **more}

    def start(self, target: str, *arguments: str, folder: str = "work", **variables: str) -> Run:
        """`celeriac run target arguments`, in the folder of that name below the site."""
        where = self.root / folder
        where.mkdir(exist_ok=True)
        run = Run(self, where, self.kept_logs / folder, (target, *arguments), variables)
        self.runs.append(run)
        return run

    def write(self, text: str, folder: str = "work") -> None:
        (self.root / folder).mkdir(exist_ok=True)
        (self.root / folder / "flow.py").write_text(text)

    def command(self, *arguments: str, folder: str = "work") -> subprocess.CompletedProcess[str]:
        """Any other `celeriac` command, to its end."""
        return subprocess.run(
            [sys.executable, "-m", "pipeline.cli.main", *arguments],
            cwd=self.root / folder,
            env=self.environment(),
            capture_output=True,
            text=True,
            timeout=RUN_SECONDS,
        )

    def processes(self) -> list[psutil.Process]:
        """Those with our mark, and those that work in our folders: a Redis server overwrites its environment."""
        found = []
        for process in psutil.process_iter():
            with suppress(psutil.Error):  # it has gone, is a zombie, or belongs to somebody else
                is_ours = process.environ().get(MARK) == self.mark
                if is_ours or Path(process.cwd()).is_relative_to(self.root):
                    found.append(process)
        return found

    def assert_clean(self, *expected: str, folder: str = "work") -> None:
        """No process, no temporary file and nothing in the home is left; in the folder only what is expected."""
        wait_until(lambda: not self.processes(), "all processes have ended", 5.0)
        assert list(self.temporary.iterdir()) == []
        assert list(self.home.iterdir()) == []
        assert {path.name for path in (self.root / folder).iterdir()} == set(expected)

    def start_leader(self, address: str, name: str) -> subprocess.Popen[bytes]:
        """A leader of its own, beside those that runs have."""
        with open(self.kept_logs / f"{name}.log", "wb") as log:
            return subprocess.Popen(
                [sys.executable, "-m", "leader.main"],
                cwd=self.root,
                env={**self.environment(), "CELERIAC_REDIS": address, "CELERIAC_LEADER": name},
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def last_lines(self, count: int = 30) -> list[tuple[str, str]]:
        """The end of each log, by the log's path."""
        for run in self.runs:
            run.keep_logs()
        logs = sorted(path for path in self.kept_logs.rglob("*") if path.is_file())
        ends = [(path, path.read_text(errors="replace").splitlines()[-count:]) for path in logs]
        return [(str(path.relative_to(self.kept_logs)), "\n".join(lines)) for path, lines in ends]

    def close(self) -> None:
        """Ends what a failed story left."""
        for process in self.processes():
            with suppress(psutil.NoSuchProcess):
                process.kill()
        for run in self.runs:
            run.close()


class Run:
    """One `celeriac run`. Its processes are found by their place in the tree and by their titles."""

    def __init__(
        self, site: Site, folder: Path, logs: Path, arguments: tuple[str, ...], variables: dict[str, str]
    ) -> None:
        self.folder = folder
        self.logs = logs
        self._site = site
        self._errors = logs.with_suffix(".stderr")
        self._client: Any = None
        self._link: tuple[JobStore, str] | None = None
        told = {**dict(pairwise(arguments)), **variables}
        self._told_address = told.get("--redis") or told.get("CELERIAC_REDIS", "")
        logs.mkdir(exist_ok=True)
        with open(self._errors, "wb") as errors:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "pipeline.cli.main", "run", *arguments],
                cwd=folder,
                env=site.environment(**variables),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=errors,
                start_new_session=True,
            )

    # processes

    def node(self) -> psutil.Process | None:
        for child in _children(psutil.Process(self.process.pid)):
            title = title_of(child)  # of one that was executed, until it knows its job, the command
            if title.startswith("celeriac: node of") or "stages.node" in title:
                return child
        return None

    def find(self, name: str) -> psutil.Process | None:
        """The living process: "node", "redis", "leader", "source", "java", or a worker by its name."""
        with suppress(psutil.NoSuchProcess):
            node = self.node()
            if name == "node" or (node is None and name != "redis"):
                return node
            match name:
                case "redis":
                    tree = _children(psutil.Process(self.process.pid))
                    return next((each for each in tree if "redis-server" in each.name()), None)
                case "java":
                    tree = node.children(recursive=True) if node else []
                    return next((each for each in tree if each.name() == "java"), None)
                case _:
                    return next((each for each in _children(_nursery(node)) if _is_called(each, name)), None)
        return None

    def child(self, name: str) -> psutil.Process:
        """As `find`, and waits until there is one."""
        found: list[psutil.Process] = []

        def is_found() -> bool:
            self.assert_running()
            process = self.find(name)
            found[:] = [process] if process is not None else []
            return bool(found)

        wait_until(is_found, f"there is a process {name}")
        return found[0]

    def kill(self, name: str) -> None:
        """SIGKILL."""
        _kill(name, self.child(name))

    def kill_one_of(self, chance: random.Random, *names: str) -> None:
        """SIGKILL to one that is there: a feeder ends when all is read, a worker that was killed comes back."""

        def has_killed() -> bool:
            self.assert_running()
            there = {name: process for name in names if (process := self.find(name)) is not None}
            if there:
                name = chance.choice(list(there))
                _kill(name, there[name])
            return bool(there)

        wait_until(has_killed, f"one of {', '.join(names)} runs")

    @contextmanager
    def stopped(self, name: str) -> Iterator[psutil.Process]:
        """SIGSTOP, and SIGCONT at the end."""
        process = self.child(name)
        print(f"SIGSTOP {name} pid={process.pid}")
        process.suspend()
        try:
            yield process
        finally:
            with suppress(psutil.NoSuchProcess):
                process.resume()

    def beside(self, log_name: str, *arguments: str) -> subprocess.Popen[bytes]:
        """Another command of `celeriac` on the same Redis; what it says goes to a log. Whoever asks ends it."""
        with open(self._site.kept_logs / log_name, "ab") as log:
            return subprocess.Popen(
                [sys.executable, "-m", "pipeline.cli.main", *arguments],
                cwd=self.folder,
                env=self._site.environment(CELERIAC_REDIS=self.address),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    # what the job says

    @property
    def link(self) -> tuple[JobStore, str]:
        """The job's store, and its id, which the title of its leader names."""
        if self._link is None:
            job = title_of(self.child("leader")).rpartition(" of ")[2]
            self._client = connect(self.address)
            self._link = JobStore(Scripts(self._client)), job
        return self._link

    @property
    def address(self) -> str:
        """What the run was told, or the socket of its own server, which the title of that names."""
        if not self._told_address:
            socket = title_of(self.child("redis")).rpartition("unixsocket:")[2]
            return f"unix://{socket}?db=0"
        return self._told_address

    def facts(self) -> JobFacts:
        store, job = self.link
        return store.facts(job)

    def owners(self) -> set[str]:
        """The workers that own a partition with work to come."""
        return {part.owner for part in self.facts().partitions if not part.done}

    def taken(self) -> int:
        """Records that all stages have taken together; -1 while Redis does not answer."""
        try:
            return sum(part.taken for part in self.facts().partitions)
        except StoreError:
            return -1

    def wait_for_taken(self, count: float) -> None:
        """Until the job has got so far. It must not have ended by then."""

        def is_there() -> bool:
            self.assert_running()
            return self.taken() >= count

        wait_until(is_there, f"{count:.0f} records are taken", RUN_SECONDS)

    def assert_running(self) -> None:
        self.keep_logs()
        assert self.process.poll() is None, f"the run ended early, code {self.process.returncode}:\n{self.said()}"

    # the end

    def finish(self, *, code: int = 0, seconds: float = RUN_SECONDS) -> None:
        """Waits for the end, which must come with this exit code. Code 0 says that no record was given up."""

        def has_ended() -> bool:
            self.keep_logs()
            return self.process.poll() is not None

        wait_until(has_ended, "the run has ended", seconds)
        assert self.process.returncode == code, self.said()

    def close(self) -> None:
        """Collects the process, which has ended."""
        self.process.wait(10)
        if self._client is not None:
            self._client.close()

    def said(self) -> str:
        return self._errors.read_text()

    def log(self, name: str) -> str:
        """All that the incarnations of a process have logged, also after the run's own folder is gone."""
        self.keep_logs()
        path = self.logs / f"{name}.log"
        return path.read_text() if path.exists() else ""

    def keep_logs(self) -> None:
        """The run removes its folder at its end, so the files get second names here."""
        for folder in (*self._site.temporary.glob("celeriac-*/logs"), *self.folder.glob(".celeriac/*/logs")):
            with suppress(FileNotFoundError):
                for path in folder.iterdir():
                    with suppress(FileExistsError):
                        os.link(path, self.logs / path.name)


def create_job(site: Site, redis_url: str, job: str, limits: Limits, partitions: int = 2) -> None:
    """Registers a job with limits of its own; `celeriac run --job-id` goes on with it."""
    with chdir(site.root / "work"):
        plan = compile_plan(load_graph("flow.py"), partitions, limits)
    with connect(redis_url) as client:
        JobStore(Scripts(client)).create(job, plan)


def _kill(name: str, process: psutil.Process) -> None:
    print(f"kill -9 {name} pid={process.pid}")
    with suppress(psutil.NoSuchProcess):  # it was ending just now
        process.kill()


def _children(process: psutil.Process | None) -> list[psutil.Process]:
    return process.children() if process is not None else []


def _nursery(node: psutil.Process | None) -> psutil.Process | None:
    return next((each for each in _children(node) if title_of(each) == "celeriac: nursery"), None)


def _is_called(process: psutil.Process, name: str) -> bool:
    words = title_of(process).split()
    return words[:1] == ["celeriac:"] and (name in words[1:2] or words[1:3] == ["worker", name])


def title_of(process: psutil.Process) -> str:
    """What `ps` shows of one of ours; nothing for one that is gone."""
    with suppress(psutil.Error):
        return " ".join(process.cmdline()).rstrip()
    return ""


def moments(chance: random.Random, total: int, count: int, within: tuple[float, float] = (0.02, 0.9)) -> list[float]:
    """So many numbers of taken records at which something is to happen, growing."""
    return sorted(chance.uniform(*within) * total for _ in range(count))
