"""Commands that have commands."""

from __future__ import annotations

from typing import Final

import click

_ANY_LENGTH: Final = 1_000


class Group(click.Group):
    """Its help has the first sentence of each command whole, on as many lines as it takes; Click would cut it."""

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        commands = {name: self.get_command(ctx, name) for name in self.list_commands(ctx)}
        shown = {name: command for name, command in commands.items() if command is not None and not command.hidden}
        with formatter.section("Commands"):
            formatter.write_dl([(name, command.get_short_help_str(_ANY_LENGTH)) for name, command in shown.items()])
