"""The services of the compose files as plain processes: they come up, are healthy, survive, and end by themselves."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from pipeline.store.connection import check_server, connect
from pipeline.store.jobs import JobStore
from pipeline.store.scripts import Scripts
from tests.compose.engine import Engine, free_port
from tests.e2e.chaos import Sequence, wait_until

AUTH = "viewer:word"


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[Engine]:
    port = free_port()
    variables = {"CELERIAC_FLOWER_AUTH": AUTH, "CELERIAC_REDIS": f"redis://127.0.0.1:{port}/0"}
    engine = Engine(tmp_path, variables, port)
    yield engine
    engine.close()


def owners(engine: Engine) -> set[str]:
    return {part.owner for part in engine.facts().partitions}


def test_redis_starts_as_it_is_written_and_is_a_server_without_a_warning(engine: Engine) -> None:
    engine.up("redis")
    engine.wait_for("redis")

    assert check_server(connect(engine.variables["CELERIAC_REDIS"])) == []
    assert engine.stop("redis") == 0
    assert engine.check("redis").returncode != 0


def test_all_services_come_up_a_job_runs_on_them_and_all_end_by_themselves(engine: Engine) -> None:
    sequence = Sequence(count=3_000, work=300)
    (engine.work / "flow.py").write_text(sequence.text)
    for name in ("redis", "leader-1", "leader-2", "worker", "flower"):
        engine.up(name)
        if name == "redis":
            engine.wait_for(name)
    engine.wait_for("leader-1", "leader-2", "worker", "flower")
    assert "waits for job main" in engine.check("worker").stdout

    job = engine.up("job")
    wait_until(lambda: "main" in jobs(engine) and socket.gethostname() in owners(engine), "the worker has partitions")
    engine.wait_for("worker")
    wait_until(lambda: job.poll() is not None, "the job has ended", 90.0)

    assert job.returncode == 0, engine.log("job")
    sequence.check(engine.work / "out")
    wait_until(lambda: "has left job=main" in engine.log("worker"), "the worker has left the job")
    assert "job main is finished" in engine.check("worker").stdout
    for name in ("flower", "worker", "leader-1", "leader-2", "redis"):
        assert engine.stop(name) == 0, engine.log(name)


def jobs(engine: Engine) -> list[str]:
    return JobStore(Scripts(connect(engine.variables["CELERIAC_REDIS"]))).list_ids()


def test_a_leader_that_is_killed_or_stands_still_fails_its_health_check_alone(engine: Engine) -> None:
    for name in ("redis", "leader-1", "leader-2"):
        engine.up(name)
        engine.wait_for("redis")
    engine.wait_for("leader-1", "leader-2")

    os.killpg(engine.processes["leader-1"].pid, signal.SIGSTOP)
    wait_until(lambda: engine.check("leader-1").returncode == 3, "leader-1 is unhealthy")
    assert "leader leader-1 was last heard of" in engine.check("leader-1").stderr + engine.check("leader-1").stdout
    engine.wait_for("leader-2")
    os.killpg(engine.processes["leader-1"].pid, signal.SIGCONT)
    engine.wait_for("leader-1")


def test_a_job_whose_container_is_killed_goes_on_after_a_cancel(engine: Engine) -> None:
    sequence = Sequence(count=20_000)
    (engine.work / "flow.py").write_text(sequence.text)
    engine.up("redis")
    engine.wait_for("redis")
    engine.up("worker")
    first = engine.up("job")

    def taken() -> int:
        return sum(part.taken for part in engine.facts().partitions) if "main" in jobs(engine) else 0

    wait_until(lambda: taken() > sequence.taken // 20, "some records are taken", 60.0)
    os.killpg(first.pid, signal.SIGKILL)
    first.wait()
    again = engine.up("job")
    assert again.wait(60) == 2, engine.log("job")
    assert "is being run by another process" in engine.log("job")

    assert celeriac(engine, "cancel", "main").returncode == 0
    wait_until(lambda: "has left job=main" in engine.log("worker"), "the worker has left the job")
    last = engine.up("job")
    wait_until(lambda: socket.gethostname() in owners(engine) or last.poll() is not None, "the worker is back")

    assert last.wait(90) == 0, engine.log("job")
    sequence.check(engine.work / "out")


def test_a_worker_that_is_killed_is_replaced_within_its_service(engine: Engine) -> None:
    sequence = Sequence(count=100_000)  # more than it ever comes to
    (engine.work / "flow.py").write_text(sequence.text)
    for name in ("redis", "worker", "job"):
        engine.up(name)
        engine.wait_for("redis")
    me = socket.gethostname()
    wait_until(lambda: "main" in jobs(engine) and me in owners(engine), "the worker has partitions", 60.0)
    before = {each.name: each for each in engine.facts().workers}[me]

    os.kill(before.report["pid"], signal.SIGKILL)
    wait_until(
        lambda: any(
            each.name == me and each.incarnation != before.incarnation and each.age_seconds < 1
            for each in engine.facts().workers
        ),
        "a new incarnation is heard of",
    )
    engine.wait_for("worker")
    assert celeriac(engine, "cancel", "main").returncode == 0
    assert engine.processes["job"].wait(30) == 130


@pytest.mark.parametrize(
    ("name", "missing"),
    [
        ("worker", "CELERIAC_JOB"),
        ("worker", "CELERIAC_PIPELINE"),
        ("worker", "CELERIAC_REDIS"),
        ("leader-1", "CELERIAC_REDIS"),
    ],
)
def test_a_service_that_lacks_a_variable_says_so_and_ends(engine: Engine, name: str, missing: str) -> None:
    service = engine.services[name]
    environment = {key: value for key, value in engine.environment(service).items() if key != missing}

    done = subprocess.run(
        service.command,
        executable=str(engine.programs / service.command[0]),
        env=environment,
        capture_output=True,
        text=True,
        timeout=60,
    )

    assert done.returncode in (2, 3)
    assert f"{missing} is not set" in done.stderr
    assert "Traceback" not in done.stderr


def test_ping_says_what_is_wrong_in_one_message_without_the_password(engine: Engine) -> None:
    away = celeriac(engine, "ping", redis_url="redis://:secret@127.0.0.1:1/0")
    half = celeriac(engine, "ping", "--job", "main")

    assert (away.returncode, half.returncode) == (3, 2)
    assert away.stderr.startswith("error: ")
    assert "secret" not in away.stderr
    assert "--job and --worker go together" in half.stderr


def celeriac(engine: Engine, *words: str, redis_url: str = "") -> subprocess.CompletedProcess[str]:
    environment = engine.environment(engine.services["flower"])
    environment["CELERIAC_REDIS"] = redis_url or engine.variables["CELERIAC_REDIS"]
    return subprocess.run(
        [str(engine.programs / "celeriac"), *words], env=environment, capture_output=True, text=True, timeout=60
    )
