"""`celeriac flower` as a process: our page in the real Flower, closed doors, tickets of a running job in its table."""

from __future__ import annotations

import base64
import http.client
import json
import os
import re
import socket
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from pipeline import Pipeline, read, write
from pipeline.embedded.redis import find_redis_server
from pipeline.plan import compile_plan
from pipeline.settings import Limits
from pipeline.store.connection import connect
from pipeline.store.jobs import JobStore
from pipeline.store.scripts import Scripts
from tests.e2e.chaos import Sequence, Site, wait_until

AUTH = "viewer:long word"
HEADER = {"Authorization": "Basic " + base64.b64encode(AUTH.encode()).decode()}


@dataclass
class FlowerProcess:
    """A running `celeriac flower`. Closed by `with`, and then it must end by itself and with code 0."""

    process: subprocess.Popen[str]
    port: int
    headers: dict[str, str] = field(default_factory=dict)

    def __enter__(self) -> FlowerProcess:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.terminate()
        _, errors = self.process.communicate(timeout=30)
        assert self.process.returncode == 0, errors
        assert "Traceback" not in errors

    def get(self, path: str, method: str = "GET", **headers: str) -> tuple[int, str]:
        """Status and text."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=20)
        try:
            connection.request(method, path, headers={**self.headers, **headers})
            answer = connection.getresponse()
            return answer.status, answer.read().decode()
        finally:
            connection.close()

    def page(self, path: str) -> str:
        status, text = self.get(path)
        assert status == 200, f"{path}: {status} {text[:500]}"
        return text

    def json(self, path: str) -> Any:
        return json.loads(self.page(path))


def start_flower(redis_url: str, *arguments: str, auth: str = "", **variables: str) -> FlowerProcess:
    """Returns when it serves. The address and the passwords travel by the environment."""
    environment = {**os.environ, "CELERIAC_REDIS": redis_url, "CELERIAC_FLOWER_AUTH": auth, **variables}
    process = subprocess.Popen(
        [sys.executable, "-m", "pipeline.cli.main", "flower", "--port", "0", *arguments],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    line = process.stdout.readline()
    found = re.fullmatch(r"http://[^/]+:(\d+)/pipelines\n", line)
    if found is None:
        raise AssertionError(f"it did not start: {line} {process.communicate(timeout=30)}")
    return FlowerProcess(process, int(found[1]), HEADER if auth else {})


@pytest.fixture(scope="module")
def flower_open(redis_server: Any) -> Iterator[FlowerProcess]:
    with start_flower(redis_server.url) as flower:
        yield flower


@pytest.fixture(scope="module")
def flower_closed(redis_server: Any) -> Iterator[FlowerProcess]:
    with start_flower(redis_server.url, auth=AUTH) as flower:
        yield flower


def make_job(redis_url: str, job: str = "j") -> None:
    flow = Pipeline("flow")
    flow.source(read.iterable([1]), name="ones").key_by(str, name="by").sink(write.stream("out"), name="out")
    store = JobStore(Scripts(connect(redis_url)))
    store.create(job, compile_plan(flow.graph(), 2, Limits()))


@pytest.mark.parametrize("path", ["/", "/workers", "/tasks", "/broker", "/pipelines", "/pipelines/j"])
def test_the_pipelines_tab_is_on_every_page(flower_open: FlowerProcess, path: str) -> None:
    text = flower_open.page(path)

    assert re.search(r'href="/pipelines"[^>]*>Pipelines</a>', text)
    assert ('aria-current="page">Pipelines' in text) == path.startswith("/pipelines")


def test_the_pages_bring_their_own_script_and_style_and_ask_no_other_server(flower_open: FlowerProcess) -> None:
    text = flower_open.page("/pipelines/j")

    links = re.findall(r'(?:src|<link[^>]*href)="([^"]+)"', text)
    assert [link for link in links if link.startswith("/pipeline-assets/")] == [
        "/pipeline-assets/pipelines.css",
        "/pipeline-assets/pipelines.js",
    ]
    assert [link for link in links if not link.startswith("/")] == []
    for link in links:
        if not re.search(r"\.ico\b", link):
            assert flower_open.page(link)


def test_the_script_never_makes_html_of_what_it_shows(flower_open: FlowerProcess) -> None:
    script = flower_open.page("/pipeline-assets/pipelines.js")

    assert not re.search(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|eval\(", script)


def test_assets_outside_their_folder_are_not_served(flower_open: FlowerProcess) -> None:
    for path in ("/pipeline-assets/../pages.py", "/pipeline-assets/%2e%2e/pages.py", "/pipeline-assets//etc/passwd"):
        assert flower_open.get(path)[0] in (403, 404)


def test_jobs_and_a_job_are_told_as_json(flower_open: FlowerProcess, redis_url: str) -> None:
    make_job(redis_url)

    wait_until(lambda: flower_open.json("/api/pipelines")["total"] == 1, "the job is listed")
    shown = flower_open.json("/api/pipelines/j")

    assert [stage["name"] for stage in shown["stages"]] == ["ones", "by"]
    assert shown["edges"] == [{"from": 0, "to": 1}]
    assert [part["state"] for part in shown["partitions"]] == ["no owner"] * 4
    assert flower_open.get("/api/pipelines/nobody")[0] == 404
    assert flower_open.get("/api/pipelines/no%20id")[0] in (401, 404)


def test_nothing_can_be_changed_through_it(flower_open: FlowerProcess, flower_closed: FlowerProcess) -> None:
    paths = (
        "/api/worker/shutdown/w0",
        "/api/task/revoke/x",
        "/api/task/async-apply/celeriac.ticket",
        "/api/task/send-task/celeriac.ticket",
        "/api/task/apply/celeriac.ticket",
        "/api/worker/queue/cancel-consumer/w0",
    )
    for path in paths:
        assert flower_open.get(path, "POST", **{"Content-Length": "0"})[0] == 401
        assert flower_closed.get(path, "POST", **{"Content-Length": "0"})[0] == 403
    for path in ("/pipelines", "/api/pipelines", "/api/pipelines/j"):
        assert flower_open.get(path, "POST", **{"Content-Length": "0"})[0] == 405


@pytest.mark.parametrize(
    "path",
    ["/", "/tasks", "/broker", "/metrics", "/pipelines", "/pipelines/j", "/api/pipelines", "/api/pipelines/j"],
)
def test_with_a_password_every_page_and_the_metrics_are_closed_without_it(
    flower_closed: FlowerProcess, path: str
) -> None:
    wrong = base64.b64encode(b"viewer:wrong").decode()

    assert flower_closed.get(path, Authorization="")[0] == 401
    assert flower_closed.get(path, Authorization=f"Basic {wrong}")[0] == 401
    assert flower_closed.get(path)[0] in (200, 404)


def test_the_health_check_needs_no_password(flower_closed: FlowerProcess) -> None:
    assert flower_closed.get("/healthcheck", Authorization="") == (200, "OK")


def test_without_a_password_a_foreign_name_is_refused_on_every_page(flower_open: FlowerProcess) -> None:
    for path in ("/", "/metrics", "/api/pipelines", "/pipeline-assets/pipelines.js", "/healthcheck"):
        assert flower_open.get(path, Host="evil.example:5555")[0] == 403
    assert flower_open.get("/metrics", Host=f"localhost:{flower_open.port}")[0] == 200


def test_a_variable_of_flower_cannot_open_its_interface(redis_url: str) -> None:
    with start_flower(redis_url, FLOWER_UNAUTHENTICATED_API="true") as flower:
        assert flower.get("/api/tasks")[0] == 401


@pytest.mark.parametrize(
    ("arguments", "auth", "message"),
    [
        (("--address", "0.0.0.0"), "", "is not a loopback address"),
        (("--address", ""), "", "is not a loopback address"),
        ((), "nocolon", "is not user:password"),
        (("--basic-auth-file", "/nowhere/auth"), "", "/nowhere/auth cannot be read"),
    ],
)
def test_an_open_door_is_refused_at_the_start(
    redis_url: str, arguments: tuple[str, ...], auth: str, message: str
) -> None:
    done = run_flower(redis_url, *arguments, auth=auth)

    assert (done.returncode, done.stdout) == (3, "")
    assert done.stderr.startswith("error: ")
    assert message in done.stderr
    assert "nocolon" not in done.stderr


def test_a_port_that_is_taken_is_one_message(redis_url: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        done = run_flower(redis_url, "--port", str(taken.getsockname()[1]))

    assert done.returncode == 3
    assert "error: nothing can listen on 127.0.0.1:" in done.stderr


def test_a_redis_that_is_away_at_the_start_is_one_message_without_the_password() -> None:
    done = run_flower("redis://:secret@127.0.0.1:1/0")

    assert done.returncode == 3
    assert "cannot be reached" in done.stderr
    assert "secret" not in done.stderr


def test_the_pages_survive_a_redis_that_goes_away_and_comes_back(tmp_path: Path) -> None:
    """And a Redis with a password, which is shown nowhere."""
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    settings = tmp_path / "redis.conf"
    settings.write_text(f"port {port}\nbind 127.0.0.1\nrequirepass secret\nsave ''\ndir {tmp_path}\nappendonly yes\n")
    command, url = [str(find_redis_server()), str(settings)], f"redis://:secret@127.0.0.1:{port}/0"

    def start_redis() -> subprocess.Popen[bytes]:
        server = subprocess.Popen(command, stdout=subprocess.DEVNULL)
        wait_until(lambda: is_open(port), "Redis listens")
        return server

    server = start_redis()
    try:
        make_job(url)
        with start_flower(url) as flower:
            assert flower.json("/api/pipelines/j")["state"] == "running"
            for path in ("/broker", "/workers", "/pipelines/j", "/api/pipelines/j"):
                assert "secret" not in flower.page(path)

            server.kill()
            server.wait()
            wait_until(lambda: flower.get("/api/pipelines/j")[0] == 503, "the page says that Redis is away")
            assert flower.get("/pipelines/j")[0] == 200
            assert "secret" not in flower.get("/api/pipelines/j")[1]

            server = start_redis()
            wait_until(lambda: flower.get("/api/pipelines/j")[0] == 200, "the page is back")
    finally:
        server.kill()
        server.wait()


def test_with_events_each_partition_is_one_row_of_the_tasks_page(site: Site, redis_url: str) -> None:
    site.write(Sequence(count=100_000).text)  # more than it ever comes to
    places = {f"{stage}.{partition}" for stage in range(1, 3) for partition in range(2)}
    with start_flower(redis_url, "--events", auth=AUTH) as flower:
        run = site.start("flow.py", "--workers", "2", "--partitions", "2", "--redis", redis_url, "--job-id", "rows")

        def rows() -> dict[str, dict[str, Any]]:
            return flower.json("/api/tasks")

        def served() -> set[str]:
            return {task.removeprefix("{rows}.").rpartition(".")[0] for task in rows()}

        def tickets() -> float:
            sums = re.findall(r'flower_events_total\{.*"task-succeeded".* ([0-9.e+]+)', flower.page("/metrics"))
            return sum(map(float, sums))

        wait_until(lambda: places <= served() and tickets() > 20, "tickets of all keyed partitions are told")
        table, workers = rows(), flower.json("/workers?json=1")["data"]
        assert site.command("cancel", "rows", "--redis", redis_url).returncode == 0
        run.finish(code=130)

    assert {task["name"] for task in table.values()} == {"celeriac.ticket"}
    assert len(table) <= 6  # three stages of two partitions, one term
    assert {worker["status"] for worker in workers} == {True}
    assert {worker["hostname"].partition("@")[0] for worker in workers} == {"{rows}.w0", "{rows}.w1"}


def is_open(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def run_flower(redis_url: str, *arguments: str, auth: str = "") -> subprocess.CompletedProcess[str]:
    """For one that must not start."""
    return subprocess.run(
        [sys.executable, "-m", "pipeline.cli.main", "flower", "--port", "0", *arguments],
        env={**os.environ, "CELERIAC_REDIS": redis_url, "CELERIAC_FLOWER_AUTH": auth},
        capture_output=True,
        text=True,
        timeout=60,
    )
