"""`celeriac node` and `celeriac moves` on a job whose workers are stepped by hand."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest

from pipeline import Pipeline, read, write
from pipeline.cli.joining import chosen_name
from pipeline.cli.main import run_command
from pipeline.cli.nodecommands import mark_drained, until_empty
from pipeline.errors import JobStateError
from pipeline.facts import JobFacts
from pipeline.nodes import free_name
from tests.runtime.harness import LocalJob, oracle_of
from tests.runtime.test_moves import PATIENT, Led, led, send


@pytest.fixture
def site(redis_url: str) -> Iterator[Led]:
    with led(redis_url, partitions=2) as site:
        yield site


@pytest.fixture
def run(site: Led, capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, str, str]]:
    def call(*arguments: str) -> tuple[int, str, str]:
        code = run_command([*arguments, "--redis", site.job.url])
        out, errors = capsys.readouterr()
        return code, out, errors

    return call


def facts(site: Led) -> JobFacts:
    return site.job.jobs.facts(site.job.job)


def test_nodes_are_listed_with_what_they_own(site: Led, run: Callable[..., Any]) -> None:
    for name, node in (("w0", "here"), ("w1", "here"), ("w2", "there")):
        site.join(name, node=node)
    site.turn()
    site.moving.drain("gone")

    code, out, _ = run("node", "list", "j", "--json")

    rows = {row["name"]: row for row in json.loads(out)}
    assert code == 0
    assert {name: (row["workers"], row["live"], row["partitions"], row["state"]) for name, row in rows.items()} == {
        "here": (2, 2, 4, "working"),
        "there": (1, 1, 2, "working"),
        "gone": (0, 0, 0, "drained"),
    }
    assert [line.split() for line in run("node", "list", "j")[1].splitlines()][1:] == [
        ["gone", "0/0", "0", "0%", "drained"],
        ["here", "2/2", "4", "0%", "working"],
        ["there", "1/1", "2", "0%", "working"],
    ]
    assert "nodes     gone (drained, 0 partitions), here (working" in run("status", "j")[1]


def test_a_drain_that_is_not_over_in_time_names_what_is_left_and_goes_on(site: Led, run: Callable[..., Any]) -> None:
    site.join("w0", node="here")
    site.join("w1", node="there")
    site.turn()
    left = [part.name for part in site.parts() if part.owner == "w1"]

    code, _, errors = run("node", "drain", "j", "there", "--wait", "0")

    assert code == 1
    assert f"it still owns {', '.join(left)}" in errors
    site.turns(lambda: not site.owned("w1") and site.settled())
    code, out, _ = run("node", "drain", "j", "there")
    assert (code, out) == (0, "node there of job j owns nothing\n")
    assert run("node", "undrain", "j", "there")[1] == "node there of job j is not drained\n"
    assert run("node", "undrain", "j", "there")[1] == "node there of job j is not drained, and was not\n"


def test_the_last_node_that_may_have_work_is_not_drained(site: Led, run: Callable[..., Any]) -> None:
    site.join("w0", node="here")
    site.join("w1", node="there")
    site.turn()
    site.moving.drain("there")

    code, _, errors = run("node", "drain", "j", "here")

    assert code == 2
    assert "node 'here' is the last one of job 'j' that may have work" in errors
    assert facts(site).drained == {"there"}


def test_of_two_drains_at_once_none_leaves_the_job_without_a_node(site: Led) -> None:
    site.join("w0", node="here")
    site.join("w1", node="there")
    seen = facts(site)

    def look() -> JobFacts:
        """At first as it was before the other drain."""
        looks.append(1)
        return seen if len(looks) == 1 else facts(site)

    looks: list[int] = []
    site.moving.drain("there")

    with pytest.raises(JobStateError, match="last one"):
        mark_drained(look, site.moving, "here", stops=False)

    assert facts(site).drained == {"there"}


def test_an_unknown_node_is_refused_with_the_nearest_name(site: Led, run: Callable[..., Any]) -> None:
    site.join("w0", node="here")

    code, _, errors = run("node", "drain", "j", "her")

    assert code == 2
    assert "has no node 'her'" in errors
    assert "here" in errors


def test_waiting_for_a_drain_tells_how_far_it_is(site: Led) -> None:
    site.join("w0", node="here")
    site.join("w1", node="there")
    site.turn()
    site.moving.drain("there")
    told: list[str] = []

    left = until_empty(lambda: facts(site), "there", 60.0, told.append, sleep=lambda _: site.turn())

    assert left == []
    assert told[0] == "node there: 3 partitions left"
    site.finish(0)


def test_what_a_worker_had_before_it_died_is_still_owned_when_it_is_back(site: Led, run: Callable[..., Any]) -> None:
    site.join("w0", node="here")
    site.join("w1", node="there")
    site.turn()
    left = [part.name for part in site.parts() if part.owner == "w1"]
    site.moving.drain("there")
    del site.job.workers["w1"]
    site.join("w1", "2-b", node="there")

    code, _, errors = run("node", "drain", "j", "there", "--wait", "0")

    assert code == 1
    assert left
    assert f"it still owns {', '.join(left)}" in errors


def test_moves_are_shown_with_their_pauses(site: Led, run: Callable[..., Any]) -> None:
    site.join("w0", node="here")
    site.turn()
    assert run("moves", "j")[1:] == ("", "no partition has moved\n")
    site.join("w1", node="there")
    site.turns(lambda: site.settled() and site.owned("w1") == 3)
    site.turn()

    code, out, _ = run("moves", "j")
    rows = json.loads(run("moves", "j", "--json", "--last", "2")[1])

    assert code == 0
    assert out.startswith("3 moves, 0 of them forced; pauses: median ")
    assert out.count("w0    w1  ") == 3
    assert [(row["before"], row["owner"], row["how"], row["why"]) for row in rows] == [
        ("w0", "w1", "collected", "levelling")
    ] * 2
    assert "moves     3 moves, 0 of them forced" in run("status", "j")[1]
    assert run("moves", "nope")[0] == 2


def test_a_name_that_is_in_use_is_waited_for_and_then_refused(site: Led) -> None:
    site.join("w0", node="here")
    now = [0.0]

    def later(seconds: float) -> None:
        now[0] += seconds * 100

    with pytest.raises(JobStateError, match="has a node 'here' already"):
        chosen_name(lambda: facts(site), "here", lambda: now[0], later)

    def silent() -> JobFacts:
        seen = facts(site)
        return replace(seen, workers=tuple(replace(each, age_seconds=now[0]) for each in seen.workers))

    now[0] = 0.0
    assert chosen_name(silent, "here", lambda: now[0], later) == "here"
    assert chosen_name(lambda: facts(site), "else") == "else"


@pytest.mark.parametrize(
    ("host", "found"), [("here", "here-2"), ("there", "there"), ("a b/c", "a-b-c"), ("..", "node")]
)
def test_a_node_is_called_after_its_host_and_a_second_one_has_a_number(site: Led, host: str, found: str) -> None:
    site.join("w0", node="here")

    assert free_name(facts(site), host) == found


def test_the_last_node_of_a_pool_is_not_drained_and_status_says_what_a_pool_waits_for(
    redis_url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with LocalJob(redis_url, in_two_pools(), partitions=2, limits=PATIENT) as job:
        site = Led(job)
        site.join("w0", node="here")
        site.turn()
        assert {part.stage for part in site.parts() if not part.owner} == {1}
        run_command(["status", "j", "--redis", redis_url])
        assert "stage oracle_key waits for a worker of pool gpu: start one with" in capsys.readouterr().out

        for name, node, pool in (("w1", "there", "main"), ("g0", "there", "gpu")):
            site.join(name, node=node, pool=pool)
        site.turns(site.settled)
        assert {part.owner for part in site.parts() if part.stage == 1} == {"g0"}
        assert run_command(["node", "drain", "j", "there", "--redis", redis_url]) == 2
        assert "node 'there' is the last one of pool gpu of job 'j' that may have work" in capsys.readouterr().err
        assert run_command(["node", "list", "j", "--redis", redis_url]) == 0
        assert capsys.readouterr().out.splitlines()[-1].split()[-2:] == ["gpu", "main"]

        send(site, range(1, 4))
        site.finish(3)


def in_two_pools() -> Pipeline:
    flow = Pipeline("two")
    pairs = flow.source(read.iterable([0]), name="in")
    oracle_of(pairs, pool="gpu").sink(write.stream("out"), name="out")
    return flow
