"""Versions of a job's pipeline: which code ran from when on, who brought it, and what its workers are to run."""

from __future__ import annotations

import getpass
import hashlib
import os
import socket
from pathlib import Path
from typing import Final, Literal

import msgspec

from pipeline.errors import PipelineError
from pipeline.loader import file_of

MOST_VERSIONS: Final = 50
"""Kept of one job, newest."""

CODE_DIGITS: Final = 12
ALL: Final = "*"
"""Stands for every worker of which nothing else is said."""

How = Literal["run", "submitted", "resumed", "upgraded", "upgrade halted", "shadow", "promoted"]


class Version(msgspec.Struct, frozen=True):
    """One version. code: digest of the file's content. file: its name. savepoint: what the job began with.

    by: user and host of whoever brought it. at_ms: when, by the clock of Redis.
    """

    how: How
    code: str
    fingerprint: str
    file: str
    by: str
    savepoint: str = ""
    at_ms: int = 0


class Wanted(msgspec.Struct, frozen=True):
    """What a worker is to run. target: `path/to/file.py[:name]`, or nothing for the file that its agent knows."""

    code: str
    target: str = ""

    def encode(self) -> str:
        return f"{self.code} {self.target}"

    @classmethod
    def decode(cls, text: str) -> Wanted:
        code, _, target = text.partition(" ")
        return cls(code, target)


def code_of(target: str) -> str:
    """The code version of a pipeline's file; modules that it imports are not looked at. Raises PipelineError."""
    path = file_of(target)
    try:
        return hashlib.sha256(path.read_bytes()).hexdigest()[:CODE_DIGITS]
    except OSError as error:
        raise PipelineError(f"{path} cannot be read: {error.strerror}") from error


def whole_target(target: str) -> str:
    """The target as any process of this machine may name it."""
    path = file_of(target)
    _, colon, name = target.rpartition(":")
    is_named = bool(colon) and "/" not in name and not Path(target).exists()
    return f"{path}:{name}" if is_named else str(path)


def this_version(how: How, target: str, fingerprint: str, savepoint: str = "") -> Version:
    """The version that this process brings. Raises PipelineError."""
    return Version(how, code_of(target), fingerprint, file_of(target).name, whoami(), savepoint)


def whoami() -> str:
    try:
        user = getpass.getuser()
    except (KeyError, OSError):  # a container's user need not have a name
        user = str(os.getuid())
    return f"{user}@{socket.gethostname()}"


def wanted_for(rollout: dict[str, Wanted], worker: str) -> Wanted | None:
    """What is said of the worker, or of all."""
    return rollout.get(worker) or rollout.get(ALL)


def check_code(rollout: dict[str, Wanted], worker: str, target: str) -> str:
    """The code version of the file. Raises PipelineError when another one is wanted of this worker."""
    code = code_of(target)
    wanted = wanted_for(rollout, worker)
    if wanted is not None and wanted.code != code:
        raise PipelineError(
            f"{file_of(target)} is version {code}, and the job wants version {wanted.code} of worker {worker}",
            hint="put the file of that version back, or make this one known: celeriac upgrade JOB FILE",
        )
    return code
