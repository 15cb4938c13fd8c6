"""The command `celeriac` and where its commands are: each is imported when it is asked for, since all take a second."""

from __future__ import annotations

from collections import UserDict
from collections.abc import Iterator
from importlib import import_module, metadata
from typing import Final

import click

from pipeline.cli.exits import HELP
from pipeline.cli.groups import Group

COMMANDS: Final = {
    "autoscale": "autoscale:autoscale",
    "backfill": "backfilling:backfill",
    "burst": "bursting:burst",
    "cancel": "jobs:cancel",
    "dead-letters": "deadletters:dead_letters",
    "drain": "control:drain",
    "feed": "submitting:feed",
    "flower": "flower:flower",
    "history": "control:history",
    "list": "listing:list_jobs",
    "moves": "nodecommands:moves",
    "node": "nodecommands:node",
    "pause": "control:pause",
    "ping": "health:ping",
    "produce": "produce:produce",
    "promote": "shadowing:promote",
    "readers": "readers:readers",
    "remove": "jobs:remove",
    "rescale": "rescaling:rescale",
    "resume": "suspending:resume",
    "run": "running:run",
    "savepoint": "savepoints:savepoint",
    "shadow": "shadowing:shadow",
    "state": "state:state",
    "status": "jobs:status",
    "submit": "submitting:submit",
    "suspend": "suspending:suspend",
    "tail": "tail:tail",
    "unpause": "control:unpause",
    "upgrade": "upgrading:upgrade",
    "verify": "verifying:verify",
    "worker": "joining:worker",
}
"""Name of a command -> module below `pipeline.cli`, and what it is called there."""


class _Imported(UserDict[str, click.Command]):
    """Name -> command, which is imported when it is looked up."""

    def __getitem__(self, name: str) -> click.Command:
        if name not in self.data:
            module, _, attribute = COMMANDS[name].partition(":")
            self.data[name] = getattr(import_module(f"pipeline.cli.{module}"), attribute)
        return self.data[name]

    def __contains__(self, name: object) -> bool:
        return name in COMMANDS

    def __iter__(self) -> Iterator[str]:
        return iter(COMMANDS)

    def __len__(self) -> int:
        return len(COMMANDS)


def _version(context: click.Context, _parameter: click.Parameter, is_asked: bool) -> None:
    if is_asked:
        try:
            click.echo(f"celeriac {metadata.version('celeriac')}")
        except metadata.PackageNotFoundError:
            click.echo("celeriac, from a checkout that is not installed")
        context.exit()


@click.group(
    cls=Group,
    commands=_Imported(),
    epilog=HELP,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
@click.option("--version", is_flag=True, is_eager=True, expose_value=False, callback=_version, help="Show the version.")
def celeriac() -> None:
    """Exactly-once, keyed, stateful pipelines on Celery and Redis."""
