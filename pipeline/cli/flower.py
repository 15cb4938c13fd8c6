"""`celeriac flower`: jobs in the browser."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

import click

from pipeline.cli.options import DEBUG, SERVER

FLOWER_VARIABLE: Final = "CELERIAC_FLOWER_AUTH"


@click.command()
@SERVER
@click.option(
    "--address", default="127.0.0.1", show_default=True, help="Listen here. Others than loopback need a password."
)
@click.option("--port", type=click.IntRange(0, 65535), default=5555, show_default=True, help="0 takes a free one.")
@click.option("--basic-auth-file", type=click.Path(path_type=Path), help="A file of user:password lines.")
@click.option("--events", is_flag=True, help="Have workers tell of each ticket, for the Tasks page.")
@DEBUG
def flower(redis_url: str, address: str, port: int, basic_auth_file: Path | None, events: bool) -> None:
    """Show jobs in the browser: Flower with a page for pipelines. Nothing can be changed there.

    The variable CELERIAC_FLOWER_AUTH may hold the user:password lines instead of a file.
    """
    # Not at the top: it needs an extra.
    from pipeline.flower.access import Access, read_credentials
    from pipeline.flower.server import FlowerOptions, serve

    credentials = read_credentials(basic_auth_file, os.environ.get(FLOWER_VARIABLE, ""))
    serve(redis_url, FlowerOptions(Access(address, port, credentials), events), click.echo)
