"""The tables of docs/configuration.md that are made from the program. `python -m tests.docs.tables` writes them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, Final

import click

from pipeline.cli.commands import celeriac
from pipeline.settings import Limits
from tests.docs.pages import DOCS

PAGE: Final = DOCS / "configuration.md"

_TABLE = re.compile(r"(<!-- table: (\w+) -->\n).*?(<!-- end of table -->)", re.S)
_FIELD = re.compile(r"^((?:\w+, )*\w+): (.*?)(?=^(?:\w+, )*\w+: |\Z)", re.M | re.S)
_DEFAULTS: Final = {
    ("run", "redis_urls"): "`CELERIAC_REDIS`, else one of its own",
    ("run", "workers"): "the number of cores",
    ("run", "partitions"): "2 for each worker",
    ("run", "job_id"): "the pipeline's name, the time and four letters",
    ("run", "reader"): "what each source says",
    ("run", "scale"): "the number stays",
    ("run", "pools"): "1 worker for each",
    ("autoscale", "pool"): "`main`",
    ("worker", "pool"): "`CELERIAC_POOL`, else `main`",
    ("run", "policy"): "`ds2`",
    ("run", "catch_up_seconds"): "60 s",
    ("run", "cooldown_seconds"): "30 s",
    ("autoscale", "scale"): "the job's own; 1..partitions for a fixed number",
    ("autoscale", "policy"): "`ds2`",
    ("autoscale", "catch_up_seconds"): "60 s",
    ("autoscale", "cooldown_seconds"): "30 s",
    ("produce", "source"): "the only one",
}
"""What the command chooses by itself where an option has no default of its own."""


def shown(value: Any, name: str) -> str:
    """A default with its unit, which is the end of its name."""
    if value is None:
        return "none"
    if name.endswith("_bytes"):
        unit, size = next(
            (unit, size) for unit, size in (("MiB", 1 << 20), ("KiB", 1 << 10), ("B", 1)) if value >= size
        )
        return f"{value / size:g} {unit}"
    number = f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else f"{value:,g}"
    return f"{number} s" if name.endswith("_seconds") else number


def limits() -> str:
    """A row for each limit, with the meaning that its class gives it."""
    meanings = {}
    for names, text in _FIELD.findall(re.sub(r"^    ", "", str(Limits.__doc__), flags=re.M)):
        for name in names.split(", "):
            meanings[name] = " ".join(text.split()).rstrip(".")
    rows = [
        f"| `{name}` | {shown(getattr(Limits(), name), name)} | {meanings[name]} |" for name in Limits.__struct_fields__
    ]
    return "\n".join(["| limit | default | meaning |", "|---|---|---|", *rows])


def commands() -> str:
    """A section for each command, with a row for each of its options."""
    return "\n\n".join(_section(path, command) for path, command in leaves("celeriac", celeriac))


def leaves(path: str, command: click.Command) -> Iterator[tuple[str, click.Command]]:
    """All commands that do something, with their whole names."""
    if isinstance(command, click.Group):
        for name in command.commands:
            yield from leaves(f"{path} {name}", command.commands[name])
    else:
        yield path, command


def options(command: click.Command) -> list[click.Option]:
    """Its options but `--debug`, which all have."""
    return [each for each in command.params if isinstance(each, click.Option) and "--debug" not in each.opts]


def _section(path: str, command: click.Command) -> str:
    arguments = [
        each.make_metavar(click.Context(command)) for each in command.params if isinstance(each, click.Argument)
    ]
    title = " ".join([path, *arguments])
    lines = [f"### `{title}`", "", command.get_short_help_str(200), ""]
    rows = [_row(path.rpartition(" ")[2], each) for each in options(command)]
    return "\n".join([*lines, "| option | default | meaning |", "|---|---|---|", *rows])


def _row(command: str, option: click.Option) -> str:
    meaning = re.sub(r" Default: [^.]*\.| \(the default\)", "", option.help or "")
    if isinstance(option.type, click.IntRange | click.FloatRange):
        meaning += (
            f" {option.type.min:,} to {option.type.max:,}." if option.type.max else f" At least {option.type.min:,}."
        )
    return f"| `{_usage(option)}` | {_default(command, option)} | {meaning} |"


def _usage(option: click.Option) -> str:
    if option.is_flag:
        return option.opts[-1]
    choices = " or ".join(option.type.choices) if isinstance(option.type, click.Choice) else ""
    return f"{option.opts[-1]} {choices or option.metavar or option.type.name.upper().split()[0]}"


def _default(command: str, option: click.Option) -> str:
    said = re.search(r"(\S+) \(the default\)", option.help or "")
    chosen = said[1] if said else _DEFAULTS.get((command, str(option.name)), "")
    if chosen or option.is_flag:
        return chosen
    if option.required:
        return f"`{option.envvar}`" if option.envvar else "needed"
    default = option.to_info_dict()["default"]
    return "none" if default is None else f"{default:g}" if isinstance(default, float) else str(default)


def filled(text: str) -> str:
    """The page with its tables as the program is now."""
    made = {"limits": limits, "commands": commands}
    return _TABLE.sub(lambda match: f"{match[1]}\n{made[match[2]]()}\n\n{match[3]}", text)


if __name__ == "__main__":
    PAGE.write_text(filled(PAGE.read_text()))
