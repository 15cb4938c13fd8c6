"""What a run starts and takes away again: a folder, a Redis server, the node process. Knows no state of a job."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import msgspec

import pipeline
from pipeline.cli.nodes import NodeSettings
from pipeline.embedded.folders import OwnFolder
from pipeline.embedded.forks import ForkedProgram, can_fork, fork_program
from pipeline.embedded.java import options_for_temporary_files
from pipeline.embedded.process import die_with_parent, end_process
from pipeline.embedded.redis import EmbeddedRedis
from pipeline.errors import DirectoryInUse, EnvironmentFault, JobTaken
from pipeline.plan import Plan
from pipeline.publishing import discard_staged

_KEPT: Final = ".celeriac"
_SCRATCH: Final = "tmp-"
_TEMPORARY: Final = "celeriac-"
_JOB: Final = "job.json"
_NODE: Final = "stages.node"
NODE_RESTARTS: Final = 3
_KILL_AFTER_SECONDS: Final = 4.0
"""On top of what the node gives its children."""

MEMBER_STOP_SECONDS: Final = 12.0
"""It gives its worker five, and Spark some to end with it."""


@dataclass(slots=True)
class Workspace:
    """The folder of one run. It goes when the run ends, unless `is_kept` was set for a later continuation."""

    path: Path
    is_kept: bool = False
    _scratch: Path | None = None
    _own: OwnFolder | None = None

    @classmethod
    def temporary(cls) -> Workspace:
        """Those of runs that were killed go, and what their jobs, which went with them, have staged."""
        own = OwnFolder.make(_TEMPORARY, bury=_discard_staged)
        return cls(own.path, _own=own)

    @classmethod
    def of_job(cls, job: str) -> Workspace:
        """`.celeriac/<job>` below the current folder. Raises EnvironmentFault when it cannot be made."""
        path = Path.cwd() / _KEPT / job
        is_known = path.exists()
        try:
            path.mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError as error:
            raise EnvironmentFault(
                f"the folder {path} cannot be made: {error.strerror}",
                hint="run where this user may write, or use --redis",
            ) from error
        return cls(path, is_kept=is_known)

    @property
    def holds(self) -> tuple[int, ...]:
        """Descriptors for processes that work in the folder: while one of them lives, it is nobody else's to remove."""
        return self._own.holds if self._own is not None else ()

    def note_job(self, job: str, plan: Plan) -> None:
        """The job ends with this folder; what it stages beside its results is not to outlive that."""
        with contextlib.suppress(OSError):  # without the note it does, should this process be killed
            (self.path / _JOB).write_bytes(msgspec.json.encode(_Job(job, plan)))

    @property
    def logs(self) -> Path:
        return self._folder("logs")

    @property
    def scratch(self) -> Path:
        """For temporary files of this run's processes, which no other run of the job takes away; always removed."""
        if self._scratch is None:
            self._scratch = Path(tempfile.mkdtemp(prefix=_SCRATCH, dir=self.path))
        return self._scratch

    def sweep(self) -> None:
        """Removes what killed runs of the job have left. To be called by the only run that there is."""
        for path in self.path.glob(f"{_SCRATCH}*"):
            if path != self._scratch:
                shutil.rmtree(path, ignore_errors=True)

    def set_aside(self) -> None:
        """Leaves the place to the next run of the job, unless the folder is kept.

        To be called while our server holds its lock: who waits for that finds no folder that is being removed.
        """
        if not self.is_kept and self.path.parent.name == _KEPT and self.path.exists():
            self.path = self.path.rename(tempfile.mkdtemp(prefix=".gone-", dir=self.path.parent))

    def close(self) -> None:
        """Removes the folder, or what of it a continuation does not need."""
        gone = self._scratch if self.is_kept else self.path
        if gone is not None:
            shutil.rmtree(gone, ignore_errors=True)
        if self._own is not None:
            self._own.close()
        if not self.is_kept and self.path.parent.name == _KEPT:
            with contextlib.suppress(OSError):  # another job is kept there
                self.path.parent.rmdir()

    def _folder(self, name: str) -> Path:
        path = self.path / name
        path.mkdir(exist_ok=True)
        return path


class _Job(msgspec.Struct, frozen=True):
    """The job of a temporary folder, which keeps its Redis, too."""

    job: str
    plan: Plan


def _discard_staged(folder: Path) -> None:
    """Nobody can go on with a job whose Redis lies in this folder. Raises OSError, SinkError."""
    with contextlib.suppress(FileNotFoundError, msgspec.MsgspecError):  # it had not begun; another version wrote it
        ended = msgspec.json.decode((folder / _JOB).read_bytes(), type=_Job)
        discard_staged(ended.job, ended.plan)


@dataclass(frozen=True, slots=True)
class Server:
    """The Redis of a run: a foreign one by its address, or one of our own."""

    url: str
    embedded: EmbeddedRedis | None = None

    @classmethod
    def start(cls, workspace: Workspace, job: str) -> Server:
        """A server of our own that keeps its data in the folder of the run. Raises EnvironmentFault, JobTaken."""
        try:
            embedded = EmbeddedRedis.start(workspace.path / "redis")
        except DirectoryInUse as error:
            workspace.is_kept = True  # it is another run's
            raise JobTaken(
                f"the job {job} is being run in this folder by another process",
                hint="wait for it, stop it with Ctrl-C where it runs, or take another --job-id",
            ) from error
        workspace.sweep()
        return cls(embedded.url, embedded)

    def revive(self) -> bool:
        """Starts our own server anew if it died; True when it had. Raises EnvironmentFault."""
        if self.embedded is None or self.embedded.is_alive():
            return False
        self.embedded.restart()
        return True

    def close(self) -> None:
        if self.embedded is not None:
            self.embedded.stop()

    def __repr__(self) -> str:
        return f"Server(embedded={self.embedded is not None})"


class NodeProcess:
    """The node agent as a child of this process, in a session of its own so that Ctrl-C does not reach it."""

    def __init__(self, logs: Path, temporary: Path, holds: Sequence[int] = ()) -> None:
        """logs, temporary: folders. holds: descriptors that it and its children have open as long as they live."""
        self._log = logs / "node.log"
        self._environment = {**os.environ, **scratch_environment(str(temporary))}
        self._holds = tuple(holds)
        self._settings: NodeSettings | None = None
        self._ahead: ForkedProgram | None = None
        self._process: subprocess.Popen[bytes] | ForkedProgram | None = None
        self._restarts = 0

    def prepare(self) -> None:
        """Has it import what it needs while this process does other things, where that can be; it waits for `start`.

        To be called by the thread that calls `start`. Raises EnvironmentFault.
        """
        if can_fork():
            try:
                with open(self._log, "ab") as log:
                    self._ahead = fork_program(_NODE, "celeriac: node", self._environment, log.fileno(), self._holds)
            except OSError as error:
                raise EnvironmentFault(f"the node process cannot be started: {error}") from error

    def start(self, settings: NodeSettings) -> None:
        """Raises EnvironmentFault. To be called by a thread that outlives the node."""
        self._settings = settings
        self._begin(settings)

    def revive(self) -> bool:
        """Starts the node anew if it died; True when it had. Raises EnvironmentFault when it dies again and again."""
        if self._settings is None or self._process is None or self._process.poll() is None:
            return False
        if self._restarts >= NODE_RESTARTS:
            raise EnvironmentFault(
                f"the node process died {self._restarts + 1} times, at last with code {self._process.returncode}"
            )
        self._restarts += 1
        self._begin(self._settings)
        return True

    def close(self) -> None:
        """Ends the node, which ends its children: asked first, killed after a few seconds. Idempotent."""
        ahead, self._ahead = self._ahead, None
        if ahead is not None:  # it was told nothing, and has started nothing but what is tied to it
            ahead.kill()
            ahead.wait()
            ahead.stdin.close()
        process, self._process = self._process, None
        if process is not None and self._settings is not None:
            end_process(process, self._settings.stop_seconds + _KILL_AFTER_SECONDS)  # its children are tied to its life

    def _begin(self, settings: NodeSettings) -> None:
        ahead, self._ahead = self._ahead, None
        try:
            self._process = self._execute() if ahead is None else ahead
            assert self._process.stdin is not None
            with contextlib.suppress(BrokenPipeError), self._process.stdin as pipe:  # it died already; `revive` sees it
                pipe.write(settings.encode())
        except OSError as error:
            raise EnvironmentFault(f"the node process cannot be started: {error}") from error

    def _execute(self) -> subprocess.Popen[bytes]:
        with open(self._log, "ab") as log:
            return subprocess.Popen(
                [sys.executable, "-P", "-m", _NODE],
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=subprocess.STDOUT,
                env=self._environment,
                pass_fds=self._holds,
                start_new_session=True,
                preexec_fn=die_with_parent(signal.SIGTERM),
            )


def troubled_logs(logs: Path, lines: int = 15, most: int = 3) -> list[tuple[str, str]]:
    """(file name, last lines) of the logs that end with a traceback or a crash, newest first."""
    found = []
    for path in sorted(logs.glob("*.log"), key=lambda each: each.stat().st_mtime, reverse=True):
        with open(path, encoding="utf-8", errors="replace") as file:
            tail = deque(file, maxlen=200)
        if any(sign in line for line in tail for sign in ("Traceback (most", "CRITICAL", "Fatal Python error")):
            found.append((path.name, "".join(list(tail)[-lines:]).rstrip()))
    return found[:most]


class MemberProcess:
    """A node that joins a job, as a child of this process, in a session of its own. It ends when this process does."""

    def __init__(self, variables: Mapping[str, str], workspace: Workspace) -> None:
        """variables: what `stages.member` is told."""
        self._variables = dict(variables)
        self._workspace = workspace
        self._process: subprocess.Popen[bytes] | None = None

    def __repr__(self) -> str:  # its variables hold the address
        return f"MemberProcess({self.log})"

    @property
    def log(self) -> Path:
        return self._workspace.logs / "member.log"

    def start(self) -> None:
        """Raises EnvironmentFault. To be called by a thread that outlives it."""
        own = scratch_environment(str(self._workspace.scratch)) | self._variables
        try:
            with open(self.log, "ab") as log:
                self._process = subprocess.Popen(
                    [sys.executable, "-P", "-m", "stages.member"],
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    env={**{name: text for name, text in os.environ.items() if name != "CELERIAC_WORKER"}, **own},
                    pass_fds=self._workspace.holds,
                    start_new_session=True,
                    preexec_fn=die_with_parent(signal.SIGTERM),
                )
        except OSError as error:
            raise EnvironmentFault(f"the node process cannot be started: {error}") from error

    def exit_code(self) -> int | None:
        """None while it runs, or before it was started."""
        return self._process.poll() if self._process is not None else None

    def close(self) -> None:
        """Ends it, which ends its worker: asked first, killed after some seconds. Idempotent."""
        process, self._process = self._process, None
        if process is not None:
            end_process(process, MEMBER_STOP_SECONDS)


def scratch_environment(temporary: str) -> dict[str, str]:
    """Temporary files must lie in our folder.

    The processes run with `-P`, so that no module of the current folder shadows one of ours or of a library.
    """
    java = f"{os.environ.get('JAVA_TOOL_OPTIONS', '')} {options_for_temporary_files(Path(temporary))}"
    found = {"TMPDIR": temporary, "JAVA_TOOL_OPTIONS": java}
    return found | checkout_path()


def checkout_path() -> dict[str, str]:
    """What names a checkout that is not installed, for a process that runs with `-P`."""
    found = {}
    root = Path(pipeline.__path__[0]).parent
    if root.name not in ("site-packages", "dist-packages"):
        found["PYTHONPATH"] = os.pathsep.join(filter(None, [str(root), os.environ.get("PYTHONPATH", "")]))
    return found
