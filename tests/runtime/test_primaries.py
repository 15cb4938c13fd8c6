"""Commands over several Redis servers: each job is found on its own, and what is in doubt is refused with its names."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from leader.main import read_environment
from pipeline import Pipeline, read, write
from pipeline.cli.exits import Exit
from pipeline.cli.main import run_command
from pipeline.embedded.redis import EmbeddedRedis
from pipeline.errors import EnvironmentFault, UnsuitableServer
from pipeline.lifecycle import JobState
from pipeline.plan import compile_plan
from pipeline.settings import Limits
from pipeline.store.connection import connect
from pipeline.store.jobs import JobStore
from pipeline.store.scripts import Scripts
from stages.member import MemberSettings

AWAY = "redis://user:secret@127.0.0.1:1/0"
Command = Callable[..., tuple[int, str, str]]


@pytest.fixture
def other_url() -> Iterator[str]:
    with EmbeddedRedis.start() as server:
        yield server.url


@pytest.fixture
def command(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Command:
    monkeypatch.delenv("CELERIAC_REDIS", raising=False)

    def run(*arguments: str, on: tuple[str, ...] = ()) -> tuple[int, str, str]:
        code = run_command([*arguments, *(part for url in on for part in ("--redis", url))])
        out, errors = capsys.readouterr()
        return code, out, errors

    return run


def make(url: str, *jobs: str, state: JobState = JobState.RUNNING) -> None:
    flow = Pipeline("flow")
    flow.source(read.producer(), name="in").sink(write.console(), name="out")
    with connect(url) as client:
        store = JobStore(Scripts(client))
        for job in jobs:
            store.create(job, compile_plan(flow.graph(), 1, Limits()))
            if state is not JobState.RUNNING:
                store.transition(job, state)


def jobs_on(url: str) -> list[str]:
    with connect(url) as client:
        return JobStore(Scripts(client)).list_ids()


def test_a_job_is_found_on_the_server_that_has_it(redis_url: str, other_url: str, command: Command) -> None:
    make(redis_url, "mine")
    make(other_url, "theirs")

    for job in ("mine", "theirs"):
        code, out, errors = command("status", job, on=(redis_url, other_url))
        assert (code, errors) == (0, "")
        assert f"job       {job}" in out
    assert command("cancel", "theirs", on=(redis_url, other_url))[:2] == (0, "job theirs is cancelled\n")


def test_a_variable_names_several_servers_with_spaces_between(
    redis_url: str, other_url: str, command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    make(other_url, "theirs")
    monkeypatch.setenv("CELERIAC_REDIS", f"{redis_url} {other_url},redis://127.0.0.1:1/0")

    assert "job       theirs" in command("status", "theirs")[1]


def test_list_shows_the_jobs_of_each_server_under_its_address(redis_url: str, other_url: str, command: Command) -> None:
    make(redis_url, "a", "b")

    code, out, _ = command("list", on=(redis_url, other_url))
    lines = out.splitlines()
    rows = json.loads(command("list", "--json", on=(redis_url, other_url))[1])

    assert code == 0
    assert [lines[0], lines[1].split()[0], lines[2].split()[0], lines[3]] == [
        f"{redis_url}: 2 jobs", "a", "b", f"{other_url}: no jobs",
    ]  # fmt: skip
    assert [(row["job"], row["redis"]) for row in rows] == [("a", redis_url), ("b", redis_url)]
    assert command("list", on=(redis_url,))[1].splitlines()[0].startswith("a  running")


def test_a_server_that_is_away_is_named_and_the_jobs_of_the_others_are_there(redis_url: str, command: Command) -> None:
    make(redis_url, "mine")

    code, out, errors = command("list", on=(AWAY, redis_url))
    assert (code, out.splitlines()[0]) == (Exit.ENVIRONMENT, f"{redis_url}: 1 job")
    assert "error: redis://user:***@127.0.0.1:1/0 cannot be asked" in errors

    code, out, errors = command("status", "mine", on=(AWAY, redis_url))
    assert (code, "job       mine" in out) == (0, True)
    assert "warning: redis://user:***@127.0.0.1:1/0 cannot be asked" in errors

    code, _, errors = command("status", "nope", on=(AWAY, redis_url))
    assert code == Exit.ENVIRONMENT
    assert f"job 'nope' is not on {redis_url}, and redis://user:***@127.0.0.1:1/0 cannot be asked" in errors


def test_a_job_that_is_on_none_is_unknown_with_all_their_names(
    redis_url: str, other_url: str, command: Command
) -> None:
    code, _, errors = command("status", "nope", on=(redis_url, other_url))

    assert (code, f"there is no job 'nope' on {redis_url}, {other_url}" in errors) == (Exit.USAGE, True)


def test_an_id_that_two_servers_have_is_refused_with_both_names(
    redis_url: str, other_url: str, command: Command
) -> None:
    make(redis_url, "twin")
    make(other_url, "twin")

    code, _, errors = command("cancel", "twin", on=(redis_url, other_url))
    assert code == Exit.USAGE
    assert f"there are several jobs 'twin': on {redis_url}, {other_url}" in errors
    assert "give the --redis of the one that you mean" in errors
    assert f"several jobs 'twin': on {redis_url}, {other_url}" in command("list", on=(redis_url, other_url))[2]

    assert command("cancel", "twin", on=(other_url,))[0] == 0


def test_two_addresses_of_one_server_are_one_and_two_databases_of_it_are_two(
    redis_url: str, command: Command, tmp_path: Path
) -> None:
    make(redis_url, "mine")
    (tmp_path / "link").symlink_to(redis_url.removeprefix("unix://").partition("?")[0])
    again, beside = f"unix://{tmp_path}/link?db=0", f"unix://{tmp_path}/link?db=1"

    assert command("status", "mine", on=(redis_url, again))[0] == 0
    lines = command("list", on=(redis_url, again, beside))[1].splitlines()
    assert [line.rpartition(": ")[2] for line in (lines[0], lines[2])] == ["1 job", "no jobs"]


def a_flow(folder: str) -> str:
    return (
        "from pipeline import Pipeline, read, write\n"
        "flow = Pipeline('flow')\n"
        f"flow.source(read.producer(), name='in').sink(write.jsonl({folder!r}), name='out')\n"
    )


@pytest.fixture
def flow(tmp_path: Path) -> str:
    path = tmp_path / "flow.py"
    path.write_text(a_flow(str(tmp_path / "out")))
    return str(path)


def test_a_submitted_job_goes_to_the_server_with_the_fewest_that_work(
    redis_url: str, other_url: str, command: Command, flow: str
) -> None:
    make(redis_url, "a", "b", state=JobState.CANCELLED)
    make(other_url, "c")

    first = command("submit", flow, "--job-id", "new", on=(redis_url, other_url))
    assert (first[0], first[1]) == (0, "new\n")
    assert f"on {redis_url}, which has 0 of the jobs that work" in first[2]
    second = command("submit", flow, on=(redis_url, other_url))

    assert jobs_on(redis_url) == ["a", "b", "new"]
    assert jobs_on(other_url) == ["c", second[1].strip()]  # as many work on both, and here are fewer in all


def test_an_id_that_is_taken_on_any_server_is_refused(
    redis_url: str, other_url: str, command: Command, flow: str
) -> None:
    make(other_url, "taken")

    code, _, errors = command("submit", flow, "--job-id", "taken", on=(redis_url, other_url))

    assert (code, "exists already" in errors, jobs_on(redis_url)) == (Exit.USAGE, True, [])


def test_while_a_server_is_away_only_jobs_with_new_ids_are_submitted(
    redis_url: str, command: Command, flow: str
) -> None:
    code, _, errors = command("submit", flow, "--job-id", "mine", on=(redis_url, AWAY))
    assert (code, "job 'mine' is not on" in errors, "secret" in errors) == (Exit.ENVIRONMENT, True, False)
    assert jobs_on(redis_url) == []

    code, out, errors = command("submit", flow, on=(AWAY, redis_url))
    assert (code, jobs_on(redis_url)) == (0, [out.strip()])
    assert "cannot be asked" in errors
    assert command("submit", flow, on=(AWAY, "redis://127.0.0.1:2/0"))[0] == Exit.ENVIRONMENT


def test_what_is_no_address_is_refused_among_others_too(redis_url: str, command: Command) -> None:
    code, _, errors = command("list", on=(redis_url, "http://h"))

    assert (code, "not a Redis address: 'http://h'" in errors) == (Exit.ENVIRONMENT, True)


def test_what_serves_one_redis_refuses_several(redis_url: str, other_url: str, command: Command) -> None:
    assert "this command is for one Redis" in command("ping", on=(redis_url, other_url))[2]
    several = f"{redis_url} {other_url}"
    environment = {"CELERIAC_REDIS": several, "CELERIAC_JOB": "j", "CELERIAC_PIPELINE": "f.py", "CELERIAC_WORKER": "w"}

    with pytest.raises(EnvironmentFault, match="several Redis servers"):
        read_environment(environment)
    with pytest.raises(EnvironmentFault, match="several Redis servers"):
        MemberSettings.from_environment(environment)
    with pytest.raises(UnsuitableServer, match="several Redis servers"):
        connect(f"{AWAY} {redis_url}")
