"""The compose files and the Dockerfile, as text: what they say is allowed, complete, and keeps our promises."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.compose.composition import BASE, FOLDER, SPARK, Service, interpolated, read, services

ROOT = FOLDER.parent
SET = {"CELERIAC_FLOWER_AUTH": "me:secret"}
ALL = [*services(SET).values(), *(each for each in services(SET, with_spark=True).values() if "spark" in each.name)]
OURS = [service for service in ALL if service.name != "redis"]


def by_name(service: Service) -> str:
    return service.name


def test_the_services_are_those_that_are_promised() -> None:
    assert set(services(SET)) == {"redis", "leader-1", "leader-2", "worker", "flower", "job"}
    assert set(services(SET, with_spark=True)) - set(services(SET)) == {"spark-master", "spark-worker"}


@pytest.mark.parametrize("change", [{"comand": ["x"]}, {"healthcheck": {"interval": "ten"}}, {"ports": ["a:b"]}])
def test_a_file_that_is_not_the_specification_is_noticed(tmp_path: Path, change: dict[str, Any]) -> None:
    data = read(BASE, SET)
    data["services"]["flower"].update(change)
    broken = tmp_path / "broken.yml"
    broken.write_text(yaml.safe_dump(data).replace("$", "$$"))

    with pytest.raises(ValueError, match=r"services\.flower"):
        read(broken, SET)


def test_flower_does_not_start_without_a_password() -> None:
    with pytest.raises(ValueError, match="CELERIAC_FLOWER_AUTH: set it to user:password"):
        services({})


def test_no_file_holds_a_secret() -> None:
    for path in (BASE, SPARK, FOLDER / "Dockerfile"):
        text = path.read_text()
        assert not re.search(r"(?i)password\s*[:=]\s*\S|://[^/\s}]*:[^/\s}]*@|requirepass", text), path
        assert "me:secret" not in text


def test_no_secret_stands_in_a_command_or_a_health_check() -> None:
    secret = {"CELERIAC_FLOWER_AUTH": "me:hush", "CELERIAC_REDIS": "redis://:hush@host/0"}

    for service in services(secret, with_spark=True).values():
        assert "hush" not in " ".join(service.command)
        assert "hush" not in " ".join(service.facts.get("healthcheck", {}).get("test", []))


@pytest.mark.parametrize("service", ALL, ids=by_name)
def test_every_service_runs_with_few_rights(service: Service) -> None:
    facts = service.facts

    assert str(facts["user"]).partition(":")[0] not in ("", "0", "root")
    assert facts["cap_drop"] == ["ALL"]
    assert facts["security_opt"] == ["no-new-privileges:true"]
    assert facts["read_only"] is True
    assert "privileged" not in facts


@pytest.mark.parametrize("service", [each for each in ALL if each.name != "job"], ids=by_name)
def test_every_service_that_lasts_is_restarted_and_has_a_health_check(service: Service) -> None:
    check = service.facts["healthcheck"]

    assert service.facts["restart"] == "unless-stopped"
    assert {"test", "interval", "timeout", "retries", "start_period"} <= set(check)
    assert check["test"][0] in ("CMD", "CMD-SHELL")


def test_only_flower_has_a_port_and_only_on_this_machine() -> None:
    ports = {service.name: service.facts["ports"] for service in ALL if "ports" in service.facts}

    assert ports == {"flower": ["127.0.0.1:5555:5555"]}
    assert read(BASE, SET)["networks"]["inside"] == {"internal": True}
    assert {service.name for service in ALL if "outside" in service.facts["networks"]} == {"flower"}


@pytest.mark.parametrize("with_spark", [False, True])
def test_what_a_service_waits_for_exists_and_has_a_health_check(with_spark: bool) -> None:
    found = services(SET, with_spark=with_spark)

    for service in found.values():
        for name, how in service.facts.get("depends_on", {}).items():
            assert how == {"condition": "service_healthy"}
            assert "healthcheck" in found[name].facts
    declared = set(read(BASE, SET)["volumes"])
    named = {volume.partition(":")[0] for each in found.values() for volume in each.facts.get("volumes", [])}
    assert {name for name in named if not name.startswith((".", "/"))} == declared


def test_all_processes_of_a_job_see_the_same_folder() -> None:
    found = services(SET, with_spark=True)
    folders = {
        name: (service.facts.get("working_dir"), service.facts.get("volumes"))
        for name, service in found.items()
        if name in ("worker", "job", "spark-master", "spark-worker")
    }

    assert len(folders) == 4
    assert all(each == ("/work", ["./work:/work"]) for each in folders.values())


def test_every_image_of_ours_is_built_from_the_dockerfile() -> None:
    for service in OURS:
        build = service.facts["build"]
        assert (FOLDER / build["context"] / build["dockerfile"]).resolve() == (FOLDER / "Dockerfile").resolve()
        assert "celeriac" in service.facts["image"]
    spark = [service for service in OURS if "spark" in service.facts["image"]]
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    assert {service.facts["build"]["args"]["EXTRAS"] for service in spark} == {"flower,spark"}
    assert {"flower", "spark"} <= set(extras)


def test_the_variables_are_in_the_docs_and_no_others() -> None:
    used = set(re.findall(r"\$\{([A-Z_]+)", BASE.read_text() + SPARK.read_text()))
    table = (ROOT / "docs" / "compose.md").read_text()

    assert set(re.findall(r"^\| `([A-Z_]+)`", table, re.MULTILINE)) == used


def dockerfile() -> list[tuple[str, str]]:
    """(instruction, rest) of each line."""
    lines = (FOLDER / "Dockerfile").read_text().splitlines()
    found = [line.partition(" ") for line in lines if line and not line.startswith("#")]
    return [(instruction, rest) for instruction, _, rest in found]


def test_the_image_is_built_in_two_stages_and_runs_without_root() -> None:
    lines = dockerfile()

    assert [rest.partition(" AS ")[2] for word, rest in lines if word == "FROM"] == ["builder", "runtime"]
    assert {word for word, _ in lines} <= {"FROM", "ARG", "ENV", "RUN", "WORKDIR", "COPY", "USER", "CMD"}
    last = [word for word, _ in lines].index("USER")
    assert lines[last] == ("USER", "1000:1000")
    assert "RUN" not in [word for word, _ in lines[last:]]


def test_all_that_the_package_needs_is_copied_into_the_image() -> None:
    copied = [rest.split()[:-1] for word, rest in dockerfile() if word == "COPY" and "--from" not in rest]
    names = {name for each in copied for name in each}
    sent = {line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")}
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    packages = {pattern.rstrip("*") for pattern in project["tool"]["setuptools"]["packages"]["find"]["include"]}
    files = {project["project"]["readme"], *project["project"]["license-files"], "pyproject.toml", "constraints.txt"}

    assert names == sent == packages | files
    assert all((ROOT / name).exists() for name in names)


def test_variables_are_filled_in_as_the_engine_does() -> None:
    assert interpolated("${A} ${B:-two} ${C:-} $$D", {"A": "one"}) == "one two  $D"
