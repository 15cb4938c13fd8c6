"""What the pages say of settings, variables, defaults and messages is what the program has."""

from __future__ import annotations

import inspect
import re
from importlib import import_module
from typing import Any

import pytest

from tests.docs.messages import is_made_of, templates
from tests.docs.pages import DOCS, ROOT
from tests.docs.tables import PAGE, filled, shown

VARIABLE = re.compile(r"\bCELERIAC_[A-Z_]+\b")


def test_the_tables_of_options_and_limits_are_those_of_the_program() -> None:
    text = PAGE.read_text()

    assert text == filled(text), "docs/configuration.md is out of date: run `python -m tests.docs.tables`"


def test_each_variable_of_the_program_is_in_the_page_and_the_page_has_no_other() -> None:
    files = [path for package in ("pipeline", "stages", "leader") for path in (ROOT / package).rglob("*.py")]

    assert set(VARIABLE.findall(PAGE.read_text())) == {
        name for file in files for name in VARIABLE.findall(file.read_text())
    }


def defaults_in_the_page() -> dict[str, dict[str, str]]:
    found = {}
    for target, table in re.findall(r"^<!-- defaults of: (\S+) -->\n\n((?:\|.*\n)+)", PAGE.read_text(), re.M):
        rows = [[cell.strip() for cell in line.strip("|\n ").split("|")] for line in table.splitlines()[2:]]
        found[target] = {row[0].strip("`"): row[1] for row in rows}
    return found


@pytest.mark.parametrize("target", sorted(defaults_in_the_page()))
def test_each_argument_stands_with_its_default(target: str) -> None:
    module, _, name = target.partition(":")
    function: Any = import_module(module)
    for part in name.split("."):
        function = getattr(function, part)

    assert defaults_in_the_page()[target] == {
        argument: stated(defaults_in_the_page()[target].get(argument, ""), parameter)
        for argument, parameter in inspect.signature(function).parameters.items()
        if argument != "self"
    }


def stated(said: str, parameter: inspect.Parameter) -> str:
    """The default as the page has to say it. None may be explained in words."""
    match parameter.default:
        case inspect.Parameter.empty:
            return ""
        case None:
            return said or "none"
        case (number,):
            return str(number)
        case bool() | str() as value:
            return str(value)
        case value:
            return shown(value, parameter.name)


def quoted_messages() -> list[str]:
    page = (DOCS / "troubleshooting.md").read_text()
    first_cells = re.findall(r"^\| (`.*?) \|", page, re.M)
    return [message for cell in first_cells for message in re.findall(r"`([^`]+)`", cell)]


def test_each_message_that_troubleshooting_explains_is_one_of_the_program() -> None:
    messages, known = quoted_messages(), templates()

    unknown = [message for message in messages if not any(is_made_of(message, text) for text in known)]
    assert len(messages) > 80
    assert unknown == []


@pytest.mark.parametrize(
    ("message", "template", "expected"),
    [
        ("there is no job …", "there is no job …", True),
        ("the job … failed: …", "the job … failed: …", True),
        ("no job is there", "there is no job …", False),
        ("a … b and more", "a … b", False),
        ("…", "there is no job …", False),
    ],
)
def test_a_message_belongs_to_a_text_that_has_its_words_in_order(message: str, template: str, expected: bool) -> None:
    assert is_made_of(message, template) == expected
