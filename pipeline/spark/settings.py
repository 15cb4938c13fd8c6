"""What a user sets of Spark's own configuration: `--conf KEY=VALUE`, or lines of a variable. No PySpark here."""

from __future__ import annotations

import os
import re
import string
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Final

from pipeline.errors import PipelineError

SETTINGS_VARIABLE: Final = "CELERIAC_SPARK_CONF"
"""KEY=VALUE lines, for every Spark session that this process and its children make."""

_NAME: Final = re.compile(r"spark\.[A-Za-z0-9_.\-]+")

PINNED: Final = frozenset({"spark.sql.caseSensitive", "spark.sql.session.timeZone"})
"""Results hang on these."""

_PLAIN: Final = frozenset(f"{string.ascii_letters}{string.digits}._-/")

_GIVEN_OTHERWISE: Final = {"spark.master": "--master", "spark.remote": "--remote"}


def parse(lines: Iterable[str]) -> dict[str, str]:
    """KEY=VALUE each; of a key that comes twice the last one counts. Raises PipelineError, without the value."""
    found = {}
    for line in lines:
        name, is_pair, value = line.strip().partition("=")
        name = name.strip()
        if not is_pair or not _NAME.fullmatch(name):
            raise PipelineError(
                f"{name[:100]!r} is no setting of Spark", hint="give KEY=VALUE, as spark.driver.memory=4g"
            )
        if name in PINNED:
            raise PipelineError(f"{name} cannot be set: results hang on it")
        if name in _GIVEN_OTHERWISE:
            raise PipelineError(f"{name} is given by {_GIVEN_OTHERWISE[name]}")
        found[name] = value.strip()
    return found


def told(environment: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Those of the variable. Raises PipelineError."""
    return parse(line for line in environment.get(SETTINGS_VARIABLE, "").splitlines() if line.strip())


def tell(settings: Mapping[str, str]) -> None:
    """Adds them to those of this process, and of all that it starts. Raises PipelineError."""
    lines = [f"{name}={value}" for name, value in {**told(), **settings}.items()]
    os.environ[SETTINGS_VARIABLE] = "\n".join(lines)


def write_properties(settings: Mapping[str, str], path: Path) -> None:
    """As spark-submit reads them: from a file that nobody else can read, since anybody sees its arguments."""
    lines = [f"{_escaped(name)}={_escaped(value)}\n" for name, value in settings.items()]
    with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w", encoding="ascii") as file:
        file.writelines(lines)


def _escaped(text: str) -> str:
    r"""A Java property: `\`, separators and what is not ASCII are escaped, in UTF-16."""
    units = text.encode("utf-16-be")
    codes = [int.from_bytes(units[at : at + 2], "big") for at in range(0, len(units), 2)]
    return "".join(chr(code) if chr(code) in _PLAIN else f"\\u{code:04x}" for code in codes)
