"""Several addresses of one Redis: how they are told apart, in which order a process tries them, what is shown."""

from __future__ import annotations

from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from leader.main import read_environment
from pipeline.cli.options import PREFER_NETWORK, SERVER
from pipeline.errors import PipelineError
from pipeline.redis_addresses import NETWORK_VARIABLE, database, in_order, parse_networks, split_addresses
from pipeline.store.connection import without_password
from stages.member import MemberSettings

HOSTS = {"near": ["10.1.2.3"], "far": ["192.0.2.7"], "both": ["192.0.2.8", "10.9.9.9"], "v6": ["fd00::5"]}
NEAR, FAR, SOCKET = "redis://near:6379/0", "redis://far:6379/0", "unix:///run/redis.sock"


def ordered(text: str, networks: str = "", *, here: bool = True) -> str:
    return in_order(text, parse_networks(networks), lambda host: HOSTS.get(host, []), lambda _path: here)


def test_a_comma_between_addresses_parts_them_and_one_in_a_password_does_not() -> None:
    assert split_addresses(f"redis://u:a,b@h:1/0,{SOCKET},rediss://k") == ["redis://u:a,b@h:1/0", SOCKET, "rediss://k"]
    assert split_addresses("redis://h") == ["redis://h"]


@pytest.mark.parametrize(
    ("text", "networks", "found"),
    [
        (f"{FAR},{NEAR}", "", f"{FAR},{NEAR}"),
        (f"{FAR},{NEAR}", "10.0.0.0/8", f"{NEAR},{FAR}"),
        (f"{FAR},redis://both", "172.16.0.0/12, 10.0.0.0/8", f"redis://both,{FAR}"),
        (f"{FAR},redis://v6", "fd00::/8", f"redis://v6,{FAR}"),
        (f"{FAR},{NEAR},{SOCKET}", "10.0.0.0/8", f"{SOCKET},{NEAR},{FAR}"),
        ("redis://unknown,redis://near", "10.0.0.0/8", "redis://near,redis://unknown"),
    ],
)
def test_sockets_of_this_host_come_first_then_the_preferred_network_then_the_order_as_given(
    text: str, networks: str, found: str
) -> None:
    assert ordered(text, networks) == found


def test_a_socket_that_is_not_on_this_host_comes_last() -> None:
    assert ordered(f"{SOCKET},{FAR},{NEAR}", here=False) == f"{FAR},{NEAR},{SOCKET}"


def test_one_address_is_not_looked_up() -> None:
    def resolve(host: str) -> list[str]:
        raise AssertionError(host)

    assert in_order(NEAR, parse_networks("10.0.0.0/8"), resolve) == NEAR


def test_what_is_no_network_is_refused_with_an_example() -> None:
    with pytest.raises(PipelineError, match=r"'10\.0\.0\.1/8' is no network") as caught:
        parse_networks("10.0.0.1/8")

    assert "10.0.0.0/8" in caught.value.hint


def test_the_database_of_an_address_is_its_path_or_its_option() -> None:
    texts = ("redis://h", "redis://h/3", "redis://h?db=4", "unix:///a/9", "unix:///a?db=2")

    assert [database(text) for text in texts] == [0, 3, 4, 0, 2]


def test_no_password_of_any_address_is_shown() -> None:
    assert without_password("redis://u:secret@h/0,unix:///s?password=other") == (
        "redis://u:***@h/0,unix:///s?password=***"
    )


@click.command()
@SERVER
@PREFER_NETWORK
def show(redis_url: str) -> None:
    click.echo(redis_url)


def test_a_command_gets_the_addresses_in_the_order_to_try(monkeypatch: pytest.MonkeyPatch) -> None:
    both = "redis://192.0.2.1:6379/0,redis://10.0.0.1:6379/0"
    turned = "redis://10.0.0.1:6379/0,redis://192.0.2.1:6379/0"
    monkeypatch.delenv(NETWORK_VARIABLE, raising=False)
    run = CliRunner()

    assert run.invoke(show, ["--redis", both]).output.strip() == both
    assert run.invoke(show, ["--redis", both, "--prefer-network", "10.0.0.0/8"]).output.strip() == turned
    assert run.invoke(show, [], env={"CELERIAC_REDIS": both, NETWORK_VARIABLE: "10.0.0.0/8"}).output.strip() == turned
    assert "no network" in run.invoke(show, ["--redis", both, "--prefer-network", "x"]).output


def test_leaders_and_members_order_their_addresses_too() -> None:
    environment = {
        "CELERIAC_REDIS": "redis://192.0.2.1,redis://10.0.0.1",
        NETWORK_VARIABLE: "10.0.0.0/8",
        "CELERIAC_JOB": "j",
        "CELERIAC_PIPELINE": "flow.py",
        "CELERIAC_LEADER": "l",
        "CELERIAC_WORKER": "w",
    }

    assert read_environment(environment) == ("redis://10.0.0.1,redis://192.0.2.1", "l")
    assert MemberSettings.from_environment(environment).redis_url == "redis://10.0.0.1,redis://192.0.2.1"


def test_a_socket_of_this_host_is_looked_for(tmp_path: Path) -> None:
    (tmp_path / "here").touch()

    assert in_order(f"redis://127.0.0.1,unix://{tmp_path}/here") == f"unix://{tmp_path}/here,redis://127.0.0.1"
    assert in_order(f"unix://{tmp_path}/gone,redis://127.0.0.1") == f"redis://127.0.0.1,unix://{tmp_path}/gone"
