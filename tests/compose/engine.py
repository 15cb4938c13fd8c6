"""Runs the services of the compose files as plain processes, each with its own command, environment and health check.

What an engine would give them stands in as programs on PATH: `python` and `celeriac` are those of this environment, and
`redis-server` and `redis-cli` are told a free port.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import socket
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from pipeline.embedded.redis import find_redis_server
from pipeline.facts import JobFacts
from pipeline.store.connection import connect
from pipeline.store.jobs import JobStore
from pipeline.store.scripts import Scripts
from tests import jvm
from tests.compose.composition import Service, services
from tests.e2e.chaos import ROOT, wait_until

PORTS: Final = ("5555", "7077", "8080", "8081")
"""Of Flower and Spark, as the files name them."""


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


def write_program(folder: Path, name: str, *words: str) -> None:
    """A program of that name, which is another one with some arguments before its own."""
    path = folder / name
    path.write_text(f'#!/bin/sh\nexec {" ".join(words)} "$@"\n')
    path.chmod(0o755)


@dataclass
class Engine:
    """Stands in for a container engine: one network (this machine's loopback), one folder, no isolation."""

    root: Path
    variables: dict[str, str]
    port: int
    with_spark: bool = False
    ports: dict[str, str] = field(default_factory=lambda: {port: str(free_port()) for port in PORTS})
    processes: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for path in (self.programs, self.work, self.data, self.temporary, self.logs):
            path.mkdir()
        server = find_redis_server()
        command_line = shutil.which("redis-cli") or str(server.with_name("redis-cli"))
        write_program(self.programs, "python", sys.executable)
        write_program(self.programs, "celeriac", sys.executable, "-m", "pipeline.cli.main")
        # The directory and the port come last, as Redis takes the last word of an option that is given twice.
        (self.programs / "redis-server").write_text(
            f'#!/bin/sh\nexec {server} "$@" --port {self.port} --bind 127.0.0.1 --dir {self.data}\n'
        )
        (self.programs / "redis-server").chmod(0o755)
        write_program(self.programs, "redis-cli", command_line, "-p", str(self.port))

    @property
    def programs(self) -> Path:
        return self.root / "bin"

    @property
    def work(self) -> Path:
        return self.root / "work"

    @property
    def data(self) -> Path:
        return self.root / "data"

    @property
    def temporary(self) -> Path:
        return self.root / "tmp"

    @property
    def logs(self) -> Path:
        return self.root / "logs"

    @property
    def services(self) -> dict[str, Service]:
        return services(self.variables, with_spark=self.with_spark)

    def environment(self, service: Service) -> dict[str, str]:
        """Only what the file says, what any container has, and what makes a JVM start sooner."""
        path = f"{self.programs}:/usr/local/bin:/usr/bin:/bin"
        given = {"PATH": path, "HOSTNAME": socket.gethostname(), "HOME": str(self.temporary)}
        ours = {"TMPDIR": str(self.temporary), "PYTHONPATH": str(ROOT), "JAVA_TOOL_OPTIONS": jvm.options()}
        return {**given, **ours, **self.here(service.environment)}

    def here(self, environment: dict[str, str]) -> dict[str, str]:
        """In a network a container's name is a host's name; here there is one host."""
        local = {
            key: "127.0.0.1" if key in ("SPARK_LOCAL_IP", "SPARK_LOCAL_HOSTNAME") else value
            for key, value in environment.items()
        }
        return dict(zip(local, self.words(list(local.values())), strict=True))

    def words(self, words: list[str]) -> list[str]:
        """Ports that are free here, this machine's name for the network's, and a folder that the test removes."""
        names = {**self.ports, "spark-master": "127.0.0.1", "/tmp/spark": f"{self.temporary}/spark"}
        pattern = re.compile("|".join(rf"(?<![\w-]){re.escape(name)}\b" for name in names))
        return [pattern.sub(lambda match: names[match[0]], word) for word in words]

    def up(self, name: str) -> subprocess.Popen[bytes]:
        service = self.services[name]
        with open(self.logs / f"{name}.log", "ab") as log:
            self.processes[name] = subprocess.Popen(
                self.words(service.command),
                executable=str(self.programs / service.command[0]),
                cwd=self.work,
                env=self.environment(service),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        return self.processes[name]

    def check(self, name: str) -> subprocess.CompletedProcess[str]:
        service = self.services[name]
        seconds = float(service.facts["healthcheck"]["timeout"].rstrip("s"))
        words = self.words(service.health)
        program = shutil.which(words[0], path=self.environment(service)["PATH"])
        return subprocess.run(
            words,
            executable=program,
            env=self.environment(service),
            capture_output=True,
            text=True,
            timeout=4 * seconds,  # this machine has more to do than a container's
        )

    def is_healthy(self, name: str) -> bool:
        process = self.processes[name]
        assert process.poll() is None, f"{name} has ended, code {process.returncode}:\n{self.log(name)}"
        return self.check(name).returncode == 0

    def wait_for(self, *names: str) -> None:
        for name in names:
            wait_until(lambda name=name: self.is_healthy(name), f"{name} is healthy; it said:\n{self.log(name)}", 60.0)

    def stop(self, name: str) -> int:
        """As an engine does: SIGTERM, and ten seconds."""
        process = self.processes[name]
        process.terminate()
        return process.wait(10)

    def log(self, name: str) -> str:
        return (self.logs / f"{name}.log").read_text()

    def facts(self, job: str = "main") -> JobFacts:
        return JobStore(Scripts(connect(self.variables["CELERIAC_REDIS"]))).facts(job)

    def close(self) -> None:
        for process in self.processes.values():
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
            process.wait(10)
