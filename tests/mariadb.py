"""A real MariaDB for the tests, as Debian has it: without users, in a folder that goes with it."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import tempfile
import time
from pathlib import Path
from threading import Event
from typing import Final

_START_SECONDS: Final = 30.0


class MariaDbServer:
    """One server on a port of its own, with an empty database `shop` that anybody may use."""

    def __init__(self) -> None:
        program = shutil.which("mariadbd", path=f"{os.environ['PATH']}:/usr/sbin")
        assert program is not None, "apt-get install mariadb-server-core"
        self._folder = Path(tempfile.mkdtemp(prefix="celeriac-maria-"))
        (self._folder / "data").mkdir()
        (self._folder / "init.sql").write_text("CREATE DATABASE shop;\n")
        with socket.socket() as server:
            server.bind(("127.0.0.1", 0))
            self.port = int(server.getsockname()[1])
        options = [f"--datadir={self._folder / 'data'}", f"--socket={self._folder / 'socket'}", f"--port={self.port}"]
        options += [f"--init-file={self._folder / 'init.sql'}", "--bind-address=127.0.0.1", "--skip-grant-tables"]
        options += ["--innodb-buffer-pool-size=8M", "--innodb-log-file-size=4M"]
        if os.geteuid() == 0:
            options.append("--user=root")
        with open(self._folder / "log", "wb") as log:
            self._process = subprocess.Popen(
                [program, "--no-defaults", *options], stdin=subprocess.DEVNULL, stdout=log, stderr=log
            )
        deadline = time.monotonic() + _START_SECONDS
        while True:
            try:
                socket.create_connection(("127.0.0.1", self.port), 2).close()
                return
            except OSError:
                assert time.monotonic() < deadline, (self._folder / "log").read_text()
                assert self._process.poll() is None, (self._folder / "log").read_text()
                Event().wait(0.02)

    def close(self) -> None:
        """Stops at once, and leaves nothing."""
        self._process.kill()
        self._process.wait(20)
        shutil.rmtree(self._folder)
