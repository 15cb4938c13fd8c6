"""Reads our compose files as the engine does, as far as they use it: variables, merge keys, one file over another."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import yaml
from compose_spec import PyCompose

FOLDER: Final = Path(__file__).parents[2] / "compose"
BASE: Final = FOLDER / "docker-compose.yml"
SPARK: Final = FOLDER / "docker-compose.spark.yml"

_VARIABLE = re.compile(r"\$(?:(\$)|\{([A-Z_]+)(?:(:[-?])([^}]*))?\})")


def interpolated(text: str, variables: Mapping[str, str]) -> str:
    """`${NAME}`, `${NAME:-default}`, `${NAME:?message}` and `$$`. Raises ValueError for a message, or a bare `$`."""

    def value(match: re.Match[str]) -> str:
        escape, name, kind, rest = match.groups()
        if escape:
            return "$"
        found = variables.get(name, "")
        if not found and kind == ":?":
            raise ValueError(f"{name}: {rest}")
        return found or (rest if kind == ":-" else "")

    assert "$" not in _VARIABLE.sub("", text), "a dollar that is no variable"
    return _VARIABLE.sub(value, text)


def read(path: Path, variables: Mapping[str, str]) -> dict[str, Any]:
    """One file as the engine sees it. Raises ValueError where it is not what the compose specification says."""
    data = yaml.safe_load(interpolated(path.read_text(encoding="utf-8"), variables))
    PyCompose.from_yaml(yaml.safe_dump(data))
    return dict(data)


def merged(base: dict[str, Any], over: dict[str, Any]) -> dict[str, Any]:
    """The overlay's rules for what ours use: mappings are merged, a sequence that both have may not occur."""
    result = dict(base)
    for key, value in over.items():
        known = result.get(key)
        if isinstance(known, dict) and isinstance(value, dict):
            result[key] = merged(known, value)
        else:
            assert not (isinstance(known, list) and known != value), f"both files have the sequence {key}"
            result[key] = value
    return result


@dataclass(frozen=True)
class Service:
    """One service with what a process needs of it."""

    name: str
    facts: dict[str, Any]

    @property
    def command(self) -> list[str]:
        return [str(word) for word in self.facts["command"]]

    @property
    def environment(self) -> dict[str, str]:
        return {key: str(value) for key, value in self.facts.get("environment", {}).items()}

    @property
    def health(self) -> list[str]:
        """The health check as a command."""
        kind, *words = self.facts["healthcheck"]["test"]
        return [str(word) for word in words] if kind == "CMD" else ["sh", "-c", *words]


def services(variables: Mapping[str, str], *, with_spark: bool = False) -> dict[str, Service]:
    """Every service of the files by its name."""
    data = read(BASE, variables)
    if with_spark:
        data = merged(data, read(SPARK, variables))
    PyCompose.from_yaml(yaml.safe_dump(data)).validate()
    return {name: Service(name, facts) for name, facts in data["services"].items()}
